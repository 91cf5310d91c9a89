"""The learning rate follows NEZHA's line, and no update is wasted."""

import math
import re
from typing import get_args

import pytest

from reread.preprocessing.errors import UserError
from reread.training.config import ScheduleSettings, TrainSettings
from reread.training.optim.schedule import learning_rate


def rates(total: int = 100, **settings) -> list[float]:
    return [learning_rate(step, ScheduleSettings(**settings), 2.0, total) for step in range(total + 1)]


def test_warm_up_rises_to_the_peak_and_no_update_has_rate_zero():
    values = rates(warmup_steps=10)
    assert values[0] == pytest.approx(0.2) and values[9] == pytest.approx(2.0)
    assert all(value > 0 for value in values[:100]) and values[100] == 0


def test_linear_decay_is_the_line_through_the_peak_at_the_end_of_warm_up():
    values = rates(warmup_steps=10)
    for step in range(10, 101):
        assert values[step] == pytest.approx(2.0 / (1 - 10 / 100) * (1 - step / 100))


def test_without_warm_up_the_first_update_has_the_peak():
    assert rates()[0] == 2.0


def test_polynomial_cosine_and_constant():
    assert rates(decay="polynomial", power=3.0)[50] == pytest.approx(2.0 * 0.5**3)
    assert rates(decay="polynomial", power=1.0, warmup_steps=7) == rates(decay="linear", warmup_steps=7)
    assert rates(decay="cosine", warmup_steps=20)[60] == pytest.approx(2.0 * (1 + math.cos(math.pi / 2)) / 2)
    assert set(rates(decay="constant")) == {2.0}


def test_every_decay_of_the_settings_is_computed():
    for decay in get_args(ScheduleSettings.model_fields["decay"].annotation):
        assert all(0 <= rate <= 2.0 for rate in rates(decay=decay, warmup_steps=3))


@pytest.mark.parametrize("shape", ["linear", "polynomial", "cosine", "sqrt"])
def test_warm_up_stable_decay_by_its_equations(shape):
    """WSD: the rate rises over 10 steps, stays, and falls over the last 40, by the share d of them that is done."""
    values = rates(warmup_steps=10, decay=shape, power=2.0, decay_steps=40)
    assert set(values[9:60]) == {2.0}
    for step in range(60, 101):
        d = (step - 60) / 40
        falls = {
            "linear": 1 - d,
            "polynomial": (1 - d) ** 2,
            "cosine": math.cos(math.pi * d / 2) ** 2,
            "sqrt": 1 - d**0.5,
        }
        assert values[step] == pytest.approx(2.0 * falls[shape], abs=1e-15)


def test_the_decay_begins_at_any_step_of_the_stable_part():
    """A run of 60 steps at the peak, and one that decays from its step 30 on: each rate of the second follows."""
    stable = rates(warmup_steps=10, decay="constant")
    decayed = rates(total=40, warmup_steps=10, decay="sqrt", decay_steps=10)
    assert decayed[:31] == stable[:31] and decayed[31] < 2.0 and decayed[40] == 0


@pytest.mark.parametrize(
    ("schedule", "line"),
    [
        ({"decay": "constant", "decay_steps": 3}, "decay is constant, so decay_steps has nothing to say"),
        ({"warmup_steps": 5, "decay_steps": 6}, "are 5 and 6, more than the schedule's 10 steps; lower one of them"),
        ({"ends": 9}, "schedule.ends is 9, before the last of 10 steps; raise it"),
        ({"decay": "wsd"}, "schedule.decay: "),
    ],
)
def test_a_schedule_that_cannot_be_is_one_line(schedule, line):
    values = {"model": {"type": "nezha"}, "data": {"corpus": "c"}, "global_batch": 1, "steps": 10}
    with pytest.raises(UserError, match=re.escape(line)) as caught:
        TrainSettings.parse({**values, "optimizer": {"learning_rate": 1.0}, "schedule": schedule}, "here")
    assert "\n" not in str(caught.value)


def test_a_run_that_is_all_warm_up_divides_by_nothing():
    assert rates(total=5, warmup_steps=50)[4] == pytest.approx(0.2)
    assert rates(total=5, warmup_steps=5)[5] == 0
