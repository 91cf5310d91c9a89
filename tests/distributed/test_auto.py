"""`micro_batch: auto` in real runs: the same samples and losses as with the numbers that were chosen."""

import json
from pathlib import Path
from typing import Any

import pytest

from reread.training.config import TrainSettings
from reread.training.run.metrics import read_metrics
from tests.conftest import train_values


def train_with_auto(values: dict[str, Any], run: Path) -> None:
    from reread.pipeline.estimate.auto import choose_auto
    from reread.training.trainer import train

    train(TrainSettings.parse(values, "test"), run, choose_auto=choose_auto)


def figures(run: Path) -> list[tuple[float, ...]]:
    return [(line["loss"], line["tokens"], line["gradient_norm"]) for line in read_metrics(run) if "loss" in line]


@pytest.mark.parametrize(("tensor", "data", "rows"), [(1, 1, 8), (1, 2, 4), (2, 1, 8)])
def test_auto_trains_as_the_numbers_do(ranks, sample_corpus, tmp_path, tensor, data, rows) -> None:
    values = train_values(sample_corpus, parallel={"tensor": tensor}, steps=3)
    auto = {"micro_batch": "auto", "activation_checkpointing": "auto"}
    for name, given in {"auto": auto, "explicit": {"micro_batch": rows}}.items():
        (tmp_path / name).mkdir()
        ranks(tensor * data, train_with_auto, {**values, **given}, tmp_path / name)
    chosen = json.loads((tmp_path / "auto" / "fitted.json").read_text())["values"]
    assert chosen == {"micro_batch": rows, "activation_checkpointing": False}
    assert len(figures(tmp_path / "auto")) == 3
    assert figures(tmp_path / "auto") == figures(tmp_path / "explicit")
