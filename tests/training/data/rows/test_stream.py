"""Unbroken text for language models, against a plain concatenation of the documents."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from reread.preprocessing.corpus import CONTINUES_WORD, PARAGRAPH_END, SENTENCE_END, Corpus, Manifest
from reread.preprocessing.errors import UserError
from reread.training.data.rows.stream import Stream, StreamSettings
from tests.corpora import make_corpus

LENGTHS = [*np.random.default_rng(3).integers(1, 400, 60).tolist(), 1, 1, 5000, 7]


def open_stream(folder: Path, split: str = "train") -> Stream:
    return Stream(Corpus(folder, split), StreamSettings(kind="stream", corpus=folder))


@pytest.fixture(scope="module")
def stream(tmp_path_factory: pytest.TempPathFactory) -> Stream:
    folder = tmp_path_factory.mktemp("stream") / "corpus"
    make_corpus(folder, LENGTHS)  # blocks of 2,000 tokens in two shards
    return open_stream(folder)


@pytest.fixture(scope="module")
def ring(stream: Stream) -> tuple[np.ndarray, np.ndarray]:
    """All ids and flags [tokens], read document by document."""
    documents = [stream.corpus.document(number) for number in range(stream.corpus.documents)]
    ids, flags = (np.concatenate(arrays) for arrays in zip(*documents, strict=True))
    return ids, flags


@pytest.mark.parametrize("length", [1, 2, 150, 2500, sum(LENGTHS) * 2 + 3])
def test_rows_are_windows_of_the_concatenated_documents(
    stream: Stream, ring: tuple[np.ndarray, np.ndarray], length: int
) -> None:
    ids, flags = ring
    borders = stream.corpus.block_tokens
    assert len(borders) > 4
    assert len(stream) == len(ids) == sum(LENGTHS)
    starts = np.concatenate([borders - 1, borders, [5, 777, len(ids) - 1, 3 * len(ids) + 4]])
    rows = stream.rows(starts, length)
    places = starts[:, None] + np.arange(length)
    now, after = places % len(ids), (places + 1) % len(ids)
    assert np.array_equal(rows["input_ids"], ids[now])
    assert np.array_equal(rows["labels"], ids[after])
    assert np.array_equal(rows["sentence_ends"], flags[now] & SENTENCE_END > 0)
    assert np.array_equal(rows["paragraph_ends"], flags[now] & PARAGRAPH_END > 0)
    assert np.array_equal(rows["begins_word"], flags[after] & CONTINUES_WORD == 0)
    assert rows["input_ids"].dtype == rows["labels"].dtype == np.int32
    assert all(rows[name].dtype == bool for name in ("sentence_ends", "paragraph_ends", "begins_word"))


def test_each_lane_reads_on_where_it_stopped_and_all_of_them_cover_the_ring(stream: Stream) -> None:
    lanes, length = 7, 64
    lane = np.arange(lanes)
    first = stream.start(lane, lanes, 0, length)
    assert first.tolist() == [number * len(stream) // lanes for number in range(lanes)]
    seen = np.zeros(len(stream), int)
    for step in range(-(-len(stream) // (lanes * length)) + 1):
        starts = stream.start(lane, lanes, step, length)
        assert starts.tolist() == [stream.start(number, lanes, step, length) for number in range(lanes)]
        assert np.array_equal(starts, (first + step * length) % len(stream))
        np.add.at(seen, (starts[:, None] + np.arange(length)) % len(stream), 1)
    assert seen.min() >= 1
    assert seen.max() <= 2  # the last steps run into the next lane's share


@pytest.mark.parametrize(("lanes", "length"), [(1, 64), (7, 50), (13, 1), (5, 100_000), (20_000, 8)])
def test_evaluation_predicts_each_token_but_the_first_exactly_once(
    stream: Stream, ring: tuple[np.ndarray, np.ndarray], lanes: int, length: int
) -> None:
    ids, flags = ring
    lane = np.arange(lanes)
    predicted = np.zeros(len(stream), int)
    words = 0
    for step in range(stream.evaluation_steps(lanes, length)):
        rows = stream.evaluation_rows(lane, lanes, step, length)
        places = (lane * len(stream) // lanes + step * length)[:, None] + np.arange(length)
        row, column = np.nonzero(rows["labels"] != -100)
        label = places[row, column] + 1
        assert np.array_equal(rows["labels"][row, column], ids[label])
        predicted[label] += 1
        words += np.count_nonzero(rows["begins_word"])
    assert predicted[0] == 0
    assert (predicted[1:] == 1).all()
    assert words == np.count_nonzero(flags[1:] & CONTINUES_WORD == 0)
    beyond = stream.evaluation_rows(lane, lanes, stream.evaluation_steps(lanes, length), length)
    assert (beyond["labels"] == -100).all()


def test_an_altered_page_is_refused_when_it_is_reached(stream: Stream, tmp_path: Path) -> None:
    folder = tmp_path / "corpus"
    shutil.copytree(stream.corpus.folder, folder)
    first, shard = Manifest.read(folder).shards[:2]
    with (folder / shard.name).open("r+b") as file:
        file.seek(int(stream.corpus.flags_at[first.blocks]))
        value = file.read(1)[0]
        file.seek(-1, 1)
        file.write(bytes([value ^ 1]))
    altered = open_stream(folder)
    altered.rows(np.array([0]), 100)
    with pytest.raises(UserError, match="altered since it was written"):
        altered.rows(np.array([first.tokens - 10]), 100)
    with pytest.raises(UserError, match="altered since it was written"):
        altered.verify()


def test_opening_reads_no_block(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a block was read")

    monkeypatch.setattr(Corpus, "map", refuse)
    monkeypatch.setattr(Corpus, "block_offsets", refuse)
    assert len(open_stream(stream.corpus.folder)) == len(stream)


def test_the_fingerprint_is_that_of_what_is_read(stream: Stream, tmp_path: Path) -> None:
    folder = stream.corpus.folder
    settings = stream.settings
    other = Stream(stream.corpus, settings.model_copy(update={"sequence_length": 99}))
    elsewhere = Stream(stream.corpus, settings.model_copy(update={"corpus": tmp_path, "evaluation_memory": 1}))
    assert stream.fingerprint == elsewhere.fingerprint != other.fingerprint
    assert open_stream(folder).fingerprint == stream.fingerprint
    assert stream.vocab_size == 1000
    assert stream.tokenizer_folder == folder / "tokenizer"


def test_without_held_out_text_there_is_nothing_to_evaluate(tmp_path: Path) -> None:
    make_corpus(tmp_path / "corpus", [50])
    empty = open_stream(tmp_path / "corpus", "validation")
    assert len(empty) == 0
    assert empty.evaluation_steps(4, 64) == 0
