"""`manifest.json`: what a corpus consists of, and where each block of documents lies."""

import json
from dataclasses import asdict, dataclass, field
from functools import cache
from hashlib import md5
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from preprocessing.corpus.seal import read_manifest, seal, unseal
from preprocessing.errors import DamagedError, UserError
from preprocessing.files import write_atomically

FORMAT_VERSION = 2
SPECIAL_ROLES = ("pad", "unk", "cls", "sep", "mask", "eos")
"""The roles of special tokens; `Manifest.tokenizer` has the ids of those that the tokenizer has."""

_NO_OTHER_FIELDS = ConfigDict(extra="forbid")
Count = Annotated[int, Field(strict=True, ge=0, le=1 << 60)]


@dataclass(frozen=True)
class Block:
    """Where a block lies in its shard: byte offsets of the raw array data, behind the tar and npy headers."""

    documents: Count
    tokens: Count
    ids_at: Count
    flags_at: Count
    offsets_at: Count
    crc32: Count
    __pydantic_config__ = _NO_OTHER_FIELDS

    def end(self, item: int) -> int:
        """The first byte after its arrays, if a token id has `item` bytes."""
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
    __pydantic_config__ = _NO_OTHER_FIELDS


@dataclass(frozen=True)
class Manifest:
    """The content of `manifest.json`."""

    tokenizer: dict[str, Any]
    """Its fingerprint, type and vocab_size, and the ids of its special tokens."""
    dtype: Annotated[str, Field(pattern="^uint(16|32)$")]
    shards: list[Shard]
    sources: list[dict[str, Any]] = field(default_factory=list)
    dropped: dict[str, int] = field(default_factory=dict)
    statistics: dict[str, Any] = field(default_factory=dict)
    version: int = FORMAT_VERSION
    __pydantic_config__ = _NO_OTHER_FIELDS

    @property
    def fingerprint(self) -> str:
        """Identity of the corpus: the ids and flags of every document, and which ids are special.

        It does not depend on where the text came from.
        """
        parts = [str(self.version), json.dumps(self.tokenizer, sort_keys=True), self.dtype]
        parts += [f"{shard.split} {shard.documents} {shard.tokens} {shard.md5}" for shard in self.shards]
        return md5("\n".join(parts).encode()).hexdigest()

    def write(self, folder: Path) -> None:
        """Write `folder`/manifest.json. The tokenizer must be there already, since its files are sealed with it."""
        write_atomically(folder / "manifest.json", seal(folder, {"fingerprint": self.fingerprint, **asdict(self)}))

    @classmethod
    def read(cls, folder: Path) -> "Manifest":
        """The manifest of a corpus.

        Raises `UserError` if there is none, or one that cannot be read or has another version, and `DamagedError` if
        it or the tokenizer differs from what was written.
        """
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
        if fault := manifest._fault() or ("its fingerprint does not match" if manifest.fingerprint != written else ""):
            raise DamagedError(f"{path}: {fault}; run `reread preprocess` again")
        return manifest

    def _fault(self) -> str:
        """A contradiction in it, whoever wrote it; empty if there is none."""
        for shard in self.shards:
            for name in ("documents", "tokens"):
                if getattr(shard, name) != sum(getattr(block, name) for block in shard.blocks):
                    return f"{shard.name}: {name} are not the sum of its blocks"
            if any(block.end(np.dtype(self.dtype).itemsize) > shard.bytes for block in shard.blocks):
                return f"{shard.name}: a block ends after its shard"
        return tokenizer_fault(self.tokenizer)


def tokenizer_fault(tokenizer: dict[str, Any]) -> str:
    """An impossible value in a manifest's `tokenizer`; empty if there is none."""
    size = tokenizer.get("vocab_size")
    if type(size) is not int or not 0 < size < 1 << 32:
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
