"""Checkpoints of many processes: loaded at any size, whole after any death, refused when the disk is full."""

import errno
import os
import resource
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from reread.preprocessing.errors import UserError
from reread.training.checkpoint import store as store_module
from reread.training.checkpoint.store import CheckpointStore
from reread.training.parallel.layout import Slice
from reread.training.parallel.mesh import Mesh
from reread.training.parallel.rendezvous import init_mesh
from tests.conftest import rarer

PADDED = 6  # rows of `vocabulary` a process; 9 are real, so one of two ranks has padding, two of four only that


def parts(mesh: Mesh, number: float) -> tuple[dict[str, Tensor], dict[str, Slice]]:
    """Tensors split by columns, by rows, over a padded vocabulary, and whole; logical content depends on `number`."""
    whole = {
        "rows": torch.arange(32.0).view(8, 4) + number,
        "columns": torch.arange(64.0).view(4, 16) * number,
        "vocabulary": torch.arange(18.0).view(9, 2) - number,
        "bias": torch.arange(7.0) + number,
    }
    dims = {"rows": 0, "columns": 1, "vocabulary": 0}
    lengths = {"rows": 8 // mesh.tensor_size, "columns": 16 // mesh.tensor_size, "vocabulary": PADDED}
    if mesh.tensor_size == 1:
        lengths["vocabulary"] = 12
    tensors, layout = {}, {}
    for name, tensor in whole.items():
        dim = dims.get(name)
        if dim is None:
            tensors[name], layout[name] = tensor, Slice(tuple(tensor.shape))
            continue
        length = lengths[name]
        shape = list(tensor.shape)
        shape[dim] = length
        cuts = tuple(length * number for number in range(mesh.tensor_size + 1))
        place = Slice(tuple(tensor.shape), dim, cuts, mesh.tensor_rank)
        part = torch.zeros(shape)
        place.inside(part).copy_(tensor[place.region()])
        tensors[name], layout[name] = part, place
    return tensors, layout


def save(store: CheckpointStore, mesh: Mesh, step: int) -> None:
    tensors, layout = parts(mesh, step)
    store.save(step, tensors, layout, {"step": step})


def _save(folder: Path, tensor: int, *steps: int) -> None:
    mesh = init_mesh(tensor)
    store = CheckpointStore(folder, 9, mesh)
    for step in steps:
        save(store, mesh, step)
        while store._saving:
            store.poll()


def _check(folder: Path, tensor: int, step: int) -> None:
    mesh = init_mesh(tensor)
    store = CheckpointStore(folder, 9, mesh)
    assert store.latest() == step
    expected, layout = parts(mesh, step)
    tensors = {name: torch.full_like(part, -7) for name, part in expected.items()}
    store.load(step, tensors, layout)
    assert store.state(step) == {"step": step}
    for name, part in tensors.items():
        assert torch.equal(part, expected[name]), name


@pytest.mark.parametrize(
    ("n", "tensor", "others"),
    [(4, 2, [(1, 1), (4, 4), (4, 1)]), (1, 1, [(4, 2)]), (4, 4, [(2, 2)])],
)
def test_a_checkpoint_loads_at_any_size(ranks, tmp_path, n, tensor, others):
    ranks(n, _save, tmp_path, tensor, 3)
    for other_n, other_tensor in others:
        ranks(other_n, _check, tmp_path, other_tensor, 3)
    whole = CheckpointStore(tmp_path, 1, Mesh()).read_full(3)
    expected, layout = parts(Mesh(), 3)
    assert all(torch.equal(whole[name], layout[name].inside(part)) for name, part in expected.items())


def test_each_part_is_written_once_and_the_work_is_spread(ranks, tmp_path):
    ranks(4, _save, tmp_path, 2, 1)
    sizes = [path.stat().st_size for path in tmp_path.glob("*/rank-*.safetensors")]
    assert len(sizes) == 4
    assert sum(sizes) < 4 * (32 + 64 + 18 + 7) + 4 * 500  # the data once, and four headers


def _die(folder: Path, tensor: int, victim: int, moment: str) -> None:
    """Save step 1, then kill this process while it writes step 2, in half a file or just before the rename."""
    mesh = init_mesh(tensor)
    store = CheckpointStore(folder, 9, mesh)
    save(store, mesh, 1)
    store.wait()

    def half(tensors: dict[str, Tensor], path: Path) -> None:
        path.write_bytes(b"\0" * 100)
        os.kill(os.getpid(), signal.SIGKILL)

    if mesh.rank == victim:
        if moment == "write":
            store_module.save_tensors = half
        else:
            store_module.sync_folder = lambda folder: os.kill(os.getpid(), signal.SIGKILL)
    save(store, mesh, 2)
    store.wait()


@pytest.mark.parametrize(
    "case", [rarer((1, 1, 0, "write")), rarer((1, 1, 0, "commit")), (4, 2, 0, "commit"), (4, 2, 3, "write")]
)
def test_kill_9_while_writing_leaves_the_last_good_one(ranks, tmp_path, case):
    n, tensor, victim, moment = case
    with pytest.raises(RuntimeError, match="the process died"):
        ranks(n, _die, tmp_path, tensor, victim, moment)
    assert (tmp_path / "step-00000002.tmp").exists()
    ranks(n, _check, tmp_path, tensor, 1)
    ranks(n, _save, tmp_path, tensor, 2)
    ranks(1, _check, tmp_path, 1, 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000001", "step-00000002"]


def _fill_disk(folder: Path, tensor: int, victim: int) -> tuple[str, int, int | None]:
    mesh = init_mesh(tensor)
    store = CheckpointStore(folder, 9, mesh)
    save(store, mesh, 1)
    store.wait()
    if mesh.rank == victim:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (50, resource.RLIM_INFINITY))
    save(store, mesh, 2)
    with pytest.raises(UserError) as error:
        store.wait()
    return str(error.value), error.value.status, store.latest()


@pytest.mark.parametrize(("n", "tensor", "victim"), [(1, 1, 0), (4, 2, 0), (4, 2, 3)])
def test_a_full_disk_is_one_line_on_every_rank_and_spares_the_last_good_one(ranks, tmp_path, n, tensor, victim):
    for line, status, latest in ranks(n, _fill_disk, tmp_path, tensor, victim):
        assert str(tmp_path) in line and "step 2" in line and f"process {victim}: File too large" in line
        assert "step 1 is untouched" in line and "\n" not in line
        assert latest == 1 and status == 2
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001"]


def test_damage_that_one_rank_sees_is_passed_over_by_all(ranks, tmp_path):
    ranks(4, _save, tmp_path, 2, 1, 2)
    path = tmp_path / "step-00000002" / "rank-00002.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    ranks(4, _check, tmp_path, 2, 1)


def _meet_a_fault(folder: Path, tensor: int, victim: int) -> tuple[str, int]:
    """On rank `victim` the disk returns an error when its share of step 2 is read."""
    mesh = init_mesh(tensor)
    checksum = store_module.checksum

    def or_fail(path: Path, tick: Callable[[], object]) -> tuple[int, int]:
        if mesh.rank == victim and path.parent.name == "step-00000002":
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return checksum(path, tick)

    store_module.checksum = or_fail
    with pytest.raises(UserError) as error:
        CheckpointStore(folder, 9, mesh).latest()
    return str(error.value), error.value.status


def test_what_one_rank_cannot_read_just_now_is_passed_over_by_none(ranks, tmp_path):
    ranks(4, _save, tmp_path, 2, 1, 2)
    lines, statuses = zip(*ranks(4, _meet_a_fault, tmp_path, 2, 2), strict=True)
    assert statuses == (1, 1, 1, 1)  # that of all processes, since srun takes the highest
    assert lines[2].startswith(f"{tmp_path}/step-00000002/rank-00002.safetensors: cannot be read now (Input/output")
    assert all(lines[rank] == "process 2 failed" for rank in (0, 1, 3))
    ranks(4, _check, tmp_path, 2, 2)
