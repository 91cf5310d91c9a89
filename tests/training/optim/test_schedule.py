"""The learning rate follows NEZHA's line, and no update is wasted."""

import math
from typing import get_args

import pytest

from reread.training.config import ScheduleSettings
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


def test_a_run_that_is_all_warm_up_divides_by_nothing():
    assert rates(total=5, warmup_steps=50)[4] == pytest.approx(0.2)
    assert rates(total=5, warmup_steps=5)[5] == 0
