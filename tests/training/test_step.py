"""A step of the trainer: the host waits for the device once, and a skipped step changes nothing."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from reread.training.config import TrainSettings
from reread.training.optim.build import steps_taken
from reread.training.parallel.mesh import Mesh
from reread.training.run.progress import ProgressFigures
from reread.training.trainer import Step, Trainer
from tests.conftest import (
    document_values,
    longformer_values,
    ran_stream_values,
    ran_values,
    rarer,
    train_values,
)

aten = torch.ops.aten


class Waits(TorchDispatchMode):
    """Counts what the host reads from the device `meta`, which has no values: each gives 0."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if args and isinstance(args[0], Tensor) and args[0].is_meta:
            if function is aten._local_scalar_dense.default:  # .item(), float(), bool()
                self.found.append(str(function))
                return 0.0
            if function is aten._to_copy.default and kwargs.get("device") == torch.device("cpu"):  # .tolist(), .cpu()
                self.found.append(str(function))
                return torch.zeros(args[0].shape, dtype=args[0].dtype)
            if function is aten.nonzero.default:  # other operations whose shapes need values fail on this device
                self.found.append(str(function))
                return torch.empty(1, args[0].dim(), dtype=torch.int64, device="meta")
        if function.namespace == "c10d":
            args = tree_map(lambda leaf: torch.empty(0) if isinstance(leaf, Tensor) else leaf, args)
        return function(*args, **kwargs)


def padded_longformer_values(corpus: Path, **changes: Any) -> dict[str, Any]:
    """Rows that are no stretches of a packed stream, so shorter ones have padding."""
    values = longformer_values(corpus, **changes)
    values["data"] |= {"kind": "rows", "next_sentence": False}
    return values


@contextmanager
def one_of_two() -> Iterator[Mesh]:
    """The first of two data-parallel processes, without the other."""
    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    try:
        yield Mesh(world=2, data_size=2, device=torch.device("meta"))
    finally:
        dist.destroy_process_group()


@contextmanager
def alone() -> Iterator[Mesh]:
    yield Mesh(device=torch.device("meta"))


@pytest.mark.parametrize(
    ("optimizer", "precision", "mesh_of"), [rarer("adam", "fp32", alone), ("lamb", "fp16", one_of_two)]
)
@pytest.mark.parametrize(
    "values_of",
    [train_values, document_values, ran_values, ran_stream_values, longformer_values, padded_longformer_values],
)
def test_the_host_waits_for_the_device_once_a_step(
    sample_corpus, tmp_path, values_of, optimizer, precision, mesh_of
) -> None:
    """With several micro-batches a step, and a progress line after the second."""
    values = values_of(sample_corpus, log_every=2, micro_batch=2, global_batch=8 if mesh_of is one_of_two else 4)
    values |= {"optimizer": {"name": optimizer, "learning_rate": 0.1}, "precision": precision}
    values["model"]["num_hidden_layers"] = 1
    values["data"]["sequence_length"] = 24
    settings = TrainSettings.parse(values, "test")
    with mesh_of() as mesh, Waits() as waits:
        trainer = Trainer(settings, tmp_path, mesh)
        window = ProgressFigures(trainer.assembly.spec, trainer.assembly.config, trainer.objective, 0)
        with trainer.objective.batches(0) as loader:
            drawn = trainer._draw(loader, window, 0)
            agreed = drawn.local
            for _ in range(2):
                waits.found.clear()
                done = trainer._train_step(drawn, agreed, window, loader)
                assert len(waits.found) == 1, waits.found
                assert done.following is not None
                drawn, agreed = done.following, done.following.local
                trainer.step += 1
                assert bool(done.sums) == (trainer.step % 2 == 0)
    assert steps_taken(trainer.assembly.optimizer) == 2


@pytest.mark.parametrize("optimizer", ["adam", "lamb"])
def test_a_skipped_step_leaves_weights_moments_and_the_number_of_updates(sample_corpus, tmp_path, optimizer) -> None:
    settings = TrainSettings.parse(
        train_values(sample_corpus, precision="fp16", optimizer={"name": optimizer, "learning_rate": 0.1}), "test"
    )
    trainer = Trainer(settings, tmp_path, Mesh())
    window = ProgressFigures(trainer.assembly.spec, trainer.assembly.config, trainer.objective, 0)

    def step() -> tuple[Step, dict[str, Tensor]]:
        drawn = trainer._draw(loader, window, trainer.step)
        done = trainer._train_step(drawn, drawn.local, window)
        trainer.step += 1
        model = dict(trainer.assembly.model.named_parameters())
        return done, {name: one.detach().clone() for name, one in (model | trainer.assembly.tensors()[0]).items()}

    with trainer.objective.batches(0) as loader:
        _, before = step()
        trainer.scale.value, kept = 2.0**60, trainer.scale.value
        skipped, between = step()
        trainer.scale.value = kept
        _, after = step()
    assert not torch.isfinite(torch.tensor(skipped.norm)) and trainer.skipped_steps == 1
    assert all(torch.equal(tensor, between[name]) for name, tensor in before.items())
    assert not all(torch.equal(tensor, after[name]) for name, tensor in before.items())
    assert steps_taken(trainer.assembly.optimizer) == 2
