"""A corpus of random ids, for benchmarks whose losses mean nothing."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from preprocessing.corpus import CONTINUES_WORD, SENTENCE_END, Manifest, ShardWriter


def random_corpus(folder: Path, vocabulary: int, lengths: Iterable[int]) -> Path:
    """Documents of so many tokens, in words of 1.7 tokens and sentences of 25."""
    rng = np.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)
    writer = ShardWriter(folder / "train-00000.tar", "train", "uint16")
    for length in lengths:
        flags = np.zeros(length, np.uint8)
        flags[rng.random(length) < 0.4] |= CONTINUES_WORD
        flags[::25] |= SENTENCE_END
        writer.add(rng.integers(5, vocabulary, length, np.uint16), flags)
    special = {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4}
    tokenizer = {"fingerprint": "random", "type": "wordpiece", "vocab_size": vocabulary, **special}
    Manifest.of(tokenizer, "uint16", [writer.close()], statistics={"han_tokens": 0}).write(folder)
    return folder
