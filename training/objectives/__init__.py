"""The objectives that a recipe can name, a row each."""

from preprocessing.errors import UserError, nearest
from training.config import TrainSettings
from training.data.kinds import KINDS
from training.objectives.causal_lm import CausalLMObjective
from training.objectives.documents import DocumentObjective
from training.objectives.masked_lm import MaskedLMObjective
from training.objectives.objective import Objective

OBJECTIVES: dict[str, type[Objective]] = {
    "masked_lm": MaskedLMObjective,
    "documents": DocumentObjective,
    "causal_lm": CausalLMObjective,
}
"""By `train.objective`."""


def objective_of(settings: TrainSettings) -> type[Objective]:
    """What a recipe trains: what it names, or what its kind of data is for. Raises `UserError` for an unknown name."""
    name = settings.objective or KINDS[settings.data.kind].objective
    if name not in OBJECTIVES:
        raise UserError(f"train.objective: objective `{name}` is unknown; {nearest(name, OBJECTIVES)}")
    return OBJECTIVES[name]
