"""The best evaluation of a run: never one that is not finite, and the same on all ranks."""

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from reread.training.checkpoint.store import CheckpointStore
from reread.training.parallel.mesh import Mesh
from reread.training.parallel.rendezvous import init_mesh
from reread.training.trainer import Trainer


def _choices(losses: list[list[float]], patience: int | None) -> tuple[list[bool], dict[str, Any] | None]:
    """Whether each evaluation was the best, until the run ends, and the best one in the end; `losses` by rank."""
    trainer: Any = Trainer.__new__(Trainer)
    trainer.best, trainer.mesh = None, init_mesh()
    trainer.settings = SimpleNamespace(patience=patience, steps=100)
    found = []
    for step, loss in enumerate(losses[trainer.mesh.rank], 1):
        trainer.step = step
        found.append(trainer._is_best("loss", {"loss": loss}))
        if trainer._finished():
            break
    return found, trainer.best


NAN = math.nan


@pytest.mark.parametrize(
    ("losses", "patience", "choices", "step"),
    [
        ([NAN, 5.0, 4.0, 4.0, 3.0], 3, [False, True, True, False, True], 5),
        ([5.0, NAN, -math.inf, 4.0], 3, [True, False, False, True], 4),
        ([5.0, NAN, 6.0, math.inf, 4.0], 3, [True, False, False, False], 1),
        ([NAN, NAN, 4.0], 2, [False, False], None),
        ([NAN, NAN], None, [False, False], None),
    ],
)
def test_what_is_not_finite_is_never_the_best_and_counts_as_no_better(
    losses: list[float], patience: int | None, choices: list[bool], step: int | None
) -> None:
    found, best = _choices([losses], patience)
    assert found == choices and best is not None and best["step"] == step


def test_a_run_with_nan_alone_is_exported_from_its_last_checkpoint(tmp_path: Path) -> None:
    _, best = _choices([[NAN, NAN]], None)
    store = CheckpointStore(tmp_path, 2, Mesh())
    for step in (1, 2, 3):
        store.save(step, {}, {}, {"best": best})
    store.wait()
    assert store.chosen() == 3 and store.steps() == [2, 3]
    assert json.loads((tmp_path / "step-00000003" / "index.json").read_text())["state"]["best"]["since"] == 2


def test_all_ranks_choose_and_stop_as_the_first_does_whatever_their_rounding(ranks) -> None:
    least = math.ulp(1.0)
    losses = [[1.0, 1.0, 1.0], [1.0, 1.0 - least, 1.0 - 2 * least]]
    (first, one), (second, other) = ranks(2, _choices, losses, 2)
    assert first == second == [True, False, False] and one["step"] == other["step"] == 1
