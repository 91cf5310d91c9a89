"""`reread plan`: its figures against known, allocated or published ones, and what it chooses."""

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
import yaml
from transformers import BertConfig, BertForPreTraining, RobertaConfig, RobertaForMaskedLM

from reread.pipeline.estimate import arrangement as arrangement_module
from reread.pipeline.estimate import rehearsal
from reread.pipeline.estimate.arrangement import Estimator
from reread.pipeline.estimate.disk import corpus_size, vocabulary
from reread.pipeline.estimate.hardware import FRAGMENTED_SHARE, GIB, cluster, gpu_named, network_named
from reread.pipeline.estimate.rehearsal import Footprint, rehearse, step_totals
from reread.pipeline.estimate.speed import Ring, exposed_seconds, ring
from reread.pipeline.estimate.summary import _count, _size, expected_config, print_estimate, print_estimates
from reread.pipeline.estimate.work import Work
from reread.pipeline.recipe.layers import available_recipes
from reread.pipeline.recipe.load import load_recipe
from reread.preprocessing.errors import UserError
from reread.training.assembly import head_of
from reread.training.config import TrainSettings
from reread.training.data.kinds import open_dataset
from reread.training.models import model_spec
from reread.training.models.build import build_model, model_config
from reread.training.objectives import objective_of
from reread.training.objectives.objective import Objective
from reread.training.parallel.gradients import BLOCK, GradientBuckets
from reread.training.parallel.mesh import Mesh
from tests.conftest import (
    document_values,
    longformer_values,
    ran_stream_values,
    ran_values,
    span_values,
    stream_values,
    train_values,
)
from tests.memory import allocated

ALL_VALUES = [train_values, document_values, stream_values, ran_values, ran_stream_values, longformer_values]


def rehearsed(values: dict[str, Any], vocab_size: int, **changes: Any) -> Footprint:
    settings = TrainSettings.parse(values, "test")
    spec = model_spec(settings.model["type"])
    config = model_config(spec, settings.model, vocab_size, None)
    given = {"tensor": 1, "micro_batch": 2, "checkpointing": False, "dtype": torch.float16, **changes}
    return rehearse(settings, config, given.pop("dtype"), **given)


def estimator_of(
    recipe: str, *overrides: str, gpus: int = 8, gpu: str = "v100-32g", network: str = "ib100"
) -> Estimator:
    loaded = load_recipe(recipe, list(overrides), "train")
    assert loaded.train is not None
    spec = model_spec(loaded.train.model["type"])
    config = expected_config(loaded, loaded.train, spec, vocabulary(loaded, loaded.train))
    return Estimator(loaded.train, spec, config, cluster(gpus, gpu, 8, network), 0.4)


def parameters_of(model: type, config: Any) -> int:
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in model(config).parameters())


@pytest.mark.slow
def test_parameters_are_those_of_the_known_models() -> None:
    bert = {"type": "nezha", "position_type": "parametric_absolute", "vocab_size": 30522}
    ours = rehearsed(train_values("nowhere", model=bert), 30522).parameters
    assert ours == parameters_of(BertForPreTraining, BertConfig()) == 110_106_428
    roberta = {"vocab_size": 50265, "max_position_embeddings": 514, "type_vocab_size": 1}
    theirs = parameters_of(RobertaForMaskedLM, RobertaConfig(**roberta))
    values = longformer_values("nowhere", model={"type": "longformer", **roberta})
    global_projections = 12 * 3 * (768 + 1) * 768
    assert rehearsed(values, 50265).parameters == theirs + global_projections
    assert estimator_of("lm-base").arrangement(1, 1, False).footprint.parameters == pytest.approx(151e6, rel=0.005)


def test_state_is_16_bytes_a_parameter_and_2_of_the_weights() -> None:
    """fp16 weights, fp32 masters, two moments and a gradient; the vocabulary of 1,000 is padded to 1,024 rows."""
    footprint = rehearsed(train_values("nowhere", kernels="plain"), 1000)
    padded = footprint.parameters + 24 * (32 + 1)
    assert footprint.weights == 2 * padded
    assert footprint.masters == 4 * padded
    assert footprint.optimizer == 8 * padded
    assert 4 * padded <= footprint.gradients < 4 * padded + 50 * 4 * BLOCK  # of 50 tensors
    assert footprint.checkpoint_bytes == 12 * footprint.parameters
    by_kernels = rehearsed(train_values("nowhere"), 1000)
    ratios = {by_kernels.weights: 2, by_kernels.masters: 4, by_kernels.optimizer: 8}
    assert {size // ratio for size, ratio in ratios.items()} == {footprint.gradients // 4}
    assert rehearsed(train_values("nowhere"), 1000, dtype=torch.float32).masters == 0


def test_what_does_not_learn_needs_no_moments() -> None:
    """Longformer's global projections, which pretraining does not reach."""
    values = longformer_values("nowhere")
    values["data"]["sequence_length"] = 47  # for 49 positions
    values["kernels"] = "plain"
    footprint, without = rehearsed(values, 1000), 2 * 3 * (32 + 1) * 32
    assert footprint.masters - footprint.optimizer // 2 == 4 * without
    assert footprint.checkpoint_bytes == 12 * footprint.parameters - 8 * without
    values["trainable"] = ["*.position_embeddings.weight[17:]"]
    rows = rehearsed(values, 1000)
    assert rows.optimizer == 2 * 4 * (49 - 17) * 32
    assert rows.checkpoint_bytes == 4 * rows.parameters + 8 * (49 - 17) * 32


def test_divided_state_is_a_share_and_weights_and_gradients_are_whole() -> None:
    """Also on two tensor ranks, by kernels and without, and of float32 weights, which are their own masters."""
    values = train_values("nowhere")
    values["model"] |= {"hidden_size": 128, "intermediate_size": 256}
    for changes in ({}, {"tensor": 2}, {"dtype": torch.float32}, {"kernels": "cpu"}):
        whole, share = (rehearsed(values, 4000, divided_over=ranks, **changes) for ranks in (1, 4))
        for name in ("masters", "optimizer"):
            assert getattr(share, name) == pytest.approx(getattr(whole, name) / 4, rel=0.06), (name, changes)
        assert share.gradients == whole.gradients and share.checkpoint_bytes == whole.checkpoint_bytes
        assert share.weights == pytest.approx(whole.weights, rel=0.05)  # with blocks for the smallest tensors
        assert share.within == whole.within and share.update <= whole.update
        assert (share.tensor_bytes, share.tensor_calls) == (whole.tensor_bytes, whole.tensor_calls)


def test_the_division_is_named_where_it_would_fit() -> None:
    """On a GPU that lacks a byte, at 8 processes but not at one."""
    undivided, divided = (estimator_of("nezha-small", f"train.parallel.shard_state={is_on}") for is_on in (False, True))
    alone = estimator_of("nezha-small", gpus=1)
    estimators = undivided, divided, alone
    rows = [one.arrangement(1, 1, False) for one in estimators]
    assert rows[0].bytes - rows[1].bytes == pytest.approx(7 / 8 * 12 * rows[0].footprint.parameters, rel=0.05)
    gpu = divided.cluster.gpu
    gathered = 7 / 8 * rows[1].footprint.weights / gpu.link_bandwidth + 7 * gpu.link_latency
    traffic = rows[1].footprint.update_work.bytes / rows[0].footprint.update_work.bytes * undivided.time(rows[0]).update
    assert divided.time(rows[1]).update == pytest.approx(traffic + gathered, rel=0.05)
    for one, room in zip(estimators, (rows[0].bytes, rows[0].bytes, rows[2].bytes), strict=True):
        one.train = one.train.model_copy(update={"micro_batch": "auto", "activation_checkpointing": False})
        gib = (room - 1) / GIB / (1 - FRAGMENTED_SHARE)
        one.cluster = replace(one.cluster, gpu=replace(one.cluster.gpu, memory_gib=gib))
    assert divided.as_stated().fits
    with pytest.raises(UserError, match=r"are usable; set train\.parallel\.shard_state=true, or take a GPU"):
        undivided.as_stated()
    with pytest.raises(UserError, match="usable; take a GPU"):
        alone.as_stated()


def test_a_state_that_does_not_fit_is_refused_before_a_step_is_rehearsed(monkeypatch) -> None:
    """On a GPU with room for half of the state, with `auto` and without; divided over 8 processes it fits."""

    def refused(*_: Any, **__: Any) -> Footprint:
        raise AssertionError("a step is rehearsed")

    estimator, alone = (estimator_of("nezha-small", gpus=gpus) for gpus in (8, 1))
    for one in (estimator, alone):
        row = one.arrangement(1, 1, False)
        gib = (row.overhead + row.footprint.state / 2) / GIB / (1 - FRAGMENTED_SHARE)
        one.cluster = replace(one.cluster, gpu=replace(one.cluster.gpu, memory_gib=gib))
    assert estimator.instead_of_splitting(replace(row, footprint=replace(row.footprint, tensor=2))) == (
        "train.parallel.shard_state=true fits with tensor size 1"
    )
    monkeypatch.setattr(arrangement_module, "rehearse", refused)
    alone.train = alone.train.model_copy(update={"micro_batch": 4, "activation_checkpointing": "auto"})
    state = f"weights and optimiser with tensor size 1 take {row.footprint.state / GIB:.1f} GiB"
    for ask in (alone.choose, alone.as_stated):
        with pytest.raises(UserError, match=rf"{state}, .* usable; take a GPU with more memory, or more of them"):
            ask()


@pytest.mark.slow
@pytest.mark.parametrize("values_of", [train_values, span_values, document_values, ran_values, longformer_values])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_activations_are_what_torch_allocates(values_of, checkpointing) -> None:
    """The peak memory of a real micro-batch on CPU, as the profiler records it, to within 5 %."""
    values = values_of("nowhere", global_batch=4, micro_batch=4)
    if values_of is not document_values:  # ERNIE-Doc's attention without dropout is another one on CPU
        values["model"]["attention_probs_dropout_prob"] = 0.0
    values["data"]["sequence_length"] = 96
    values["model"] |= {"max_position_embeddings": 98, "hidden_size": 64}
    if values_of is ran_values:
        del values["model"]["max_position_embeddings"]
    settings = TrainSettings.parse(values, "test")
    spec = model_spec(settings.model["type"])
    config = model_config(spec, settings.model, 500, None)
    model = build_model(head_of(spec, objective_of(settings), settings.data), config, None, 0).train()
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    buckets = GradientBuckets(list(model.parameters()), Mesh(), 2**20)
    batch = settings.data.blank(8 if values_of is document_values else 4)
    source = SimpleNamespace(lanes=lambda *_: SimpleNamespace(cursors=np.zeros((8, 3), np.int64)))
    task = objective_of(settings)(model, settings, Mesh(), source, None)

    def step() -> None:
        buckets.zero()
        for loss, _, _ in task.losses(batch, dict.fromkeys(task.counted, 1.0), 0):
            if loss is not None:
                loss.backward()

    most = allocated(step)
    arguments = {"tensor": 1, "micro_batch": 4, "checkpointing": checkpointing, "kernels": "cpu"}
    assert rehearse(settings, config, torch.float32, **arguments).within == pytest.approx(most, rel=0.05)


@pytest.mark.slow
def test_attention_is_fused_and_dropout_keeps_one_byte() -> None:
    """Length doubled, activations less than tripled: no L x L tensor is kept. Dropout of hidden states costs a mask,
    but not by our kernels, which draw it again in the backward pass."""
    mask = 2 * 1024 * 32  # rows x length x width
    for kernels, masks in (("plain", 2 * 2 + 1), ("auto", 1)):  # twice a layer and once at the bottom
        values = train_values("nowhere", kernels=kernels)
        lengths = []
        for length in (512, 1024):
            values["data"]["sequence_length"] = length
            lengths.append(rehearsed(values, 500).activations)
        assert lengths[1] < 2.1 * lengths[0]
        values["model"]["hidden_dropout_prob"] = 0.0
        assert lengths[1] - rehearsed(values, 500).activations == masks * mask


@pytest.mark.slow
def test_a_rehearsal_leaves_nothing_behind() -> None:
    before = F.dropout, F.scaled_dot_product_attention
    rehearsed(train_values("nowhere"), 500, tensor=2)
    with pytest.raises(UserError, match="4 attention heads do not divide by 3"):
        rehearsed(train_values("nowhere"), 500, tensor=3)
    assert (F.dropout, F.scaled_dot_product_attention) == before
    assert not dist.is_initialized()


@pytest.mark.parametrize("values_of", ALL_VALUES)
def test_rows_have_the_columns_of_the_corpus_rows(sample_corpus, values_of) -> None:
    settings = TrainSettings.parse(values_of(sample_corpus), "test")
    source = open_dataset(settings.data, 0, "train")
    if settings.data.kind == "segments":
        rows, cursors = next(iter(source.lanes(4, range(4))))
        real = {**rows, "cursors": cursors}
    elif settings.data.kind == "stream":
        length = settings.data.sequence_length
        real = source.rows(source.start(np.arange(4), 4, 0, length), length)
    else:
        real = source.rows(np.arange(4))
    ours = settings.data.blank(4)
    assert {name: column.shape for name, column in ours.items()} == {n: column.shape for n, column in real.items()}


@pytest.mark.parametrize("values_of", [train_values, document_values])
def test_memory_is_that_of_a_micro_batch_of_full_rows(monkeypatch, values_of) -> None:
    """Trimmed micro-batches of a run are shorter, or as long."""
    seen: list[tuple[int, ...]] = []

    def trimmed(objective: Objective, batch: Any, rows: Any, take: Any = Objective.trimmed_rows) -> Any:
        found = take(objective, batch, rows)
        seen.append(found["input_ids"].shape)
        return found

    monkeypatch.setattr(Objective, "trimmed_rows", trimmed)
    rehearsed(values_of("nowhere"), 100, micro_batch=5)
    assert set(seen) == {(5, 48)}


def test_flops_are_those_that_mfu_counts() -> None:
    """BERT-large at length 128 costs 240 GFLOP a row (C. Devlin's shapes, 15 % of the tokens through the head)."""
    sizes = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
    values = train_values("nowhere", model={"type": "nezha", **sizes})
    values["data"]["sequence_length"] = 128
    settings = TrainSettings.parse(values, "test")
    spec = model_spec("nezha")
    totals = step_totals(settings.data, 1)
    assert spec.flops(model_config(spec, settings.model, 30522, None), 128, totals) == pytest.approx(240.4e9, rel=0.01)
    segments = TrainSettings.parse(document_values("nowhere"), "test").data
    assert step_totals(segments, 10) == {"rows": 10, "skimmed": 10, "predicted": 70}


def test_a_ring_sends_2_n_minus_1_over_n_of_the_bytes() -> None:
    four = Ring(4, bandwidth=1e9, latency=6e-3)
    assert four.seconds(1e9) == pytest.approx(1.5 + 6e-3)
    assert four.seconds(1e9, calls=10) == pytest.approx(1.5 + 60e-3)
    assert Ring(1, 1e9, 1.0).seconds(1e9) == 0


def test_a_ring_over_machines_is_as_fast_as_its_slowest_link() -> None:
    where = cluster(80, "v100-32g", 8, "ib100")
    across, inside = ring(where, 8, 10), ring(where, 8, 1)
    assert across.bandwidth == where.network.bandwidth == 100 / 8 * 0.9 * 1e9
    assert inside.bandwidth == where.gpu.link_bandwidth
    assert across.latency == pytest.approx(18 * 14e-6 + (158 - 18) * 3.4e-6)
    assert inside.latency == pytest.approx(14 * 3.4e-6)
    assert ring(where, 4, 10, sharing=2).bandwidth == across.bandwidth / 2
    assert network_named("4xib100").bandwidth == 4 * across.bandwidth


def test_the_last_bucket_is_never_hidden() -> None:
    four = Ring(4, bandwidth=1e9, latency=0.0)
    assert exposed_seconds(four, 1e9, 10, backward=100.0) == pytest.approx(0.15)
    assert exposed_seconds(four, 1e9, 10, backward=0.0) == pytest.approx(1.5)
    assert exposed_seconds(four, 1e9, 10, backward=1.0) == pytest.approx(1.5 - 0.9)


@pytest.mark.parametrize(
    ("function", "name", "message"),
    [
        (gpu_named, "v100-32", "did you mean `v100-32g`?"),
        (gpu_named, "V100-32G", "did you mean `v100-32g`?"),
        (gpu_named, "h100", "did you mean `h100-80g`?"),
        (gpu_named, "mi250x", "did you mean `mi250x-die`?"),
        (gpu_named, "wse", "known: v100-16g"),
        (network_named, "infiniband", "write ib100 or eth25"),
        (network_named, "0xib100", "write ib100 or eth25"),
        (network_named, "ib00", "write ib100 or eth25"),
    ],
)
def test_what_is_in_no_table_gets_the_nearest(function, name, message) -> None:
    with pytest.raises(UserError, match=message.replace("?", r"\?")):
        function(name)


@pytest.mark.parametrize(
    ("shown", "text"),
    [(_count(0), "0"), (_count(1480e3), "1.48M"), (_count(999_600), "1M"), (_size(999.9e9), "1 TB"), (_size(7), "7 B")],
)
def test_figures_have_three_digits_and_a_unit(shown, text) -> None:
    assert shown == text


def test_machines_are_full() -> None:
    with pytest.raises(UserError, match="do not fill machines of 8"):
        cluster(12, "v100-32g", 8, "ib100")
    assert cluster(4, "v100-32g", 8, "ib100").nodes == 1


def test_calls_that_are_alike_are_made_once(monkeypatch) -> None:
    """Further layers ask torch for no more than the first three, another rehearsal for nothing, and nothing differs
    from asking for each call."""
    asked: list[Any] = []
    work_of, signature = rehearsal.work_of, rehearsal._signature
    monkeypatch.setattr(rehearsal, "work_of", lambda *given: asked.append(given[0]) or work_of(*given))

    def of(layers: int) -> tuple[Footprint, int]:
        asked.clear()
        values = train_values("nowhere")
        values["model"] |= {"num_hidden_layers": layers, "vocab_size": 100}
        return rehearsed(values, 100), len(asked)

    found = []
    for layers in (3, 6):
        monkeypatch.setattr(rehearsal.Ledger, "_calls", {})
        found.append(of(layers))
    few, many = found
    assert few[1] == many[1] > 0
    assert of(6) == (many[0], 0)
    monkeypatch.setattr(rehearsal, "_signature", lambda *given: (object(), signature(*given)[1]))
    one_by_one = of(6)
    assert one_by_one[0] == many[0]
    assert one_by_one[1] > 2 * many[1]


def test_what_a_call_writes_on_the_cpu_is_written_each_time() -> None:
    """As an optimiser's count of steps is, of each group and in each rehearsal."""
    for _ in range(2):
        steps = [torch.zeros(()), torch.zeros(())]
        with rehearsal.Ledger():
            for _ in range(2):
                torch._foreach_add_(steps, 1)
        assert [step.item() for step in steps] == [2, 2]


def test_values_that_are_read_are_those_of_the_cpu() -> None:
    """Also where they are computed after what they follow from was written."""

    def values(device: str) -> list[Any]:
        numbers = torch.arange(6, device=device)
        before, end = numbers + 1, numbers[2:]
        largest = end.max(dim=0)
        end.add_(10)
        is_small, after = numbers < 12, end * 2
        numbers[is_small] = 0
        numbers.mul_(before)
        read = [before, end, is_small, after, largest.indices, numbers, torch.tensor([3, 1]).to(device).cumsum(0)]
        return [*(one.cpu().tolist() for one in read), numbers.sum().item(), bool(is_small.all())]

    with rehearsal.Ledger():
        assert values("meta") == values("cpu")


def test_values_that_nobody_reads_are_not_computed() -> None:
    with rehearsal.Ledger() as ledger:
        places = torch.arange(1 << 50, device="meta")  # 8 petabytes
        near = places * places > 5
        assert ledger.live >= near.nbytes
        del places, near
        assert torch.ones(3, dtype=torch.int64, device="meta").add_(1).sum().item() == 6


def pretended(state_gib: float, row_gib: float, monkeypatch, operations: int = 0) -> list[int]:
    """Rehearsals by formula: state split over tensor ranks, a row's activations half so, a tenth with checkpointing.

    Returns the micro-batches that are rehearsed from now on."""
    rehearsed: list[int] = []

    def rehearse(*_: Any, tensor: int, micro_batch: int, checkpointing: bool, **__: Any) -> Footprint:
        if 12 % tensor:
            raise UserError(f"12 heads do not divide by {tensor}")
        rehearsed.append(micro_batch)
        numbers: dict[str, Any] = dict.fromkeys(Footprint.__dataclass_fields__, 0)
        numbers["weights"] = int(state_gib * 2**30 / tensor)
        a_row = row_gib * (0.5 + 0.5 / tensor) * (0.1 if checkpointing else 1.0)
        numbers["activations"] = int(a_row * 2**30 * micro_batch)
        numbers |= {"gradients": 2**20, "update_work": Work(), "work": {"others": Work(launches=operations)}}
        numbers |= {"tensor": tensor, "micro_batch": micro_batch, "checkpointing": checkpointing}
        return Footprint(**numbers)

    monkeypatch.setattr(arrangement_module, "rehearse", rehearse)
    return rehearsed


@pytest.mark.parametrize(
    ("state", "row", "tensor", "micro_batch", "checkpointing"),
    [
        (2, 0.02, 1, 180, False),  # all rows of the share at once
        (2, 0.2, 1, 90, False),  # 135 would fit: two equal pieces, not 135 and 45
        (40, 0.2, 2, 52, False),  # half the data-parallel ranks have 360 rows each: seven pieces
        (90, 0.2, 4, 45, False),  # twelve heads: 8 is no choice
        (100, 20.0, 4, 2, True),  # a row alone fits nowhere without it
    ],
)
def test_the_smallest_tensor_size_that_fits_is_chosen(state, row, tensor, micro_batch, checkpointing, monkeypatch):
    pretended(state, row, monkeypatch)
    chosen, reason = estimator_of("nezha-base", gpus=80).choose()
    footprint = chosen.footprint
    assert (footprint.tensor, footprint.micro_batch, footprint.checkpointing) == (tensor, micro_batch, checkpointing)
    assert chosen.fits
    assert chosen.data * tensor == 80
    assert chosen.accumulation == math.ceil(180 * tensor / micro_batch)
    assert ("last resort" in reason) == checkpointing


@pytest.mark.parametrize(
    ("state", "row", "operations", "stated", "micro_batch", "checkpointing"),
    [
        (2, 0.02, 0, {}, 180, False),
        (2, 0.2, 0, {}, 90, False),
        (2, 5.0, 0, {}, 5, False),  # 36 short passes, which are still a quarter faster
        (2, 5.0, 100_000, {}, 45, True),  # unless they take long to launch
        (2, 40.0, 0, {}, 6, True),  # a row alone does not fit without it
        (2, 5.0, 0, {"activation_checkpointing": True}, 45, True),
        (2, 0.2, 0, {"micro_batch": 60}, 60, False),
        (2, 5.0, 0, {"micro_batch": 30}, 30, True),
    ],
)
def test_auto_is_the_fastest_that_fits(state, row, operations, stated, micro_batch, checkpointing, monkeypatch) -> None:
    pretended(state, row, monkeypatch, operations)
    values = {"micro_batch": "auto", "activation_checkpointing": "auto", **stated}
    estimator = estimator_of("nezha-base", *(f"{name}={value}" for name, value in values.items()), gpus=80)
    found = estimator.as_stated()
    assert found.fits
    assert (found.footprint.micro_batch, found.footprint.checkpointing) == (micro_batch, checkpointing)


def test_auto_that_fits_nowhere_is_one_line_with_the_way_out(monkeypatch) -> None:
    pretended(2000, 0.1, monkeypatch)
    with pytest.raises(UserError, match="one row of 128 tokens with tensor size 1 and activation checkpointing takes"):
        estimator_of("nezha-base", "micro_batch=auto", "activation_checkpointing=auto").as_stated()


def test_larger_micro_batches_than_are_of_use_are_not_chosen(monkeypatch) -> None:
    pretended(1, 1e-4, monkeypatch)
    chosen, _ = estimator_of("nezha-base", "global_batch=160000", gpus=80).choose()
    assert chosen.footprint.micro_batch == 250


def test_what_fits_nowhere_is_one_line_with_the_way_out(monkeypatch) -> None:
    pretended(2000, 0.1, monkeypatch)
    with pytest.raises(UserError, match=r"one row of 128 tokens with tensor size 4 .* take a GPU with more memory"):
        estimator_of("nezha-base").choose()


@pytest.mark.parametrize(
    ("row", "micro_batches"),
    [
        (400.0, [1, 1]),  # a row alone does not fit, and with checkpointing it does not either
        (0.02, [1, 180]),
        (0.2, [1, 8, 90]),  # the most rows, which do not fit, are not rehearsed
    ],
)
def test_no_more_is_rehearsed_than_decides(row, micro_batches, monkeypatch) -> None:
    found = pretended(2, row, monkeypatch)
    estimator = estimator_of("nezha-base", gpus=80)
    for checkpointing in (False, True) if row > 100 else (False,):
        estimator._largest(1, checkpointing)
    assert found == micro_batches


def test_fewer_rows_than_processes_is_one_line_with_the_way_out() -> None:
    with pytest.raises(UserError, match="8 rows are fewer than 80 data-parallel processes; raise it, or take 8 GPUs"):
        estimator_of("longformer-small", gpus=80).arrangement(1, 8, False)
    with pytest.raises(UserError, match="raise it, or take 8 GPUs or fewer"):
        estimator_of("longformer-small", gpus=80).choose()


def test_gradients_in_fp16_travel_at_half_the_bytes_and_need_copies() -> None:
    full, half = (
        estimator_of("quickstart", f"parallel.gradient_dtype={dtype}", gpus=16).arrangement(1, 2, False)
        for dtype in ("fp32", "fp16")
    )
    assert (half.wire, half.copies) == (full.wire // 2, full.wire // 2)
    assert full.copies == 0


@pytest.mark.slow
def test_nezha_fits_as_the_paper_trained_it() -> None:
    """10 x 8 V100-32G: 180 rows a GPU of the base model, 64 of the large one (Wei et al. 2019, section 3.1)."""
    for recipe, rows in (("nezha-base", 180), ("nezha-large", 64)):
        estimator = estimator_of(recipe, gpus=80)
        whole = estimator.arrangement(1, rows, False)
        assert whole.rows == rows
        assert whole.accumulation == 1
        assert whole.fits
        assert estimator.dtype == torch.float16
        assert estimator.time(whole).exposed < estimator.time(whole).reduction


@pytest.mark.slow
@pytest.mark.parametrize("recipe", [name for name in available_recipes() if not name.startswith("paper-")])
def test_every_built_in_recipe_can_be_estimated(recipe, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    layers = "n_layer" if recipe.startswith(("lm-", "longformer-characters")) else "num_hidden_layers"
    changed = {
        "continue-encoder": ["model.vocab_size=30522"],  # the encoder is one that users have
        "longformer-characters": [
            "phases=[]",
            "steps=9",
            "model.attention_window=32",
            "model.attention_dilation=1",
        ],  # else of 30
    }
    more = next((of_it for name, of_it in changed.items() if recipe.startswith(name)), [])
    estimator = estimator_of(recipe, f"model.{layers}=2", *more)
    one = estimator.arrangement(1, 1, True)
    assert one.fits
    assert 0 < estimator.time(one).total < 3600
    loaded = load_recipe(recipe, [])
    assert corpus_size(loaded, estimator.train, estimator.config.vocab_size).bytes > 0


def test_the_corpus_that_is_there_tells_its_size_and_vocabulary(sample_corpus) -> None:
    recipe = load_recipe("quickstart", [f"data.corpus={sample_corpus}"], "train")
    assert recipe.train is not None
    assert vocabulary(recipe, recipe.train) == 3000
    size = corpus_size(recipe, recipe.train, 3000)
    assert size.bytes == sum(path.stat().st_size for path in sample_corpus.glob("*.tar"))
    assert size.is_there


def test_text_that_is_there_tells_the_corpus_size_at_most(tmp_path, sample_corpus) -> None:
    (tmp_path / "a.txt").write_bytes(b"x" * 6000)
    recipe = load_recipe("quickstart", [f"preprocess.input.paths=[{tmp_path}]", "data.corpus=nowhere"], "train")
    assert recipe.train is not None
    assert corpus_size(recipe, recipe.train, 4000).bytes == 6000
    (tmp_path / "a.txt").unlink()
    missing = corpus_size(recipe, recipe.train, 4000)
    assert missing.tokens == 1000 * 32 * 64 / 10
    assert missing.bytes == 3 * missing.tokens
    assert corpus_size(recipe, recipe.train, 70_000).bytes == 5 * missing.tokens


def test_the_vocabulary_is_never_guessed_silently(caplog) -> None:
    recipe = load_recipe("nezha-base", [])
    assert recipe.train is not None
    with caplog.at_level("INFO", "reread"):
        assert vocabulary(recipe, recipe.train) == 21128
    assert "vocab.txt is not there, 21128 tokens are assumed" in caplog.text
    other = load_recipe("nezha-base", ["preprocess.tokenizer.path=mine.model"])
    with pytest.raises(UserError, match=r"mine\.model is not there; set train\.model\.vocab_size"):
        vocabulary(other, recipe.train)


def test_the_time_of_phases_is_added_up_and_steps_of_a_growing_batch_count_by_their_rows(
    capsys, tmp_path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    values = train_values(tmp_path / "corpus", batch_warmup={"first": 2, "steps": 50}, micro_batch=4)
    values["model"]["vocab_size"] = 99
    recipe = {"name": "two", "train": values, "phases": [{"steps": 100}, {"steps": 60, "global_batch": 16}]}
    Path("two.yaml").write_text(yaml.safe_dump({**recipe, "train": {**values, "steps": None}}))
    print_estimates(load_recipe("two.yaml", []), cluster(2, "v100-16g", 8, "ib100"))
    shown = " ".join(capsys.readouterr().out.split())
    rows = 2 * 50 + 6 * 49 // 2 + 8 * 50
    for text in (
        "phase 1 of 2, steps 1 to 100: two on 2 v100-16g",
        "2 to 8 rows of 48 tokens a step",
        f"100 steps, {_count(48 * rows)} tokens",
        "phase 2 of 2, steps 101 to 160: two on 2 v100-16g",
        "16 rows of 48 tokens a step",
        f"60 steps, {_count(48 * 16 * 60)} tokens",
        "all phases, 160 steps: ",
    ):
        assert text in shown, text


def test_the_estimate_shows_both_arrangements(capsys, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    print_estimate(load_recipe("quickstart", []), cluster(2, "v100-16g", 8, "ib100"))
    shown = capsys.readouterr().out
    for text in ("as the recipe says", "chosen", "16 x 1", "fp32 masters", "fits", "corpus: ", "checkpoints: "):
        assert text in shown
    assert list(tmp_path.iterdir()) == []
