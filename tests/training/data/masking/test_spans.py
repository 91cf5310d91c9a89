"""SpanBERT's spans: the lengths drawn, the lengths masked in rows of every kind, and the ends of spans."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from reread.preprocessing.corpus import Corpus
from reread.training.data.batch import IGNORED, Rows
from reread.training.data.masking.spans import draw_spans
from reread.training.data.order import random
from reread.training.data.rows.cut_documents import SegmentSettings
from reread.training.data.rows.packed import Packed, PackedSettings
from reread.training.data.rows.samples import RowSettings, Samples
from reread.training.data.rows.segments import Segments
from reread.training.data.settings import MaskingSettings
from tests.corpora import make_corpus
from tests.training.data.masking.test_masking import MASK_ID, make_rows, run

SPAN = MaskingSettings(strategy="span")


def geometric(p: float = 0.2, most: int = 10) -> NDArray[np.float64]:
    """P(l) = p (1 - p)^(l - 1) / (1 - (1 - p)^most) for l = 1 ... most, at index l (SpanBERT, section 3.1)."""
    return np.array([0.0, *(p * (1 - p) ** (l - 1) / (1 - (1 - p) ** most) for l in range(1, most + 1))])  # noqa: E741


def long_rows(rows: int, columns: int, size: int = 1) -> dict[str, Any]:
    """Full rows of one text between two special tokens, with `size` tokens a word."""
    made = make_rows(rows, columns)
    made["lengths"][:] = columns
    made["eligible"][:] = True
    made["eligible"][:, [0, -1]] = False
    made["continues"] = np.broadcast_to((np.arange(columns) - 1) % size > 0, (rows, columns)) & made["eligible"]
    return made


def words_of_spans(predicted: NDArray[np.bool_], continues: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Number of words in each run of predicted tokens."""
    follows = np.pad(predicted, ((0, 0), (1, 0)))[:, :-1]
    span = np.cumsum(predicted & ~follows)[predicted.ravel()]
    return np.bincount(span, (predicted & ~(continues & follows))[predicted])[1:].astype(np.int64)


def test_the_formula_is_the_papers() -> None:
    shares = geometric()
    assert shares.sum() == pytest.approx(1)
    assert round(float(shares @ np.arange(11)), 1) == 3.8 and round(float(shares[10]), 2) == 0.03


@pytest.mark.parametrize("size", [1, 2])
def test_lengths_in_words_are_the_truncated_geometric_ones(size: int) -> None:
    rows = long_rows(4000, 512, size)
    words = words_of_spans(run(rows, "span")[1], rows["continues"])
    shares = np.bincount(words) / len(words)
    assert len(shares) == 11
    assert np.abs(shares - geometric()).max() < 0.006
    assert abs(words.mean() - 3.797) < 0.03


def test_other_parameters_give_their_distribution() -> None:
    rows = long_rows(2000, 512)
    budgets = np.full(2000, 77)
    options = MaskingSettings(strategy="span", span_geometric=0.5, span_maximum=4)
    tokens = draw_spans(rows["eligible"].astype(np.uint16), budgets, rows["keys"], options)[1]
    assert np.abs(np.bincount(tokens) / len(tokens) - geometric(0.5, 4)).max() < 0.006


def test_the_budget_favours_no_length() -> None:
    """Few spans a row also have the expected lengths, and 15 % of the tokens; a cut last span would give 3.1."""
    rows = long_rows(10_000, 128)
    _, predicted = run(rows, "span")
    words = words_of_spans(predicted, rows["continues"])
    assert abs(words.mean() - 3.797) < 0.06
    assert np.abs(np.bincount(words) / len(words) - geometric()).max() < 0.007
    assert abs(predicted.sum() / rows["lengths"].sum() - 0.15) < 0.001
    assert predicted.sum(axis=1).max() <= 0.15 * 128 + 10


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["rows", "packed", "segments"])
def test_spans_in_real_text_have_the_papers_lengths(sample_corpus: Path, kind: str) -> None:
    """Rows of 512 tokens, in which documents of several hundred words end."""
    corpus = Corpus(sample_corpus)
    options: dict[str, Any] = {"corpus": sample_corpus, "sequence_length": 512, "masking": SPAN}
    if kind == "rows":
        single = RowSettings(next_sentence=False, short_sequence_probability=0, **options)
        batches = batches_of(Samples(corpus, single, 0))
    elif kind == "packed":
        batches = batches_of(Packed(corpus, PackedSettings(kind="packed", **options), 0))
    else:
        batches = segments_of(Segments(corpus, SegmentSettings(kind="segments", **options), 0))
    words, predicted, tokens = [], 0, 0
    for rows in batches:
        chosen = rows["labels"] != IGNORED
        full = rows["attention_mask"].sum(axis=1) > 256  # shorter rows have no room for ten words
        words.append(words_of_spans(chosen[full], rows["continues_word"][full]))
        predicted, tokens = predicted + chosen.sum(), tokens + rows["attention_mask"].sum()
    lengths = np.concatenate(words)
    assert len(lengths) > 5000
    assert lengths.max() <= 10
    assert abs(lengths.mean() - 3.8) < 0.12
    assert abs((lengths == 10).mean() - 0.03) < 0.008
    assert abs(predicted / tokens - 0.15) < 0.004


def batches_of(dataset: Samples | Packed) -> Iterator[Rows]:
    for begin in range(0, 1000, 250):
        yield dataset.rows_with_words(np.arange(begin, begin + 250))


def segments_of(dataset: Segments) -> Iterator[Rows]:
    for copy in range(6):
        readings = dataset.read(np.full(len(dataset), copy), np.arange(len(dataset)))
        places = [(reading, number) for reading in readings for number in range(reading.segments)]
        yield dataset.rows(
            [reading for reading, _ in places], [number for _, number in places], np.ones(len(places), bool)
        )


def test_spans_begin_anywhere() -> None:
    rows = long_rows(20_000, 128)
    _, predicted = run(rows, "span")
    begins = predicted[:, 1:] & ~predicted[:, :-1]
    inside = begins[:, 10:-20].mean(axis=0)
    assert inside.max() < 1.25 * inside.min()


def test_spans_neither_meet_nor_touch() -> None:
    """A run of predicted tokens is one span, whose neighbours the model sees, with one action for all its tokens."""
    rows = make_rows(2000, 128, continuing=0.3)
    inputs, predicted = run(rows, "span")
    action = np.where(inputs == MASK_ID, 0, np.where(inputs == rows["ids"], 1, 2))
    both = predicted[:, :-1] & predicted[:, 1:]
    assert both.sum() > 10_000
    assert (action[:, :-1] == action[:, 1:])[both].all()
    assert words_of_spans(predicted, rows["continues"]).max() <= 10


@given(
    st.integers(1, 12), st.integers(2, 90), st.floats(0, 1), st.floats(0, 1), st.floats(0.01, 0.99), st.integers(1, 12)
)
def test_any_row_gets_whole_words_within_its_texts(
    rows: int, columns: int, continuing: float, special: float, probability: float, most: int
) -> None:
    """Every row with words has whole words predicted, in spans no longer than its budget or its shortest word."""
    generator = np.random.default_rng(columns)
    text = generator.random((rows, columns)) > special
    word = np.zeros((rows, columns), np.uint16)
    for row in range(rows):
        begin = 0
        for column in range(columns):
            if not text[row, column]:
                continue
            if column == 0 or not text[row, column - 1] or generator.random() > continuing:
                begin = column
            word[row, begin] += 1
    options = MaskingSettings(strategy="span", probability=probability, span_maximum=most)
    budgets = np.maximum(1, np.rint(probability * text.sum(axis=1))).astype(np.int32)
    keys = random.key(7, np.arange(rows))
    begins, tokens = draw_spans(word, budgets, keys, options)
    ends = set((np.flatnonzero(word) + word[word > 0]).tolist())
    covered = np.zeros(rows * columns + 1, int)
    for begin, size in zip(begins.tolist(), tokens.tolist(), strict=True):
        row = begin // columns
        assert word.flat[begin] and begin + size in ends and begin + size <= (row + 1) * columns
        assert text.flat[begin : begin + size].all()
        assert np.count_nonzero(word.flat[begin : begin + size]) <= most
        assert size <= max(budgets[row], min(word[row][word[row] > 0]))
        covered[begin : begin + size] += 1
    assert covered.max() <= 1
    assert ((covered[:-1].reshape(rows, columns) > 0).any(axis=1) == text.any(axis=1)).all()
    for row in range(rows):  # a row alone equals the row in a batch
        alone = draw_spans(word[row : row + 1], budgets[row : row + 1], keys[row : row + 1], options)
        mine = begins // columns == row
        assert sorted(zip(begins[mine] - row * columns, tokens[mine], strict=True)) == sorted(zip(*alone, strict=True))


def test_no_span_crosses_a_special_token(tmp_path: Path) -> None:
    corpus = make_corpus(tmp_path / "corpus", [7, 3, 11, 5, 9] * 60)
    rows = Packed(
        corpus, PackedSettings(kind="packed", corpus=corpus.folder, sequence_length=64, masking=SPAN), 0
    ).rows(np.arange(30))
    separators = rows["input_ids"] == corpus.manifest.tokenizer["sep"]
    assert separators.sum() > 200 and (rows["labels"][separators] == IGNORED).all()
