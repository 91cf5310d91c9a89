"""What is read of a large labelled file, kept in mapped arrays: once for the processes of a run and for later starts.

Its name is a hash of all that it depends on, so another file, tokenizer or setting has other arrays. They are beside
the runs, since seeds, evaluations and starts under another name read the same; while no job runs they may be removed.
"""

import logging
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import lru_cache, singledispatch
from hashlib import md5
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reread.preprocessing.arrays import Arrays, ArrayWriter, made_once, spilled
from reread.preprocessing.errors import UserError
from reread.preprocessing.labelled.file import STANDARD_INPUT
from reread.preprocessing.labelled.formats import beir, clue
from reread.preprocessing.labelled.mapped import MappedExamples, write_examples
from reread.preprocessing.labelled.read import read_examples
from reread.training.data.tasks.documents import Documents, TaskDocument, write_documents

log = logging.getLogger("reread")

KEPT = Path("runs/.labelled")
LARGE = 8 << 20
"""Bytes of a file from which it is kept: a smaller one takes a process less memory than its libraries."""
_READ_BY = 2
"""Increment if the same file is read, or tokenised, in another way."""


def read_or_kept(path: Path, kind: str, format: str | None, how: Mapping[str, Any]) -> Any:
    """The examples of a file by `read_examples`; of a large one they are mapped, and read only if none are kept."""
    if not _is_kept(path):
        return read_examples(path, kind, format, **how).examples
    made = False

    def make(writer: ArrayWriter) -> Mapping[str, Any]:
        nonlocal made
        made, before = True, _stamps(path)
        with _Notes() as notes:
            found: Any = read_examples(path, kind, format, keep=lambda one: write_examples(one, writer), **how).examples
        if _stamps(path) != before:
            raise UserError(f"{path}: was changed while it was read; start again")
        return {**found.mapped.facts, "notes": notes}

    arrays = kept("examples", (str(path), _checksums(path, _stamps(path)), kind, format, sorted(how.items())), make)
    for level, line in [] if made else arrays.facts["notes"]:
        log.log(level, "%s", line)
    return MappedExamples(arrays)


@singledispatch
def gathered(examples: Any, parts: Iterable[NDArray[Any]]) -> NDArray[Any]:
    """The values of a long text of `examples`, which come in parts [n]; those of mapped examples in a file."""
    return np.concatenate(list(parts))


@gathered.register
def _(examples: MappedExamples, parts: Iterable[NDArray[Any]]) -> NDArray[Any]:
    return spilled(parts, KEPT)


@singledispatch
def documents_of(examples: Any, encoded: Iterable[TaskDocument], depends: Callable[[], tuple[Any, ...]]) -> Documents:
    """The `encoded` examples in memory; those of mapped examples are kept, by the values that they depend on."""
    return Documents.of(encoded)


@documents_of.register
def _(examples: MappedExamples, encoded: Iterable[TaskDocument], depends: Callable[[], tuple[Any, ...]]) -> Documents:
    def make(writer: ArrayWriter) -> dict[str, Any]:
        write_documents(encoded, writer.append)
        return {}

    return Documents(kept("tokens", depends(), make).arrays)


def kept(name: str, depends: tuple[Any, ...], make: Callable[[ArrayWriter], Mapping[str, Any]]) -> Arrays:
    """The arrays `name` that depend on values, as `made_once` finds or makes them."""
    everything = repr((_READ_BY, _versions(), *depends))
    folder = KEPT / f"{name}-{md5(everything.encode(errors='surrogatepass')).hexdigest()}"

    def make_here(writer: ArrayWriter) -> Mapping[str, Any]:
        facts = make(writer)
        log.info("%s: %s, which other processes and later starts map; it may be removed", folder, name)
        return facts

    return made_once(folder, make_here)


def _versions() -> tuple[str, ...]:
    """Of what reads and tokenises; none of reread where it is run from its folders, not installed."""
    with suppress(PackageNotFoundError):
        return version("tokenizers"), version("reread")
    return (version("tokenizers"),)


def _is_kept(path: Path) -> bool:
    if path == STANDARD_INPUT or sum(size for _, size, _ in _stamps(path)) < LARGE:
        return False
    try:
        KEPT.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason: str | None = error.strerror
    else:
        reason = None if os.access(KEPT, os.W_OK) else "no right to write there"
    if reason:
        log.warning("%s: cannot be written (%s), so that each process holds all of %s in memory", KEPT, reason, path)
    return reason is None


def _stamps(path: Path) -> tuple[tuple[str, int, int], ...]:
    """Name, size and modification time of each file that `path` names, or that is read beside it."""
    if path.is_dir():
        files = [Path(folder) / name for folder, _, names in os.walk(path) for name in names]
    else:
        files = [path, *path.parent.glob("ground-truth*"), *clue.beside(path)]
        files += beir.beside(path) if path.suffix == ".tsv" else []
    found = ((str(one), one.stat()) for one in sorted(files) if one.is_file())
    return tuple((name, status.st_size, status.st_mtime_ns) for name, status in found)


@lru_cache(maxsize=16)
def _checksums(path: Path, stamps: tuple[tuple[str, int, int], ...]) -> tuple[str, ...]:
    """The MD5 of each file; the many files of a folder are told by their stamps."""
    if path.is_dir():
        return tuple(map(str, stamps))
    found = []
    for name, _, _ in stamps:
        digest = md5()
        with open(name, "rb") as file:
            while piece := file.read(1 << 20):
                digest.update(piece)
        found.append(digest.hexdigest())
    return tuple(found)


class _Notes(logging.Handler):
    """The lines that are logged in a block, which a process that maps the examples logs again."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[tuple[int, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append((record.levelno, record.getMessage()))

    def __enter__(self) -> list[tuple[int, str]]:
        log.addHandler(self)
        return self.lines

    def __exit__(self, *error: object) -> None:
        log.removeHandler(self)
