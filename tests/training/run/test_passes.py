"""The cost of a pass that a run chooses: kept over resumes, and the same on all processes."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reread.training.config import TrainSettings
from reread.training.data.rows.trimming import PASS_SHARE
from reread.training.parallel.mesh import Mesh
from reread.training.run.auto import keep_auto
from reread.training.run.metrics import read_metrics
from reread.training.run.passes import pass_share
from reread.training.trainer import train
from tests.conftest import train_values
from tests.corpora import make_corpus


def never(*_: Any) -> float:
    raise AssertionError("a begun run chose again")


def by(share: float) -> Callable[..., float]:
    return lambda *_: share


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    lengths = np.random.default_rng(0).integers(3, 70, 40).tolist()
    return make_corpus(tmp_path_factory.mktemp("passes") / "corpus", lengths).folder


def losses(corpus: Path, run: Path, choose: Callable[..., float] | None, steps: int) -> list[tuple[float, float]]:
    """Losses and norms of the run's steps after training it up to `steps`, with dropout."""
    run.mkdir(exist_ok=True)
    values = train_values(corpus, steps=steps, micro_batch=8, schedule={"decay": "constant"}, validate_every=99)
    train(TrainSettings.parse(values, "test"), run, choose_share=choose)
    return [(line["loss"], line["gradient_norm"]) for line in read_metrics(run) if "loss" in line]


def entry(run: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((run / "fitted.json").read_text())
    return content["passes"]


def test_a_run_goes_on_with_the_cost_of_a_pass_that_it_began_with(corpus, tmp_path, caplog) -> None:
    """Dropout is seeded by the first row of a pass, so another cut shows in the losses."""
    whole, cut = losses(corpus, tmp_path / "whole", by(2.0), 4), losses(corpus, tmp_path / "cut", None, 4)
    assert len(whole) == 4 and whole[0] != cut[0]
    losses(corpus, tmp_path / "resumed", by(2.0), 2)
    assert entry(tmp_path / "resumed") == {"share": 2.0}
    with caplog.at_level("INFO", "reread"):
        assert losses(corpus, tmp_path / "resumed", never, 4) == whole
    assert "padding: a pass counts as 2 of a full one, as this run began with" in caplog.messages
    # A run of an earlier version has no such entry.
    losses(corpus, tmp_path / "older", None, 2)
    fitted = tmp_path / "older" / "fitted.json"
    fitted.write_text(json.dumps({"threads": json.loads(fitted.read_text())["threads"]}))
    assert losses(corpus, tmp_path / "older", never, 4) == cut


def test_a_share_is_kept_exactly_or_not_at_all(tmp_path) -> None:
    for chosen in (PASS_SHARE, 0.3, 7.77):
        share = pass_share(tmp_path, False, Mesh(), by(chosen))
        assert abs(share - chosen) <= 1 / 2048
        keep_auto(tmp_path, passes={"share": share})
        assert pass_share(tmp_path, True, Mesh(), never) == share
    for damaged in ({"share": "0.5"}, {"share": -1.0}, {"share": float("nan")}, {}):
        keep_auto(tmp_path, passes=damaged)
        assert pass_share(tmp_path, True, Mesh(), never) == PASS_SHARE
