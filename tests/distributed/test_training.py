"""The trainer on real process groups: the split of the work changes only rounding."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from reread.training.checkpoint.store import CheckpointStore
from reread.training.config import TrainSettings
from reread.training.parallel.mesh import Mesh
from reread.training.run.metrics import read_metrics
from tests.conftest import longformer_values, ran_values, rarer, span_values, train_values


def mixture_values(corpus: Path, **changes: Any) -> dict[str, Any]:
    return mixed(train_values(corpus, **changes))


def mixed(values: dict[str, Any]) -> dict[str, Any]:
    """With the corpus twice, as a mixture of 2 to 1."""
    corpus = str(values["data"].pop("corpus"))
    parts = [{"path": corpus, "name": name, "weight": weight} for name, weight in (("novels", 2), ("news", 1))]
    return values | {"data": {**values["data"], "corpora": parts}}


MODELS = {"nezha": train_values, "spans": span_values, "ran": ran_values, "longformer": longformer_values}


def train_in_process(values: dict[str, Any], run: Path) -> None:
    from reread.training.trainer import train

    train(TrainSettings.parse(values, "test"), run)


def train_untrimmed(values: dict[str, Any], run: Path) -> None:
    """As `train_in_process`, with the padding of all rows computed."""
    from reread.training.objectives.objective import Objective

    Objective.padding_counts = True  # type: ignore[method-assign,assignment]
    train_in_process(values, run)


def curve(run: Path, name: str = "loss") -> list[float]:
    return [line[name] for line in read_metrics(run) if name in line]


def state_of(run: Path, step: int) -> dict[str, torch.Tensor]:
    return CheckpointStore(run / "checkpoints", 2, Mesh()).read_full(step)


def agree(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> None:
    """Weights, optimiser state, memories and cursors of runs in float64 are equal to rounding."""
    assert a.keys() == b.keys()
    for name, tensor in a.items():
        if tensor.dtype == torch.int64:  # cursors and places
            assert torch.equal(tensor, b[name]), name
        else:
            assert tensor.dtype == torch.float64
            torch.testing.assert_close(tensor, b[name], rtol=1e-9, atol=1e-11, msg=name)


def no_dropout(values: dict[str, Any]) -> dict[str, Any]:
    values["model"] |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return values


@pytest.mark.parametrize(
    ("model", "accumulate"),
    [
        ("nezha", True),
        ("ran", True),
        ("mixture", False),
        rarer("spans", True),
        rarer("longformer", True),
        rarer("nezha", False),
    ],
)
def test_same_loss_curve_at_every_split(ranks_in_float64, sample_corpus, tmp_path, model, accumulate) -> None:
    """Splits 1x1, with all rows untrimmed, and 2x2 (tensor x data), with accumulation and without; 2x1 and 1x2, which
    are alike for all models, of NEZHA.
    """
    curves = {}
    splits = ((1, 1), (2, 2), (2, 1), (1, 2))
    for tensor, data in splits if (model, accumulate) == ("nezha", True) else splits[:2]:
        values = no_dropout({**MODELS, "mixture": mixture_values}[model](sample_corpus, parallel={"tensor": tensor}))
        values |= {"steps": 3, "validate_every": 2, "global_batch": 4, "micro_batch": 1 if accumulate else 4}
        run = tmp_path / f"{tensor}x{data}"
        run.mkdir()
        ranks_in_float64(tensor * data, train_untrimmed if tensor == data == 1 else train_in_process, values, run)
        curves[tensor, data] = curve(run) + curve(run, "validation_loss") + curve(run, "gradient_norm")
        of_each = curve(run, "validation_novels_loss") + curve(run, "validation_news_loss")
        assert len(of_each) == 4 * (model == "mixture")
        curves[tensor, data] += of_each
    assert len(curves[1, 1]) == 3 + 2 + 3 + len(of_each)
    for split, values_there in curves.items():
        assert values_there == pytest.approx(curves[1, 1], rel=1e-9), split


def test_dropout_of_full_rows_is_the_same_on_any_number_of_data_parallel_ranks(
    ranks_in_float64, sample_corpus, tmp_path
) -> None:
    """Rows of unequal length are sorted within each rank's share, so other rows share a micro-batch and its dropout."""
    for data in (1, 4):
        run = tmp_path / str(data)
        run.mkdir()
        ranks_in_float64(data, train_in_process, longformer_values(sample_corpus), run)
    assert curve(tmp_path / "4") == pytest.approx(curve(tmp_path / "1"), rel=1e-9)


def test_a_batch_that_grows_and_masks_by_step_are_the_same_on_any_number_of_ranks(
    ranks_in_float64, sample_corpus, tmp_path
) -> None:
    """The shares of two ranks differ from step to step, and are of unequal size in most."""
    values = no_dropout(train_values(sample_corpus, steps=5, global_batch=9, batch_warmup={"first": 2, "steps": 4}))
    values["data"]["masking"] |= {"first_probability": 0.05, "final_probability": 0.4}
    for data in (1, 2):
        (tmp_path / str(data)).mkdir()
        ranks_in_float64(data, train_in_process, values, tmp_path / str(data))
    agree(state_of(tmp_path / "1", 5), state_of(tmp_path / "2", 5))
    assert curve(tmp_path / "2", "tokens") == curve(tmp_path / "1", "tokens")


def test_a_run_goes_on_at_any_split_and_back(ranks_in_float64, sample_corpus, tmp_path) -> None:
    """A run at 1x1 (tensor x data), then 2x2, 1x4, 4x1 and 2x2, equals a run of one process."""
    whole, moved = tmp_path / "whole", tmp_path / "moved"
    for run in (whole, moved):
        run.mkdir()
    last = 9
    values = train_values(sample_corpus, steps=last, validate_every=last, schedule={"decay": "constant"})
    ranks_in_float64(1, train_in_process, no_dropout(values), whole)
    for steps, tensor, processes in ((2, 1, 1), (4, 2, 4), (5, 1, 4), (7, 4, 4), (last, 2, 4)):
        ranks_in_float64(processes, train_in_process, {**values, "steps": steps, "parallel": {"tensor": tensor}}, moved)
    assert curve(moved, "tokens") == curve(whole, "tokens")
    assert curve(moved) == pytest.approx(curve(whole), rel=1e-9)
    agree(state_of(moved, last), state_of(whole, last))


def test_frozen_rows_stay_at_every_split_and_after_a_resume(ranks_in_float64, sample_corpus, tmp_path) -> None:
    """Positions from row 17 on learn at 1x1, and at 2x2 (tensor x data) with a stop on the way."""
    table = "longformer.embeddings.position_embeddings.weight"
    values = no_dropout(longformer_values(sample_corpus, trainable=[f"{table}[17:]"], schedule={"decay": "constant"}))
    ends = {}
    for name, processes, stops in (("begin", 1, (0,)), ("1x1", 1, (6,)), ("2x2", 4, (3, 6))):
        run = tmp_path / name
        run.mkdir()
        for steps in stops:
            now = {"steps": steps, "parallel": {"tensor": 1 + (processes > 1)}}
            ranks_in_float64(processes, train_in_process, {**values, **now}, run)
        ends[name] = state_of(run, stops[-1])
    begin = ends.pop("begin")
    agree(ends["2x2"], ends["1x1"])
    for state in ends.values():
        for name in (name for name in begin if name.startswith("model.")):
            learnt = slice(17, None) if name == f"model.{table}" else slice(0)
            kept = slice(17) if name == f"model.{table}" else slice(None)
            assert torch.equal(state[name][kept], begin[name][kept]), name
            assert (state[name][learnt] != begin[name][learnt]).all(), name
        assert {name for name in state if name.startswith("exp_avg.")} == {f"exp_avg.{table}"}
        assert state[f"exp_avg.{table}"].shape == (49 - 17, 32)


def test_batches_that_do_not_divide_are_still_the_same_batch(ranks_in_float64, sample_corpus, tmp_path) -> None:
    """7 rows on 3 ranks in micro-batches of 2 divide nowhere."""
    for data in (1, 3):
        run = tmp_path / str(data)
        run.mkdir()
        ranks_in_float64(data, train_in_process, no_dropout(train_values(sample_corpus, global_batch=7)), run)
    assert curve(tmp_path / "3") == pytest.approx(curve(tmp_path / "1"), rel=1e-9)


def train_with_overflow(values: dict[str, Any], run: Path) -> list[bool]:
    """Rank 1's gradient overflows in step 2; returns the steps in which this rank's weights changed."""
    from reread.training.trainer import Step, Trainer, close_mesh, init_mesh

    class Overflowing(Trainer):
        def _train_step(self, *args: Any) -> Step:
            before = [parameter.clone() for parameter in self.assembly.model.parameters()]
            handle = None
            if self.step == 2 and self.mesh.rank == 1:
                head = self.assembly.model.cls.seq_relationship
                handle = head.weight.register_hook(lambda gradient: gradient * math.inf)
            result = super()._train_step(*args)
            if handle:
                handle.remove()
            after = self.assembly.model.parameters()
            moved.append(any(not torch.equal(a, b) for a, b in zip(before, after, strict=True)))
            return result

    moved: list[bool] = []
    mesh: Mesh = init_mesh(values["parallel"]["tensor"])
    Overflowing(TrainSettings.parse(values, "test"), run, mesh).train()
    close_mesh()
    return moved


@pytest.mark.parametrize("tensor", [1, 2])
def test_overflow_on_one_rank_skips_the_step_on_all(ranks, sample_corpus, tmp_path, tensor) -> None:
    values = train_values(sample_corpus, precision="fp16", parallel={"tensor": tensor}, initial_loss_scale=1024.0)
    values["schedule"] = {"decay": "constant"}
    moved = ranks(2, train_with_overflow, values, tmp_path)
    assert moved[0] == moved[1]
    assert moved[0] == [True, True, False, True, True, True]


@pytest.mark.parametrize("model", ["nezha", *map(rarer, ("spans", "ran", "longformer"))])
def test_half_precision_learns_like_fp32(ranks, sample_corpus, tmp_path, model) -> None:
    """fp16 and bf16 with fp32 masters follow the fp32 curve; activation checkpointing changes nothing."""
    values = no_dropout(MODELS[model](sample_corpus, steps=4, micro_batch=4, validate_every=4))
    for name, changes in {
        "fp32": {},
        "fp16": {"precision": "fp16"},
        "bf16": {"precision": "bf16"},
        "recomputed": {"activation_checkpointing": True},
    }.items():
        run = tmp_path / name
        run.mkdir()
        ranks(1, train_in_process, {**values, **changes}, run)
    assert curve(tmp_path / "fp16") == pytest.approx(curve(tmp_path / "fp32"), rel=5e-3)
    assert curve(tmp_path / "bf16") == pytest.approx(curve(tmp_path / "fp32"), rel=3e-2)
    assert curve(tmp_path / "recomputed") == curve(tmp_path / "fp32")


def test_frozen_weights_stay_at_every_split(ranks_in_float64, sample_corpus, tmp_path) -> None:
    """Only the positions learn, the same at 1x1 and 2x2; all else is bit for bit what it was."""
    states = {}
    for tensor, data, steps in ((1, 1, 0), (1, 1, 6), (2, 2, 6)):
        values = no_dropout(longformer_values(sample_corpus, parallel={"tensor": tensor}, steps=steps))
        values["trainable"] = ["*.position_embeddings.weight"]
        run = tmp_path / f"{tensor}x{data}-{steps}"
        run.mkdir()
        ranks_in_float64(tensor * data, train_in_process, values, run)
        states[tensor, steps] = CheckpointStore(run / "checkpoints", 2, Mesh()).read_full(steps, "model.")
    for name, tensor in states[1, 0].items():
        assert torch.equal(states[2, 6][name], tensor) == (not name.endswith("position_embeddings.weight")), name
    positions = "longformer.embeddings.position_embeddings.weight"
    torch.testing.assert_close(states[2, 6][positions], states[1, 6][positions], rtol=1e-9, atol=1e-11)
