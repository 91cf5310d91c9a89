"""The kinds of task: how the lines of each are read; its class of examples is in the same file."""

from reread.preprocessing.labelled.line import TaskLine
from reread.preprocessing.labelled.tasks.answer import AnswerLine
from reread.preprocessing.labelled.tasks.choose import ChooseLine
from reread.preprocessing.labelled.tasks.classify import ClassifyLine
from reread.preprocessing.labelled.tasks.rank import RankLine
from reread.preprocessing.labelled.tasks.tag import TagLine

TASKS: dict[str, type[TaskLine]] = {
    "classify": ClassifyLine,
    "tag": TagLine,
    "answer": AnswerLine,
    "choose": ChooseLine,
    "rank": RankLine,
}
"""`task.kind` -> the class of a line of `jsonl`, which makes the example."""
