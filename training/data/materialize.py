"""Finished rows on disk: the rows that `Samples` draws, written once.

The folder has a `manifest.json` of kind "samples", the tokenizer, and tar shards in WebDataset layout. Row c * n + i is
sample i of copy c. A tar sample is a block of rows, without their padding:

    ids        [tokens]          masked input ids, with [CLS] and [SEP]
    continues  [tokens / 8]      bits: whether a token continues a word
    rows       [rows, 4]         tokens, tokens of segment 0, predicted tokens, next_sentence_label (2 without one)
    columns    [predicted]       the columns of the predicted tokens in their row
    labels     [predicted]       their ids
"""

import json
import logging
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache, partial
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from rich.console import Console
from rich.progress import track

from reread.preprocessing.corpus import Corpus, Count, ShardFiles, TarWriter, checksum, tokenizer_fault
from reread.preprocessing.corpus.checksums import add_checksum, read_manifest, verify_checksum
from reread.preprocessing.corpus.job import once
from reread.preprocessing.errors import UserError, writing
from reread.preprocessing.execution.executors.semaphores import name_semaphores
from reread.preprocessing.files import write_atomically
from reread.preprocessing.settings import Settings, changed_leaves
from reread.preprocessing.tokens.base import copy_tokenizer_files
from reread.training.data.batch import IGNORED, Rows
from reread.training.data.dataset import PooledDataset, Shares, new_rows, special_ids
from reread.training.data.order.order import Order
from reread.training.data.rows.samples import RowDataset, RowSettings, Samples, frame

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
    or altered samples, or cannot be written, and for a share of masked tokens that depends on the step.
    """
    if settings.masking.by_step:
        raise UserError(
            "data.masking: finished rows are masked before there are steps; set first_probability and "
            "final_probability to null"
        )
    # The manifest, without the shards
    settings, manifest = settings.model_copy(update={"corpus": corpus}), Corpus(corpus).manifest
    drawn = {split: _samples(settings, seed, split) for split in sorted({shard.split for shard in manifest.shards})}
    values: dict[str, Any] = {
        "kind": "samples",
        "version": FORMAT_VERSION,
        "corpus": manifest.fingerprint,
        "seed": seed,
        "settings": _dumped(settings),
        "tokenizer": manifest.tokenizer,
        "dtype": manifest.dtype,
        "block_rows": block_rows,
        "pools": {split: samples.order.pools for split, samples in drawn.items()},
        "extents": {split: np.diff(samples.order.before_extent).tolist() for split, samples in drawn.items()},
    }
    with writing(out):
        # Nothing is left to write, or a folder that holds something else.
        if (out / "manifest.json").exists():
            _check_written(out, values)
            log.info("%s: all samples are already written", out)
            return
        # Write the tokenizer and the missing shards, and the manifest last.
        _samples(settings, seed, "train").check(settings, seed)
        (out / "tokenizer").mkdir(parents=True, exist_ok=True)
        copy_tokenizer_files(corpus / "tokenizer", out / "tokenizer")
        tasks = [
            (split, number)
            for split, samples in drawn.items()
            for number in range(-(-len(samples) * settings.copies // (SHARD_BLOCKS * block_rows)))
        ]
        write = partial(_write_shard, settings, seed, block_rows, out)
        shards, console = _run(write, tasks, workers or os.cpu_count() or 1), Console(stderr=True)
        progress = track(shards, "writing samples", len(tasks), console=console, disable=not sys.stderr.isatty())
        values["shards"] = list(progress)
        write_atomically(out / "manifest.json", add_checksum(out, values))
        for shard in values["shards"]:
            _description(out / shard["name"]).unlink()
    rows = settings.copies * sum(map(len, drawn.values()))
    log.info("%s: %s samples, %d copies of each, in %d shards", out, f"{rows:,}", settings.copies, len(tasks))


def _check_written(out: Path, values: dict[str, Any]) -> None:
    """Raises `UserError` unless `out` holds, unaltered, the samples whose manifest has `values`."""
    found = read_manifest(out)
    if found.get("kind") == "samples":  # fields that are newer than the folder have their defaults
        found["settings"] = _dumped(RowSettings(corpus=Path(), **found["settings"]))
    if all(found.get(name) == value for name, value in values.items()):
        _read_manifest(out)
        return
    if found.get("kind") != "samples":
        difference = "not samples"
    elif found["corpus"] != values["corpus"]:
        difference = "from another corpus"
    else:
        sides = ((RowSettings(corpus=Path(), **one["settings"]), one["seed"]) for one in (found, values))
        difference = _differing(*sides) or "in another format version"
    raise UserError(f"{out / 'manifest.json'}: holds other samples ({difference}); give an empty folder")


def _dumped(settings: RowSettings) -> dict[str, Any]:
    return settings.model_dump(mode="json", exclude={"corpus", "corpora", "cache"})


def is_materialized(folder: Path) -> bool:
    try:
        return once(read_manifest, folder).get("kind") == "samples"
    except UserError:
        return False  # opening it as a corpus will raise the error


@lru_cache(maxsize=2)
def _samples(settings: RowSettings, seed: int, split: str) -> Samples:
    return Samples(Corpus(settings.folder, split), settings, seed)


_Task = tuple[str, int]
"""A shard: its split, and its number in it."""


def _run(write: Callable[[_Task], dict[str, Any]], tasks: list[_Task], workers: int) -> Iterator[dict[str, Any]]:
    if workers == 1:
        yield from map(write, tasks)
        return
    name_semaphores()
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        yield from pool.map(write, tasks)


def _write_shard(settings: RowSettings, seed: int, block_rows: int, out: Path, task: _Task) -> dict[str, Any]:
    """Write a shard unless it is already written; returns its description."""
    split, number = task
    samples = _samples(settings, seed, split)
    path = out / f"{split}-{number:05d}.tar"
    if _description(path).exists():
        done = json.loads(_description(path).read_text(encoding="utf-8"))
        size = path.stat().st_size if path.exists() else None
        if (done["fingerprint"], done["shard"]["bytes"]) == (samples.fingerprint, size):
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


class _RowBlock(NamedTuple):
    members: dict[str, NDArray[Any]]
    """As in the shard, `continues` unpacked."""
    bounds: dict[str, NDArray[np.int64]]
    """[rows + 1]: where each row begins in a member."""


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
    """Number of pools of each split (`reread.training.data.order.order`)."""
    extents: dict[str, list[Count]]
    """Number of samples in each extent of each split."""
    shards: list[_WrittenShard]


def _read_manifest(folder: Path) -> _Manifest:
    path, values = folder / "manifest.json", once(read_manifest, folder)
    command = "reread preprocess --materialize"
    if values.get("version") != FORMAT_VERSION:
        raise UserError(
            f"{path}: samples of format {values.get('version')}, this program reads {FORMAT_VERSION}; write them again "
            f"with `{command}`"
        )
    manifest = _Manifest.parse(verify_checksum(folder, values, command), str(path))
    if fault := tokenizer_fault(manifest.tokenizer):
        raise UserError(f"{path}: {fault}; write the samples again with `{command}`")
    return manifest


class MaterializedSamples(PooledDataset[RowSettings], RowDataset[RowSettings]):
    """Rows read from a folder that `materialize` wrote.

    Raises `UserError` for a missing or truncated shard on opening, and for an altered block when it is first read.
    """

    def __init__(self, folder: Path, split: str) -> None:
        written = once(_read_manifest, folder)
        self.folder = folder
        self.seed = written.seed
        self.settings = RowSettings.parse({**written.settings, "corpus": folder}, str(folder / "manifest.json"))
        self.corpus_fingerprint = written.corpus
        self.split = split
        self._tokenizer = written.tokenizer["fingerprint"]
        self.vocab_size, self.new_rows = written.tokenizer["vocab_size"], new_rows(written.tokenizer)
        self.tokenizer_folder = folder / "tokenizer"
        self.special = special_ids(written.tokenizer)
        self._block_rows = written.block_rows
        before_extent = np.append(0, np.cumsum(written.extents.get(split, []), dtype=np.int64))
        pools = min(written.pools.get(split, 1), max(1, len(before_extent) - 1))
        self.order = Order(before_extent, pools, self.settings.copies, self.seed)
        self._files = ShardFiles(folder, "reread preprocess --materialize")
        shards = [shard for shard in written.shards if shard.split == split]
        for shard in shards:
            self._files.expect(shard.name, shard.bytes)
        self._blocks = [(shard.name, block) for shard in shards for block in shard.blocks]
        small = _small(self.settings.sequence_length)
        self._dtypes = (written.dtype, np.uint8, small, small, written.dtype)
        self._check_blocks(shards)
        self._block = lru_cache(_CACHED_BLOCKS)(self._read_block)

    def at(self, copies: NDArray[np.int64], indices: NDArray[np.int64], shares: Shares = None) -> Rows:
        blocks, numbers = np.divmod(copies * len(self) + indices, self._block_rows)
        wanted = [(self._block(block), row) for block, row in zip(blocks.tolist(), numbers.tolist(), strict=True)]

        def joined(name: str) -> NDArray[Any]:
            parts = [block.members[name][slice(*block.bounds[name][row : row + 2])] for block, row in wanted]
            return np.concatenate(parts)

        table = np.stack([block.members["rows"][row] for block, row in wanted]).astype(np.int64)
        shape = len(table), self.settings.sequence_length
        if (table[:, 0] > shape[1]).any():
            raise UserError(f"{self.folder}: a row has more than sequence_length, {shape[1]}, tokens; write them again")
        rows = frame(table[:, 0], shape[1], table[:, 1] if self.settings.next_sentence else None)
        real, ids = rows["attention_mask"] == 1, np.full(shape, self.special["pad"], np.int32)
        labels, continues = np.full(shape, IGNORED, np.int32), np.zeros(shape, bool)
        ids[real], continues[real] = joined("ids"), joined("continues")
        labels[np.repeat(np.arange(len(table)), table[:, 2]), joined("columns")] = joined("labels")
        if self.settings.next_sentence:
            label = table[:, 3].astype(np.int32)
            rows["next_sentence_label"] = np.where(label == _UNLABELLED, np.int32(IGNORED), label)
        return {"input_ids": ids, **rows, "labels": labels, "continues_word": continues}

    def check(self, settings: RowSettings, seed: int) -> None:
        """Raises `UserError` with each setting that differs from those the samples were written with."""
        if differing := _differing((self.settings, self.seed), (settings, seed)):
            raise UserError(
                f"{self.folder}: these samples were written with {differing}; restore that, or write "
                "them again with `reread preprocess --materialize`"
            )

    def facts(self) -> dict[str, Any]:
        """The fingerprints of the corpus that the samples were drawn from."""
        return {"fingerprint": self.corpus_fingerprint, "tokenizer": self._tokenizer}

    def card(self) -> dict[str, Any]:
        return {**self.facts(), "dropped": {}, "cleaning": [], "sources": []}

    def verify(self) -> None:
        for number in range(len(self._blocks)):
            self._read_block(number)

    def _check_blocks(self, shards: list["_WrittenShard"]) -> None:
        """Raises `UserError` unless the blocks of a split hold all its rows and lie within their shards."""
        total, items = len(self) * self.settings.copies, [np.dtype(dtype).itemsize for dtype in self._dtypes]
        begins = range(0, total, self._block_rows)  # wild numbers may make it longer than memory
        rows = [min(self._block_rows, total - begin) for begin in begins[: len(self._blocks) + 1]]
        fits = all(
            start + size * item <= shard.bytes
            for shard in shards
            for block in shard.blocks
            for start, size, item in zip(block.starts, block.sizes, items, strict=True)
        )
        if not fits or [block.sizes[2] for _, block in self._blocks] != [4 * number for number in rows]:
            raise UserError(f"{self.folder / 'manifest.json'}: its blocks do not hold its samples; write them again")

    def _read_block(self, number: int) -> _RowBlock:
        name, block = self._blocks[number]
        parts = zip(self._dtypes, block.sizes, block.starts, strict=True)
        arrays = [self._files.array(name, dtype, size, start) for dtype, size, start in parts]
        if checksum(arrays) != block.crc32:
            raise self._files.altered(name, block.starts[0], "block")
        members = dict(zip(_MEMBERS, arrays, strict=True))
        members["rows"] = members["rows"].reshape(-1, 4)
        members["continues"] = np.unpackbits(members["continues"], count=len(members["ids"])).view(bool)
        token_at, predicted_at = (np.append(0, np.cumsum(members["rows"][:, n], dtype=np.int64)) for n in (0, 2))
        by_token, by_prediction = dict.fromkeys(("ids", "continues"), token_at), ("columns", "labels")
        return _RowBlock(members, by_token | dict.fromkeys(by_prediction, predicted_at))


def _differing(written: tuple[RowSettings, int], wanted: tuple[RowSettings, int]) -> str:
    """The settings and the seed that differ, by their dotted names; empty if none does."""
    old, new = (side[0].model_dump(mode="json", exclude={"corpus", "corpora", "cache"}) for side in (written, wanted))
    changed = [*changed_leaves(written[1], wanted[1], "seed"), *changed_leaves(old, new, "data")]
    return ", ".join(f"{name} {before} (now {after})" for name, before, after in changed)
