"""RAN's Figure 5 and Table 5 at a toy size: every side takes a step, and the largest batch keeps to its bound."""

import argparse
import re
import sys

import pytest

from benchmarks import harness
from benchmarks.models import ran_rivals

SIZES = "--length 48 --width 16 --layers 1 --vocabulary 50 --window 32 --windows 32 --memory 4 --rounds 1 --rows 1"


@pytest.mark.long
def test_each_side_is_measured_and_each_window_with_the_largest_batch(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    costs: list[harness.Step] = []
    monkeypatch.setattr(sys, "argv", ["ran_rivals.py", *SIZES.split()])
    monkeypatch.setattr(ran_rivals, "keep_freed_memory", lambda: None)
    monkeypatch.setattr(ran_rivals, "MOST", 3)
    monkeypatch.setattr(
        ran_rivals, "step_cost", lambda step, device: (costs.append(step), step(), harness.Cost(1, 1))[2]
    )
    ran_rivals.main()
    shown = capsys.readouterr().out
    sides = re.findall(r"^\| (training|prediction) \| (\w+)", shown, re.MULTILINE)
    assert sides == [(one, name) for one in ran_rivals.PASSES for name in ("RAN", "BERT", "Longformer", "BiLSTM")] + [
        (one, "window") for one in ran_rivals.PASSES
    ]
    assert len(costs) == len(sides)
    options = argparse.Namespace(
        length=48, width=16, vocabulary=50, dropout=0.1, dtype="float32", device="cpu", memory=4
    )
    (count,) = {int(one) for one in re.findall(r"window 32, (\d+) texts", shown)}
    assert count == 3 or not ran_rivals.fits(32, options, count + 1)


@pytest.mark.parametrize("true", [0, 1, 2, 13, 64, 100])
def test_the_largest_that_fits_is_found(true: int) -> None:
    asked: list[int] = []
    assert ran_rivals.largest(lambda count: (asked.append(count), count <= true)[1], 64) == min(true, 64)
    assert max(asked) <= max(2 * true, 1) and len(asked) <= 14
