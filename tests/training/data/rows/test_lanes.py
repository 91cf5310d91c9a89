from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from reread.preprocessing.corpus import Corpus
from reread.training.data.batch import IGNORED
from reread.training.data.order.order import locate
from reread.training.data.rows.cut_documents import SegmentSettings
from reread.training.data.rows.lanes import Lanes
from reread.training.data.rows.segments import Segments
from tests.corpora import make_corpus
from tests.training.data.rows.test_segments import segments_of

LENGTHS = [1, 2, 62, 63, *np.random.default_rng(3).integers(1, 500, 40).tolist()]
Rows = dict[str, NDArray[Any]]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return make_corpus(tmp_path_factory.mktemp("lanes") / "corpus", LENGTHS)


def take(lanes: Lanes, steps: int) -> list[tuple[Rows, NDArray[np.int64]]]:
    return [next(lanes) for _ in range(steps)]


def same(a: Rows, b: Rows, rows: Any = slice(None)) -> bool:
    return a.keys() == b.keys() and all(np.array_equal(a[name][rows], b[name]) for name in a)


def one_lane(dataset: Segments, total: int, lane: int, stagger: bool) -> Iterator[tuple[Rows, tuple[int, int, int]]]:
    """The rows of lane `lane` from plain loops, each with the cursor at which it is read."""
    for begun in count():
        passes, documents = locate(np.array([lane + begun * total]), len(dataset), dataset.seed)
        (reading,) = dataset.read(passes % dataset.settings.copies, documents)
        skims = dataset.settings.retrospective and not (stagger and lane % 2 == 1 and begun == 0)
        begins = True
        for learns in [False, True] if skims else [True]:
            for segment in range(reading.segments):
                rows = dataset.rows([reading], [segment], np.array([learns]))
                last = learns and segment == reading.segments - 1 and dataset.settings.reorder_chunks > 1
                rows |= {
                    "begins": np.array([begins]),
                    "learns": np.array([learns]),
                    "reorder_label": np.array([reading.label if last else IGNORED]),
                }
                del rows["continues_word"]
                yield rows, (begun, int(learns), segment)
                begins = False


@pytest.mark.slow
@pytest.mark.parametrize("stagger", [True, False])
@pytest.mark.parametrize(("retrospective", "chunks"), [(True, 4), (True, 1), (False, 4)])
def test_each_lane_reads_its_documents_whole(corpus: Corpus, retrospective: bool, chunks: int, stagger: bool) -> None:
    dataset = segments_of(corpus, retrospective=retrospective, reorder_chunks=chunks, copies=2)
    total = 5
    expected = [one_lane(dataset, total, lane, stagger) for lane in range(total)]
    cursors = None
    for rows, after in take(Lanes(dataset, total, range(total), stagger=stagger), 150):
        for lane in range(total):
            row, cursor = next(expected[lane])
            assert same(rows, row, slice(lane, lane + 1))
            assert cursors is None or tuple(cursors[lane]) == cursor
        assert rows["reorder_label"].dtype == np.int32 and "continues_word" not in rows
        cursors = after
    assert cursors is not None and cursors[:, 0].min() > len(LENGTHS) // total  # into the second pass


def test_memory_is_emptied_before_a_document_and_not_between_its_readings(corpus: Corpus) -> None:
    dataset = segments_of(corpus)
    before = Lanes(dataset, 4, range(4)).cursors
    for rows, after in take(Lanes(dataset, 4, range(4)), 100):
        assert (rows["learns"] == (before[:, 1] == 1)).all()
        first = (before[:, 0] == 0) & (np.arange(4) % 2 == 1)
        assert (rows["begins"] == ((before[:, 2] == 0) & (~rows["learns"] | first))).all()
        assert (rows["labels"][~rows["learns"]] == IGNORED).all()
        ended = after[:, 0] > before[:, 0]
        assert ((rows["reorder_label"] != IGNORED) == ended).all()
        before = after


@pytest.mark.parametrize("pool_tokens", [None, 3000])
def test_rows_do_not_depend_on_who_owns_a_lane(corpus: Corpus, pool_tokens: int | None) -> None:
    dataset = segments_of(corpus, pool_tokens=pool_tokens)
    assert (dataset.order.pools > 1) == (pool_tokens is not None)
    whole = take(Lanes(dataset, 12, range(12)), 40)
    for split in ([range(6), range(6, 12)], [range(1), range(1, 2), range(2, 9), range(9, 12)]):
        for lanes in split:
            own = slice(lanes.start, lanes.stop)
            for (rows, cursors), (part, part_cursors) in zip(whole, take(Lanes(dataset, 12, lanes), 40), strict=True):
                assert same(rows, part, own) and np.array_equal(cursors[own], part_cursors)


@pytest.mark.parametrize("retrospective", [True, False])
def test_lanes_go_on_from_any_cursors_in_any_split(corpus: Corpus, retrospective: bool) -> None:
    dataset = segments_of(corpus, retrospective=retrospective)
    whole = take(Lanes(dataset, 6, range(6)), 60)
    for stop, again in ((1, 2), (7, 30), (29, 59)):
        cursors = whole[stop - 1][1]
        first = [Lanes(dataset, 6, range(a, b), cursors[a:b]) for a, b in ((0, 2), (2, 6))]
        cursors = np.concatenate([take(lanes, again - stop)[-1][1] for lanes in first])
        assert np.array_equal(cursors, whole[again - 1][1])
        assert np.array_equal(cursors, np.concatenate([lanes.cursors for lanes in first]))
        third = [Lanes(dataset, 6, range(a, b), cursors[a:b]) for a, b in ((0, 3), (3, 5), (5, 6))]
        for expected, _ in whole[again:]:
            parts = [next(lanes)[0] for lanes in third]
            assert same(expected, {name: np.concatenate([part[name] for part in parts]) for name in expected})


def test_cursors_handed_out_stay_as_they_were(corpus: Corpus) -> None:
    lanes = Lanes(segments_of(corpus), 2, range(2))
    start = lanes.cursors
    assert start.tolist() == [[0, 0, 0], [0, 1, 0]]
    kept = [cursors.copy() for _, cursors in take(lanes, 5)]
    again = Lanes(segments_of(corpus), 2, range(2), start)
    handed = [cursors for _, cursors in take(again, 5)]
    take(again, 2000)
    assert np.array_equal(kept, handed) and start.tolist() == [[0, 0, 0], [0, 1, 0]]


def test_half_of_the_rows_learn_from_the_first_step_on(tmp_path: Path) -> None:
    settings = SegmentSettings(kind="segments", corpus=tmp_path)
    assert settings.lanes(64) == 128
    assert settings.model_copy(update={"retrospective": False}).lanes(64) == 64
    equal = segments_of(make_corpus(tmp_path / "equal", [150] * 30, words=False))
    assert all(rows["learns"].sum() == 64 for rows, _ in take(Lanes(equal, 128, range(128)), 40))
    without = [rows["learns"].sum() for rows, _ in take(Lanes(equal, 128, range(128), stagger=False), 6)]
    assert without == [0, 0, 0, 128, 128, 128]


@pytest.mark.slow
def test_the_learning_rows_of_a_step_stay_near_the_batch(tmp_path: Path) -> None:
    """The batch B at first, at least 3/4 of it while lanes meet their first long documents, then within 4 standard
    deviations of 2 B coin tosses: 4 sqrt(2 B) / 2."""
    lengths = np.random.default_rng(0).geometric(1 / 300, 400).tolist()
    batch = 200
    dataset = segments_of(make_corpus(tmp_path / "corpus", lengths))
    learning = np.array([rows["learns"].sum() for rows, _ in take(Lanes(dataset, 2 * batch, range(2 * batch)), 200)])
    assert learning[0] == batch
    assert learning.min() > 0.75 * batch
    assert abs(learning[60:] - batch).max() <= 4 * np.sqrt(2 * batch) / 2
    assert abs(learning[60:].mean() - batch) < 0.02 * batch


@pytest.mark.parametrize("documents", [1, 3])
def test_more_lanes_than_documents(tmp_path: Path, documents: int) -> None:
    dataset = segments_of(make_corpus(tmp_path / "corpus", [70, 1, 200][:documents], words=False), reorder_chunks=1)
    rows = take(Lanes(dataset, 8, range(8)), 30)
    assert all(batch["attention_mask"].sum() >= 8 * 3 for batch, _ in rows)
    assert rows[-1][1][:, 0].min() >= 3
    # The copies differ: lanes past the first pass read the next copy.
    if documents == 1:
        first = rows[0][0]
        assert len(np.unique(first["input_ids"], axis=0)) == 8


def test_lanes_read_a_stretch_of_long_documents(corpus: Corpus) -> None:
    dataset = segments_of(corpus)
    longest = 2 * (62 - 15)
    cursors = np.array(
        [cursors for _, cursors in take(Lanes(dataset, 4, range(4), stagger=False, longest=longest), 100)]
    )
    assert cursors[:, :, 2].max() == 1  # segments 0 and 1
    assert cursors[-1, :, 0].min() >= 24
    unlimited = np.array([cursors for _, cursors in take(Lanes(dataset, 4, range(4), stagger=False), 100)])
    assert unlimited[:, :, 2].max() > 5
