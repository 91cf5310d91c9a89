"""Writing shards: documents in blocks, blocks in a tar."""

import io
import os
import tarfile
from collections.abc import Iterable
from hashlib import md5
from pathlib import Path
from typing import Any

import numpy as np
from isal.isal_zlib import crc32
from numpy.typing import NDArray

from reread.preprocessing.corpus.index import CHUNK_LENGTHS, PAGE, CorpusIndex, chunk_counts
from reread.preprocessing.corpus.manifest import Shard, WrittenShard
from reread.preprocessing.files import sync_folder

CONTINUES_WORD = np.uint8(1)
"""Set on every token of a word except its first; whole-word masking masks a token together with its continuations."""
SENTENCE_END = np.uint8(2)
PARAGRAPH_END = np.uint8(4)

BLOCK_TOKENS = 1 << 18
_MEMBERS = ("ids", "flags", "offsets")


class TarWriter:
    """Writes arrays into a tar under a temporary name; `close` syncs and renames it.

    The bytes depend on the arrays alone: no time, user or process is recorded. `pages` holds the CRC-32 of each page.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._temporary = path.with_name(path.name + ".tmp")
        self._file = self._temporary.open("wb")
        self._md5 = md5()
        self._crc = self._size = 0
        self.pages: list[int] = []

    def add(self, name: str, array: NDArray[Any]) -> int:
        """Append `array` as the member `name` (.npy); returns the byte offset at which its raw data begins."""
        header = io.BytesIO()
        np.lib.format.write_array_header_1_0(header, np.lib.format.header_data_from_array_1_0(array))
        entry = tarfile.TarInfo(name)
        entry.size = len(header.getvalue()) + array.nbytes
        self._write(entry.tobuf(tarfile.USTAR_FORMAT))
        self._write(header.getvalue())
        start = self._size
        self._write(array.data)
        self._write(b"\0" * (-self._size % tarfile.BLOCKSIZE))
        return start

    def close(self) -> tuple[int, str]:
        """Finish the file; returns its size in bytes and its MD5."""
        self._write(b"\0" * 1024)  # the end-of-archive mark
        if self._size % PAGE:
            self.pages.append(self._crc)
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        os.replace(self._temporary, self.path)
        sync_folder(self.path.parent)
        return self._size, self._md5.hexdigest()

    def _write(self, data: Any) -> None:
        self._file.write(data)
        self._md5.update(data)
        left = memoryview(data)
        left = left.cast("B") if left.nbytes else left[:0]
        while left:
            part = left[: PAGE - self._size % PAGE]
            self._crc, left = crc32(part, self._crc), left[len(part) :]
            self._size += len(part)
            if self._size % PAGE == 0:
                self.pages.append(self._crc)
                self._crc = 0


class ShardWriter:
    """Writes the documents of one shard; `close` returns its entry in the manifest and its rows of the index."""

    def __init__(self, path: Path, split: str, dtype: str, block_tokens: int = BLOCK_TOKENS) -> None:
        self.split, self.dtype = split, np.dtype(dtype)
        self._tar = TarWriter(path)
        self._block_tokens = block_tokens
        self._blocks: list[tuple[int, ...]] = []
        self._chunks: list[list[int]] = []
        self._lengths: list[NDArray[np.uint32]] = []
        self._ids: list[NDArray[Any]] = []
        self._flags: list[NDArray[np.uint8]] = []
        self._pending = 0

    def add(self, ids: NDArray[Any], flags: NDArray[np.uint8]) -> None:
        """Append a document: token ids [n] and flags [n], n > 0."""
        if len(ids) == 0 or len(ids) != len(flags):
            raise ValueError(f"a document of {len(ids)} ids and {len(flags)} flags")
        self._ids.append(ids.astype(self.dtype, copy=False))
        self._flags.append(flags.astype(np.uint8, copy=False))
        self._pending += len(ids)
        if self._pending >= self._block_tokens:
            self._write_block()

    @property
    def lengths(self) -> NDArray[np.uint32]:
        """[documents]: the tokens of each document, once the shard is closed; for `write_lengths`."""
        return np.concatenate(self._lengths)

    def close(self) -> WrittenShard:
        if self._ids:
            self._write_block()
        size, digest = self._tar.close()
        documents, tokens = (sum(block[column] for block in self._blocks) for column in (0, 1))
        shard = Shard(self._tar.path.name, self.split, size, documents, tokens, digest, len(self._blocks))
        return WrittenShard(shard, CorpusIndex.of(self._blocks, self._chunks, self._tar.pages))

    def _write_block(self) -> None:
        lengths = np.array([len(ids) for ids in self._ids], np.int64)
        offsets = np.append(0, np.cumsum(lengths))
        arrays: list[NDArray[Any]] = [np.concatenate(self._ids), np.concatenate(self._flags), offsets]
        prefix = f"{self._tar.path.stem}-{len(self._blocks):06d}"
        starts = [self._tar.add(f"{prefix}.{name}.npy", array) for name, array in zip(_MEMBERS, arrays, strict=True)]
        self._blocks.append((len(self._ids), int(offsets[-1]), *starts))
        self._chunks.append([int(chunk_counts(lengths, longest).sum()) for longest in CHUNK_LENGTHS])
        self._lengths.append(lengths.astype(np.uint32))
        self._ids, self._flags, self._pending = [], [], 0


def checksum(arrays: Iterable[NDArray[Any]]) -> int:
    """CRC-32 of the concatenated raw data of the arrays."""
    crc = 0
    for array in arrays:
        crc = crc32(array.data, crc)
    return crc
