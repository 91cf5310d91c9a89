"""The tasks by the form of their data."""

from training.objectives.causal_lm import CausalLMObjective
from training.objectives.documents import DocumentObjective
from training.objectives.masked_lm import MaskedLMObjective
from training.objectives.objective import Pass, Task

TASKS: dict[str, type[Task]] = {
    "rows": MaskedLMObjective,
    "packed": MaskedLMObjective,
    "segments": DocumentObjective,
    "stream": CausalLMObjective,
}
"""`data.kind` -> what is trained."""

__all__ = ["TASKS", "Pass", "Task"]
