"""Tiny corpora of random ids for the tests of reread.training.data."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.random_corpus import SPECIAL
from reread.preprocessing.corpus import CONTINUES_WORD, SENTENCE_END, Corpus, Manifest, ShardWriter

VOCABULARY = 1000


def make_corpus(folder: Path, lengths: list[int], *, split: str = "train", words: bool = True) -> Corpus:
    """Documents of these lengths, words of a few tokens, sentences of about 20; token n is 5 + n % 995."""
    folder.mkdir(exist_ok=True)
    generator = np.random.default_rng(0)
    shards, done = [], 0
    for number, part in enumerate(np.array_split(np.array(lengths, np.int64), 2)):
        writer = ShardWriter(folder / f"{split}-{number:05d}.tar", split, "uint16", block_tokens=2000)
        for length in part.tolist():
            continues = (generator.random(length) < 0.4) & words & (np.arange(length) > 0)
            ends_word = np.append(~continues[1:], True)
            ends_sentence = ends_word & (generator.random(length) < 0.08)
            ends_sentence[-1] = True
            ids = 5 + np.arange(done, done + length) % (VOCABULARY - 5)
            writer.add(ids, continues * CONTINUES_WORD | ends_sentence * SENTENCE_END)
            done += length
        shards.append(writer.close())
    tokenizer = {"fingerprint": "tiny", "type": "wordpiece", "vocab_size": VOCABULARY, **SPECIAL}
    Manifest.of(tokenizer, "uint16", shards).write(folder)
    return Corpus(folder, split)


def with_statistics(corpus: Corpus, folder: Path, **statistics: int) -> Path:
    """A copy of the corpus in `folder`, with these statistics in its manifest."""
    shutil.copytree(corpus.folder, folder)
    replace(corpus.manifest, statistics={**corpus.manifest.statistics, **statistics}).write(folder)
    return folder
