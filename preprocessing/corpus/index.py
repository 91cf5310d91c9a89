"""`index.npz`: where each block of a corpus lies, how many chunks it holds, and a checksum of each page of its shards.

Opening a corpus reads this file and no shard: 140 bytes for a block of 2^18 tokens. It is written at the merge, and the
manifest holds its MD5. Each array has the rows of all shards, in the manifest's order:

    blocks  [blocks]                      `BLOCK`
    chunks  [blocks, len(CHUNK_LENGTHS)]  uint32, the number of chunks (`chunk_counts`) for each of those lengths
    pages   [pages]                       uint32, the CRC-32 of each `PAGE` bytes of a shard; the last may be fewer
"""

import io
from collections.abc import Iterable
from hashlib import md5
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from preprocessing.errors import DamagedError, UserError
from preprocessing.files import write_atomically

INDEX = "index.npz"
PAGE = 1 << 16
BLOCK = np.dtype([(name, "<i8") for name in ("documents", "tokens", "ids_at", "flags_at", "offsets_at")])
"""A block: its documents and tokens, and the bytes of its shard where its arrays begin, behind tar and npy headers."""
CHUNK_LENGTHS = tuple(length - special for length in (128, 256, 512, 1024) for special in (3, 2, 0))
"""Lengths of text in rows of the usual lengths, with the special tokens of a pair, of one text, or none."""
_REMEDY = "copy it again, or run `reread preprocess` again"


class Index(NamedTuple):
    blocks: NDArray[Any]
    chunks: NDArray[np.uint32]
    pages: NDArray[np.uint32]

    @classmethod
    def of(cls, blocks: Iterable[Any], chunks: Iterable[Any], pages: Iterable[int]) -> "Index":
        return cls(
            np.array([tuple(block) for block in blocks], BLOCK),
            np.array([*chunks], np.uint32).reshape(-1, len(CHUNK_LENGTHS)),
            np.array([*pages], np.uint32),
        )

    @classmethod
    def join(cls, parts: Iterable["Index"]) -> "Index":
        """The index of the shards of all parts."""
        return cls(*(np.concatenate(arrays) for arrays in zip(cls.of([], [], []), *parts, strict=True)))

    def to_lists(self) -> dict[str, list[Any]]:
        """Arguments of `of` as JSON can hold them."""
        return {name: values.tolist() for name, values in self._asdict().items()}

    def write(self, folder: Path) -> str:
        """Write `folder`/index.npz; returns its MD5."""
        buffer = io.BytesIO()
        np.savez(buffer, **self._asdict())
        write_atomically(folder / INDEX, buffer.getvalue())
        return md5(buffer.getvalue()).hexdigest()

    @classmethod
    def read(cls, folder: Path, digest: Any) -> "Index":
        """The index with this MD5; raises `DamagedError` for any other, `UserError` if it cannot be read now."""
        path = folder / INDEX
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            raise DamagedError(f"{path}: missing; {_REMEDY}") from None
        except OSError as error:
            raise UserError(f"{path}: cannot be read ({error.strerror})", error) from None
        if md5(data).hexdigest() != digest:
            raise DamagedError(f"{path}: not as it was written with the manifest beside it; {_REMEDY}")
        with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
            return cls(*(arrays[name] for name in cls._fields))


def page_count(size: int) -> int:
    """Number of pages of a file of `size` bytes."""
    return -(-size // PAGE)


def chunk_window(longest: int) -> int:
    """Number of tokens in which a chunk of at most `longest` tokens may begin (`training.data.chunks`)."""
    return max(1, longest // 8)


def chunk_counts(lengths: NDArray[np.int64], longest: int) -> NDArray[np.int64]:
    """Number of chunks of at most `longest` tokens in documents of these lengths (`training.data.chunks`)."""
    return (lengths > 0) - np.minimum(0, longest - lengths) // (longest - chunk_window(longest))
