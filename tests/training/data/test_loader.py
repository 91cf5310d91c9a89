import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from reread.training.data import loader as loader_module
from reread.training.data.loader import Loader, rows_by_step
from reread.training.data.rows.samples import RowSettings, Samples
from tests.corpora import make_corpus


class Echo:
    """Rows that hold their positions; drawing one of them raises an error."""

    def __init__(self, fails_at: int = -1) -> None:
        self.fails_at = fails_at
        self.asked = 0

    def rows(self, positions: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
        self.asked += 1
        if self.fails_at in positions:
            raise OSError("disk gone")
        return {"positions": positions}


def test_steps_and_lanes_give_positions() -> None:
    with Loader(rows_by_step(Echo(), 10, range(4, 7), 10**12)) as loader:
        for step in range(10**12, 10**12 + 3):
            assert next(loader)["positions"].tolist() == [step * 10 + lane for lane in (4, 5, 6)]


@pytest.mark.parametrize("pool_tokens", [None, 3000])
def test_resume_sees_the_same_samples_on_another_world_size(tmp_path: Path, pool_tokens: int | None) -> None:
    corpus = make_corpus(tmp_path / "corpus", [300] * 20)
    samples = Samples(corpus, RowSettings(corpus=corpus.folder, pool_tokens=pool_tokens), 0)
    assert samples.order.pools == (2 if pool_tokens else 1)

    def run(start: int, lanes: range, steps: int) -> list[dict[str, NDArray[Any]]]:
        with Loader(rows_by_step(samples, 12, lanes, start)) as loader:
            return [next(loader) for _ in range(steps)]

    whole = run(0, range(12), 6)
    halves = [run(3, range(6), 3), run(3, range(6, 12), 3)]
    for step in range(3):
        for name, values in whole[3 + step].items():
            assert np.array_equal(values, np.concatenate([half[step][name] for half in halves]))


def test_drawing_stays_a_few_steps_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader_module, "_VALUES_AT_ONCE", 4)
    echo = Echo()
    with Loader(rows_by_step(echo, 4, range(4), 0), ahead=2) as loader:
        next(loader)
        deadline = time.monotonic() + 10
        while echo.asked < 4 and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(0.05)
        assert echo.asked == 4  # one taken, two queued, one in hand


def test_an_error_reaches_the_reader_after_the_good_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader_module, "_VALUES_AT_ONCE", 4)
    loader = Loader(rows_by_step(Echo(fails_at=9), 4, range(4), 0))
    assert [next(loader)["positions"][0], next(loader)["positions"][0]] == [0, 4]
    with pytest.raises(OSError, match="disk gone"):
        next(loader)
    with pytest.raises(StopIteration):
        next(loader)


def test_closing_ends_the_thread() -> None:
    before = threading.active_count()
    loaders = [Loader(rows_by_step(Echo(), 4, range(4), 0)) for _ in range(5)]
    next(loaders[0])
    for loader in loaders:
        loader.close()
        loader.close()
    assert threading.active_count() == before


@pytest.mark.parametrize("rows_at_once", [1, 7, 64, 1000])
def test_drawing_several_steps_at_once_changes_nothing(rows_at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader_module, "_VALUES_AT_ONCE", rows_at_once)
    with Loader(rows_by_step(Echo(), 20, range(5, 10), 3)) as loader:
        for step in range(3, 60):
            assert next(loader)["positions"].tolist() == [20 * step + lane for lane in range(5, 10)]
