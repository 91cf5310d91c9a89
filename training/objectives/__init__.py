"""The table of the objectives that a recipe can name."""

from preprocessing.errors import UserError, nearest
from training.config import TrainSettings
from training.data.kinds import KINDS
from training.objectives.answer import AnswerObjective
from training.objectives.causal_lm import CausalLMObjective
from training.objectives.choose import ChooseObjective
from training.objectives.classify import ClassifyObjective
from training.objectives.documents import DocumentObjective
from training.objectives.masked_lm import MaskedLMObjective
from training.objectives.objective import Objective
from training.objectives.tag import TagObjective

OBJECTIVES: dict[str, type[Objective]] = {
    "masked_lm": MaskedLMObjective,
    "documents": DocumentObjective,
    "causal_lm": CausalLMObjective,
    "classify": ClassifyObjective,
    "tag": TagObjective,
    "answer": AnswerObjective,
    "choose": ChooseObjective,
}
"""`train.objective` -> class."""


def objective_of(settings: TrainSettings) -> type[Objective]:
    """The objective that a recipe names, or else the default of its data. Raises `UserError` for an unknown name."""
    name = settings.objective or KINDS[settings.data.kind].objective
    if name not in OBJECTIVES:
        raise UserError(f"train.objective: objective `{name}` is unknown; {nearest(name, OBJECTIVES)}")
    return OBJECTIVES[name]
