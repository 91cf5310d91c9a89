"""Gradients, their norm, overflow and the optimiser are the same on any number of processes."""

import math
import sys
from collections.abc import Callable
from typing import Any, Literal

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from reread.preprocessing.errors import UserError
from reread.training.config import OptimizerSettings, ParallelSettings
from reread.training.models.build import freeze
from reread.training.models.nezha import NezhaConfig, NezhaForPreTraining
from reread.training.models.nezha.spec import TENSOR_PLAN
from reread.training.optim.build import build_optimizer
from reread.training.optim.precision import MasterWeights
from reread.training.parallel.gradients import GradientBuckets
from reread.training.parallel.layout import Slice
from reread.training.parallel.mesh import Mesh
from reread.training.parallel.reduce import in_torch, reducer
from reread.training.parallel.rendezvous import init_mesh
from reread.training.parallel.tensor import layout, parallelise, vocab_cross_entropy
from tests.conftest import rarer

ROWS, LENGTH, VOCABULARY = 8, 12, 200
Parts = dict[str, Tensor]
Layout = dict[str, Slice]


def nezha() -> NezhaForPreTraining:
    torch.manual_seed(0)
    config = NezhaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        max_relative_position=4,
    )
    return NezhaForPreTraining(config)


def rows_loss(model: nn.Module, mesh: Mesh, rows: range) -> Tensor:
    ids = torch.randint(VOCABULARY, (ROWS, LENGTH), generator=torch.Generator().manual_seed(3))[rows]
    logits = model(input_ids=ids).prediction_logits.flatten(0, 1)
    return vocab_cross_entropy(logits, ids.flatten(), mesh).sum() / (ROWS * LENGTH)


def backward(model: nn.Module, mesh: Mesh, buckets: GradientBuckets, micro_batch: int, factor: float = 1.0) -> float:
    """The loss of this rank's rows of the global batch; gradients are left in `buckets`."""
    mine = range(ROWS * mesh.data_rank // mesh.data_size, ROWS * (mesh.data_rank + 1) // mesh.data_size)
    starts = range(mine.start, mine.stop, micro_batch)
    buckets.zero()
    total = 0.0
    for start in starts:
        if start == starts[-1]:
            buckets.reduce_as_ready()
        loss = rows_loss(model, mesh, range(start, start + micro_batch))
        (loss * factor).backward()
        total += loss.item()
    buckets.finish()
    return total


def _gradients(tensor: int, micro_batch: int, bucket_bytes: int) -> tuple[Parts, Layout, float]:
    mesh = init_mesh(tensor)
    model = nezha()
    parallelise(model, TENSOR_PLAN, mesh)
    buckets = GradientBuckets(model.parameters(), mesh, bucket_bytes)
    for _ in range(2):  # the second step must not see the first
        backward(model, mesh, buckets, micro_batch)
    gradients = {name: buckets.grad_of(parameter) for name, parameter in model.named_parameters()}
    return gradients, layout(model, mesh), buckets.global_norm()


def check_parts(
    parts: dict[str, Tensor], slices: dict[str, Slice], whole: dict[str, Tensor], **tolerance: float
) -> None:
    assert parts.keys() == whole.keys()
    for name, part in parts.items():
        real, expected = slices[name].inside(part), whole[name][slices[name].region()]
        assert torch.allclose(real, expected, **tolerance), f"{name}: off by {(real - expected).abs().max():.1e}"


@pytest.mark.parametrize(
    ("n", "tensor", "micro_batch", "bucket_bytes"),
    [(1, 1, 2, 4000), (2, 2, 8, 4000), (2, 1, 2, 4000), (2, 1, 4, 1 << 30), (4, 2, 2, 20000)],
)
def test_gradients_and_norm_are_the_same_on_any_mesh(ranks_in_float64, n, tensor, micro_batch, bucket_bytes):
    expected, _, norm = ranks_in_float64(1, _gradients, 1, ROWS, 1 << 30)[0]
    assert norm == pytest.approx(math.sqrt(sum(float(g.square().sum()) for g in expected.values())), rel=1e-12)
    results = ranks_in_float64(n, _gradients, tensor, micro_batch, bucket_bytes)
    for gradients, slices, split_norm in results:
        check_parts(gradients, slices, expected, rtol=1e-10, atol=1e-14)
        assert split_norm == pytest.approx(norm, rel=1e-12)
    assert len({split_norm for _, _, split_norm in results}) == 1  # bit-equal, or ranks would clip differently


def _launched() -> tuple[list[int], list[int]]:
    """Sizes of the buckets in flight when the backward pass of the first and of the last micro-batch ends."""
    mesh = init_mesh()
    begun: list[int] = []
    begin = in_torch(mesh)

    def noted(buffer: Tensor, bucket: int) -> Callable[[], object]:
        begun.append(buffer.numel())
        return begin(buffer, bucket)

    model = nezha()
    freeze(model, None, ("pooler", "seq_relationship"))  # as in training without pairs
    buckets = GradientBuckets(model.parameters(), mesh, 8000, noted)
    rows_loss(model, mesh, range(2)).backward()
    first = begun.copy()
    buckets.reduce_as_ready()
    rows_loss(model, mesh, range(2)).backward()
    last = begun.copy()
    buckets.finish()
    return first, last


def test_buckets_are_reduced_while_the_last_backward_pass_goes_on(ranks):
    (first, last), other = ranks(2, _launched)
    assert first == [] and len(last) > 5
    assert other == (first, last)


def _rank_without_rows() -> tuple[list[float], float]:
    mesh = init_mesh()
    layers = nn.ModuleList(nn.Linear(2, 1, bias=False) for _ in range(3))
    buckets = GradientBuckets(layers.parameters(), mesh, 8)
    buckets.zero()
    if mesh.rank == 0:
        buckets.reduce_as_ready()
        layers[1](torch.ones(1, 2)).sum().backward()  # two of three layers are not used
    buckets.finish()
    return [float(buckets.grad_of(layer.weight).sum()) for layer in layers], buckets.global_norm()


def test_unused_parameters_and_a_rank_without_rows_hold_nobody_up(ranks):
    assert ranks(2, _rank_without_rows) == [([0.0, 2.0, 0.0], pytest.approx(math.sqrt(2)))] * 2


def _overflow(tensor: int, bad_rank: int, whole: bool) -> float:
    mesh = init_mesh(tensor)
    model = nezha()
    parallelise(model, TENSOR_PLAN, mesh)
    buckets = GradientBuckets(model.parameters(), mesh, 4000)
    backward(model, mesh, buckets, 4)
    if mesh.rank == bad_rank:  # after the reduction: only this rank can see it
        layer = model.nezha.encoder.layer[0].attention.output
        parameter = layer.LayerNorm.weight if whole else layer.dense.weight
        buckets.grad_of(parameter).view(-1)[0] = math.nan
    return buckets.global_norm()


@pytest.mark.parametrize(("bad_rank", "whole"), [(1, True), (3, False)])
def test_an_overflow_on_one_rank_is_seen_by_all(ranks, bad_rank, whole):
    assert not any(math.isfinite(norm) for norm in ranks(4, _overflow, 2, bad_rank, whole))


def sums_and_parts(
    tensor: int, gradients: Literal["torch", "horovod"], factor: float
) -> tuple[int, Tensor, Tensor, float]:
    """Tensor rank, sum of `factor` times the gradients, this rank's part and the norm in a step that sends fp16."""
    mesh = init_mesh(tensor, gradients=gradients)
    reduce = reducer(ParallelSettings(gradients=gradients, gradient_dtype="fp16"), mesh)
    sums, parts = [], []

    def noted(buffer: Tensor, bucket: int) -> Callable[[], object]:
        sums.append(buffer)
        parts.append(buffer.clone())
        return reduce(buffer, bucket)

    model = nezha()
    parallelise(model, TENSOR_PLAN, mesh)
    buckets = GradientBuckets(model.parameters(), mesh, 20000, noted)
    for _ in range(2):  # the second step must not see the first
        sums.clear()
        parts.clear()
        backward(model, mesh, buckets, 1, factor)
    return mesh.tensor_rank, torch.cat(sums), torch.cat(parts), buckets.global_norm()


def check_fp16_sums(results: list[tuple[int, Tensor, Tensor, float]]) -> None:
    """The sums are equal on all data-parallel ranks and within float16 rounding of the exact sum."""
    for tensor_rank in {rank for rank, *_ in results}:
        sums, parts = (torch.stack([one[i] for one in results if one[0] == tensor_rank]) for i in (1, 2))
        assert (sums == sums[0]).all()
        error = (sums[0].double() - parts.double().sum(0)).abs()
        rounding = 2.0**-11 * parts.abs().sum(0) + 2.0**-25  # of one operation, subnormal numbers included
        assert (error <= len(parts) * rounding).all()
        assert (error > 0).any()


@pytest.mark.parametrize(("n", "tensor"), [(3, 1), (4, 2)])
def test_fp16_on_the_wire_stays_within_its_rounding(ranks, n, tensor):
    check_fp16_sums(ranks(n, sums_and_parts, tensor, "torch", 1024.0))


def test_what_overflows_on_the_wire_is_seen_by_all(ranks):
    assert [norm for *_, norm in ranks(4, sums_and_parts, 2, "torch", 2.0**40)] == [math.inf] * 4


def _without_horovod() -> tuple[str, str]:
    sys.modules["horovod"] = None  # type: ignore[assignment]
    with pytest.raises(UserError) as error:
        init_mesh(gradients="horovod")
    return type(error.value).__name__, str(error.value)


def test_a_missing_horovod_is_reported_by_one_process(ranks):
    (first, line), (second, _) = ranks(2, _without_horovod)
    assert (first, second) == ("UserError", "ReportedElsewhereError")
    assert line.startswith("train.parallel.gradients: horovod is not installed here (")
    assert "run `make horovod`" in line


def _half(tensor: int) -> tuple[Parts, Layout]:
    mesh = init_mesh(tensor)
    model = nezha()
    parallelise(model, TENSOR_PLAN, mesh)
    MasterWeights(model, torch.bfloat16)
    buckets = GradientBuckets(model.parameters(), mesh, 4000)
    backward(model, mesh, buckets, 2, factor=64.0)
    buckets.scale(1 / 64)
    return {name: buckets.grad_of(parameter) for name, parameter in model.named_parameters()}, layout(model, mesh)


def test_half_precision_gradients_add_up_in_float32(ranks):
    expected, _, norm = ranks(1, _gradients, 1, ROWS, 1 << 30)[0]
    for gradients, slices in ranks(2, _half, 1):
        assert all(gradient.dtype == torch.float32 for gradient in gradients.values())
        check_parts(gradients, slices, expected, rtol=0.1, atol=0.01 * norm)


def _trajectory(tensor: int, settings: dict[str, Any]) -> tuple[Parts, Layout, list[float]]:
    mesh = init_mesh(tensor)
    model = nezha()
    parallelise(model, TENSOR_PLAN, mesh)
    masters = MasterWeights(model, torch.float32)
    optimizer = build_optimizer(masters.named_parameters(), OptimizerSettings(learning_rate=1.0, **settings), mesh)
    buckets = GradientBuckets(model.parameters(), mesh, 4000)
    losses = []
    for _ in range(5):
        loss = torch.tensor(backward(model, mesh, buckets, ROWS // mesh.data_size))
        if mesh.data_group is not None:
            dist.all_reduce(loss, group=mesh.data_group)
        losses.append(loss.item())
        factor = min(1.0, 1.0 / buckets.global_norm())
        masters.step(optimizer, buckets, rate=0.01, factor=factor)
    return {name: weight.detach() for name, weight in masters.named_parameters()}, layout(model, mesh), losses


@pytest.mark.parametrize("settings", [{"variant": "nezha"}, rarer({"variant": "standard"}), {"name": "adam"}])
def test_training_takes_the_same_path_on_any_mesh(ranks_in_float64, settings):
    expected, _, losses = ranks_in_float64(1, _trajectory, 1, settings)[0]
    assert losses[-1] < losses[0]
    for n, tensor in ((2, 2), (4, 2)):
        for weights, slices, split_losses in ranks_in_float64(n, _trajectory, tensor, settings):
            assert split_losses == pytest.approx(losses, rel=1e-11)
            check_parts(weights, slices, expected, rtol=1e-10, atol=1e-11)


def _late(n: int) -> list[list[float]]:
    """Gradients of four steps; the middle one of three layers is used by the last rank alone, from step 2 on."""
    mesh = init_mesh()
    layers = nn.ModuleList(nn.Linear(2, 1, bias=False) for _ in range(3))
    buckets = GradientBuckets(layers.parameters(), mesh, 8)
    found = []
    for step in range(4):
        buckets.zero()
        buckets.reduce_as_ready()
        used = [0, 1, 2] if step > 1 and mesh.rank == n - 1 else [0, 2]
        x = torch.ones(1, 2)
        sum((layers[layer](x) * (layer + 1) for layer in used), x.sum() * 0).sum().backward()
        buckets.finish()
        found.append([float(buckets.grad_of(layer.weight).sum()) for layer in layers])
    return found


def test_a_parameter_may_be_used_for_the_first_time_in_any_step(ranks) -> None:
    without, with_it = [4.0, 0.0, 12.0], [4.0, 4.0, 12.0]
    assert ranks(2, _late, 2) == [[without, without, with_it, with_it]] * 2
