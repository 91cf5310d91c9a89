"""The table of the kinds of task. Each module has a class of examples and the class of the lines that make them."""

from reread.preprocessing.labelled.line import TaskLine
from reread.preprocessing.labelled.tasks.answer import AnswerLine
from reread.preprocessing.labelled.tasks.choose import ChooseLine
from reread.preprocessing.labelled.tasks.classify import ClassifyLine
from reread.preprocessing.labelled.tasks.coreference import CoreferenceLine
from reread.preprocessing.labelled.tasks.embed import EmbedLine
from reread.preprocessing.labelled.tasks.generate import GenerateLine
from reread.preprocessing.labelled.tasks.phrases import PhrasesLine
from reread.preprocessing.labelled.tasks.rank import RankLine
from reread.preprocessing.labelled.tasks.tag import TagLine

TASKS: dict[str, type[TaskLine]] = {
    "classify": ClassifyLine,
    "tag": TagLine,
    "answer": AnswerLine,
    "choose": ChooseLine,
    "rank": RankLine,
    "phrases": PhrasesLine,
    "coreference": CoreferenceLine,
    "generate": GenerateLine,
    "embed": EmbedLine,
}
"""`task.kind` -> the class of a line of `jsonl`, which makes the example."""
