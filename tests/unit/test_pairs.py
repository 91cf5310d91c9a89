from pathlib import Path
from typing import Any

import numpy as np
import pytest

from preprocessing.corpus import SENTENCE_END, Corpus
from tests.unit.corpora import make_corpus
from training.data import random
from training.data.chunks import Chunks, Text
from training.data.pairs import draw_pairs, truncate

LONGEST = 125


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    lengths = np.random.default_rng(2).integers(1, 700, 900).tolist()
    return make_corpus(tmp_path_factory.mktemp("pairs") / "corpus", lengths)


def document_of(corpus: Corpus, text: Text, row: int) -> tuple[int, int]:
    """The document a stretch of text is in, and where it begins there."""
    places = [corpus.block(number) for number in range(len(corpus.block_documents) - 1)]
    number = next(i for i, (s, b) in enumerate(places) if s is text.maps[row] and b.ids_at == text.ids_at[row])
    offsets = corpus.block_offsets(number)
    within = int(np.searchsorted(offsets, text.start[row], side="right")) - 1
    return int(corpus.block_documents[number]) + within, int(text.start[row] - offsets[within])


def test_pairs_are_those_of_bert(corpus: Corpus) -> None:
    chunks = Chunks(corpus, LONGEST)
    indices = np.arange(0, len(chunks), 4)
    places = chunks.locate(indices)
    text = chunks.bounds(places)[0]
    a, b, label = draw_pairs(chunks, places, random.key(0, indices), 0.0)
    several = 0
    for row in range(len(indices)):
        _, flags = corpus.document(int(places.document[row]))
        first = int(places.text.start[row])
        inner = flags[text.start[row] - first : text.stop[row] - first - 1] & SENTENCE_END
        several += int(inner.any())
        sizes = a.stop[row] - a.start[row], b.stop[row] - b.start[row]
        assert min(sizes) >= 1 and sum(sizes) <= LONGEST
        if label[row] == 0:
            assert inner.any()
            assert (a.start[row], b.stop[row]) == (text.start[row], text.stop[row])
            assert a.stop[row] == b.start[row] and flags[a.stop[row] - first - 1] & SENTENCE_END
        else:
            other, start = document_of(corpus, b, row)
            assert other != places.document[row]
            ids, flags = corpus.document(other)
            assert start + sizes[1] <= len(ids)
            if sum(sizes) < LONGEST:  # nothing was cut off
                assert start == 0 or flags[start - 1] & SENTENCE_END
    random_of_several = 1 - (label == 0).sum() / several
    assert abs(random_of_several - 0.5) < 0.05
    assert label.mean() > 0.5


def test_a_random_next_sentence_fills_the_row(corpus: Corpus) -> None:
    chunks = Chunks(corpus, LONGEST)
    indices = np.arange(0, len(chunks), 3)
    a, b, label = draw_pairs(chunks, chunks.locate(indices), random.key(1, indices), 0.0)
    sizes = (a.stop - a.start + b.stop - b.start)[label == 1]
    assert (sizes == LONGEST).mean() > 0.6  # the other document ends before in the rest


def test_short_rows_have_few_sentences(corpus: Corpus) -> None:
    chunks = Chunks(corpus, 509)
    indices = np.arange(0, len(chunks), 2)
    places, keys = chunks.locate(indices), random.key(2, indices)

    def sizes(probability: float) -> np.ndarray:
        return np.stack([text.stop - text.start for text in draw_pairs(chunks, places, keys, probability)[:2]])

    long, some, short = sizes(0.0), sizes(0.1), sizes(1.0)
    assert short.sum(axis=0).mean() < 0.75 * long.sum(axis=0).mean()
    assert abs((some != long).any(axis=0).mean() - 0.1) < 0.05
    assert short.min() >= 1


@pytest.mark.parametrize("length", [3000, 20])
def test_a_single_document_pairs_with_itself(tmp_path: Path, length: int) -> None:
    chunks = Chunks(make_corpus(tmp_path / "corpus", [length]), LONGEST)
    indices = np.repeat(np.arange(len(chunks)), 50)
    places = chunks.locate(indices)
    _, b, label = draw_pairs(chunks, places, random.key(0, np.arange(len(indices))), 0.1)
    assert label.any() and (b.stop > b.start).all() and b.stop.max() <= length
    if len(chunks) > 1:
        own, _, _ = chunks.bounds(places)
        drawn = label == 1
        assert (((b.start < own.start) | (b.start >= own.stop))[drawn]).mean() > 0.8  # a sentence may begin before


def berts_truncation(a: int, b: int, longest: int) -> tuple[int, int]:
    while a + b > longest:
        if a > b:
            a -= 1
        else:
            b -= 1
    return a, b


def test_truncation_takes_from_the_longer_side() -> None:
    generator = np.random.default_rng(0)
    sizes = generator.integers(1, 126, (2, 3000))
    nowhere: Any = [None] * 3000
    at = np.full(3000, 1000)
    before = [Text(nowhere, at, at, at, at + size) for size in sizes]
    after = truncate(before[0], before[1], LONGEST, random.key(0, np.arange(3000)))
    kept = np.stack([text.stop - text.start for text in after])
    expected = np.array([berts_truncation(a, b, LONGEST) for a, b in sizes.T.tolist()]).T
    assert np.array_equal(kept, expected)
    dropped = sizes - kept
    front = np.stack([text.start for text in after]) - 1000
    assert (front >= 0).all() and (front <= dropped).all()
    much = dropped > 20
    assert abs((front[much] / dropped[much]).mean() - 0.5) < 0.01
    assert abs(((front - dropped / 2)[much] / np.sqrt(dropped[much] / 4)).std() - 1) < 0.05  # binomial
