"""The grid of processes: tensor x data parallel, over torch.distributed and megatron-core's groups."""

import os
import re
import socket
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache
from ipaddress import ip_address
from typing import Any

import torch
import torch.distributed as dist

from preprocessing.errors import ReportedElsewhereError, UserError


@dataclass(frozen=True)
class Mesh:
    """Where this process stands: rank = data_rank * tensor_size + tensor_rank, so tensor groups are neighbours.

    A group of one process is None: nothing is communicated, and 1 x 1 needs no torch.distributed at all. Groups are
    looked up, not held: a group that is held outlives `close_mesh`, and a thread of gloo's that lets go of a tensor
    while Python ends aborts the process.
    """

    rank: int = 0
    world: int = 1
    tensor_rank: int = 0
    tensor_size: int = 1
    data_rank: int = 0
    data_size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @property
    def tensor_group(self) -> dist.ProcessGroup | None:
        if self.tensor_size == 1:
            return None
        return _megatron().get_tensor_model_parallel_group()

    @property
    def data_group(self) -> dist.ProcessGroup | None:
        if self.data_size == 1:
            return None
        return dist.group.WORLD if self.tensor_size == 1 else _megatron().get_data_parallel_group()

    def cuts(self, rows: int) -> tuple[int, ...]:
        """Where the shares of the data-parallel ranks in `rows` begin and end; sizes differ by one at most."""
        return tuple(rows * rank // self.data_size for rank in range(self.data_size + 1))

    def share(self, rows: int) -> range:
        """The rows that this data-parallel rank owns."""
        cuts = self.cuts(rows)
        return range(cuts[self.data_rank], cuts[self.data_rank + 1])

    def gather(self, *values: int) -> list[tuple[int, ...]]:
        """The `values` of every process, in rank order; collective, so it is a barrier too."""
        if self.world == 1:
            return [values]
        mine = torch.tensor(values, dtype=torch.int64, device=self.device)
        everyone = [torch.empty_like(mine) for _ in range(self.world)]
        dist.all_gather(everyone, mine)
        return [tuple(row) for row in torch.stack(everyone).tolist()]

    @contextmanager
    def together(self) -> Iterator[None]:
        """For a body that communicates nothing: when it raises `UserError` on one process, it does on all.

        So nobody waits for a process that has left, and one line is printed: that of the first that failed.
        """
        error: UserError | None = None
        try:
            yield
        except UserError as raised:
            error = raised
        failed = [rank for rank, (bad,) in enumerate(self.gather(int(error is not None))) if bad]
        if failed:
            raise error if error and self.rank == failed[0] else ReportedElsewhereError(f"process {failed[0]} failed")

    def reported_once(self, error: UserError) -> UserError:
        """`error`, which every process raises: the first one prints it."""
        return error if self.rank == 0 else ReportedElsewhereError(str(error))


def init_mesh(
    tensor: int = 1, device: torch.device | str = "cpu", gradients: str = "torch", timeout_minutes: float = 30.0
) -> Mesh:
    """Join the processes that torchrun (RANK ...), horovodrun (HOROVOD_RANK ...) or srun (SLURM_PROCID ...) started;
    alone without any of them.

    `device` is "cpu" (gloo) or "cuda" (NCCL, one GPU a process by local rank). With `gradients` "horovod" its processes
    are joined too; with another than "torch" NCCL's ring is pinned. A collective gives up after `timeout_minutes`: keep
    them above what the watchdog takes, which can tell why. Raises `UserError` when the number of processes is
    no multiple of `tensor`, and when Horovod is not there.
    """
    rank, world, local_rank = _place()
    if world % tensor:
        error = UserError(
            f"train.parallel.tensor: {world} processes cannot be split into tensor groups of {tensor}; "
            f"start a multiple of {tensor} or lower train.parallel.tensor"
        )
        raise Mesh(rank=rank, world=world).reported_once(error)
    if tensor > 1:  # megatron-core's way to have an all-reduce start before the matrix product beside it
        os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")
    device = torch.device(device)
    if device.type == "cuda":
        seen = torch.cuda.device_count()
        if local_rank >= seen > 1:
            raise UserError(f"train.parallel.processes: this machine has {seen} GPUs; start no more processes on it")
        # srun --gpus-per-task shows each process its own GPU only
        device = torch.device("cuda", 0 if seen == 1 else local_rank)
        torch.cuda.set_device(device)
        if gradients != "torch":
            pin_ring(gradients)
    if world == 1:
        return Mesh(device=device)
    if not dist.is_initialized():
        _rendezvous(rank, world, device, timedelta(minutes=timeout_minutes))
    if tensor > 1:
        _megatron().initialize_model_parallel(
            tensor_model_parallel_size=tensor,
            create_gloo_process_groups=False,
            distributed_timeout_minutes=timeout_minutes,
        )
    mesh = Mesh(
        rank=rank,
        world=world,
        tensor_rank=rank % tensor,
        tensor_size=tensor,
        data_rank=rank // tensor,
        data_size=world // tensor,
        device=device,
    )
    if gradients == "horovod" and mesh.data_size > 1:
        from training.parallel import horovod

        horovod.start(mesh, timeout_minutes)
    return mesh


def close_mesh() -> None:
    """Leave all groups, at the end of the process."""
    if "training.parallel.horovod" in sys.modules:
        sys.modules["training.parallel.horovod"].stop()
    if dist.is_initialized():
        if "megatron.core.parallel_state" in sys.modules:
            _megatron().destroy_model_parallel()
        dist.destroy_process_group()


@cache
def _megatron() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it misses TransformerEngine and apex, which we do without
        from megatron.core import parallel_state
    return parallel_state


def _place() -> tuple[int, int, int]:
    """(rank, world, local rank) by torchrun's variables, else horovodrun's, else srun's, else (0, 1, 0)."""
    environment = os.environ
    if "RANK" in environment:
        return int(environment["RANK"]), int(environment["WORLD_SIZE"]), int(environment.get("LOCAL_RANK", "0"))
    for names in (
        ("HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK"),
        # set by srun alone; SLURM_NTASKS stands in a batch script too
        ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"),
    ):
        if names[1] in environment:
            return tuple(int(environment[name]) for name in names)  # type: ignore[return-value]
    return 0, 1, 0


def first_host(nodes: str) -> str:
    """The first of Slurm's list of hosts, where process 0 is: `node[03-05,9],other` -> `node03`."""
    first = re.split(r",(?![^\[]*\])", nodes)[0]
    return re.sub(r"\[([^\],-]+)[^\]]*\]", r"\1", first)


def _rendezvous(rank: int, world: int, device: torch.device, timeout: timedelta) -> None:
    environment = os.environ
    store: dist.Store | None = None  # torch makes one by MASTER_ADDR and MASTER_PORT
    if "RANK" not in environment and "HOROVOD_RANK" in environment:
        from training.parallel import horovod

        store = horovod.torch_store(rank, world)
    elif "RANK" not in environment and "SLURM_STEP_NODELIST" in environment:
        # not SLURM_LAUNCH_NODE_IPADDR: srun may have been started on a login node
        alone = environment.get("SLURM_STEP_NUM_NODES") == "1"
        first = "127.0.0.1" if alone else first_host(environment["SLURM_STEP_NODELIST"])
        environment.setdefault("MASTER_ADDR", first)
        # a port per job, out of the kernel's ephemeral range
        environment.setdefault("MASTER_PORT", str(20_000 + int(environment["SLURM_JOB_ID"]) % 10_000))
    if store is None and not ("MASTER_ADDR" in environment and "MASTER_PORT" in environment):
        message = f"{world} processes but no MASTER_ADDR and MASTER_PORT; start them by torchrun, srun or horovodrun"
        raise UserError(message)
    if on_one_machine():
        loopback = "lo" if sys.platform == "linux" else "lo0"
        environment.setdefault("GLOO_SOCKET_IFNAME", loopback)  # else where the host's name leads
        environment.setdefault("NCCL_SOCKET_IFNAME", loopback)
        if store is None and "TORCHELASTIC_USE_AGENT_STORE" not in environment:  # else torchrun has opened it
            address, port = environment["MASTER_ADDR"], int(environment["MASTER_PORT"])
            open_or_join = open_store if rank == 0 else dist.TCPStore
            store = open_or_join(address, port, world, timeout=timeout)
    place: dict[str, Any] = {"store": store, "rank": rank, "world_size": world, "timeout": timeout}
    if device.type == "cuda":
        dist.init_process_group("nccl", device_id=device, **place)
    else:
        dist.init_process_group("gloo", **place)


def on_one_machine() -> bool:
    """Whether the processes of this run meet at an address that no other machine reaches."""
    address = os.environ.get("MASTER_ADDR", "")
    try:
        return address == "localhost" or ip_address(address).is_loopback
    except ValueError:  # a name
        return False


def open_store(address: str, port: int, world: int, *, timeout: timedelta, wait: bool = True) -> dist.TCPStore:
    """torch's store in this process, listening on `address` alone: by itself it listens on all interfaces, and whoever
    reaches it can read and write it. `port` 0 is any. Raises `UserError` where the port is taken.

    `wait`: until all `world` processes have come.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((address, port))
        except OSError as error:
            raise UserError(f"MASTER_PORT: {address}, port {port}: {error.strerror}; give another port") from None
        listening.listen(socket.SOMAXCONN)
        port = listening.getsockname()[1]
        return dist.TCPStore(
            address,
            port,
            world,
            is_master=True,
            timeout=timeout,
            wait_for_workers=wait,
            master_listen_fd=listening.detach(),
        )


def pin_ring(gradients: str) -> None:
    """Before NCCL makes its first communicator."""
    algorithm = os.environ.setdefault("NCCL_ALGO", "Ring")
    if gradients == "nccl-ring" and algorithm.lower() != "ring":
        raise UserError(f"train.parallel.gradients: nccl-ring, but NCCL_ALGO={algorithm} is set; take back either")
