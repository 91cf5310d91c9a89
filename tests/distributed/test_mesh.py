"""Each process finds its place in the grid."""

import errno
import importlib.util
import os
import socket

import psutil
import pytest
import torch
import torch.distributed as dist

from reread.preprocessing.errors import UserError, one_line
from reread.training.parallel.mesh import Mesh
from reread.training.parallel.rendezvous import first_host, init_mesh
from tests.conftest import not_here


def _places(tensor: int) -> tuple[int, ...]:
    mesh = init_mesh(tensor)
    sums = []
    for group in (mesh.tensor_group, mesh.data_group):
        value = torch.tensor(float(mesh.rank))
        if group is not None:
            dist.all_reduce(value, group=group)
        sums.append(int(value))
    return mesh.rank, mesh.tensor_rank, mesh.tensor_size, mesh.data_rank, mesh.data_size, *sums


@pytest.mark.parametrize(
    ("n", "tensor", "expected"),
    [
        (1, 1, [(0, 0, 1, 0, 1, 0, 0)]),
        (2, 1, [(0, 0, 1, 0, 2, 0, 1), (1, 0, 1, 1, 2, 1, 1)]),
        (2, 2, [(0, 0, 2, 0, 1, 1, 0), (1, 1, 2, 0, 1, 1, 1)]),
        (4, 2, [(0, 0, 2, 0, 2, 1, 2), (1, 1, 2, 0, 2, 1, 4), (2, 0, 2, 1, 2, 5, 2), (3, 1, 2, 1, 2, 5, 4)]),
    ],
)
def test_every_rank_has_its_place(ranks, n, tensor, expected):
    assert ranks(n, _places, tensor) == expected


def _gathered() -> list[tuple[int, ...]]:
    mesh = init_mesh()
    return mesh.gather(mesh.rank, 2**40 + mesh.rank)


def test_gather_keeps_rank_order(ranks):
    assert ranks(2, _gathered) == [[(0, 2**40), (1, 2**40 + 1)]] * 2
    assert ranks(1, _gathered) == [[(0, 2**40)]]


@pytest.mark.parametrize(
    ("number", "status"),
    [(errno.ESTALE, 1), (errno.EIO, 1), (errno.ETIMEDOUT, 1), (errno.EACCES, 2), (errno.EROFS, 2), (errno.EDQUOT, 2)],
)
def test_the_status_says_whether_a_job_may_be_requeued(number: int, status: int, capsys) -> None:
    """Of an error of the system, of a line that it caused, and of another process' line."""
    cause = OSError(number, os.strerror(number), "x")
    line = UserError("x: cannot be read", cause)
    for error in (cause, line, Mesh(rank=1).reported_once(line)):
        with pytest.raises(SystemExit) as ended, one_line():
            raise error
        assert ended.value.code == status
    assert len(capsys.readouterr().err.splitlines()) == 2


def _listening(how: str) -> list[str]:
    """The addresses on which this process listens once the process group is set up."""
    if how == "srun":
        place = {"SLURM_PROCID": os.environ.pop("RANK"), "SLURM_STEP_NUM_TASKS": os.environ.pop("WORLD_SIZE")}
        node = {"SLURM_STEP_NODELIST": "node07", "SLURM_STEP_NUM_NODES": "1", "SLURM_JOB_ID": "1"}
        os.environ.update({**place, **node, "SLURM_LOCALID": place["SLURM_PROCID"]})
        del os.environ["MASTER_ADDR"]
    mesh = init_mesh(2 if how == "tensor" else 1, gradients="horovod" if how == "horovod" else "torch")
    mesh.gather(1)
    found = psutil.Process().net_connections("tcp")
    mesh.gather(1)  # wait until all have looked
    return [one.laddr.ip for one in found if one.status == psutil.CONN_LISTEN]


@pytest.mark.parametrize("how", ["launched", "tensor", "srun", "horovod"])
def test_a_run_on_one_machine_listens_on_the_loopback_alone(ranks, how) -> None:
    """Anyone who can connect to torch's store can read and write it."""
    if how == "horovod" and importlib.util.find_spec("horovod") is None:
        not_here("horovod", "is not installed (make horovod)")
    first, second = ranks(2, _listening, how)
    assert first and second and set(first + second) == {"127.0.0.1"}


def _port_taken(port: int) -> str:
    os.environ["MASTER_PORT"] = str(port)
    if os.environ["RANK"] == "1":
        return ""
    with pytest.raises(UserError) as error:
        init_mesh()
    return str(error.value)


def test_a_port_that_is_taken_is_one_line(ranks) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        line, _ = ranks(2, _port_taken, port)
    assert line == f"MASTER_PORT: 127.0.0.1, port {port}: Address already in use; give another port"


def _alone(ports: list[str]) -> list[tuple[str, int]]:
    """The line and the status by which process 0 of 2 ends, for each port, when the other one does not come."""
    lines = []
    for port in ports:
        os.environ.update({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port})
        with pytest.raises(UserError) as error:
            init_mesh(timeout_minutes=1 / 60)
        lines.append((str(error.value), error.value.status))
    return lines


def test_processes_that_do_not_meet_are_one_line(ranks) -> None:
    (((alone, status), *others),) = ranks(1, _alone, ["0", "abc", "65536"])
    assert alone.startswith("process 0 of 2 did not meet the others by MASTER_ADDR 127.0.0.1, MASTER_PORT 0 (")
    assert status == 1  # the job is requeued
    assert others == [(f"MASTER_PORT: `{port}` is no port; give a number below 65536", 2) for port in ("abc", "65536")]


def _refused(tensor: int) -> str:
    with pytest.raises(UserError) as error:
        init_mesh(tensor)
    return str(error.value)


def test_processes_that_do_not_divide_are_refused_in_one_line(ranks):
    line = ranks(2, _refused, 4)[0]
    assert "parallel.tensor" in line and "2 processes" in line and "\n" not in line


def _one_fails() -> None:
    mesh = init_mesh()
    if mesh.rank == 1:
        raise ValueError("on purpose")
    mesh.gather(0)


def test_a_failing_rank_is_named_with_its_traceback(ranks):
    with pytest.raises(RuntimeError, match=r"rank 1: Traceback[\s\S]*on purpose"):
        ranks(2, _one_fails)


def _refused_by_one(bad: int) -> tuple[str, str]:
    mesh = init_mesh()
    with pytest.raises(UserError) as error, mesh.together():
        if mesh.rank >= bad:
            raise UserError(f"of {mesh.rank}")
    return type(error.value).__name__, str(error.value)


def test_what_one_process_refuses_ends_all_with_one_line(ranks):
    elsewhere = ("ReportedElsewhereError", "process 1 failed")
    assert ranks(3, _refused_by_one, 1) == [elsewhere, ("UserError", "of 1"), elsewhere]


@pytest.mark.parametrize(
    ("nodes", "host"),
    [
        ("node7", "node7"),
        ("node[03-05,9],other", "node03"),
        ("a,b[1-2]", "a"),
        ("gpu[12,14]-ib", "gpu12-ib"),
        ("rack[1-2]n[3-4],x", "rack1n3"),
    ],
)
def test_process_0_is_met_on_the_first_host_of_a_slurm_step(nodes, host):
    assert first_host(nodes) == host


def _by_srun(port: int) -> tuple[int, int, str]:
    rank, world = os.environ.pop("RANK"), os.environ.pop("WORLD_SIZE")
    for name in ("LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        os.environ.pop(name)
    os.environ.update(SLURM_PROCID=rank, SLURM_STEP_NUM_TASKS=world, SLURM_LOCALID=rank)
    os.environ.update(SLURM_STEP_NODELIST="localhost", SLURM_JOB_ID=str(port))
    mesh = init_mesh()
    return mesh.rank, mesh.data_size, str(mesh.gather(mesh.rank))


def test_srun_is_enough_to_meet(ranks):
    assert ranks(2, _by_srun, os.getpid()) == [(0, 2, "[(0,), (1,)]"), (1, 2, "[(0,), (1,)]")]
