"""Corpora of given ids, and of random ones for benchmarks whose losses mean nothing; ids 0 to 4 are special tokens."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reread.preprocessing.corpus import CONTINUES_WORD, SENTENCE_END, Manifest, ShardWriter, WrittenShard
from reread.preprocessing.corpus.writer import BLOCK_TOKENS

SPECIAL = {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4}
Documents = Sequence[tuple[NDArray[Any], NDArray[np.uint8]]]
"""Ids and flags of each document."""


def write_corpus(folder: Path, splits: Mapping[str, Documents], vocabulary: int) -> Path:
    """`folder`, made a corpus of these documents by split unless it is one."""
    if (folder / "manifest.json").exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    shards = []
    for split, documents in splits.items():
        writer = ShardWriter(folder / f"{split}-00000.tar", split, "uint16")
        for ids, flags in documents:
            writer.add(ids, flags)
        shards.append(writer.close())
    return _finished(folder, vocabulary, shards)


def random_corpus(
    folder: Path,
    vocabulary: int,
    lengths: Iterable[int],
    *,
    block_tokens: int = BLOCK_TOKENS,
    shard_tokens: int = 1 << 40,
) -> Path:
    """Documents of so many tokens, in words of 1.7 tokens and sentences of 25; long texts repeat after 2^22 tokens."""
    rng, lengths = np.random.default_rng(0), list(lengths)
    drawn = max(1 << 22, 2 * max(lengths))
    all_ids = rng.integers(5, vocabulary, drawn, np.uint16)
    all_flags = (rng.random(drawn, np.float32) < 0.4) * CONTINUES_WORD
    all_flags[::25] |= SENTENCE_END
    folder.mkdir(parents=True, exist_ok=True)
    shards, writer, written = [], None, 0
    for length in lengths:
        if writer is None:
            writer = ShardWriter(folder / f"train-{len(shards):05d}.tar", "train", "uint16", block_tokens)
        begin = written % (drawn - length)
        writer.add(all_ids[begin : begin + length], all_flags[begin : begin + length])
        written += length
        if written >= shard_tokens:
            shards.append(writer.close())
            writer, written = None, 0
    if writer is not None:
        shards.append(writer.close())
    return _finished(folder, vocabulary, shards)


def _finished(folder: Path, vocabulary: int, shards: list[WrittenShard]) -> Path:
    tokenizer = {"fingerprint": folder.name, "type": "wordpiece", "vocab_size": vocabulary, **SPECIAL}
    Manifest.of(tokenizer, "uint16", shards, statistics={"han_tokens": 0}).write(folder)
    return folder
