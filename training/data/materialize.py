"""Finished samples on disk: the rows that `Samples` draws, written once.

The folder has a `manifest.json` of kind "samples", the tokenizer, and tar shards in WebDataset layout. Row c * n + i is
sample i of copy c. A tar sample is a block of rows, without their padding:

    ids        [tokens]          masked input ids, with [CLS] and [SEP]
    continues  [tokens / 8]      bits: whether a token continues a word
    rows       [rows, 4]         tokens, tokens of segment 0, predicted tokens, next_sentence_label (2 without one)
    columns    [predicted]       where the predicted tokens are in their row
    labels     [predicted]       their ids
"""

import json
import logging
import multiprocessing
import os
import shutil
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from preprocessing.corpus import (
    Corpus,
    Count,
    ShardFiles,
    TarWriter,
    checksum,
    tokenizer_fault,
)
from preprocessing.corpus.seal import read_manifest, seal, unseal
from preprocessing.errors import UserError, writing
from preprocessing.files import write_atomically
from preprocessing.settings import Settings
from training.data.dataset import samples_fingerprint, special_ids
from training.data.order import Order
from training.data.rows import IGNORED, Rows
from training.data.samples import RowDataset, RowSettings, Samples, frame

FORMAT_VERSION = 4
SHARD_BLOCKS = 64
_CACHED_BLOCKS = 256
_UNLABELLED = 2
_MEMBERS = ("ids", "continues", "rows", "columns", "labels")

log = logging.getLogger("reread")


def materialize(
    corpus: Path, out: Path, settings: RowSettings, seed: int, workers: int = 0, *, block_rows: int = 1024
) -> None:
    """Write all copies of the samples of `corpus` to the folder `out`; `workers` processes, 0 for one a CPU core.

    After an interruption the same call writes only the missing shards. Raises `UserError` if `out` already holds other
    or altered samples, or cannot be written.
    """
    with writing(out):
        _materialize(corpus, out, settings, seed, workers, block_rows)


def _materialize(corpus: Path, out: Path, settings: RowSettings, seed: int, workers: int, block_rows: int) -> None:
    settings = settings.model_copy(update={"corpus": corpus})
    manifest = Corpus(corpus).manifest
    drawn = {split: _samples(settings, seed, split) for split in sorted({shard.split for shard in manifest.shards})}
    values: dict[str, Any] = {
        "kind": "samples",
        "version": FORMAT_VERSION,
        "corpus": manifest.fingerprint,
        "seed": seed,
        "settings": settings.model_dump(mode="json", exclude={"corpus", "corpora", "cache"}),
        "tokenizer": manifest.tokenizer,
        "dtype": manifest.dtype,
        "block_rows": block_rows,
        "pools": {split: samples.order.pools for split, samples in drawn.items()},
        "extents": {split: np.diff(samples.order.before_extent).tolist() for split, samples in drawn.items()},
    }
    path = out / "manifest.json"
    if path.exists():
        found = read_manifest(out)
        if any(found.get(name) != value for name, value in values.items()):
            raise UserError(f"{path}: holds other samples ({_difference(found, values)}); give an empty folder")
        _read_manifest(out)
        log.info("%s: all samples are already written", out)
        return
    _samples(settings, seed, "train").check(settings, seed)
    (out / "tokenizer").mkdir(parents=True, exist_ok=True)
    for file in (corpus / "tokenizer").iterdir():
        shutil.copyfile(file, out / "tokenizer" / file.name)
    tasks = [
        (settings, seed, split, number, block_rows, out)
        for split, samples in drawn.items()
        for number in range(-(-len(samples) * settings.copies // (SHARD_BLOCKS * block_rows)))
    ]
    shards = _run(tasks, workers or os.cpu_count() or 1)
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import track

        shards = iter(track(shards, "writing samples", len(tasks), console=Console(stderr=True)))
    values["shards"] = list(shards)
    write_atomically(path, seal(out, values))
    for shard in values["shards"]:
        _description(out / shard["name"]).unlink()
    rows = settings.copies * sum(map(len, drawn.values()))
    log.info("%s: %s samples, %d copies of each, in %d shards", out, f"{rows:,}", settings.copies, len(tasks))


def _difference(found: dict[str, Any], values: dict[str, Any]) -> str:
    if found.get("kind") != "samples":
        return "not samples"
    if found["corpus"] != values["corpus"]:
        return "from another corpus"
    written, wanted = (_flat(RowSettings(corpus=Path(), **side["settings"]), side["seed"]) for side in (found, values))
    return _differing(written, wanted) or "in another format version"


def is_materialized(folder: Path) -> bool:
    try:
        return read_manifest(folder).get("kind") == "samples"
    except UserError:
        return False  # opening it as a corpus will raise the error


@lru_cache(maxsize=2)
def _samples(settings: RowSettings, seed: int, split: str) -> Samples:
    return Samples(Corpus(settings.folder, split), settings, seed)


_Task = tuple[RowSettings, int, str, int, int, Path]


def _run(tasks: list[_Task], workers: int) -> Iterator[dict[str, Any]]:
    if workers == 1:
        yield from map(_write_shard, tasks)
        return
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        yield from pool.map(_write_shard, tasks)


def _write_shard(task: _Task) -> dict[str, Any]:
    """Write shard `number` of a split unless it is already written; returns its description."""
    settings, seed, split, number, block_rows, out = task
    samples = _samples(settings, seed, split)
    path = out / f"{split}-{number:05d}.tar"
    if _description(path).exists():
        done = json.loads(_description(path).read_text(encoding="utf-8"))
        if (
            done["fingerprint"] == samples.fingerprint
            and path.exists()
            and path.stat().st_size == done["shard"]["bytes"]
        ):
            return done["shard"]
    tar = TarWriter(path)
    shard_rows = SHARD_BLOCKS * block_rows
    rows = range(number * shard_rows, min((number + 1) * shard_rows, len(samples) * settings.copies))
    blocks: list[dict[str, Any]] = []
    for begin in rows[::block_rows]:
        copies, indices = np.divmod(np.arange(begin, min(begin + block_rows, rows.stop)), len(samples))
        arrays = _pack(samples.at(copies, indices), samples.corpus.manifest.dtype)
        prefix = f"{path.stem}-{len(blocks):06d}"
        starts = [tar.add(f"{prefix}.{name}.npy", array) for name, array in zip(_MEMBERS, arrays, strict=True)]
        blocks.append({"sizes": [array.size for array in arrays], "starts": starts, "crc32": checksum(arrays)})
    size, digest = tar.close()
    shard = {"name": path.name, "split": split, "bytes": size, "md5": digest, "blocks": blocks}
    write_atomically(_description(path), json.dumps({"fingerprint": samples.fingerprint, "shard": shard}).encode())
    return shard


def _description(path: Path) -> Path:
    return path.with_suffix(".json")


def _pack(rows: Rows, dtype: str) -> list[NDArray[Any]]:
    """The members of a block."""
    real, predicted = rows["attention_mask"] == 1, rows["labels"] != IGNORED
    small = _small(real.shape[1])
    tokens = real.sum(axis=1)
    second = rows["token_type_ids"].sum(axis=1) if "token_type_ids" in rows else np.zeros_like(tokens)
    label = rows.get("next_sentence_label", np.full_like(tokens, IGNORED))
    label = np.where(label == IGNORED, _UNLABELLED, label)
    return [
        rows["input_ids"][real].astype(dtype),
        np.packbits(rows["continues_word"][real]),
        np.stack([tokens, tokens - second, predicted.sum(axis=1), label], axis=1).astype(small),
        np.nonzero(predicted)[1].astype(small),
        rows["labels"][predicted].astype(dtype),
    ]


def _small(columns: int) -> np.dtype[Any]:
    return np.promote_types(np.uint16, np.min_scalar_type(columns))


class _Block(NamedTuple):
    ids: NDArray[Any]
    continues: NDArray[np.uint8]
    rows: NDArray[Any]
    columns: NDArray[Any]
    labels: NDArray[Any]
    token_at: NDArray[np.int64]
    """[rows + 1]: where each row begins in `ids`."""
    predicted_at: NDArray[np.int64]
    """[rows + 1]: where each row begins in `columns` and `labels`."""


_Five = Annotated[list[Count], Field(min_length=len(_MEMBERS), max_length=len(_MEMBERS))]


class _WrittenBlock(Settings):
    """The number of values of each of a block's `_MEMBERS`, and the byte of the shard where it begins."""

    sizes: _Five
    starts: _Five
    crc32: Count


class _WrittenShard(Settings):
    name: str
    split: str
    bytes: Count
    md5: str
    blocks: list[_WrittenBlock]


class _Manifest(Settings):
    kind: Literal["samples"]
    version: int
    corpus: str
    """Fingerprint of the corpus that the samples were drawn from."""
    seed: int
    settings: dict[str, Any]
    tokenizer: dict[str, Any]
    dtype: Literal["uint16", "uint32"]
    block_rows: int = Field(ge=1, le=1 << 30)
    pools: dict[str, Annotated[int, Field(strict=True, ge=1)]]
    """Number of pools of each split (`training.data.order`)."""
    extents: dict[str, list[Count]]
    """Number of samples in each extent of each split."""
    shards: list[_WrittenShard]


def _read_manifest(folder: Path) -> _Manifest:
    path, values = folder / "manifest.json", read_manifest(folder)
    command = "reread preprocess --materialize"
    if values.get("version") != FORMAT_VERSION:
        raise UserError(
            f"{path}: samples of format {values.get('version')}, this program reads {FORMAT_VERSION}; write them again "
            f"with `{command}`"
        )
    manifest = _Manifest.parse(unseal(folder, values, command), str(path))
    if fault := tokenizer_fault(manifest.tokenizer):
        raise UserError(f"{path}: {fault}; write the samples again with `{command}`")
    return manifest


class MaterializedSamples(RowDataset[RowSettings]):
    """Samples read from a folder that `materialize` wrote.

    Raises `UserError` for a missing or truncated shard on opening, and for an altered block when it is first read.
    """

    def __init__(self, folder: Path, split: str) -> None:
        written = _read_manifest(folder)
        self.folder = folder
        self.seed = written.seed
        self.settings = RowSettings.parse({**written.settings, "corpus": folder}, str(folder / "manifest.json"))
        self.corpus_fingerprint = written.corpus
        self.split = split
        self.vocab_size = written.tokenizer["vocab_size"]
        self.tokenizer_folder = folder / "tokenizer"
        self.special = special_ids(written.tokenizer)
        self._block_rows = written.block_rows
        before_extent = np.append(0, np.cumsum(written.extents.get(split, []), dtype=np.int64))
        pools = min(written.pools.get(split, 1), max(1, len(before_extent) - 1))
        self.order = Order(before_extent, pools, self.settings.copies, self.seed)
        self._files = ShardFiles(folder, "reread preprocess --materialize")
        shards = [shard for shard in written.shards if shard.split == split]
        for shard in shards:
            self._files.check_size(shard.name, shard.bytes)
        self._blocks = [(shard.name, block) for shard in shards for block in shard.blocks]
        small = _small(self.settings.sequence_length)
        self._dtypes = (written.dtype, np.uint8, small, small, written.dtype)
        self._check_blocks(shards)
        self._block = lru_cache(_CACHED_BLOCKS)(self._read_block)

    def __len__(self) -> int:
        return self.order.samples

    @property
    def fingerprint(self) -> str:
        return samples_fingerprint(self.corpus_fingerprint, self.split, self.settings, self.seed, self.order.pools)

    def locate(self, positions: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        return self.order.locate(positions)

    def rows(self, positions: NDArray[np.int64]) -> Rows:
        copies, indices = self.locate(positions)
        return self._read(copies * len(self) + indices)

    def at(self, copies: NDArray[np.int64], indices: NDArray[np.int64]) -> Rows:
        numbers = copies * len(self) + indices
        rows = self._read(numbers)
        continues = np.zeros(rows["input_ids"].shape, bool)
        bits = [
            np.unpackbits(block.continues)[block.token_at[row] : block.token_at[row + 1]]
            for block, row in self._places(numbers)
        ]
        continues[rows["attention_mask"] == 1] = np.concatenate(bits)
        return {**rows, "continues_word": continues}

    def check(self, settings: RowSettings, seed: int) -> None:
        """Raises `UserError` with each setting that differs from those the samples were written with."""
        if differing := _differing(_flat(self.settings, self.seed), _flat(settings, seed)):
            raise UserError(
                f"{self.folder}: these samples were written with {differing}; restore that, or write "
                "them again with `reread preprocess --materialize`"
            )

    def verify(self) -> None:
        for number in range(len(self._blocks)):
            self._read_block(number)

    def _check_blocks(self, shards: list["_WrittenShard"]) -> None:
        """Raises `UserError` unless the blocks of a split hold all its rows and lie within their shards."""
        total, items = len(self) * self.settings.copies, [np.dtype(dtype).itemsize for dtype in self._dtypes]
        rows = [min(self._block_rows, total - begin) for begin in range(0, total, self._block_rows)]
        fits = all(
            start + size * item <= shard.bytes
            for shard in shards
            for block in shard.blocks
            for start, size, item in zip(block.starts, block.sizes, items, strict=True)
        )
        if not fits or [block.sizes[2] for _, block in self._blocks] != [4 * number for number in rows]:
            raise UserError(f"{self.folder / 'manifest.json'}: its blocks do not hold its samples; write them again")

    def _read(self, numbers: NDArray[np.int64]) -> Rows:
        shape = len(numbers), self.settings.sequence_length
        places = self._places(numbers)
        table = np.stack([block.rows[row] for block, row in places]).astype(np.int64)
        rows = frame(table[:, 0], shape[1], table[:, 1] if self.settings.next_sentence else None)
        ids = np.full(shape, self.special["pad"], np.int32)
        ids[rows["attention_mask"] == 1] = np.concatenate(
            [block.ids[block.token_at[row] : block.token_at[row + 1]] for block, row in places]
        )
        predicted = [(block, *block.predicted_at[row : row + 2].tolist()) for block, row in places]
        columns = np.concatenate([block.columns[begin:end] for block, begin, end in predicted])
        labels = np.full(shape, IGNORED, np.int32)
        labels[np.repeat(np.arange(len(numbers)), table[:, 2]), columns] = np.concatenate(
            [block.labels[begin:end] for block, begin, end in predicted]
        )
        result = {"input_ids": ids, **rows, "labels": labels}
        if self.settings.next_sentence:
            label = table[:, 3].astype(np.int32)
            result["next_sentence_label"] = np.where(label == _UNLABELLED, np.int32(IGNORED), label)
        return result

    def _places(self, numbers: NDArray[np.int64]) -> list[tuple[_Block, int]]:
        blocks, rows = np.divmod(numbers, self._block_rows)
        return [(self._block(block), row) for block, row in zip(blocks.tolist(), rows.tolist(), strict=True)]

    def _read_block(self, number: int) -> _Block:
        name, block = self._blocks[number]
        parts = zip(self._dtypes, block.sizes, block.starts, strict=True)
        arrays = [self._files.array(name, dtype, size, start) for dtype, size, start in parts]
        if checksum(arrays) != block.crc32:
            raise self._files.altered(name, block.starts[0], "block")
        ids, continues, rows, columns, labels = arrays
        rows = rows.reshape(-1, 4)
        at = np.zeros((2, len(rows) + 1), np.int64)
        np.cumsum(rows[:, [0, 2]].T, axis=1, out=at[:, 1:])
        return _Block(ids, continues, rows, columns, labels, at[0], at[1])


def _differing(written: dict[str, Any], wanted: dict[str, Any]) -> str:
    return ", ".join(
        f"{name} {written[name]} (now {value})" for name, value in wanted.items() if written[name] != value
    )


def _flat(settings: RowSettings, seed: int) -> dict[str, Any]:
    values = settings.model_dump(mode="json", exclude={"corpus", "corpora", "cache", "masking"})
    masking = settings.masking.model_dump(mode="json")
    return {
        "seed": seed,
        **{f"data.{name}": value for name, value in values.items()},
        **{f"data.masking.{name}": value for name, value in masking.items()},
    }
