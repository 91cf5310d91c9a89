"""One file for all that a task has made: a zip of its arrays, which are mapped, of text, and of its result.

text.zst        the cleaned text of a part's documents, concatenated
NAME.npy        an array; `numpy.load` reads it from the file, too
results.json    by stage what the task returned, and those tasks whose files it removes
"""

import json
import mmap
import zipfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from reread.preprocessing.arrays import mapped_member
from reread.preprocessing.files import to_json

SUFFIX = ".npz"
_TEXT, _RESULTS = "text.zst", "results.json"


class TaskWriter(AbstractContextManager["TaskWriter"]):
    """What an attempt at a task writes: its file, and others in `folder`, which are moved beside it."""

    def __init__(self, folder: Path, file: IO[bytes]) -> None:
        self.folder = folder
        self._zip = zipfile.ZipFile(file, "w")

    def __exit__(self, *_: object) -> None:
        self._zip.close()

    def text(self) -> IO[bytes]:
        """A stream for compressed text, to be closed before anything else is written."""
        return self._open(_TEXT)

    def save(self, name: str, values: NDArray[Any]) -> None:
        with self._open(f"{name}.npy") as member:
            np.lib.format.write_array(member, values, (1, 0), allow_pickle=False)

    def save_results(self, results: dict[str, dict[str, Any]]) -> None:
        with self._open(_RESULTS) as member:
            member.write(to_json(results))

    def _open(self, name: str) -> IO[bytes]:
        return self._zip.open(zipfile.ZipInfo(name), "w", force_zip64=True)  # without a time: equal bytes again


def result_of(path: Path, stage: str) -> dict[str, Any]:
    with zipfile.ZipFile(path) as archive:
        return json.loads(archive.read(_RESULTS))[stage]


def array_of(path: Path, name: str) -> NDArray[Any]:
    """An array as a view of the file."""
    with path.open("rb") as file, zipfile.ZipFile(file) as archive:
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return mapped_member(archive, f"{name}.npy", data)


@contextmanager
def text_of(path: Path) -> Iterator[IO[bytes]]:
    """The compressed text."""
    with zipfile.ZipFile(path) as archive, archive.open(_TEXT) as member:
        yield member
