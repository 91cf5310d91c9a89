"""Divides labelled examples into folds for cross-validation, each written as files of the same form."""

import logging
from collections.abc import Collection
from hashlib import md5
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from reread.preprocessing.arrays import only_process
from reread.preprocessing.errors import UserError, writing
from reread.preprocessing.input.streams import split_name
from reread.preprocessing.labelled.columns import NAMES
from reread.preprocessing.labelled.divide import By, read_records, write_parts
from reread.preprocessing.labelled.file import DAMAGE, LabelledFile
from reread.preprocessing.labelled.formats.table import FORMATS, recognise
from reread.preprocessing.labelled.records import Records, records_of

log = logging.getLogger("reread")

_GROUPS = ("group", "question_id")
"""Fields whose examples belong together in our own format."""


class Fold(NamedTuple):
    """A file of examples and one of its folds."""

    path: Path
    kind: str
    format: str | None
    columns: dict[str, str]
    folds: int
    number: int
    """Which fold is the test, from 1."""
    group: str | None = None
    """The field whose values are each in one fold."""
    stratify: bool = True
    """Whether the labels are spread evenly."""
    seed: int = 0


class FoldFiles(NamedTuple):
    train: Path
    dev: Path | None
    test: Path
    is_our_form: bool
    """Whether they are written in our own format, since that of the file cannot be divided."""


def fold_files(fold: Fold, folder: Path, has_dev: bool) -> FoldFiles:
    """Write the training, dev and test examples of a fold below `folder`, unless they are there.

    The test is fold `number`, and dev the one after it, unless `has_dev` says that dev is another file; all others are
    for training. Which fold a record is in depends on the file, `folds`, `group` and `seed` alone: records that are
    equal but for ids and labels, or of one group, are together, and folds are as equal in size, and in labels, as that
    leaves room for. Raises `UserError` for a file without enough records, and for one of a format that reads other
    files beside it.
    """
    source = LabelledFile(fold.path, fold.kind, fold.columns)
    format = fold.format or recognise(source)[0]
    if format in FORMATS and FORMATS[format].beside:
        raise UserError(
            f"finetune.folds: {fold.path}: a file of {format} cannot be divided, since others belong to it; divide it "
            "yourself and give each part by task.train and task.dev"
        )
    least = 2 if has_dev else 3
    if fold.folds < least:
        raise UserError(
            f"finetune.folds: {fold.folds}; a fold is the test, {'' if has_dev else 'another one chooses, '}and the "
            f"others are learned from: give at least {least}{'' if has_dev else ', or task.dev'}"
        )
    try:
        records = records_of(source)
        by = _by(records, fold)
        labels, hashes = read_records(records, by)
    except DAMAGE as error:
        raise source.damaged(error) from None
    part = _parts(fold, labels, hashes)
    depends = repr((md5(hashes.tobytes()).hexdigest(), labels, fold.folds, by, has_dev))
    place = folder / f"{fold.path.stem}-{md5(depends.encode(errors='surrogatepass')).hexdigest()}"
    suffix = Path(split_name(fold.path.name)[0]).suffix if records.suffix is None else records.suffix
    splits = ["train", "test"] if has_dev else ["train", "test", "dev"]
    files = [place / f"fold-{fold.number}-of-{fold.folds}-{split}{suffix}" for split in splits]
    roles = np.where(part == fold.number - 1, splits.index("test"), splits.index("train"))
    if not has_dev:
        roles[part == fold.number % fold.folds] = splits.index("dev")
    with writing(place):
        folder.mkdir(parents=True, exist_ok=True)
        with only_process(place):
            if not place.exists():
                sizes, told = np.bincount(part, minlength=fold.folds), _told(by)
                log.info("%s: %d folds of %d to %d records, %s", fold.path, fold.folds, sizes.min(), sizes.max(), told)
            if not all(file.exists() for file in files):
                write_parts(records, roles, files)
    train, test, *dev = files
    return FoldFiles(train, dev[0] if dev else None, test, records.suffix == ".jsonl")


def _by(records: Records, fold: Fold) -> By:
    """What keeps records together and what is spread evenly."""
    fields: Collection[str] = next((record.fields for record in records.each()), {})
    names = [fold.columns["label"]] if "label" in fold.columns else NAMES["label"]
    label = next((name for name in names if name in fields), None) if fold.stratify else None
    usual = [*_GROUPS, *(["query"] if "passage" in fields else [])]
    group = fold.group or next((name for name in usual if name in fields), None)
    return By(label, group, fold.seed)


def _told(by: By) -> str:
    spread = f"`{by.label}` spread evenly" if by.label else "by a hash of their content"
    return f"{spread}; each `{by.group}` is in one of them" if by.group else spread


def _parts(fold: Fold, labels: list[str], hashes: NDArray[np.uint64]) -> NDArray[np.int64]:
    """The fold, from 0, of each record [n]: what must not be parted is dealt out in the order of label and hash."""
    _, first, unit = np.unique(hashes, return_index=True, return_inverse=True)
    if len(first) < fold.folds:
        what = f"values of `{fold.group}`" if fold.group else "different examples"
        raise UserError(f"finetune.folds: {fold.folds}, but {fold.path} has {len(first):,} {what}; give fewer folds")
    kinds = np.unique(np.array(labels)[first], return_inverse=True)[1].reshape(-1)
    dealt = np.empty(len(first), np.int64)
    dealt[np.lexsort((hashes[first], kinds))] = np.arange(len(first)) % fold.folds
    return dealt[unit.reshape(-1)]
