"""Divides labelled examples into files to train on, to choose by and to test on: `reread split`."""

import json
import logging
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from filecmp import cmp
from hashlib import md5
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from reread.preprocessing.errors import UserError, nearest, writing
from reread.preprocessing.files import move, synced, unfinished
from reread.preprocessing.input.streams import split_name
from reread.preprocessing.labelled.columns import NAMES
from reread.preprocessing.labelled.file import DAMAGE, LabelledFile
from reread.preprocessing.labelled.records import Record, Records, records_of

log = logging.getLogger("reread")
PARTS = ("train", "dev", "test")
_APART = {*NAMES["id"], "_id", "qid", *NAMES["label"]}
"""Fields in which two records of the same content may differ."""


class By(NamedTuple):
    """What decides the part of a record."""

    label: str | None = None
    """The field whose values are spread evenly over the parts."""
    group: str | None = None
    """The field whose values are each in one part; None: the content of a record."""
    seed: int = 0


def divide(path: Path, shares: Sequence[float], by: By, folder: Path | None = None) -> dict[str, Counter[str]]:
    """Write the records of a file to NAME-train, NAME-dev and, of three shares, NAME-test, beside it or in `folder`.

    Returns the count of each label (or of all records, as "") for each file written. Records that are equal but for
    their ids and labels are in one part. Without `by.label` a record's part depends on its content or its group and on
    the seed alone, so it stays the same when the file grows. Raises `UserError` for a file without records or with a
    mistake, for a part without records, and for a file that exists and differs.
    """
    columns = {name: value for name, value in by._asdict().items() if isinstance(value, str)}
    source = LabelledFile(path, "classify", columns)
    try:
        records = records_of(source)
        labels, hashes = read_records(records, by)
        log.info("%s: %s; %s records, %s", path, records.form, f"{len(hashes):,}", _rule(by))
        numbers = {label: number for number, label in enumerate(dict.fromkeys(labels))}
        kinds = np.array([numbers[label] for label in labels]) if by.label else None
        part = parts_of(hashes, kinds, shares)
        counts = [Counter(labels[index] for index in np.flatnonzero(part == number)) for number in range(len(shares))]
        for name, count in zip(PARTS, counts, strict=False):
            if not count:
                raise UserError(f"{path}: no record would be in {name}; of so few a larger share is needed")
        for label in sorted(numbers):
            if missing := [name for name, count in zip(PARTS, counts, strict=False) if not count[label]]:
                log.warning("%s: label `%s` is not in %s: it has too few records", path, label, " and ".join(missing))
        targets = [_target(path, folder or path.parent, name, records.suffix) for name in PARTS[: len(shares)]]
        write_parts(records, part, targets)
    except DAMAGE as error:
        raise source.damaged(error) from None
    return {str(target): count for target, count in zip(targets, counts, strict=True)}


def _target(path: Path, folder: Path, part: str, suffix: str | None) -> Path:
    """`train.tsv.xz` -> `train-dev.tsv`."""
    name = Path(path.resolve().name if path.is_dir() else path.name[: len(split_name(path.name)[0])])
    return folder / f"{name.stem}-{part}{name.suffix if suffix is None else suffix}"


def read_records(records: Records, by: By) -> tuple[list[str], NDArray[np.uint64]]:
    """The label of each record ("" if none is asked for), and the hash of what must not be parted."""
    labels, hashes = list[str](), list[int]()
    for record in records.each():
        labels.append("" if by.label is None else _text(_value(record, by.label)))
        apart = _APART if by.label is None else {*_APART, by.label}
        unit = _value(record, by.group) if by.group else {k: v for k, v in record.fields.items() if k not in apart}
        hashes.append(
            int.from_bytes(md5(f"{by.seed} {_text(unit)}".encode("utf-8", "surrogatepass")).digest()[:8], "big")
        )
    return labels, np.array(hashes, np.uint64)


def _value(record: Record, name: str) -> Any:
    if record.fields.get(name) is None:
        raise UserError(f"{record.location}: no field `{name}`; {nearest(name, record.fields, 'it has')}")
    return record.fields[name]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)


def _rule(by: By) -> str:
    whole = f"each {by.group} in one part" if by.group else "equal ones in one part"
    return f"{whole}, {by.label} spread evenly" if by.label else whole


def parts_of(hashes: NDArray[np.uint64], kinds: NDArray[np.int64] | None, shares: Sequence[float]) -> NDArray[np.int64]:
    """The part, an index of `shares`, of each record [n]; those of one hash are in one part.

    Without `kinds` the hash decides. With them, the hashes of each kind (that of a hash's first record) are put in
    order and cut so that its records are spread by the shares.
    """
    bounds = np.cumsum(shares)[:-1] / sum(shares)
    if kinds is None:
        return np.searchsorted(bounds, hashes / 2.0**64, side="right")
    _, first, unit, sizes = np.unique(hashes, return_index=True, return_inverse=True, return_counts=True)
    part = np.empty(len(first), np.int64)
    for kind in np.unique(kinds[first]):
        mine = np.flatnonzero(kinds[first] == kind)
        middle = np.cumsum(sizes[mine]) - sizes[mine] / 2
        part[mine] = np.searchsorted(bounds * sizes[mine].sum(), middle, side="right")
    return part[unit]


def write_parts(records: Records, part: NDArray[np.int64], targets: Sequence[Path]) -> None:
    """Write each record to the target that `part` [n] says. Raises `UserError` for a target that holds others."""
    hidden = [unfinished(target) for target in targets]
    with writing(targets[0].parent):
        targets[0].parent.mkdir(parents=True, exist_ok=True)
        try:
            _write_open(records, part, hidden)
            for target, new in zip(targets, hidden, strict=True):
                if target.exists() and not cmp(target, new, shallow=False):
                    raise UserError(f"{target}: exists and holds other records; delete it, or give another --out")
            for target, new in zip(targets, hidden, strict=True):
                move(new, target)
        finally:
            for new in hidden:
                new.unlink(missing_ok=True)


def _write_open(records: Records, part: NDArray[np.int64], paths: Sequence[Path]) -> None:
    with ExitStack() as stack:
        files = [stack.enter_context(synced(path)) for path in paths]
        for file in files:
            file.write(records.before)
        begun = set[int]()
        for record, number in zip(records.each(), part.tolist(), strict=True):
            files[number].write((records.between if number in begun else b"") + record.data)
            begun.add(number)
        for file in files:
            file.write(records.after)
