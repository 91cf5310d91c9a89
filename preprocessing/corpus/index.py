"""`index.npz`: where each block of a corpus lies, how many chunks it holds, and a checksum of each page of its shards.

Opening a corpus maps this file and no shard. It takes 140 bytes for a block of 2^18 tokens. It is written when the
corpus is merged, and the manifest holds its MD5. Each array has the rows of all shards, in the manifest's order:

    blocks  [blocks]                      `BLOCK`
    chunks  [blocks, len(CHUNK_LENGTHS)]  uint32, the number of chunks (`chunk_counts`) for each of these lengths
    pages   [pages]                       uint32, the CRC-32 of each `PAGE` bytes of a shard; the last may be fewer
"""

import io
import mmap
import zipfile
import zlib
from collections.abc import Iterable
from hashlib import md5
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from reread.preprocessing.arrays import mapped_member
from reread.preprocessing.corpus.job import trusting
from reread.preprocessing.errors import DamagedError, UserError, first_line
from reread.preprocessing.files import write_atomically

INDEX = "index.npz"
PAGE = 1 << 16
BLOCK = np.dtype([(name, "<i8") for name in ("documents", "tokens", "ids_at", "flags_at", "offsets_at")])
"""A block: the numbers of its documents and tokens, and the byte offsets in its shard at which the data of its arrays
begin, after the tar and npy headers."""
CHUNK_LENGTHS = tuple(length - special for length in (128, 256, 512, 1024) for special in (3, 2, 0))
"""Tokens of text in rows of the usual lengths, less the special tokens of a pair of texts (3), one text (2) or none."""
_DAMAGE = (EOFError, NotImplementedError, OSError, zipfile.BadZipFile, zlib.error)
_HEADERS = 1 << 14
_REMEDY = "copy it again, or run `reread preprocess` again"


class CorpusIndex(NamedTuple):
    blocks: NDArray[Any]
    chunks: NDArray[np.uint32]
    pages: NDArray[np.uint32]

    @classmethod
    def of(cls, blocks: Iterable[Any], chunks: Iterable[Any], pages: Iterable[int]) -> "CorpusIndex":
        return cls(
            np.array([tuple(block) for block in blocks], BLOCK),
            np.array([*chunks], np.uint32).reshape(-1, len(CHUNK_LENGTHS)),
            np.array([*pages], np.uint32),
        )

    @classmethod
    def join(cls, parts: Iterable["CorpusIndex"]) -> "CorpusIndex":
        """One index for the shards of all `parts`."""
        return cls(*(np.concatenate(arrays) for arrays in zip(cls.of([], [], []), *parts, strict=True)))

    def to_lists(self) -> dict[str, list[Any]]:
        """The arguments of `of` as lists, which JSON can hold."""
        return {name: values.tolist() for name, values in self._asdict().items()}

    def write(self, folder: Path) -> str:
        """Write `folder`/index.npz; returns its MD5."""
        buffer = io.BytesIO()
        np.savez(buffer, **self._asdict())
        write_atomically(folder / INDEX, buffer.getvalue())
        return md5(buffer.getvalue()).hexdigest()

    @classmethod
    def read(cls, folder: Path, digest: Any) -> "CorpusIndex":
        """The index in `folder`, as views of the file, so that the processes of a machine share it; its MD5 must be
        `digest`.

        Raises `DamagedError` if it is missing or differs, `UserError` if it cannot be read now.
        """
        path = folder / INDEX
        try:
            with path.open("rb") as file:
                data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except FileNotFoundError:
            raise DamagedError(f"{path}: missing; {_REMEDY}") from None
        except OSError as error:
            raise UserError(f"{path}: cannot be read ({error.strerror})", error) from None
        except ValueError:  # an empty file cannot be mapped
            raise DamagedError(f"{path}: does not match its checksum in manifest.json; {_REMEDY}") from None
        if not trusting() and md5(data).hexdigest() != digest:
            raise DamagedError(f"{path}: does not match its checksum in manifest.json; {_REMEDY}")
        try:
            with zipfile.ZipFile(data) as archive:  # type: ignore[call-overload] # it reads and seeks
                index = cls(*(mapped_member(archive, f"{name}.npy", data) for name in cls._fields))
        except (ArithmeticError, LookupError, MemoryError, TypeError, ValueError, *_DAMAGE) as error:
            raise DamagedError(f"{path}: not readable ({first_line(error)}); {_REMEDY}") from None
        shapes = [(array.dtype, array.shape[1:], array.ndim) for array in index]
        if shapes != [(array.dtype, array.shape[1:], array.ndim) for array in cls.of([], [], [])]:
            raise DamagedError(f"{path}: its arrays have unexpected types or shapes; {_REMEDY}")
        return index

    @staticmethod
    def bytes(blocks: int, pages: int) -> int:
        """The maximum size in bytes of the file for these numbers of blocks and pages."""
        return _HEADERS + blocks * (BLOCK.itemsize + 4 * len(CHUNK_LENGTHS)) + 4 * pages


def page_count(size: int) -> int:
    """Number of pages of a file of `size` bytes."""
    return -(-size // PAGE)


def chunk_window(longest: int) -> int:
    """The number of tokens at which a chunk of at most `longest` tokens may begin (training/data/order/chunks.py)."""
    return max(1, longest // 8)


def chunk_counts(lengths: NDArray[np.int64], longest: int) -> NDArray[np.int64]:
    """[n]: the number of chunks of at most `longest` tokens in documents of `lengths` [n] tokens.

    The chunks themselves are cut by training/data/order/chunks.py.
    """
    return (lengths > 0) - np.minimum(0, longest - lengths) // (longest - chunk_window(longest))
