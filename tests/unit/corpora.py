"""Tiny corpora of random ids for the tests of training.data."""

from pathlib import Path

import numpy as np

from preprocessing.corpus import CONTINUES_WORD, SENTENCE_END, Corpus, Manifest, ShardWriter

SPECIAL = {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4}
VOCABULARY = 1000


def make_corpus(folder: Path, lengths: list[int], *, seed: int = 0, split: str = "train") -> Corpus:
    """Documents of these lengths, words of a few tokens, sentences of about 20; token n of the corpus is 5 + n % 995."""
    folder.mkdir(exist_ok=True)
    generator = np.random.default_rng(seed)
    written, done = [], 0
    for number, part in enumerate(np.array_split(np.array(lengths, np.int64), 2)):
        writer = ShardWriter(folder / f"{split}-{number:05d}.tar", split, "uint16", block_tokens=2000)
        for length in part.tolist():
            ids = 5 + np.arange(done, done + length) % (VOCABULARY - 5)
            flags = np.where(generator.random(length) < 0.4, CONTINUES_WORD, 0).astype(np.uint8)
            flags[0] = 0
            ends = np.append(generator.random(length - 1) < 0.05, True) & np.append(
                flags[1:] & CONTINUES_WORD == 0, True
            )
            writer.add(ids, flags | ends * SENTENCE_END)
            done += length
        written.append(writer.close())
    Manifest(
        {"fingerprint": "tiny", "type": "wordpiece", "vocab_size": VOCABULARY, **SPECIAL}, "uint16", written
    ).write(folder)
    return Corpus(folder, split)
