"""The examples of a split of a task: read from its file once, whatever asks for them."""

import logging
import sys
from collections.abc import Sequence
from functools import lru_cache
from operator import attrgetter
from pathlib import Path
from typing import Any

from reread.preprocessing.errors import UserError
from reread.preprocessing.labelled.file import STANDARD_INPUT
from reread.preprocessing.labelled.mapped import summary_of, where
from reread.preprocessing.labelled.splits import labels_of, with_labels
from reread.training.data.tasks.kept import read_or_kept
from reread.training.data.tasks.settings import TaskSettings

log = logging.getLogger("reread")


def examples_of(settings: TaskSettings, split: str) -> Sequence[Any]:
    """The examples of a split; none if it has no file.

    - train: the examples of `task.train` that can be learned;
    - predict: all examples of that file, labelled or not;
    - validation: the examples of `task.dev`, all of which are scored, also those with misplaced answers.

    With `task.wrong=skip`, train and validation leave out examples without a label, and those with a label that is not
    in `task.labels` (or, if that is empty, in the training examples).
    """
    path = settings.train if split in ("train", "predict") else settings.dev
    if path is None:
        return []
    # Read the file, once for all settings that read it alike.
    columns, separator = tuple(settings.columns.items()), getattr(settings, "label_separator", None)
    how = {
        "wrong": settings.wrong,
        "misplaced": 1.0 if split == "predict" else getattr(settings, "misplaced", 1.0),
        "irrelevant": getattr(settings, "irrelevant", 1.0) if split == "train" else 1.0,
        "labels": settings.label_form,
        "join": settings.join,
        "label_separator": separator,
        "given": settings.given,
    }
    key = (path, _stamp(path), settings.kind, settings.format, columns, tuple(how.items()))
    if split == "predict":
        return _read(*key)
    # Leave out what has no known label, and of the training examples what cannot be learned.
    known: Sequence[str] | None = None
    if settings.wrong == "skip":
        known = settings.labels
        if not known and settings.has_classes and split != "train":
            known = labels_of(examples_of(settings, "train"))
    least = getattr(settings, "least_score", None)
    return _selected(key, None if known is None else tuple(known), split == "train", least)


@lru_cache(maxsize=8)
def _selected(key: tuple[Any, ...], known: tuple[str, ...] | None, learned: bool, least: float | None) -> Sequence[Any]:
    """The examples of `_read`; if `known` is given, those that are labelled by labels in it; if they are `learned`,
    those that can be, and of pairs with scores those with the `least` one or more."""
    found, path = _read(*key), key[0]
    if known is not None:
        found, left_out = with_labels(found, known)
        if not found:
            raise UserError(f"{left_out[0]}; no example is left in it")
        if left_out:
            log.warning(
                "%s: %d examples are left out for their labels, the first: %s", path, len(left_out), left_out[0]
            )
    if learned and summary_of(found).not_learned:
        found = where(found, attrgetter("can_be_learned"))
        if not found:
            raise UserError(f"{path}: no example has an answer that can be learned; give another file by task.train")
    if learned and least is not None:
        found = where(found, lambda one: one.score is None or one.score >= least)
        if not found:
            raise UserError(f"{path}: no pair has a score of {least:g} or more; lower task.least_score")
    return found


@lru_cache(maxsize=8)
def _read(path: Path, stamp: Any, kind: Any, format: str | None, columns: Any, how: Any) -> Sequence[Any]:
    """Read a file; it is read once, though settings, batches and scores all ask for its examples."""
    return read_or_kept(path, kind, format, {"columns": dict(columns), **dict(how)})


def forget_examples() -> None:
    """Free the examples that were read; files that are asked for again are read again."""
    _read.cache_clear()
    _selected.cache_clear()


def _stamp(path: Path) -> Any:
    """Modification time and size, which show that a file changed."""
    if path == STANDARD_INPUT:
        return sys.stdin
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size
