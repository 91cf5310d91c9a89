"""Rows of a corpus whose samples are shuffled within pools of blocks."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reread.preprocessing.corpus import Corpus
from reread.training.data.kinds import KINDS
from reread.training.data.rows.samples import MaskedRows, Samples
from tests.corpora import make_corpus

LENGTHS = np.random.default_rng(7).integers(50, 900, 300).tolist()
POOL = 20_000


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """70 blocks of 2,000 tokens or a little more."""
    return make_corpus(tmp_path_factory.mktemp("pools") / "corpus", LENGTHS)


def opened(corpus: Corpus, kind: str, **settings: Any) -> Any:
    values = {"kind": kind, "corpus": str(corpus.folder), "sequence_length": 64, "copies": 2}
    parsed = KINDS[kind].settings.parse(values | {"pool_tokens": POOL} | settings, "data")
    return KINDS[kind].open(parsed, 0, "train")


@pytest.mark.parametrize("settings", [{}, {"next_sentence": False}, {"kind": "packed"}, {"kind": "segments"}], ids=str)
def test_a_stretch_of_the_stream_reads_the_blocks_of_its_pool_alone(
    corpus: Corpus, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The random second parts of sentence pairs too. A packed row may go on in the block after its own."""
    dataset = opened(corpus, **{"kind": "rows", **settings})
    assert dataset.order.pools == -(-sum(LENGTHS) // POOL) == 8
    read: set[int] = set()
    array, block = Corpus._array, dataset.corpus.blocks

    def watched(self: Corpus, number: int, *rest: Any) -> Any:
        read.add(number)
        return array(self, number, *rest)

    monkeypatch.setattr(Corpus, "_array", watched)
    pools = [{dataset.order.extent(slot) for slot in range(n * block // 8, (n + 1) * block // 8)} for n in range(16)]
    assert set.union(*pools[:8]) == set.union(*pools[8:]) == set(range(block))
    done = 0
    for number in range(16):
        at = dataset.order._layout(number // 8).pools
        size = int(at[number % 8 + 1] - at[number % 8])
        positions = np.arange(done, done + size)
        read.clear()
        if isinstance(dataset, Samples):
            dataset._chunks._block.cache_clear()
        if isinstance(dataset, MaskedRows):
            dataset.rows(positions)
        else:
            dataset.read(*dataset.locate(positions))
        goes_on = {(one + 1) % block for one in pools[number]} if settings.get("kind") == "packed" else set()
        assert pools[number] <= read <= pools[number] | goes_on
        done += size
    assert done == 2 * len(dataset)


def test_a_corpus_that_fits_in_a_pool_is_read_as_a_whole(corpus: Corpus) -> None:
    whole, fits = (opened(corpus, "rows", pool_tokens=tokens) for tokens in (None, sum(LENGTHS)))
    default = opened(corpus, "rows", pool_tokens=1 << 30)
    positions = np.arange(len(whole) - 50, len(whole) + 50)
    for dataset in (fits, default):
        assert dataset.fingerprint == whole.fingerprint
        for name, values in whole.rows(positions).items():
            assert np.array_equal(values, dataset.rows(positions)[name])
    others = [opened(corpus, "rows", pool_tokens=tokens).fingerprint for tokens in (POOL, POOL + 64)]
    assert len({whole.fingerprint, *others}) == 3


def test_next_sentences_stay_balanced_in_pools(corpus: Corpus) -> None:
    dataset = opened(corpus, "rows")
    label = dataset.rows(np.arange(len(dataset)))["next_sentence_label"]
    assert (label != -100).mean() > 0.85 and 0.45 < (label[label != -100] == 1).mean() < 0.55


def test_the_next_pool_is_asked_for_while_one_is_read(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(Corpus, "read_ahead", lambda self, first, stop: asked.extend(range(first, stop)))
    dataset = opened(corpus, "rows")
    for begin in range(0, len(dataset), 16):
        dataset.rows(np.arange(begin, min(begin + 16, len(dataset))))
    blocks = dataset.corpus.blocks
    assert asked == [dataset.order.extent(slot) for slot in range(blocks // 8, blocks // 8 + len(asked))]
    assert blocks <= len(asked) + blocks // 8 <= blocks + blocks // 8 + 1


def test_pools_of_one_document_are_reported(corpus: Corpus, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing can be exchanged within them, so their rows have no next-sentence label."""
    long = make_corpus(tmp_path / "long", [10_000] * 3)
    with caplog.at_level("WARNING", logger="reread"):
        opened(corpus, "rows")
        opened(long, "rows", pool_tokens=1 << 30)
        assert not caplog.text
        dataset = opened(long, "rows", pool_tokens=10_000)
    assert (
        "3 pools of its train split hold a single document" in caplog.text
        and "raise train.data.pool_tokens" in caplog.text
    )
    assert (dataset.rows(np.arange(len(dataset)))["next_sentence_label"] == -100).all()


def test_a_split_without_documents_is_not_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Nor is one with a single document, which the line then names."""
    folder = make_corpus(tmp_path / "corpus", [900] * 4).folder
    settings = KINDS["rows"].settings.parse({"kind": "rows", "corpus": str(folder), "sequence_length": 64}, "data")
    single = make_corpus(tmp_path / "single", [900]).folder
    with caplog.at_level("INFO", logger="reread"):
        assert len(KINDS["rows"].open(settings, 0, "validation")) == 0
        assert not caplog.messages
        KINDS["rows"].open(settings.model_copy(update={"corpus": single}), 0, "train")
    (line,) = caplog.messages
    assert line.startswith(f"{single}: a single document in its train split, so")
