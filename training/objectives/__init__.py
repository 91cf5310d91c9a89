"""The tasks by the form of their data."""

from training.objectives.causal_lm import LanguageModel
from training.objectives.documents import DocumentModel
from training.objectives.masked_lm import MaskedLanguageModel
from training.objectives.objective import Pass, Task

TASKS: dict[str, type[Task]] = {
    "rows": MaskedLanguageModel,
    "packed": MaskedLanguageModel,
    "segments": DocumentModel,
    "stream": LanguageModel,
}
"""`data.kind` -> what is trained."""

__all__ = ["TASKS", "Pass", "Task"]
