"""The curves of a report are kept in bounded memory, and those of short runs as they are."""

import tracemalloc
from math import inf, isnan
from pathlib import Path
from random import Random
from typing import Any

import pytest

from reread.pipeline.recipe.load import load_recipe
from reread.pipeline.report import points
from reread.pipeline.report.curves import _course
from reread.pipeline.report.points import MOST_KEPT, read_points
from reread.pipeline.report.runs import Run
from reread.training.run.history import Attempt


def logged(steps: int) -> list[dict[str, Any]]:
    random = Random(steps)
    lines = [{"step": step, "time": 1e9 + step, "loss": random.random(), "whole": step % 7} for step in range(steps)]
    for line in lines:
        if line["step"] % 3 == 1:
            line["order"] = random.uniform(-1e6, 1e6)
        if line["step"] % 5 == 2:
            del line["time"]
    return lines


def test_a_short_curve_has_all_its_points(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(points, "BATCH", 100)
    lines = logged(MOST_KEPT)
    found = read_points(lines)
    assert list(found) == ["step", "time", "loss", "whole", "order"]
    for name, one in found.items():
        pairs = [(line["step"], line[name]) for line in lines if name in line]
        assert list(zip(one.x, one.y, strict=True)) == pairs
        assert one.low.tolist() == one.high.tolist() == [y for _, y in pairs]
        assert one.first.tolist() == one.last.tolist() == [list(pair) for pair in pairs]


@pytest.mark.parametrize("batch", [1, 7, 1000, 100_000])
def test_a_long_curve_has_its_ends_extremes_and_means(batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(points, "BATCH", batch)
    monkeypatch.setattr(points, "MOST_KEPT", 64)
    lines = logged(1003)
    for name, one in read_points(lines).items():
        pairs = [(line["step"], line[name]) for line in lines if name in line]
        size = 1
        while len(pairs) > 64 * size:
            size *= 2
        stretches = [pairs[begin : begin + size] for begin in range(0, len(pairs), size)]
        assert one.counts.tolist() == [len(stretch) for stretch in stretches]
        assert one.x == pytest.approx([sum(x for x, _ in stretch) / len(stretch) for stretch in stretches])
        assert one.y == pytest.approx([sum(y for _, y in stretch) / len(stretch) for stretch in stretches])
        assert one.low.tolist() == [min(y for _, y in stretch) for stretch in stretches]
        assert one.high.tolist() == [max(y for _, y in stretch) for stretch in stretches]
        assert one.first.tolist() == [list(stretch[0]) for stretch in stretches]
        assert one.last.tolist() == [list(stretch[-1]) for stretch in stretches]


def test_a_long_history_is_not_held() -> None:
    lines = ({"step": step, "loss": 1 / (step + 1), "mfu": step % 97 / 97} for step in range(100_000))
    tracemalloc.start()
    found = read_points(lines)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**23
    assert all(MOST_KEPT / 2 <= len(one.counts) <= MOST_KEPT and one.counts.sum() == 100_000 for one in found.values())
    assert found["loss"].first[0].tolist() == [0, 1] and found["loss"].last[-1].tolist() == [99_999, 1e-5]


@pytest.mark.parametrize("seed", range(10))
def test_each_attempt_has_the_steps_logged_in_its_time_whatever_its_clock(seed: int) -> None:
    random = Random(seed)
    moments = [random.randrange(100) for _ in range(30)] if seed % 2 else sorted(random.sample(range(100), 30))
    lines = [{"step": step, "time": 1.0 * moment} for step, moment in enumerate(moments)]
    begins = sorted(random.sample(range(100), 5), reverse=seed % 3 == 0)
    attempts = [Attempt(float(began), began // 2, 1, None, None, "done") for began in begins]
    run = Run(Path("run"), 0, load_recipe("quickstart", []), read_points(lines), attempts, [])
    expected = []
    for began, after in zip(begins, [*begins[1:], inf], strict=True):
        inside = [(line["time"], line["step"]) for line in lines if began <= line["time"] < after]
        expected += [(began, None), (began, began // 2), *sorted(inside)]
    course = zip(*_course(run), strict=True)
    assert [(moment, None if isnan(step) else step) for moment, step in course] == expected
