"""Samples with whole-word masking: our rows against BERT's recipe as a Python loop over sequences, on one core.

    python benchmarks/loader.py [CORPUS] [--rounds 5] [--rows 1024]

CORPUS is a folder made by `reread preprocess`; without one, random ids in words and sentences stand in. The rival is
the recipe of Google's `create_pretraining_data` with whole words, step by step: fill up with sentences, split into A
and B, cut, choose words greedily, 80/10/10, pad. It works on token ids in memory, gets its words from the same flags
and writes nothing, so tokenisation and disk are on neither side. The two take turns; figures are real tokens (no
padding) a CPU-second of the process, the median of the rounds. The same rows with spans of words stand beside them,
and a last line has rows packed full, as Longformer's are.
"""

import argparse
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np

from preprocessing.corpus import CONTINUES_WORD, SENTENCE_END, Corpus, Manifest, ShardWriter
from training.data.packed import Packed, PackedSettings
from training.data.samples import RowSettings, Samples
from training.data.settings import MaskingSettings

Sentence = list[tuple[int, bool]]
"""(token id, whether it continues a word)."""

CLS, SEP, MASK = (-1, False), (-2, False), -3


def random_corpus(folder: Path, documents: int = 3000) -> None:
    generator = np.random.default_rng(0)
    writer = ShardWriter(folder / "train-00000.tar", "train", "uint16")
    for length in generator.geometric(1 / 1500, documents).tolist():
        flags = (generator.random(length) < 0.4) * CONTINUES_WORD | (generator.random(length) < 0.04) * SENTENCE_END
        writer.add(generator.integers(5, 21128, length, np.uint16), flags)
    special = {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4}
    tokenizer = {"fingerprint": "random", "type": "wordpiece", "vocab_size": 21128, **special}
    Manifest(tokenizer, "uint16", [writer.close()], statistics={"han_tokens": 0}).write(folder)


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


def berts_rows(
    documents: list[list[Sentence]], length: int, vocabulary: int, rng: random.Random
) -> tuple[list[list[list[int]]], int]:
    """Padded rows and the number of real tokens of one copy of the documents."""
    longest = length - 3
    rows, real = [], 0
    for number, document in enumerate(documents):
        target = rng.randint(2, longest) if rng.random() < 0.1 else longest
        chunk: list[Sentence] = []
        size = at = 0
        while at < len(document):
            chunk.append(document[at])
            size += len(document[at])
            if at == len(document) - 1 or size >= target:
                split = rng.randint(1, len(chunk) - 1) if len(chunk) > 1 else 1
                a = [piece for sentence in chunk[:split] for piece in sentence]
                b: Sentence = []
                if len(chunk) == 1 or rng.random() < 0.5:
                    for _ in range(10):
                        other = rng.randrange(len(documents))
                        if other != number:
                            break
                    for sentence in documents[other][rng.randrange(len(documents[other])) :]:
                        b += sentence
                        if len(b) >= target - len(a):
                            break
                    at -= len(chunk) - split  # unused sentences are put back
                else:
                    b = [piece for sentence in chunk[split:] for piece in sentence]
                while len(a) + len(b) > longest:
                    longer = a if len(a) > len(b) else b
                    del longer[0 if rng.random() < 0.5 else -1]
                row, used = berts_masks([CLS, *a, SEP, *b, SEP], len(a) + 2, length, vocabulary, rng)
                rows.append(row)
                real += used
                chunk, size = [], 0
                target = rng.randint(2, longest) if rng.random() < 0.1 else longest
            at += 1
    return rows, real


def berts_masks(
    pieces: Sentence, first: int, length: int, vocabulary: int, rng: random.Random
) -> tuple[list[list[int]], int]:
    """The steps of `create_masked_lm_predictions` and of writing an instance, in their order."""
    words: list[list[int]] = []
    for column, (number, continues) in enumerate(pieces):
        if words and continues:
            words[-1].append(column)
        elif number >= 0:
            words.append([column])
    rng.shuffle(words)
    output = [number for number, _ in pieces]
    budget = max(1, round(0.15 * len(pieces)))
    predictions: list[tuple[int, int]] = []
    covered: set[int] = set()
    for word in words:
        if len(predictions) >= budget:
            break
        if len(predictions) + len(word) > budget:
            continue
        if any(column in covered for column in word):
            continue
        for column in word:
            covered.add(column)
            if rng.random() < 0.8:
                number = MASK
            elif rng.random() < 0.5:
                number = pieces[column][0]
            else:
                number = rng.randint(0, vocabulary - 1)
            output[column] = number
            predictions.append((column, pieces[column][0]))
    predictions.sort()
    return berts_features(output, first, length, predictions), len(pieces)


def berts_features(ids: list[int], first: int, length: int, predictions: list[tuple[int, int]]) -> list[list[int]]:
    types, attention = [], [1] * len(ids)
    for column in range(len(ids)):
        types.append(0 if column < first else 1)
    while len(ids) < length:
        for values in (ids, attention, types):
            values.append(0)
    labels = [-100] * length
    for column, label in predictions:
        labels[column] = label
    return [ids, types, attention, labels]


def tokens_per_second(draw: Callable[[], int]) -> float:
    begin = time.process_time()
    tokens = draw()
    return tokens / (time.process_time() - begin)


def reader(source: Samples | Packed, rows: int) -> Callable[[], int]:
    """Draws some 4 M slots of rows each time and returns the number of real tokens; every block was read once."""
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


def packed(corpus: Corpus, length: int, rows: int, rounds: int) -> float:
    """Median tokens a CPU-second of full rows."""
    settings = PackedSettings(kind="packed", corpus=corpus.folder, sequence_length=length)
    draw = reader(Packed(corpus, settings, 0), rows)
    return median(tokens_per_second(draw) for _ in range(rounds))


def spans(corpus: Corpus, length: int, rows: int, rounds: int) -> float:
    """Median tokens a CPU-second of rows in which spans of words are masked."""
    settings = RowSettings(corpus=corpus.folder, sequence_length=length, masking=MaskingSettings(strategy="span"))
    draw = reader(Samples(corpus, settings, 0), rows)
    return median(tokens_per_second(draw) for _ in range(rounds))


def compare(corpus: Corpus, length: int, rows: int, rounds: int) -> tuple[float, float]:
    """Median real tokens a CPU-second: ours, the loop's."""
    samples = Samples(corpus, RowSettings(corpus=corpus.folder, sequence_length=length), 0)
    documents = read_sentences(corpus, 1_000_000)
    rng = random.Random(0)
    ours = reader(samples, rows)

    def theirs() -> int:
        made, real = berts_rows(documents, length, samples.vocab_size, rng)
        np.array(made, np.int32)
        return real

    figures = [(tokens_per_second(ours), tokens_per_second(theirs)) for _ in range(rounds)]
    mine, loop = zip(*figures, strict=True)
    return median(mine), median(loop)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", nargs="?", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=1024)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        if options.corpus is None:
            random_corpus(Path(temporary))
        corpus = Corpus(options.corpus or temporary)
        print(f"{corpus.documents:,} documents, {corpus.tokens:,} tokens; {options.rows} rows a call")
        for length in (128, 512):
            mine, loop = compare(corpus, length, options.rows, options.rounds)
            print(
                f"length {length}: {mine / 1e6:.1f} M tokens/s a core, BERT's loop {loop / 1e6:.2f}: "
                f"{mine / loop:.1f} times; spans {spans(corpus, length, options.rows, options.rounds) / 1e6:.1f} M"
            )
        rows = max(1, options.rows // 16)
        speed = packed(corpus, 4096, rows, options.rounds)
        print(f"packed to 4096, {rows} rows a call: {speed / 1e6:.1f} M tokens/s a core")


if __name__ == "__main__":
    main()
