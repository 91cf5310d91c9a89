"""The corpus format: documents as token ids and flags, in blocks, in WebDataset tar shards.

A corpus is a folder: `manifest.json`, `tokenizer/` (loadable by transformers) and `<split>-*.tar`. A tar sample is a
block of documents with three `.npy` members (`webdataset` decodes them as they are):

    ids      [tokens]         uint16, or uint32 when the vocabulary needs it
    flags    [tokens]         uint8, the bits below
    offsets  [documents + 1]  int64, where each document begins in `ids`

The manifest holds the byte offset of each member, so a document is read through a memory map without scanning the
tar. Each block carries a CRC-32 that is checked the first time the block is touched; the manifest and the tokenizer are
checked at opening (`preprocessing.seal`).
"""

import errno
import io
import json
import mmap
import os
import shutil
import tarfile
import zlib
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from functools import cache
from hashlib import md5
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from preprocessing.errors import DamagedError, UserError
from preprocessing.maps import map_file
from preprocessing.seal import read_manifest, seal, unseal

FORMAT_VERSION = 2
CONTINUES_WORD = np.uint8(1)
"""Set on every token of a word but its first: `whole-word` masking groups a token with those that continue it."""
SENTENCE_END = np.uint8(2)
PARAGRAPH_END = np.uint8(4)

BLOCK_TOKENS = 1 << 18
SPECIAL = ("pad", "unk", "cls", "sep", "mask", "eos")
"""The ids that a manifest's `tokenizer` may name."""
_MEMBERS = ("ids", "flags", "offsets")


_ONLY_THESE = ConfigDict(extra="forbid")
Count = Annotated[int, Field(strict=True, ge=0, le=1 << 60)]


@dataclass(frozen=True)
class Block:
    """Where one block lies in its shard: byte offsets of the raw array data (past tar and npy headers)."""

    documents: Count
    tokens: Count
    ids_at: Count
    flags_at: Count
    offsets_at: Count
    crc32: Count
    __pydantic_config__ = _ONLY_THESE

    def end(self, item: int) -> int:
        """The first byte after its arrays, where an id has `item` bytes."""
        return max(
            self.ids_at + item * self.tokens, self.flags_at + self.tokens, self.offsets_at + 8 * (self.documents + 1)
        )


@dataclass(frozen=True)
class Shard:
    name: str
    split: str
    bytes: Count
    documents: Count
    tokens: Count
    md5: str
    blocks: list[Block]
    __pydantic_config__ = _ONLY_THESE


@dataclass(frozen=True)
class Manifest:
    """`manifest.json`. `fingerprint` is the corpus' identity: what decides the ids and flags of every document, and
    which ids are special. Equal corpora have equal fingerprints, wherever their text lay."""

    tokenizer: dict[str, Any]
    """fingerprint, type, vocab_size and the special ids pad, unk, cls, sep, mask."""
    dtype: Annotated[str, Field(pattern="^uint(16|32)$")]
    shards: list[Shard]
    sources: list[dict[str, Any]] = field(default_factory=list)
    dropped: dict[str, int] = field(default_factory=dict)
    statistics: dict[str, Any] = field(default_factory=dict)
    version: int = FORMAT_VERSION
    __pydantic_config__ = _ONLY_THESE

    @property
    def fingerprint(self) -> str:
        parts = [str(self.version), json.dumps(self.tokenizer, sort_keys=True), self.dtype]
        parts += [f"{shard.split} {shard.documents} {shard.tokens} {shard.md5}" for shard in self.shards]
        return md5("\n".join(parts).encode()).hexdigest()

    def write(self, folder: Path) -> None:
        """The tokenizer of `folder` must be there already: its files are sealed with the manifest."""
        write_atomically(folder / "manifest.json", seal(folder, {"fingerprint": self.fingerprint, **asdict(self)}))

    @classmethod
    def read(cls, folder: Path) -> "Manifest":
        """Raises `UserError` unless the folder holds a manifest of this version that can be read, and `DamagedError`
        unless it and the tokenizer are as they were written."""
        path, values = folder / "manifest.json", read_manifest(folder)
        if "kind" in values:
            raise UserError(f"{path}: {values['kind']}, not a corpus; give the corpus they were made from")
        if values.get("version") != FORMAT_VERSION:
            raise UserError(
                f"{path}: corpus format {values.get('version')}, this program reads {FORMAT_VERSION}; make the corpus "
                "again with `reread preprocess` in a new folder"
            )
        values = unseal(folder, values, "reread preprocess")
        written = values.pop("fingerprint", None)
        try:
            manifest = _parser().validate_python(values)
        except ValidationError as error:
            problem = error.errors()[0]
            place = ".".join(map(str, problem["loc"]))
            raise DamagedError(f"{path}: {place}: {problem['msg']}; run `reread preprocess` again") from None
        if fault := manifest._fault() or ("its fingerprint is another" if manifest.fingerprint != written else ""):
            raise DamagedError(f"{path}: {fault}; run `reread preprocess` again")
        return manifest

    def _fault(self) -> str:
        """What cannot be so, whoever wrote it; empty if nothing."""
        for shard in self.shards:
            for name in ("documents", "tokens"):
                if getattr(shard, name) != sum(getattr(block, name) for block in shard.blocks):
                    return f"{shard.name}: {name} are not those of its blocks"
            if any(block.end(np.dtype(self.dtype).itemsize) > shard.bytes for block in shard.blocks):
                return f"{shard.name}: a block ends after its shard"
        return tokenizer_fault(self.tokenizer)


def tokenizer_fault(tokenizer: dict[str, Any]) -> str:
    """What cannot be so in a manifest's `tokenizer`; empty if nothing."""
    size = tokenizer.get("vocab_size")
    if type(size) is not int or not 0 < size < 1 << 32:
        return f"tokenizer.vocab_size: {size!r}"
    for name in ("fingerprint", "type"):
        if not isinstance(tokenizer.get(name), str):
            return f"tokenizer.{name}: {tokenizer.get(name)!r}"
    for name in SPECIAL:
        number = tokenizer.get(name, 0)
        if type(number) is not int or not 0 <= number < size:
            return f"tokenizer.{name}: {number!r} is no id of a vocabulary of {size:,}"
    return ""


@cache
def _parser() -> TypeAdapter[Manifest]:
    return TypeAdapter(Manifest)


def write_atomically(path: Path, data: bytes) -> None:
    """Write aside, sync and rename: `path` is either the old content or the whole new one."""
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    sync_folder(path.parent)


def explained(error: OSError, folder: Path) -> Exception:
    """A full disk or a folder that cannot be written as a `UserError`; any other error as it is."""
    reason = os.strerror(error.errno or 0)
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        free = shutil.disk_usage(folder).free
        return UserError(
            f"{folder}: no space left to write ({reason}, {free:,} bytes free); make room and run the same command "
            "again: it continues where it stopped"
        )
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.EEXIST, errno.ENOTDIR):
        return UserError(f"{error.filename}: cannot be written ({reason}); choose another folder, or repair it")
    return error


def sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class TarWriter:
    """Writes arrays into a tar under a temporary name; `close` syncs and renames it.

    The bytes depend on the arrays alone: no time, user or process is recorded.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._temporary = path.with_name(path.name + ".tmp")
        self._file = self._temporary.open("wb")
        self._md5 = md5()

    def add(self, name: str, array: NDArray[Any]) -> int:
        """Append `array` as the member `name` (.npy); returns the byte where its raw data begins."""
        header = io.BytesIO()
        np.lib.format.write_array_header_1_0(header, np.lib.format.header_data_from_array_1_0(array))
        entry = tarfile.TarInfo(name)
        entry.size = len(header.getvalue()) + array.nbytes
        self._write(entry.tobuf(tarfile.USTAR_FORMAT))
        self._write(header.getvalue())
        start = self._file.tell()
        self._write(array.data)
        self._write(b"\0" * (-self._file.tell() % tarfile.BLOCKSIZE))
        return start

    def close(self) -> tuple[int, str]:
        """Size in bytes and MD5 of the whole file."""
        self._write(b"\0" * 1024)  # the end-of-archive mark
        self._file.flush()
        os.fsync(self._file.fileno())
        size = self._file.tell()
        self._file.close()
        os.replace(self._temporary, self.path)
        sync_folder(self.path.parent)
        return size, self._md5.hexdigest()

    def _write(self, data: Any) -> None:
        self._file.write(data)
        self._md5.update(data)


class ShardWriter:
    """Writes the documents of one shard; `close` describes it."""

    def __init__(self, path: Path, split: str, dtype: str, block_tokens: int = BLOCK_TOKENS) -> None:
        self.split, self.dtype = split, np.dtype(dtype)
        self._tar = TarWriter(path)
        self._block_tokens = block_tokens
        self._blocks: list[Block] = []
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

    def close(self) -> Shard:
        if self._ids:
            self._write_block()
        size, digest = self._tar.close()
        return Shard(
            name=self._tar.path.name,
            split=self.split,
            bytes=size,
            documents=sum(block.documents for block in self._blocks),
            tokens=sum(block.tokens for block in self._blocks),
            md5=digest,
            blocks=self._blocks,
        )

    def _write_block(self) -> None:
        offsets = np.zeros(len(self._ids) + 1, np.int64)
        np.cumsum([len(ids) for ids in self._ids], out=offsets[1:])
        arrays: list[NDArray[Any]] = [np.concatenate(self._ids), np.concatenate(self._flags), offsets]
        prefix = f"{self._tar.path.stem}-{len(self._blocks):06d}"
        starts = [self._tar.add(f"{prefix}.{name}.npy", array) for name, array in zip(_MEMBERS, arrays, strict=True)]
        self._blocks.append(Block(len(self._ids), int(offsets[-1]), starts[0], starts[1], starts[2], checksum(arrays)))
        self._ids, self._flags, self._pending = [], [], 0


def checksum(arrays: Iterable[NDArray[Any]]) -> int:
    """CRC-32 of the arrays' raw data, one after the other."""
    crc = 0
    for array in arrays:
        crc = zlib.crc32(array.data, crc)
    return crc


class ShardFiles:
    """Memory maps of the shards in a folder that `command` made."""

    def __init__(self, folder: Path, command: str) -> None:
        self.folder = folder
        self._remedy = f"copy the shard again, or delete it and run `{command}` again"
        self._sizes: dict[str, int] = {}
        self._maps: dict[str, mmap.mmap] = {}

    def check_size(self, name: str, size: int) -> None:
        """Raises `UserError` unless the shard has the size it was written with; before it is mapped, once more."""
        self._sizes[name] = size
        path = self.folder / name
        if path.name != name:
            raise UserError(
                f"{self.folder}: its manifest names `{name}`, which is no file of this folder; do not use it"
            )
        try:
            found = path.stat().st_size if path.exists() else None
        except OSError as error:
            raise UserError(f"{path}: cannot be read ({error.strerror})") from None
        if found != size:
            state = "missing" if found is None else f"{found} bytes long, {size} were written"
            raise UserError(f"{path}: {state}; {self._remedy}")

    def map(self, name: str) -> mmap.mmap:
        if name not in self._maps:
            self.check_size(name, self._sizes[name])
            try:
                self._maps[name] = map_file(self.folder / name)
            except OSError as error:
                raise UserError(f"{self.folder / name}: cannot be mapped into memory ({error.strerror})") from None
        return self._maps[name]

    def array(self, name: str, dtype: Any, count: int, start: int) -> NDArray[Any]:
        """[count] values from byte `start` on, as a view of the file that cannot be written to."""
        values = np.frombuffer(self.map(name), dtype, count, start)
        values.flags.writeable = False
        return values

    def altered(self, name: str, start: int) -> UserError:
        """The complaint about a block, whose data begin at byte `start`, that fails its checksum."""
        return UserError(
            f"{self.folder / name}: altered since it was written (checksum of the block at byte {start}); "
            f"{self._remedy}"
        )


class Corpus:
    """Reads one split of a corpus; documents are numbered in source order.

    Raises `UserError` for a missing or truncated shard at opening, and for an altered block when it is first read.
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
        if not self._ordered[index]:  # all are looked at before the checksum of the block is
            if offsets[0] != 0 or offsets[-1] != block.tokens or (offsets[1:] <= offsets[:-1]).any():
                raise self._files.altered(shard.name, block.ids_at)
            self._ordered[index] = True
        return offsets

    def block(self, number: int) -> tuple[mmap.mmap, Block]:
        """The shard a block is in, and where in it the arrays of the block are."""
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
        """Read everything once; raises `UserError` for the first block that differs from what was written."""
        self._checked[:] = self._ordered[:] = False
        for number in range(len(self._blocks)):
            self.block(number)

    def _tokens(self, number: int) -> tuple[NDArray[Any], NDArray[np.uint8]]:
        shard, block = self._blocks[number]
        ids = self._files.array(shard.name, self.manifest.dtype, block.tokens, block.ids_at)
        return ids, self._files.array(shard.name, np.uint8, block.tokens, block.flags_at)
