"""Reading shards through memory maps, with their sizes and checksums verified."""

import mmap
from bisect import bisect_right
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from preprocessing.corpus.manifest import Block, Manifest
from preprocessing.corpus.maps import map_file
from preprocessing.corpus.writer import checksum
from preprocessing.errors import UserError


class ShardFiles:
    """Memory maps of the shards in a folder; `command` is the one that made it, named in error messages."""

    def __init__(self, folder: Path, command: str) -> None:
        self.folder = folder
        self._remedy = f"copy the shard again, or delete it and run `{command}` again"
        self._sizes: dict[str, int] = {}
        self._maps: dict[str, mmap.mmap] = {}

    def check_size(self, name: str, size: int) -> None:
        """Raises `UserError` unless the shard has `size` bytes; this is checked again before it is mapped."""
        self._sizes[name] = size
        path = self.folder / name
        if path.name != name:
            raise UserError(
                f"{self.folder}: its manifest names `{name}`, which is not a file of this folder; do not use it"
            )
        try:
            found = path.stat().st_size if path.exists() else None
        except OSError as error:
            raise UserError(f"{path}: cannot be read ({error.strerror})") from None
        if found != size:
            state = "missing" if found is None else f"{found} bytes long, {size} were written"
            raise UserError(f"{path}: {state}; {self._remedy}")

    def map(self, name: str) -> mmap.mmap:
        """The bytes of a shard whose size was checked."""
        if name not in self._maps:
            self.check_size(name, self._sizes[name])
            try:
                self._maps[name] = map_file(self.folder / name)
            except OSError as error:
                raise UserError(f"{self.folder / name}: cannot be mapped into memory ({error.strerror})") from None
        return self._maps[name]

    def array(self, name: str, dtype: Any, count: int, start: int) -> NDArray[Any]:
        """[count] values from byte `start` on, as a read-only view of the file."""
        values = np.frombuffer(self.map(name), dtype, count, start)
        values.flags.writeable = False
        return values

    def altered(self, name: str, start: int) -> UserError:
        """The error for a block, whose data begin at byte `start`, that fails its checksum."""
        return UserError(
            f"{self.folder / name}: altered since it was written (checksum of the block at byte {start}); "
            f"{self._remedy}"
        )


class Corpus:
    """Reads one split of a corpus; documents are numbered in source order.

    Opening it raises `UserError` for a missing or truncated shard; an altered block raises it when it is first read.
    """

    def __init__(self, folder: str | Path, split: str = "train") -> None:
        self.folder = Path(folder)
        self.split = split
        self.manifest = Manifest.read(self.folder)
        self.fingerprint = self.manifest.fingerprint
        shards = [shard for shard in self.manifest.shards if shard.split == split and shard.blocks]
        self._files = ShardFiles(self.folder, "reread preprocess")
        for shard in shards:
            self._files.check_size(shard.name, shard.bytes)
        self._blocks = [(shard, block) for shard in shards for block in shard.blocks]
        self._checked = np.zeros(len(self._blocks), bool)
        self._ordered = np.zeros(len(self._blocks), bool)
        self.block_documents = np.zeros(len(self._blocks) + 1, np.int64)
        """[blocks + 1]: the number of documents before each block."""
        np.cumsum([block.documents for _, block in self._blocks], out=self.block_documents[1:])
        self.block_tokens = np.zeros(len(self._blocks) + 1, np.int64)
        """[blocks + 1]: the number of tokens before each block."""
        np.cumsum([block.tokens for _, block in self._blocks], out=self.block_tokens[1:])
        self._first = self.block_documents.tolist()
        self.documents: int = self._first[-1]
        self.tokens = int(self.block_tokens[-1])

    def block_offsets(self, index: int) -> NDArray[np.int64]:
        """[documents + 1]: where each document of the block begins, in tokens."""
        shard, block = self._blocks[index]
        offsets = self._files.array(shard.name, np.int64, block.documents + 1, block.offsets_at)
        if not self._ordered[index]:  # they are used before the checksum of their block is verified
            if offsets[0] != 0 or offsets[-1] != block.tokens or (offsets[1:] <= offsets[:-1]).any():
                raise self._files.altered(shard.name, block.ids_at)
            self._ordered[index] = True
        return offsets

    def block(self, number: int) -> tuple[mmap.mmap, Block]:
        """The bytes of the shard that holds a block, and where in them the block's arrays lie."""
        shard, block = self._blocks[number]
        if not self._checked[number]:
            if checksum((*self._tokens(number), self.block_offsets(number))) != block.crc32:
                raise self._files.altered(shard.name, block.ids_at)
            self._checked[number] = True
        return self._files.map(shard.name), block

    def document(self, index: int) -> tuple[NDArray[Any], NDArray[np.uint8]]:
        """Token ids [n] and flags [n] of a document, as views of the file."""
        number = bisect_right(self._first, index) - 1
        self.block(number)
        begin, end = self.block_offsets(number)[index - self._first[number] :][:2]
        ids, flags = self._tokens(number)
        return ids[begin:end], flags[begin:end]

    def verify(self) -> None:
        """Read everything once; raises `UserError` for the first block that was altered."""
        self._checked[:] = self._ordered[:] = False
        for number in range(len(self._blocks)):
            self.block(number)

    def _tokens(self, number: int) -> tuple[NDArray[Any], NDArray[np.uint8]]:
        shard, block = self._blocks[number]
        ids = self._files.array(shard.name, self.manifest.dtype, block.tokens, block.ids_at)
        return ids, self._files.array(shard.name, np.uint8, block.tokens, block.flags_at)
