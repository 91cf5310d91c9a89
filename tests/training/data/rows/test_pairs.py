from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks.random_corpus import write_corpus
from reread.preprocessing.corpus import SENTENCE_END, Corpus
from reread.training.data.order.chunks import CorpusChunks, TextRanges
from reread.training.data.order.order import Order
from reread.training.data.rows.pairs import Pairs, Part
from reread.training.data.rows.samples import RowSettings, Samples
from tests.corpora import make_corpus

LONGEST = 125


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    lengths = np.random.default_rng(2).integers(1, 1500, 300).tolist()
    return make_corpus(tmp_path_factory.mktemp("pairs") / "corpus", lengths)


def places_of(corpus: Corpus, text: TextRanges) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """[B]: the document in which each stretch of text begins, and its beginning there."""
    numbers = {(id(corpus.map(number)), int(corpus.ids_at[number])): number for number in range(corpus.blocks)}
    found = []
    for shard, ids_at, start in zip(text.maps, text.ids_at.tolist(), text.start.tolist(), strict=True):
        number = numbers[id(shard), ids_at]
        offsets = corpus.block_offsets(number)
        within = int(np.searchsorted(offsets, start, side="right")) - 1
        found.append((int(corpus.block_documents[number]) + within, start - int(offsets[within])))
    return np.array(found).T[0], np.array(found).T[1]


def order_of(chunks: CorpusChunks, seed: int) -> Order:
    return Order(chunks.before_block, 1, 10, seed)


def pairs_of(chunks: CorpusChunks, seed: int, short_probability: float) -> Pairs:
    part = Part(seed, 0, 0, chunks.corpus.documents)
    return Pairs(chunks, order_of(chunks, seed), short_probability, lambda _: part)


def ends_sentence(corpus: Corpus, document: int, at: int) -> bool:
    return bool(corpus.document(document)[1][at] & SENTENCE_END)


def test_a_random_second_part_looks_like_the_true_one(corpus: Corpus) -> None:
    chunks = CorpusChunks(corpus, LONGEST)
    indices = np.arange(0, len(chunks), 2)
    places = chunks.locate(indices)
    whole = chunks.bounds(places)[0]
    a, b, label = pairs_of(chunks, 0, 0.0).draw(np.zeros_like(indices), indices, places)
    sizes = b.stop - b.start
    documents, starts = places_of(corpus, b)
    assert np.array_equal(a.start, whole.start)
    assert np.array_equal(a.stop - a.start + sizes, whole.stop - whole.start)  # for either label
    for row in np.flatnonzero(sizes).tolist():
        document = int(places.document[row])
        first = int(places.text.start[row])
        split, stop = int(a.stop[row]) - first, int(whole.stop[row]) - first
        assert ends_sentence(corpus, document, split - 1)
        if label[row] == 1:
            other, start = int(documents[row]), int(starts[row])
            assert other != document and start > 0 and ends_sentence(corpus, other, start - 1)
            assert start + sizes[row] <= len(corpus.document(other)[0])
            at_end = ends_sentence(corpus, other, start + int(sizes[row]) - 1)
            assert at_end == ends_sentence(corpus, document, stop - 1)
        else:
            assert b.start[row] == a.stop[row] and b.stop[row] == whole.stop[row]
    labelled = label >= 0
    assert labelled.mean() > 0.9 and abs(label[labelled].mean() - 0.5) < 0.05


def test_what_has_no_second_part_has_no_label(tmp_path: Path) -> None:
    flags = np.zeros(30, np.uint8)
    flags[-1] = SENTENCE_END
    several = np.where(np.arange(30) % 10 == 9, SENTENCE_END, 0).astype(np.uint8)
    ids = np.arange(5, 35)
    folder = write_corpus(tmp_path / "corpus", {"train": [(ids, flags)] * 40 + [(ids, several)] * 40}, 100)
    rows = Samples(Corpus(folder), RowSettings(corpus=folder, short_sequence_probability=0), 0).at(
        np.zeros(80, np.int64), np.arange(80)
    )
    assert (rows["next_sentence_label"][:40] == -100).all() and not rows["token_type_ids"][:40].any()
    assert (rows["attention_mask"][:40].sum(axis=1) == 32).all()  # [CLS] A [SEP]
    assert (rows["next_sentence_label"][40:] >= 0).mean() > 0.9 and rows["token_type_ids"][40:].any(axis=1).all()


def guess(lengths: NDArray[np.int64], label: NDArray[np.int64]) -> float:
    """Share of the second half of the rows whose label is the majority label at their length in the first half."""
    half = len(label) // 2
    seen: dict[int, list[int]] = {}
    for length, kind in zip(lengths[:half].tolist(), label[:half].tolist(), strict=True):
        seen.setdefault(length, [0, 0])[kind] += 1
    right = [
        kind == int(np.argmax(seen.get(length, [1, 0])))
        for length, kind in zip(lengths[half:].tolist(), label[half:].tolist(), strict=True)
    ]
    return float(np.mean(right))


SHORT = np.random.default_rng(4).geometric(1 / 90, 9000)


@pytest.mark.slow
@pytest.mark.parametrize("length", [128, 512])
@pytest.mark.parametrize("documents", [[6000] * 150, SHORT.tolist(), [60] * 6000], ids=["long", "short", "equal"])
def test_lengths_do_not_tell_which_pairs_are_random(tmp_path: Path, documents: list[int], length: int) -> None:
    corpus = make_corpus(tmp_path / "corpus", documents)
    samples = Samples(corpus, RowSettings(corpus=corpus.folder, sequence_length=length), 0)
    parts = [samples.rows(np.arange(begin, begin + 2000)) for begin in range(0, 8000, 2000)]
    label = np.concatenate([rows["next_sentence_label"] for rows in parts])
    second = np.concatenate([rows["token_type_ids"].sum(axis=1) for rows in parts])
    first = np.concatenate([rows["attention_mask"].sum(axis=1) for rows in parts]) - second
    first, second, label = (values[label >= 0] for values in (first, second, label))
    assert len(label) > 3000
    larger = max(label.mean(), 1 - label.mean())
    assert larger < 0.53
    for lengths in (first, second, first + second, 1000 * first + second):
        assert guess(lengths, label) < larger + 0.03
    if documents[0] == 6000:
        full = np.concatenate([rows["attention_mask"] for rows in parts]).sum(axis=1) == length
        assert full.mean() > 0.87  # the rest are BERT's short rows
        settings = RowSettings(corpus=corpus.folder, sequence_length=length, short_sequence_probability=0)
        assert Samples(corpus, settings, 0).rows(np.arange(2000))["attention_mask"].mean() > 0.99


def test_what_a_row_loses_to_a_random_part_its_partner_reads(tmp_path: Path) -> None:
    corpus = make_corpus(tmp_path / "corpus", [2000] * 60)
    chunks = CorpusChunks(corpus, LONGEST)
    indices = np.arange(len(chunks))
    a, b, label = pairs_of(chunks, 0, 0.0).draw(np.zeros_like(indices), indices, chunks.locate(indices))
    reads = np.zeros((60, 2000), int)
    for text in (a, b):
        for document, start, size in zip(*places_of(corpus, text), (text.stop - text.start).tolist(), strict=True):
            reads[document, start : start + size] += 1
    assert 0.45 < (label == 1).mean() < 0.55
    assert (reads > 0).mean() > 0.95 and reads.mean() < 1.2 and (reads > 3).mean() < 0.001


def test_short_rows_have_few_sentences(corpus: Corpus) -> None:
    chunks = CorpusChunks(corpus, 509)
    indices = np.arange(0, len(chunks), 2)
    places = chunks.locate(indices)

    def sizes(probability: float) -> np.ndarray:
        texts = pairs_of(chunks, 2, probability).draw(np.zeros_like(indices), indices, places)[:2]
        return np.stack([text.stop - text.start for text in texts])

    long, some, short = sizes(0.0), sizes(0.1), sizes(1.0)
    assert short.sum(axis=0).mean() < 0.75 * long.sum(axis=0).mean()
    assert abs((some.sum(axis=0) != long.sum(axis=0)).mean() - 0.1) < 0.05
    assert short[0].min() >= 1


def test_a_single_document_pairs_with_itself(tmp_path: Path) -> None:
    chunks = CorpusChunks(make_corpus(tmp_path / "corpus", [3000]), LONGEST)
    copies, indices = np.divmod(np.arange(20 * len(chunks)), len(chunks))
    places = chunks.locate(indices)
    a, b, label = pairs_of(chunks, 0, 0.1).draw(copies, indices, places)
    drawn = label == 1
    assert 0.3 < drawn.mean() < 0.6 and b.stop.max() <= 3000
    assert ((b.start != a.stop) & ((b.stop <= a.start) | (b.start >= a.stop)))[drawn].all()


def test_a_single_row_has_no_label(tmp_path: Path) -> None:
    chunks = CorpusChunks(make_corpus(tmp_path / "corpus", [100]), LONGEST)
    one = np.zeros(1, np.int64)
    a, b, label = pairs_of(chunks, 0, 0.0).draw(one, one, chunks.locate(one))
    assert label.tolist() == [-100] and b.start == a.stop and b.stop == 100
