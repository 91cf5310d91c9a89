"""The time of a step from its bytes and FLOPs: by hand on small numbers, and against steps measured on an H100."""

import pytest
import torch
from torch import nn

from reread.pipeline.estimate.hardware import GPUS, REACHED, cluster
from reread.pipeline.estimate.rehearsal import META, Footprint, Ledger, as_on
from reread.pipeline.estimate.speed import seconds_by_bound, step_time, waiting
from reread.pipeline.estimate.summary import bounds, expected_config
from reread.pipeline.estimate.work import Work, kind_of
from reread.pipeline.recipe.load import load_recipe
from reread.training.assembly import spec_of
from reread.training.kernels.products import add_product
from tests.pipeline.estimate.test_estimate import Estimator


def test_the_work_of_a_layer_is_that_of_its_shapes() -> None:
    """x [6, 4] W^T [4, 8] + b, GELU, a norm, a sum and its backward pass; float32, by hand."""
    with Ledger() as ledger, as_on("gpu", ledger):
        x = torch.empty(6, 4, device=META)
        linear, norm = nn.Linear(4, 8, device=META), nn.LayerNorm(8, device=META)
        ledger.work.clear()
        y = norm(nn.functional.gelu(linear(x)))
        forward = dict(ledger.work)
        ledger.work.clear()
        y.sum().backward()
    assert forward == {
        "products": Work(1, 4 * (24 + 32 + 8 + 48), 2 * 6 * 4 * 8),
        "elementwise": Work(1, 4 * 2 * 48, 0),
        "norms": Work(1, 4 * (2 * 48 + 2 * 8 + 2 * 6), 0),
    }
    assert ledger.work["products"] == Work(1, 4 * (48 + 24 + 32), 2 * 6 * 4 * 8), "x needs no gradient"
    assert ledger.work["norms"].launches == 2 and ledger.work["sums"].bytes == 4 * (48 + 1) + 4 * (48 + 8)


def test_a_product_that_adds_to_a_float32_sum_has_its_flops() -> None:
    """[8, 6] [6, 4] in bf16 added to [8, 4]: the sum is read and written."""
    with Ledger() as ledger, as_on("gpu", ledger):
        total = torch.empty(8, 4, device=META)
        gradient, x = (torch.empty(6, size, device=META, dtype=torch.bfloat16) for size in (8, 4))
        ledger.work.clear()
        add_product(total, gradient, x)
    assert ledger.work == {"products": Work(1, 2 * (48 + 24) + 4 * (32 + 32), 2 * 8 * 6 * 4)}


def test_attention_counts_its_products_twice_and_two_and_a_half_times_back() -> None:
    with Ledger() as ledger, as_on("gpu", ledger):
        q = torch.empty(2, 3, 16, 8, device=META, requires_grad=True)
        ledger.work.clear()
        nn.functional.scaled_dot_product_attention(q, q, q).sum().backward()
    products = 2 * 2 * 3 * 16 * 16 * 8
    assert ledger.work["attention"].flops == (2 + 5) * products


@pytest.mark.parametrize(
    ("operation", "kind"),
    [
        (torch.ops.aten.bmm.default, "products"),
        (torch.ops.aten.cat.default, "copies"),
        (torch.ops.aten.mul.Tensor, "elementwise"),
        (torch.ops.aten.sum.dim_IntList, "sums"),
        (torch.ops.aten.embedding.default, "others"),
    ],
)
def test_kinds(operation: object, kind: str) -> None:
    assert kind_of(operation) == kind and kind in REACHED


def numbers(**work: Work) -> Footprint:
    fields = dict.fromkeys(Footprint.__dataclass_fields__, 0)
    return Footprint(**{**fields, "tensor": 1, "gradients": 1, "update_work": Work(4, 9 * 10**9, 0), "work": work})  # type: ignore[arg-type]


def test_a_step_takes_its_bytes_or_its_flops() -> None:
    """By hand, for an A100: 312 TFLOP/s and 1,555 GB/s."""
    where = cluster(1, "a100-40g", 8, "ib100")
    footprint = numbers(
        products=Work(10, 10**9, 10**13),  # by FLOPs: 10 / (312 * .67) s
        attention=Work(5, 4 * 10**9, 10**11),  # by bytes: 4 / (1555 * .47) s
        copies=Work(20, 10**9, 0),
        norms=Work(7, 10**9, 0),
    )
    products, attention = 10 / (312 * 0.67), 4 / (1555 * 0.47)
    memory = 1 / (1555 * 0.43) + 1 / (1555 * 0.25)
    assert seconds_by_bound(footprint.work, where.gpu) == pytest.approx(
        {"products": products, "attention": attention, "memory": memory}
    )
    given = {"wire_bytes": 0, "gathered_bytes": 0, "accumulation": 3, "bucket_bytes": 1, "micro_batches": 2.5}
    time = step_time(where, footprint, 1e13, flop_share=None, **given)  # type: ignore[arg-type]
    update = 9 / (1555 * 0.90)
    host = (3 * 42 + 4) * 6e-6
    assert time.host == pytest.approx(host) and time.update == pytest.approx(update)
    assert time.total == pytest.approx(2.5 * (products + attention + memory) + host + update)
    stated = step_time(where, footprint, 1e13, flop_share=0.5, **given)  # type: ignore[arg-type]
    assert stated.total == pytest.approx(1e13 / (312e12 * 0.5) + update)


def test_what_is_small_waits_for_the_host() -> None:
    assert waiting(1000, busy=1.0) == pytest.approx(6e-3)
    assert waiting(1000, busy=1e-3) == pytest.approx(8e-3 - 1e-3)
    assert waiting(1000, busy=1.0, flop_share=0.4) == 0


MEASURED = [  # docs/lab-log.md: ms of a step of two micro-batches of 16,384 tokens on an H100, by torch's operations
    ("nezha-base", 128, (), 120.9, 0.10),
    ("nezha-base", 512, (), 125.7, 0.10),
    ("longformer-base", 4096, ("model.max_position_embeddings=4098", "model.type_vocab_size=1"), 105.4, 0.15),
]
"""The shares of the peak are from the second; the others are predicted by them."""


@pytest.mark.slow
@pytest.mark.parametrize(("recipe", "length", "overrides", "milliseconds", "band"), MEASURED)
def test_an_h100s_steps(recipe: str, length: int, overrides: tuple[str, ...], milliseconds: float, band: float) -> None:
    rows = 16384 // length
    values = f"data.sequence_length={length}", f"micro_batch={rows}", f"global_batch={2 * rows}", "kernels=plain"
    loaded = load_recipe(recipe, [*overrides, *values, "activation_checkpointing=false", "init=null"], "train")
    assert loaded.train is not None
    spec = spec_of(loaded.train)
    config = expected_config(loaded, loaded.train, spec, {"longformer-base": 50265}.get(recipe, 21128))
    estimator = Estimator(loaded.train, spec, config, cluster(1, "h100-80g", 8, "ib100"), None)
    time = estimator.time(estimator.as_stated())
    assert 1000 * time.total == pytest.approx(milliseconds, rel=band)
    if (recipe, length) == ("nezha-base", 512):
        assert bounds(time).startswith("memory 4") and "host 1" in bounds(time)


def test_all_gpus_say_their_bandwidth() -> None:
    assert all(gpu.memory_bandwidth > 3e11 for gpu in GPUS.values())
