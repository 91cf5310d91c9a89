"""The table of the objectives that a recipe can name."""

from typing import Any

from reread.preprocessing.errors import UserError, nearest
from reread.training.config import TrainSettings
from reread.training.data.kinds import KINDS
from reread.training.objectives.answer import AnswerObjective
from reread.training.objectives.causal_lm import CausalLMObjective
from reread.training.objectives.choose import ChooseObjective
from reread.training.objectives.classify import ClassifyObjective
from reread.training.objectives.coreference import CoreferenceObjective
from reread.training.objectives.documents import DocumentObjective
from reread.training.objectives.embed import EmbedObjective
from reread.training.objectives.generate import GenerateObjective
from reread.training.objectives.masked_lm import MaskedLMObjective
from reread.training.objectives.objective import Objective
from reread.training.objectives.phrases import PhrasesObjective
from reread.training.objectives.rank import RankObjective
from reread.training.objectives.tag import TagObjective
from reread.training.objectives.task import TaskObjective

OBJECTIVES: dict[str, type[Objective]] = {
    "masked_lm": MaskedLMObjective,
    "documents": DocumentObjective,
    "causal_lm": CausalLMObjective,
    "classify": ClassifyObjective,
    "tag": TagObjective,
    "answer": AnswerObjective,
    "choose": ChooseObjective,
    "rank": RankObjective,
    "phrases": PhrasesObjective,
    "coreference": CoreferenceObjective,
    "generate": GenerateObjective,
    "embed": EmbedObjective,
}
"""`train.objective` -> class."""


def objective_of(settings: TrainSettings) -> type[Objective]:
    """The objective that a recipe names, or else the default of its data. Raises `UserError` for an unknown name."""
    name = settings.objective or KINDS[settings.data.kind].objective
    if name not in OBJECTIVES:
        raise UserError(f"train.objective: objective `{name}` is unknown; {nearest(name, OBJECTIVES)}")
    return OBJECTIVES[name]


def as_task(objective: type[Objective]) -> type[TaskObjective[Any]]:
    """The objective as one that predicts examples. Raises `UserError` if it does not."""
    if not issubclass(objective, TaskObjective):
        raise UserError(f"train.objective: {objective.name} predicts no labels of examples; set it to null")
    return objective
