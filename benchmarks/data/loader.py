"""Samples with whole-word masking: our rows against BERT's recipe as a Python loop over sequences, on one core.

    python benchmarks/data/loader.py [CORPUS] [--rounds 5] [--rows 1024]

CORPUS is a folder made by `reread preprocess`; without one, random ids in words and sentences stand in. The rival
(`bert_recipe.py`) works on token ids in memory, gets its words from the same flags and writes nothing, so tokenisation
and disk are on neither side. The two take turns; figures are real tokens (no padding) a CPU-second of the process. The
same rows with masked spans of words stand beside them, and a last line has full rows, as Longformer reads.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import random
import tempfile
from collections.abc import Callable
from functools import partial
from operator import itemgetter

import numpy as np

from benchmarks.data.bert_recipe import Vocabulary, features, samples
from benchmarks.harness import heading, in_turns, parser, ratio, row, seconds
from benchmarks.random_corpus import random_corpus
from reread.preprocessing.corpus import CONTINUES_WORD, SENTENCE_END, Corpus
from reread.preprocessing.errors import one_line
from reread.training.data.rows.packed import Packed, PackedSettings
from reread.training.data.rows.samples import RowSettings, Samples
from reread.training.data.settings import MaskingSettings

Sentence = list[tuple[int, bool]]
"""(token id, whether it continues a word)."""


def read_sentences(corpus: Corpus, tokens: int) -> list[list[Sentence]]:
    """Documents as BERT's script holds them, evenly over the corpus, about `tokens` in all."""
    documents: list[list[Sentence]] = []
    step = max(1, corpus.tokens // tokens)
    for index in range(0, corpus.documents, step):
        ids, flags = corpus.document(index)
        pieces = list(zip(ids.tolist(), (flags & CONTINUES_WORD != 0).tolist(), strict=True))
        ends = np.append(np.flatnonzero(flags[:-1] & SENTENCE_END) + 1, len(pieces)).tolist()
        documents.append([pieces[a:b] for a, b in zip([0, *ends[:-1]], ends, strict=True)])
    return documents


def bert_loop(corpus: Corpus, length: int, vocab_size: int) -> Callable[[], int]:
    """Makes one copy of about a million tokens each time and returns the number of real tokens."""
    documents, generator = read_sentences(corpus, 1_000_000), random.Random(0)
    pieces = [(number, False) for number in range(vocab_size)]
    vocabulary = Vocabulary((-1, False), (-2, False), (-3, False), itemgetter(0), pieces, itemgetter(1))
    most = round(0.15 * length)

    def draw() -> int:
        made = [
            features(one, vocabulary, length, most) for one in samples(documents, vocabulary, length, most, generator)
        ]
        return sum(sum(one["input_mask"]) for one in made)

    return draw


def our_rows(source: Samples | Packed, rows: int) -> Callable[[], int]:
    """Draws rows of about 4 M tokens each time and returns the number of real ones; every block was read before."""
    steps = max(1, 4_000_000 // (rows * source.settings.sequence_length))
    position = 0

    def draw() -> int:
        nonlocal position
        real = 0
        for _ in range(steps):
            real += int(source.rows(position + np.arange(rows))["attention_mask"].sum())
            position += rows
        return real

    source.verify()
    draw()
    return draw


def seconds_per_token(draw: Callable[[], int]) -> float:
    """CPU seconds."""
    tokens = 0

    def step() -> None:
        nonlocal tokens
        tokens = draw()

    return seconds(step) / tokens


@one_line()
def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("corpus", nargs="?", type=Path)
    arguments.add_argument("--rounds", type=int, default=5)
    arguments.add_argument("--rows", type=int, default=1024)
    options = arguments.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.corpus
        if folder is None:
            lengths = np.random.default_rng(0).geometric(1 / 1500, 3000).tolist()
            folder = random_corpus(Path(temporary), 21128, lengths)
        corpus = Corpus(folder)
        print(f"{corpus.documents:,} documents, {corpus.tokens:,} tokens; {options.rows} rows a call\n")
        heading("length", "rows", "M tokens / CPU-s", "faster than BERT's loop")
        for length in (128, 512):
            words = Samples(corpus, RowSettings(corpus=folder, sequence_length=length), 0)
            masking = MaskingSettings(strategy="span")
            spans = Samples(corpus, RowSettings(corpus=folder, sequence_length=length, masking=masking), 0)
            draws = {
                "whole words": our_rows(words, options.rows),
                "spans of words": our_rows(spans, options.rows),
                "BERT's loop": bert_loop(corpus, length, words.vocab_size),
            }
            report(length, draws, options.rounds)
        packed = Packed(corpus, PackedSettings(kind="packed", corpus=folder, sequence_length=4096), 0)
        report(4096, {"packed": our_rows(packed, max(1, options.rows // 16))}, options.rounds)


def report(length: int, draws: dict[str, Callable[[], int]], rounds: int) -> None:
    taken = in_turns({name: partial(seconds_per_token, draw) for name, draw in draws.items()}, rounds)
    for name, ours in taken.items():
        faster = ratio(ours, taken["BERT's loop"]) if "BERT's loop" in taken else "-"
        row(length, name, f"{1e-6 / min(ours):.2f}", faster)


if __name__ == "__main__":
    main()
