import lzma
import shutil
from collections import Counter
from itertools import pairwise, permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from reread.preprocessing.config import PreprocessSettings
from reread.preprocessing.corpus import CONTINUES_WORD, SENTENCE_END, Corpus
from reread.preprocessing.errors import UserError
from reread.preprocessing.execution.build import build
from reread.training.data.batch import IGNORED
from reread.training.data.order.order import locate
from reread.training.data.rows.cut_documents import (
    LONGEST_WORD,
    CutDocument,
    SegmentSettings,
    reorder_classes,
    segment_bounds,
)
from reread.training.data.rows.segments import Segments
from reread.training.data.settings import MaskingSettings
from tests.conftest import shared
from tests.corpora import SPECIAL, make_corpus, with_statistics

LENGTHS = [1, 2, 61, 62, 63, 64, 124, *np.random.default_rng(2).integers(1, 900, 200).tolist()]
OFFSETS = [0, 1, 3, 9, 33]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return make_corpus(tmp_path_factory.mktemp("segments") / "corpus", LENGTHS)


@pytest.fixture(scope="module")
def novel(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """A third of a Chinese novel as one document."""
    path = shared("zh_novels/红楼梦.txt.xz")
    folder = tmp_path_factory.mktemp("novel")
    text = lzma.decompress(path.read_bytes()).decode()[:300_000]
    (folder / "text.txt").write_text(text, encoding="utf-8")
    values: dict[str, Any] = {
        "input": {"paths": [str(folder / "text.txt")]},
        "output": folder / "corpus",
        "tokenizer": {"train": {"size": 3000}},
        "workers": 1,
    }
    build(PreprocessSettings.parse({**values, "validation_share": 0}, "test"))
    return Corpus(folder / "corpus")


def segments_of(corpus: Corpus, seed: int = 0, **changes: Any) -> Segments:
    return Segments(
        corpus, SegmentSettings(kind="segments", corpus=corpus.folder, **{"sequence_length": 64, **changes}), seed
    )


def read_all(dataset: Segments, copy: int = 0) -> list[CutDocument]:
    return dataset.read(np.full(len(dataset), copy), np.arange(len(dataset)))


def rows_of(dataset: Segments, reading: CutDocument, learns: bool = True) -> dict[str, NDArray[Any]]:
    numbers = list(range(reading.segments))
    return dataset.rows([reading] * len(numbers), numbers, np.full(len(numbers), learns))


def order_of(reading: CutDocument) -> tuple[int, ...]:
    """The original numbers of the chunks in reading order."""
    return tuple(sorted(reading.chunks).index(chunk) for chunk in reading.chunks)


def text_of(rows: dict[str, NDArray[Any]]) -> NDArray[Any]:
    """The original tokens of rows, concatenated."""
    original = np.where(rows["labels"] == IGNORED, rows["input_ids"], rows["labels"])
    lengths = rows["attention_mask"].sum(axis=1) - 2
    return np.concatenate([ids[:length] for ids, length in zip(original, lengths, strict=True)])


@pytest.mark.parametrize("chunks", [1, 4])
@pytest.mark.parametrize("length", [8, 64, 128])
def test_segments_hold_the_whole_document_in_the_order_of_its_chunks(corpus: Corpus, length: int, chunks: int) -> None:
    dataset = segments_of(corpus, sequence_length=length, reorder_chunks=chunks)
    for reading in read_all(dataset):
        ids, _ = corpus.document(reading.number)
        rows = rows_of(dataset, reading)
        covered = sorted(reading.chunks)
        assert [start for start, _ in covered] == [0, *(stop for _, stop in covered[:-1])] and covered[-1][1] == len(
            ids
        )
        assert len(covered) <= chunks
        permuted = np.concatenate([ids[start:stop] for start, stop in reading.chunks])
        assert np.array_equal(text_of(rows), permuted)


@pytest.mark.parametrize("cut", ["sentence", "anywhere"])
def test_chunks_are_cut_after_sentences_or_before_any_word(corpus: Corpus, cut: str) -> None:
    ends = Counter[tuple[bool, bool]]()
    for copy in range(3):
        for reading in read_all(segments_of(corpus, cut=cut), copy):
            for start, _ in reading.chunks:
                if start:
                    after_sentence = bool(reading.flags[start - 1] & SENTENCE_END)
                    ends[after_sentence, not reading.flags[start] & CONTINUES_WORD] += 1
    assert ends[True, True] > 0 and ends[False, False] == ends[True, False] == 0
    assert (ends[False, True] > ends[True, True]) == (cut == "anywhere")
    assert (ends[False, True] == 0) == (cut == "sentence")


def test_rows_have_their_form(corpus: Corpus) -> None:
    dataset = segments_of(corpus)
    for reading in read_all(dataset):
        rows = rows_of(dataset, reading)
        assert {name: values.dtype for name, values in rows.items()} == {
            "input_ids": np.int32,
            "attention_mask": np.int32,
            "labels": np.int32,
            "continues_word": bool,
        }
        for ids, attention, labels in zip(rows["input_ids"], rows["attention_mask"], rows["labels"], strict=True):
            tokens = int(attention.sum()) - 2
            assert 1 <= tokens <= 62
            assert ids[tokens] == SPECIAL["sep"] and ids[-1] == SPECIAL["cls"]
            assert (ids[tokens + 1 : -1] == SPECIAL["pad"]).all()
            assert attention[: tokens + 1].all() and attention[-1] and not attention[tokens + 1 : -1].any()
            assert (labels[tokens:] == IGNORED).all() and (labels != IGNORED).any()


def test_special_tokens_count_in_the_budget(corpus: Corpus) -> None:
    dataset = segments_of(corpus, masking=MaskingSettings(strategy="token"))
    for reading in read_all(dataset):
        rows = rows_of(dataset, reading)
        predicted = (rows["labels"] != IGNORED).sum(axis=1)
        used = rows["attention_mask"].sum(axis=1)
        assert (predicted == np.minimum(np.maximum(1, np.rint(0.15 * used)), used - 2)).all()


@pytest.mark.parametrize("length", [64, 200])
def test_a_segment_is_as_long_as_it_can_be_without_cutting_a_word(corpus: Corpus, length: int) -> None:
    dataset = segments_of(corpus, sequence_length=length)
    capacity = length - 2
    reach = min(LONGEST_WORD, capacity // 4)
    cut = 0
    for reading in read_all(dataset):
        flags = np.concatenate([reading.flags[start:stop] for start, stop in reading.chunks])
        begins_word = flags & CONTINUES_WORD == 0
        bounds = list(reading.bounds)
        assert bounds[0] == 0 and bounds[-1] == len(flags)
        for begin, end in pairwise(bounds[:-1]):
            allowed = range(begin + capacity - reach, begin + capacity + 1)
            assert end == max((place for place in allowed if begins_word[place]), default=begin + capacity)
            cut += end < begin + capacity
        assert 1 <= bounds[-1] - bounds[-2] <= capacity
    assert cut > 20


def test_a_word_longer_than_the_reach_is_cut(corpus: Corpus) -> None:
    dataset = segments_of(corpus, reorder_chunks=1)
    flags = np.full(200, CONTINUES_WORD)
    assert list(segment_bounds(flags, [(0, 200)], dataset._capacity)) == [0, 62, 124, 186, 200]
    flags[62 - 15] = 0  # the earliest place within reach
    assert list(segment_bounds(flags, [(0, 200)], dataset._capacity))[:2] == [0, 47]
    flags[62 - 15], flags[62 - 16] = CONTINUES_WORD, 0
    assert list(segment_bounds(flags, [(0, 200)], dataset._capacity))[:2] == [0, 62]


@pytest.mark.parametrize(("length", "expected"), [(1, [1]), (62, [62]), (63, [62, 1]), (124, [62, 62])])
def test_documents_about_as_long_as_a_segment(tmp_path: Path, length: int, expected: list[int]) -> None:
    dataset = segments_of(make_corpus(tmp_path / "corpus", [length, length], words=False), reorder_chunks=1)
    rows = rows_of(dataset, read_all(dataset)[1])
    assert (rows["attention_mask"].sum(axis=1) - 2).tolist() == expected


def test_labels_are_those_of_itertools(corpus: Corpus) -> None:
    assert [reorder_classes(chunks) for chunks in range(5)] == OFFSETS and reorder_classes(6) == 873
    seen = set()
    for copy in range(10):
        for reading in read_all(segments_of(corpus), copy):
            chunks = len(reading.chunks)
            rank = list(permutations(range(chunks))).index(order_of(reading))
            assert reading.label == OFFSETS[chunks - 1] + rank
            seen.add(reading.label)
    assert seen == set(range(33))


def test_chunks_are_cut_at_sentence_ends(corpus: Corpus) -> None:
    cuts = 0
    for reading in read_all(segments_of(corpus)):
        _, flags = corpus.document(reading.number)
        for start, _ in sorted(reading.chunks)[1:]:
            assert flags[start - 1] & SENTENCE_END
            cuts += 1
    assert cuts > 200


def test_a_document_of_few_sentences_has_the_label_of_the_chunks_it_has(corpus: Corpus) -> None:
    dataset = segments_of(corpus)
    labels: dict[int, list[int]] = {0: [], 1: [], 2: []}
    for copy in range(100):
        for reading in read_all(dataset, copy)[:20]:
            inner = int(np.count_nonzero(reading.flags[:-1] & SENTENCE_END))
            assert len(reading.chunks) <= inner + 1
            if inner in labels:
                labels[inner].append(reading.label)
    assert [set(drawn) for drawn in labels.values()] == [{0}, {0, 1, 2}, set(range(9))]
    # A draw of 1 to 4 chunks is limited by the sentences: only the draw of 1 gives 1.
    assert all(abs(np.mean(np.array(labels[inner]) == 0) - 0.25) < 0.08 for inner in (1, 2))


def test_chunks_cuts_and_orders_are_drawn_uniformly(corpus: Corpus) -> None:
    dataset = segments_of(corpus)
    document = int(np.argmax(LENGTHS))
    readings = dataset.read(np.arange(12_000), np.full(12_000, document))
    counts = np.bincount([len(reading.chunks) for reading in readings])[1:] / 12_000
    assert abs(counts - 0.25).max() < 0.02
    labels = np.bincount([reading.label for reading in readings], minlength=33)
    for chunks, (begin, end) in enumerate(pairwise(OFFSETS), start=1):
        expected = 3000 / (end - begin)
        assert chunks == 1 or abs(labels[begin:end] / expected - 1).max() < 5 / np.sqrt(expected)
    # All sentence ends are equally often cuts, including the first and the last.
    _, flags = corpus.document(document)
    ends = np.flatnonzero(flags[:-1] & SENTENCE_END) + 1
    starts = np.concatenate([[start for start, _ in reading.chunks if start] for reading in readings]).astype(int)
    cuts = np.bincount(starts, minlength=len(flags))[ends]
    assert cuts.sum() == len(starts) and abs(cuts / cuts.mean() - 1).max() < 5 / np.sqrt(cuts.mean())


def test_a_reading_is_the_same_wherever_it_is_asked_for(corpus: Corpus) -> None:
    dataset, again = segments_of(corpus), segments_of(Corpus(corpus.folder))
    documents = np.random.default_rng(0).permutation(len(dataset))
    copies = documents % 3
    for reading, copy, document in zip(again.read(copies, documents), copies, documents, strict=True):
        alone = dataset.read(np.array([copy]), np.array([document]))[0]
        assert (alone.chunks, alone.label, alone.bounds) == (reading.chunks, reading.label, reading.bounds)
        assert (alone.copy, alone.number) == (copy, document)


def test_a_row_is_the_same_in_any_batch(corpus: Corpus) -> None:
    dataset = segments_of(corpus)
    readings = read_all(dataset)
    numbers = [reading.segments // 2 for reading in readings]
    together = dataset.rows(readings, numbers, np.ones(len(readings), bool))
    for place in range(0, len(readings), 7):
        alone = dataset.rows(readings[place : place + 1], numbers[place : place + 1], np.ones(1, bool))
        assert all(np.array_equal(values[0], together[name][place]) for name, values in alone.items())


def test_a_skim_sees_the_masks_and_not_the_masked_tokens(corpus: Corpus) -> None:
    dataset = segments_of(corpus)
    for reading in read_all(dataset)[7:40]:
        skim, learn = rows_of(dataset, reading, learns=False), rows_of(dataset, reading)
        assert np.array_equal(skim["input_ids"], learn["input_ids"])
        assert (skim["labels"] == IGNORED).all()
        hidden = (learn["labels"] != IGNORED) & (learn["labels"] != learn["input_ids"])
        assert hidden.any() and (skim["input_ids"][hidden] != learn["labels"][hidden]).all()


def test_each_copy_and_seed_has_chunks_and_masks_of_its_own(corpus: Corpus) -> None:
    readings = [read_all(dataset, copy) for dataset, copy in ((segments_of(corpus), 0), (segments_of(corpus), 1))]
    readings.append(read_all(segments_of(corpus, seed=1)))
    long = [document for document, length in enumerate(LENGTHS) if length > 400]
    for other in readings[1:]:
        differ = [readings[0][document].chunks != other[document].chunks for document in long]
        assert np.mean(differ) > 0.8
    plain = segments_of(corpus, reorder_chunks=1)
    labels = [rows_of(plain, read_all(plain, copy)[long[0]])["labels"] for copy in range(2)]
    assert (labels[0] != labels[1]).any(axis=1).all()


def test_masks_of_segments_are_independent(tmp_path: Path) -> None:
    dataset = segments_of(make_corpus(tmp_path / "corpus", [62 * 20, 1], words=False), reorder_chunks=1)
    predicted = rows_of(dataset, read_all(dataset)[0])["labels"] != IGNORED
    assert len({row.tobytes() for row in predicted}) == 20


def test_a_stretch_of_a_long_document_is_permuted_as_a_document(corpus: Corpus) -> None:
    dataset = segments_of(corpus)
    longest = 3 * (62 - 15)  # tokens that always fit in three segments
    everything = dataset.read(np.zeros(len(dataset), int), np.arange(len(dataset)), longest=longest)
    assert max(reading.segments for reading in everything) == 3
    places = []
    for reading, whole in zip(everything, read_all(dataset), strict=True):
        assert len(reading.ids) == min(len(whole.ids), longest) == sum(b - a for a, b in reading.chunks)
        offsets = np.lib.stride_tricks.sliding_window_view(whole.ids, len(reading.ids))
        begin = int(np.flatnonzero((offsets == reading.ids).all(axis=1))[0])
        assert begin == 0 or not whole.flags[begin] & CONTINUES_WORD
        places += [begin / (len(whole.ids) - longest)] if len(whole.ids) > longest else []
        assert reading.label == OFFSETS[len(reading.chunks) - 1] + list(permutations(range(len(reading.chunks)))).index(
            order_of(reading)
        )
    share, _ = np.histogram(places, 4, (0, 1))
    assert share.min() > len(places) / 8  # it begins anywhere


@pytest.mark.parametrize("segments", [1, 7, 40, 400])
def test_a_sample_of_documents_keeps_its_budget_and_no_document_is_most_of_it(corpus: Corpus, segments: int) -> None:
    dataset = segments_of(corpus)
    documents, longest = dataset.sample(segments)
    order = locate(np.arange(documents + 1), len(dataset), dataset.seed)[1]
    readings = dataset.read(np.zeros(documents + 1, int), order, longest=longest)
    numbers = [reading.segments for reading in readings]
    surely = [-(-len(reading.ids) // (62 - 15)) for reading in readings]
    assert sum(numbers[:-1]) <= sum(surely[:-1]) <= segments < sum(surely)  # one more document might not fit
    assert max(numbers) <= max(1, segments // 8) and documents >= min(segments, 8)


def test_a_sample_that_could_be_all_text_is_all_text_whole(corpus: Corpus) -> None:
    dataset = segments_of(corpus)
    everything = sum(-(-length // (62 - 15)) for length in LENGTHS)
    assert dataset.sample(everything) == (len(LENGTHS), None)
    documents, longest = dataset.sample(everything - 1)
    assert documents == len(LENGTHS) - 1 and longest == (everything - 1) // 8 * (62 - 15)


def test_fingerprint_names_what_decides_readings(corpus: Corpus, tmp_path: Path) -> None:
    base = segments_of(corpus)
    moved = Corpus(shutil.copytree(corpus.folder, tmp_path / "moved"))
    assert base.fingerprint == segments_of(moved).fingerprint
    others = [
        segments_of(corpus, seed=1),
        segments_of(corpus, copies=3),
        segments_of(corpus, reorder_chunks=3),
        segments_of(corpus, masking=MaskingSettings(strategy="span")),
        segments_of(make_corpus(tmp_path / "other", LENGTHS[:-1])),
    ]
    assert len({base.fingerprint, *(other.fingerprint for other in others)}) == 6


def test_an_altered_block_is_named_when_it_is_read(corpus: Corpus, tmp_path: Path) -> None:
    folder = shutil.copytree(corpus.folder, tmp_path / "altered")
    path = folder / "train-00001.tar"
    data = bytearray(path.read_bytes())
    data[1000] ^= 1
    path.write_bytes(data)
    with pytest.raises(UserError, match=r"train-00001\.tar: altered"):
        read_all(segments_of(Corpus(folder)))
    with pytest.raises(UserError, match=r"train-00001\.tar: altered"):
        segments_of(Corpus(folder)).verify()


def check(segments: Segments) -> None:
    segments.check(segments.settings, segments.seed)


def test_a_masking_that_does_nothing_is_refused(novel: Corpus, tmp_path: Path) -> None:
    check(segments_of(novel))
    folder = with_statistics(novel, tmp_path / "corpus", han_tokens_in_multi_token_words=3)
    with pytest.raises(UserError, match="only 3 of"):
        check(segments_of(Corpus(folder)))


def test_a_novel_is_read_whole_and_its_words_are_masked_whole(novel: Corpus) -> None:
    dataset = segments_of(novel, sequence_length=128)
    reading = read_all(dataset)[0]
    ids, flags = novel.document(0)
    assert len(ids) > 200_000 and reading.segments < len(ids) / 122
    rows = rows_of(dataset, reading)
    assert np.array_equal(text_of(rows), np.concatenate([ids[start:stop] for start, stop in reading.chunks]))
    predicted, continues = rows["labels"] != IGNORED, rows["continues_word"]
    assert not continues[:, 0].any()  # no segment begins inside a word
    assert (predicted[:, 1:] == predicted[:, :-1])[continues[:, 1:]].all()
    assert continues.sum() == np.count_nonzero(flags & CONTINUES_WORD) > 50_000
    assert abs(predicted.sum() / rows["attention_mask"].sum() - 0.15) < 0.003
    for start, _ in sorted(reading.chunks)[1:]:
        assert flags[start - 1] & SENTENCE_END
