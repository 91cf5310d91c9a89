"""The tasks by the form of their data."""

from training.tasks.documents import DocumentModel
from training.tasks.language_model import LanguageModel
from training.tasks.masked_lm import MaskedLanguageModel
from training.tasks.task import Pass, Task

TASKS: dict[str, type[Task]] = {
    "rows": MaskedLanguageModel,
    "packed": MaskedLanguageModel,
    "segments": DocumentModel,
    "stream": LanguageModel,
}
"""`data.kind` -> what is trained."""

__all__ = ["TASKS", "Pass", "Task"]
