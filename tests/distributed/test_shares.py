"""Optimiser's state that is divided over data-parallel processes (`train.parallel.shard_state`)."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from reread.training.assembly import Assembly
from reread.training.config import OptimizerSettings, TrainSettings
from reread.training.optim.build import MOMENTS, build_optimizer
from reread.training.optim.flat import FlatUpdate
from reread.training.optim.precision import MasterWeights
from reread.training.parallel.gradients import GradientBuckets
from reread.training.parallel.mesh import Mesh
from reread.training.parallel.rendezvous import init_mesh
from reread.training.parallel.shares import shares_of
from reread.training.run.model import read_run_model
from reread.training.run.restore import restore_model
from reread.training.trainer import Trainer
from tests.conftest import extra, longformer_values, rarer, train_values
from tests.distributed.test_training import curve, no_dropout, state_of, train_in_process, train_with_overflow

STEPS = 4
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "nezha": {"variant": "nezha", "layer_decay": 0.8},
    "standard": {"variant": "standard"},
    "adam": {"name": "adam", "layer_decay": 0.8},
    "stable_adamw": {"name": "stable_adamw", "betas": [0.9, 0.98]},
    "muon": {"name": "muon", "layer_decay": 0.8, "weight_decay": 0.1},
}


def values_of(corpus: Path, optimizer: str, tensor: int = 1, shard: bool = True, **changes: Any) -> dict[str, Any]:
    given = {"learning_rate": 1e-2, "gradient_clip": 0.5, **OPTIMIZERS[optimizer]}
    parallel = {"tensor": tensor, "shard_state": shard, "bucket_megabytes": 0.02, **changes.pop("parallel", {})}
    values = train_values(corpus, steps=STEPS, optimizer=given, parallel=parallel, global_batch=4, log_every=1)
    return no_dropout(values | {"validate_every": 2, "schedule": {"decay": "constant"}} | changes)


def wide(values: dict[str, Any]) -> dict[str, Any]:
    """With tensors of many blocks, as those of models that are worth dividing."""
    values["model"] |= {"hidden_size": 128, "intermediate_size": 256}
    return values


def trained(start: Any, folder: Path, values: dict[str, Any], data: int = 1) -> dict[str, Tensor]:
    folder.mkdir(exist_ok=True)
    start(values["parallel"]["tensor"] * data, train_in_process, values, folder)
    return state_of(folder, values["steps"])


def same(found: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=tolerance, atol=tolerance, msg=name)


@pytest.mark.parametrize(
    ("optimizer", "tensor", "data"),
    [
        ("nezha", 2, 2),
        ("adam", 1, 4),
        ("standard", 1, 2),
        rarer("nezha", 1, 4),
        rarer("standard", 2, 2),
        rarer("adam", 2, 2),
        rarer("stable_adamw", 2, 2),
    ],
)
def test_weights_and_losses_are_those_without(
    ranks_in_float64, sample_corpus, tmp_path, optimizer, tensor, data
) -> None:
    """AdamW's bit for bit; the norms of others are added in another order."""
    ends = []
    for shard in (False, True):
        values = values_of(sample_corpus, optimizer, tensor, shard)
        ends.append(trained(ranks_in_float64, tmp_path / str(shard), values, data))
    tolerance = 0.0 if optimizer == "adam" else 1e-12
    same(ends[1], ends[0], tolerance)
    for figure in ("loss", "gradient_norm", "validation_loss"):
        without, with_it = (curve(tmp_path / str(shard), figure) for shard in (False, True))
        assert len(without) >= 2
        assert with_it == pytest.approx(without, rel=tolerance, abs=0)


@pytest.mark.parametrize("optimizer", ["stable_adamw", "muon"])
def test_one_process_and_a_division_over_two_that_resumes_are_the_same(
    ranks_in_float64, sample_corpus, tmp_path, optimizer
) -> None:
    whole = trained(ranks_in_float64, tmp_path / "one", values_of(sample_corpus, optimizer, shard=False))
    for steps in (2, STEPS):
        halves = trained(ranks_in_float64, tmp_path / "two", values_of(sample_corpus, optimizer) | {"steps": steps}, 2)
    same(halves, whole, 1e-10)


def test_in_half_precision_with_a_skipped_step_and_a_resume(ranks, sample_corpus, tmp_path) -> None:
    """Bit for bit, with gradients sent in fp16; the divided run stops after step 3 and goes on."""
    ends, moves = [], []
    for shard, stops in ((False, (6,)), (True, (3, 6))):
        parallel = {"gradient_dtype": "fp16"}
        values = values_of(sample_corpus, "adam", 1, shard, parallel=parallel, precision="fp16")
        values["initial_loss_scale"] = 1024.0
        folder = tmp_path / str(shard)
        folder.mkdir()
        moved = [ranks(2, train_with_overflow, {**values, "steps": steps}, folder) for steps in stops]
        moves.append([[step for part in moved for step in part[rank]] for rank in (0, 1)])
        ends.append(state_of(folder, 6))
    assert moves == [[[True, True, False, True, True, True]] * 2] * 2
    same(ends[1], ends[0], 0.0)


def test_frozen_rows_and_tensors_are_held_as_before(ranks_in_float64, sample_corpus, tmp_path) -> None:
    """Positions from row 17 on learn, cut at row 32; of the rows before, masters are in a share, moments in none."""
    table = "longformer.embeddings.position_embeddings.weight"
    values = no_dropout(longformer_values(sample_corpus, trainable=[f"{table}[17:]"]))
    ends = []
    for shard in (False, True):
        now = {**values, "steps": 3, "precision": "bf16", "parallel": {"tensor": 1, "shard_state": shard}}
        ends.append(trained(ranks_in_float64, tmp_path / str(shard), now, 2))
    same(ends[1], ends[0], 0.0)
    assert ends[1][f"exp_avg.{table}"].shape == (49 - 17, 32)
    assert ends[1][f"exp_avg.{table}"].count_nonzero() > 0


def _saved_again(values: dict[str, Any], folder: Path) -> None:
    """Load the last checkpoint and save it as that of the next step."""
    trainer = Trainer(TrainSettings.parse(values, "test"), folder, init_mesh(values["parallel"]["tensor"]))
    trainer._load_checkpoint()
    state = trainer.store.state(trainer.step)
    trainer.store.save(trainer.step + 1, *trainer.assembly.tensors(), {**state, "step": trainer.step + 1})
    trainer.store.wait()


@pytest.mark.parametrize("precision", [rarer("fp32"), "bf16"])
def test_a_checkpoint_moves_between_all_divisions_byte_by_byte(ranks, sample_corpus, tmp_path, precision) -> None:
    """What is exported of it is the same, too, and each process writes about as much as the others."""
    values = wide(values_of(sample_corpus, "adam", precision=precision))
    first = trained(ranks, tmp_path, values, 4)
    sizes = [path.stat().st_size for path in tmp_path.glob("checkpoints/*4/rank-*.safetensors")]
    assert len(sizes) == 4 and max(sizes) < 1.2 * min(sizes)
    whole = {name.removeprefix("model."): tensor for name, tensor in first.items() if name.startswith("model.")}
    for step, (tensor, data, shard) in enumerate([(2, 2, True), (1, 1, True), (1, 3, True), (2, 1, False)], STEPS + 1):
        parallel = {"tensor": tensor, "shard_state": shard}
        ranks(tensor * data, _saved_again, {**values, "steps": 99, "parallel": parallel}, tmp_path)
        same(state_of(tmp_path, step), first, 0.0)
        settings = TrainSettings.parse(values, "test")
        model, _ = restore_model(tmp_path, read_run_model(tmp_path, settings), step)
        for name, parameter in model.named_parameters():
            assert torch.equal(parameter, whole[name]), name


def _held(values: dict[str, Any]) -> tuple[int, int]:
    """Bytes of moments and masters of this process, and of the weights with which it computes."""
    settings = TrainSettings.parse(values, "test")
    trainer = Trainer(settings, Path("nowhere"), init_mesh(1))
    assembly: Assembly = trainer.assembly
    state = [one[name] for one in assembly.optimizer.state.values() for name in MOMENTS]
    masters = list(assembly.masters.masters.values())
    held = {one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in [*state, *masters]}
    return sum(held.values()), sum(parameter.nbytes for parameter in assembly.model.parameters())


def test_the_state_of_a_process_is_its_part(ranks, sample_corpus) -> None:
    """12 bytes a weight in half precision, which are divided; a share differs by less than a block of rows."""
    values = wide(values_of(sample_corpus, "nezha", precision="bf16"))
    ((whole, weights),) = ranks(1, _held, values)
    assert whole == 6 * weights
    for data in (2, 4):
        found = ranks(data, _held, values)
        assert sum(state for state, _ in found) == whole
        assert all(of_model == weights for _, of_model in found)
        assert max(state for state, _ in found) < 1.1 * whole / data


class Layers(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embeddings = torch.nn.Embedding(300, 64)  # larger than a share
        self.layer = torch.nn.ModuleList([torch.nn.Linear(64, 50), torch.nn.Linear(50, 64, bias=False)])
        self.LayerNorm = torch.nn.LayerNorm(64)


def _by_kernels(settings: dict[str, Any], dtype: torch.dtype, first_rows: dict[str, int]) -> list[Any]:
    """The weights after three steps by kernels, without and with a division, and the masters and moments of both."""
    mesh, found = init_mesh(), []
    for divides in (False, True):
        torch.manual_seed(5)
        model = Layers()
        shares = shares_of(model.parameters(), mesh, mesh.data_size) if divides else None
        masters = MasterWeights(model, dtype, first_rows, shares)
        optimizer = build_optimizer(masters.learning(), OptimizerSettings(learning_rate=0.02, **settings), Mesh())
        buckets = GradientBuckets(model.parameters(), mesh, 4096)
        update = FlatUpdate(optimizer, masters, buckets)
        for _ in range(3):
            for parameter in model.parameters():
                buckets.grad_of(parameter).copy_(torch.randn(parameter.shape))
            update(0.02, 0.5)
        pieces = {name: [one, *(optimizer.state[one][key] for key in MOMENTS)] for name, one in masters.learning()}
        found.append(({name: one.detach() for name, one in model.named_parameters()}, pieces))
    return found


def _joined(found: list[Any], name: str, number: int) -> Tensor:
    return torch.cat([pieces[name][number].detach() for (_, (_, pieces)) in found])


@pytest.mark.parametrize(
    ("settings", "dtype", "first"),
    [
        rarer({}, torch.float32, 0),
        ({}, torch.bfloat16, 37),
        rarer({"variant": "standard", "layer_decay": 0.8}, torch.bfloat16, 0),
        ({"name": "adam"}, torch.float32, 37),
        rarer({"name": "adam"}, torch.bfloat16, 0),
    ],
)
def test_kernels_step_the_shares(ranks, settings, dtype, first) -> None:
    """In float32, whose sums of squares are added in another order; AdamW bit for bit."""
    extra("kernels", "triton")
    first_rows = {"embeddings.weight": first} if first else {}
    found = ranks(3, _by_kernels, settings, dtype, first_rows)
    tolerance = 0.0 if settings.get("name") == "adam" else 1e-6
    for (without, whole), (with_it, _) in found:
        same(with_it, without, tolerance if dtype == torch.float32 else 8 * tolerance * 2**10)
        for name, expected in whole.items():
            for number, tensor in enumerate(expected):
                torch.testing.assert_close(_joined(found, name, number), tensor, rtol=tolerance, atol=tolerance)
