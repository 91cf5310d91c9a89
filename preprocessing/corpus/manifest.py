"""`manifest.json`, which lists what a corpus consists of; `index.npz` beside it locates each block of documents, and
`lengths.npy` has the length of each document."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import cache, cached_property
from hashlib import md5
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, Field, InstanceOf, TypeAdapter, ValidationError

from reread.preprocessing.corpus.checksums import add_checksum, read_manifest, verify_checksum
from reread.preprocessing.corpus.index import BLOCK, CHUNK_LENGTHS, INDEX, CorpusIndex, chunk_window, page_count
from reread.preprocessing.corpus.job import once, trusting
from reread.preprocessing.errors import DamagedError, UserError
from reread.preprocessing.files import write_atomically

FORMAT_VERSION = 3
SIMPLIFIED_VERSION = 4
"""The same form on disk, its text simplified by OpenCC 1.4.2; that of format 3 was simplified by the older tables of
opencc-python-reimplemented."""
SPECIAL_ROLES = ("pad", "unk", "cls", "sep", "mask", "eos")
"""The roles of special tokens; `Manifest.tokenizer` holds the id of each role that the tokenizer knows."""
LARGEST_VOCABULARY = 1 << 24
"""The most tokens that a new vocabulary or a model may have; an array over them takes 128 MiB."""
_BLOCKS_AT_ONCE = 1 << 14
"""Blocks whose numbers of chunks are checked together, which takes 200 bytes each."""

_NO_OTHER_FIELDS = ConfigDict(extra="forbid")
Count = Annotated[int, Field(strict=True, ge=0, le=1 << 60)]


def format_version(simplified: bool) -> int:
    """The format of a corpus that is made now, with or without `clean.simplify`."""
    return SIMPLIFIED_VERSION if simplified else FORMAT_VERSION


@dataclass(frozen=True)
class Shard:
    name: str
    split: str
    bytes: Count
    documents: Count
    tokens: Count
    md5: str
    blocks: Count
    __pydantic_config__ = _NO_OTHER_FIELDS


@dataclass(frozen=True)
class WrittenShard:
    """A shard, and its rows in the index."""

    shard: Shard
    index: CorpusIndex

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self.shard), "index": self.index.to_lists()}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "WrittenShard":
        index = CorpusIndex.of(**values["index"])
        return cls(Shard(**{name: value for name, value in values.items() if name != "index"}), index)


class Run(NamedTuple):
    """Shards of one split that follow each other: their blocks and pages in the index, and their documents."""

    blocks: slice
    pages: slice
    documents: slice


@dataclass(frozen=True)
class Manifest:
    """The content of `manifest.json`."""

    tokenizer: dict[str, Any]
    """The tokenizer's fingerprint, type and vocab_size, and the ids of its special tokens."""
    dtype: Annotated[str, Field(pattern="^uint(16|32)$")]
    shards: list[Shard]
    index: InstanceOf[CorpusIndex] = field(compare=False)
    sources: list[dict[str, Any]] = field(default_factory=list)
    dropped: dict[str, int] = field(default_factory=dict)
    statistics: dict[str, Any] = field(default_factory=dict)
    version: int = FORMAT_VERSION
    lengths: Count | None = None
    """The CRC-32 of lengths.npy; None for a corpus of an earlier version, which has no such file."""
    __pydantic_config__ = _NO_OTHER_FIELDS

    @classmethod
    def of(cls, tokenizer: dict[str, Any], dtype: str, written: Sequence[WrittenShard], **fields: Any) -> "Manifest":
        """The manifest of these shards; `fields` are its other fields."""
        shards, index = [one.shard for one in written], CorpusIndex.join(one.index for one in written)
        return cls(tokenizer, dtype, shards, index, **fields)

    @cached_property
    def fingerprint(self) -> str:
        """Identity of the corpus: the ids and flags of every document, and which ids are special.

        It does not depend on where the text came from.
        """
        parts = [str(self.version), json.dumps(self.tokenizer, sort_keys=True), self.dtype]
        parts += [f"{shard.split} {shard.documents} {shard.tokens} {shard.md5}" for shard in self.shards]
        return md5("\n".join(parts).encode()).hexdigest()

    @property
    def documents(self) -> int:
        """Of all splits."""
        return sum(shard.documents for shard in self.shards)

    def runs(self, split: str) -> Iterator[Run]:
        """The shards of a split: one run, since `reread preprocess` puts them together."""
        block = page = document = 0
        for is_wanted, group in groupby(self.shards, lambda shard: shard.split == split):
            run = list(group)
            blocks, pages = sum(shard.blocks for shard in run), sum(page_count(shard.bytes) for shard in run)
            documents = sum(shard.documents for shard in run)
            if is_wanted:
                yield Run(
                    slice(block, block + blocks), slice(page, page + pages), slice(document, document + documents)
                )
            block, page, document = block + blocks, page + pages, document + documents

    def split_index(self, split: str) -> CorpusIndex:
        """The rows of the index for the shards of a split, as views if they are one run."""
        blocks, chunks, pages = self.index
        parts = [CorpusIndex(blocks[run.blocks], chunks[run.blocks], pages[run.pages]) for run in self.runs(split)]
        return parts[0] if len(parts) == 1 else CorpusIndex.join(parts)

    def write(self, folder: Path) -> None:
        """Write `folder`/manifest.json and index.npz, with the checksums of `folder`/tokenizer, which must exist.

        lengths.npy is written before (`write_lengths`), and `lengths` is its checksum.
        """
        values = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "shards"}
        values |= {"index": self.index.write(folder), "shards": [asdict(shard) for shard in self.shards]}
        write_atomically(folder / "manifest.json", add_checksum(folder, {"fingerprint": self.fingerprint, **values}))

    @classmethod
    def read(cls, folder: Path) -> "Manifest":
        """The manifest of a corpus.

        Raises `UserError` if the manifest is missing, cannot be read or has another version, and `DamagedError` if the
        manifest, the index or the tokenizer differs from what was written. Of the index and the tokenizer this is not
        looked for if another process of a job did.
        """
        path, values = folder / "manifest.json", once(read_manifest, folder)
        if "kind" in values:
            raise UserError(f"{path}: {values['kind']}, not a corpus; give the corpus they were made from")
        if values.get("version") not in (FORMAT_VERSION, SIMPLIFIED_VERSION):
            raise UserError(
                f"{path}: corpus format {values.get('version')}, this program reads {FORMAT_VERSION} and "
                f"{SIMPLIFIED_VERSION}; make the corpus again with `reread preprocess` in a new folder"
            )
        values = verify_checksum(folder, values, "reread preprocess")
        written = values.pop("fingerprint", None)
        values["index"] = CorpusIndex.read(folder, values.get("index"))
        try:
            manifest = _parser().validate_python(values)
        except ValidationError as error:
            problem = error.errors()[0]
            field = ".".join(map(str, problem["loc"]))
            raise DamagedError(f"{path}: {field}: {problem['msg']}; run `reread preprocess` again") from None
        if trusting():
            return manifest
        if fault := manifest._fault() or ("its fingerprint does not match" if manifest.fingerprint != written else ""):
            raise DamagedError(f"{path}: {fault}; run `reread preprocess` again")
        return manifest

    def _fault(self) -> str:
        """The first contradiction between the manifest's values, for an error message; empty if there is none."""
        blocks, count = self.index.blocks, sum(shard.blocks for shard in self.shards)
        pages = sum(page_count(shard.bytes) for shard in self.shards)
        if (count, count, pages) != tuple(map(len, self.index)):
            return f"{INDEX} belongs to other shards"
        counts = [shard.blocks for shard in self.shards]
        shard_of, borders = np.repeat(np.arange(len(counts)), counts), np.cumsum([0, *counts])
        size, item = np.array([shard.bytes for shard in self.shards], np.int64)[shard_of], np.dtype(self.dtype).itemsize
        found: list[tuple[int, str]] = []
        """The first shard with each fault, and the fault."""

        def look(wrong: NDArray[np.bool_], of: NDArray[np.int64], fault: str) -> None:
            if wrong.any():
                found.append((int(of[np.flatnonzero(wrong)[0]]), fault))

        values = blocks.view(np.int64).reshape(-1, len(BLOCK.names or ()))
        outside: NDArray[np.bool_] = (values < 0) | (values > size[:, None])
        look(np.logical_or.reduce(outside, axis=1), shard_of, "a block ends after its shard")
        for name in ("documents", "tokens"):
            sums = np.diff(np.append(0, np.cumsum(blocks[name]))[borders])
            stated = np.array([getattr(shard, name) for shard in self.shards], np.int64)
            look(sums != stated, np.arange(len(counts)), f"{name} are not the sum of its blocks")
        sizes = {
            "ids_at": item * blocks["tokens"],
            "flags_at": blocks["tokens"],
            "offsets_at": 8 * (blocks["documents"] + 1),
        }
        for name, taken in sizes.items():
            look(blocks[name] + taken > size, shard_of, "a block ends after its shard")
        steps = np.array([longest - chunk_window(longest) for longest in CHUNK_LENGTHS])
        for begin in range(0, count, _BLOCKS_AT_ONCE):
            some = slice(begin, begin + _BLOCKS_AT_ONCE)
            more = self.index.chunks[some] - blocks["documents"][some, None]
            wrong = (more < 0) | (more * steps > blocks["tokens"][some, None])
            look(wrong.any(axis=1), shard_of[some], f"{INDEX} has an impossible number of chunks")
        if found:
            shard, fault = min(found, key=lambda one: one[0])  # the first fault of the first shard that has any
            return f"{self.shards[shard].name}: {fault}"
        return tokenizer_fault(self.tokenizer)


def index_bytes(manifest: dict[str, Any]) -> int:
    """The maximum size in bytes of the index of a corpus with these manifest values.

    Raises ValueError if `manifest` holds no valid list of shards.
    """
    shards = TypeAdapter(list[Shard]).validate_python(manifest.get("shards"))
    return CorpusIndex.bytes(sum(shard.blocks for shard in shards), sum(page_count(shard.bytes) for shard in shards))


def tokenizer_fault(tokenizer: dict[str, Any]) -> str:
    """The first impossible value in a manifest's `tokenizer`, for an error message; empty if there is none."""
    size = tokenizer.get("vocab_size")
    if type(size) is not int or not 0 < size <= LARGEST_VOCABULARY:
        return f"tokenizer.vocab_size: {size!r}"
    for name in ("fingerprint", "type"):
        if not isinstance(tokenizer.get(name), str):
            return f"tokenizer.{name}: {tokenizer.get(name)!r}"
    for name in SPECIAL_ROLES:
        number = tokenizer.get(name, 0)
        if type(number) is not int or not 0 <= number < size:
            return f"tokenizer.{name}: {number!r} is not an id of a vocabulary of {size:,}"
    return ""


@cache
def _parser() -> TypeAdapter[Manifest]:
    return TypeAdapter(Manifest)
