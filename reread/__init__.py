"""reread: distributed pretraining of encoders that read long documents, Chinese and English.

The names in `__all__` are the library (docs/api.md); a name is imported with what it needs when it is first used.
"""

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from reread.pipeline.library.batches import dataset as dataset
    from reread.pipeline.library.corpora import open_corpus as open_corpus
    from reread.pipeline.library.corpora import preprocess as preprocess
    from reread.pipeline.library.reader import load as load
    from reread.pipeline.library.runs import finetune as finetune
    from reread.pipeline.library.runs import train as train
    from reread.preprocessing.errors import UserError as UserError

try:
    __version__ = version("reread")
except PackageNotFoundError:  # run from its folders, not installed
    __version__ = "0+unknown"

if not Path(__file__).with_name("pipeline").exists():
    __path__.append(str(Path(__file__).resolve().parents[1]))  # where its folders are in a clone

_HOMES = {
    "UserError": "reread.preprocessing.errors",
    "dataset": "reread.pipeline.library.batches",
    "finetune": "reread.pipeline.library.runs",
    "load": "reread.pipeline.library.reader",
    "open_corpus": "reread.pipeline.library.corpora",
    "preprocess": "reread.pipeline.library.corpora",
    "train": "reread.pipeline.library.runs",
}
"""Public name -> the module that has it."""

__all__ = [
    "UserError",
    "__version__",
    "dataset",
    "finetune",
    "load",
    "open_corpus",
    "preprocess",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'reread' has no attribute {name!r}")
    import_module("reread.preprocessing.machine").check_system()
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
