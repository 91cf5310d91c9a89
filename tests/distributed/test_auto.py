"""`micro_batch: auto` in real runs: the same samples and losses as with the numbers that were chosen."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from reread.training.config import TrainSettings
from reread.training.run.metrics import read_metrics
from reread.training.run.passes import pass_share
from tests.conftest import rarer, train_values


def train_with_auto(values: dict[str, Any], run: Path) -> None:
    from reread.pipeline.estimate.auto import choose_auto
    from reread.training.trainer import train

    train(TrainSettings.parse(values, "test"), run, choose_auto=choose_auto)


def figures(run: Path) -> list[tuple[float, ...]]:
    return [(line["loss"], line["tokens"], line["gradient_norm"]) for line in read_metrics(run) if "loss" in line]


@pytest.mark.parametrize(("tensor", "data", "rows"), [(1, 1, 8), rarer(1, 2, 4), (2, 1, 8)])
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


def train_with_share(values: dict[str, Any], run: Path) -> None:
    from reread.pipeline.estimate.passes import choose_pass_share
    from reread.training.trainer import train

    train(TrainSettings.parse(values, "test"), run, choose_share=choose_pass_share)


def share_here() -> float:
    from reread.training.parallel.rendezvous import init_mesh

    mesh = init_mesh(1, torch.device("cpu"))
    return pass_share(Path("nowhere"), False, mesh, lambda: 0.5 + mesh.rank)


def test_all_processes_take_the_cost_of_a_pass_that_process_0_finds(ranks, ranks_in_float64, sample_corpus, tmp_path):
    """Process 0 alone rehearses, also in a group of tensor parallelism; losses are those of one process."""
    assert ranks(2, share_here) == [0.5, 0.5]
    shares, curves = [], []
    for tensor, data in ((1, 1), (2, 2)):
        values = train_values(sample_corpus, parallel={"tensor": tensor}, steps=2, micro_batch=4)
        values["model"] |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
        run = tmp_path / f"{tensor}x{data}"
        run.mkdir()
        ranks_in_float64(tensor * data, train_with_share, values, run)
        shares.append(json.loads((run / "fitted.json").read_text())["passes"]["share"])
        curves.append([loss for loss, _, _ in figures(run)])
    assert min(shares) > 0.5
    assert curves[1] == pytest.approx(curves[0], rel=1e-9) and len(curves[0]) == 2
