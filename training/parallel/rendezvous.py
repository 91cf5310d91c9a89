"""Joins processes into a mesh: torch.distributed, megatron-core's groups, and Horovod if the settings name it."""

import os
import re
import sys
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from reread.preprocessing.errors import UserError, first_line
from reread.training.parallel import horovod
from reread.training.parallel.mesh import Mesh, megatron_groups
from reread.training.parallel.process import Process, this_process
from reread.training.parallel.tcp_store import on_one_machine, open_store


def init_mesh(
    tensor: int = 1, device: torch.device | str = "cpu", gradients: str = "torch", timeout_minutes: float = 30.0
) -> Mesh:
    """Join the processes that torchrun (RANK ...), horovodrun (HOROVOD_RANK ...) or srun (SLURM_PROCID ...) started;
    a process without any of these is alone.

    `device` is "cpu" (gloo) or "cuda" (NCCL, one GPU a process by local rank). `gradients` "horovod" joins
    Horovod's processes too; all but "torch" pin NCCL's ring. A collective times out after `timeout_minutes`, which must
    exceed the watchdog's limit, as the watchdog can report the cause. Raises `UserError` when the number of processes
    is no multiple of `tensor`, and when Horovod is missing.
    """
    here = this_process()
    rank, world = here.rank, here.world
    if world % tensor:
        error = UserError(
            f"train.parallel.tensor: {world} processes cannot be split into tensor groups of {tensor}; "
            f"start a multiple of {tensor} or lower train.parallel.tensor"
        )
        raise Mesh(rank=rank, world=world).reported_once(error)
    if tensor > 1:  # With it, megatron-core's all-reduce starts before the matrix product that it overlaps.
        os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")
    # Choose this process' device.
    device = torch.device(device)
    if device.type == "cuda":
        seen = torch.cuda.device_count()
        if here.local_rank >= seen > 1:
            raise UserError(f"train.parallel.processes: this machine has {seen} GPUs; start at most {seen} processes")
        # srun --gpus-per-task shows each process only its own GPU.
        device = torch.device("cuda", 0 if seen == 1 else here.local_rank)
        torch.cuda.set_device(device)
        if gradients != "torch":
            pin_ring(gradients)
    # Meet the other processes, and make the groups of the mesh.
    if world == 1:
        return Mesh(device=device)
    if not dist.is_initialized():
        _rendezvous(here, device, timedelta(minutes=timeout_minutes))
    if tensor > 1:
        megatron_groups().initialize_model_parallel(
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
        horovod.start(mesh, timeout_minutes)
    return mesh


def close_mesh() -> None:
    """Leave all groups, at the end of the process."""
    horovod.stop()
    if dist.is_initialized():
        if "megatron.core.parallel_state" in sys.modules:
            megatron_groups().destroy_model_parallel()
        dist.destroy_process_group()


def pin_ring(gradients: str) -> None:
    """Have NCCL reduce by its ring; to be called before it makes its first communicator."""
    algorithm = os.environ.setdefault("NCCL_ALGO", "Ring")
    if gradients == "nccl-ring" and algorithm.lower() != "ring":
        raise UserError(f"train.parallel.gradients: nccl-ring, but NCCL_ALGO={algorithm} is set; unset one of them")


def first_host(nodes: str) -> str:
    """The first host in Slurm's list, on which process 0 is: `node[03-05,9],other` -> `node03`."""
    first = re.split(r",(?![^\[]*\])", nodes)[0]
    return re.sub(r"\[([^\],-]+)[^\]]*\]", r"\1", first)


def _rendezvous(here: Process, device: torch.device, timeout: timedelta) -> None:
    """Make torch.distributed's group of all processes. Raises `UserError` without a rendezvous address, or if not all
    have come there within `timeout`."""
    environment = os.environ
    # Where the processes meet, by their launcher
    store: dist.Store | None = None  # torch makes one from MASTER_ADDR and MASTER_PORT.
    if here.launcher == "horovodrun":
        store = horovod.torch_store(here.rank, here.world)
    elif here.launcher == "srun":
        # Not SLURM_LAUNCH_NODE_IPADDR, since srun may have been started on a login node.
        alone = environment.get("SLURM_STEP_NUM_NODES") == "1"
        first = "127.0.0.1" if alone else first_host(environment["SLURM_STEP_NODELIST"])
        environment.setdefault("MASTER_ADDR", first)
        # Each job has its own port, outside of the kernel's ephemeral range.
        environment.setdefault("MASTER_PORT", str(20_000 + int(environment["SLURM_JOB_ID"]) % 10_000))
    if store is None and not ("MASTER_ADDR" in environment and "MASTER_PORT" in environment):
        raise UserError(
            f"{here.world} processes but no MASTER_ADDR and MASTER_PORT; start them by torchrun, srun or horovodrun"
        )
    if store is None:
        address, port = environment["MASTER_ADDR"], environment["MASTER_PORT"]
        if not (port.isascii() and port.isdigit() and int(port) < 2**16):
            raise UserError(f"MASTER_PORT: `{port}` is no port; give a number below 65536")
    try:
        _meet(here, device, store, timeout)
    except RuntimeError as error:  # torch's errors of its store and of gloo, with pages of frames
        where = "horovodrun's store" if store else f"MASTER_ADDR {address}, MASTER_PORT {port}"
        raise UserError(
            f"process {here.rank} of {here.world} did not meet the others by {where} ({first_line(error)}); see that "
            "all have started, that this address is process 0's, and that the network between the machines lets them "
            "through (GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME)",
            error,
        ) from None


def _meet(here: Process, device: torch.device, store: dist.Store | None, timeout: timedelta) -> None:
    """Wait for the other processes in `store`, or in that of MASTER_ADDR and MASTER_PORT."""
    environment = os.environ
    # On one machine nothing needs to leave the loopback interface.
    if on_one_machine():
        loopback = "lo" if sys.platform == "linux" else "lo0"
        environment.setdefault("GLOO_SOCKET_IFNAME", loopback)  # else the address of the host's name
        environment.setdefault("NCCL_SOCKET_IFNAME", loopback)
        if store is None and "TORCHELASTIC_USE_AGENT_STORE" not in environment:  # else torchrun has opened it
            address, port = environment["MASTER_ADDR"], int(environment["MASTER_PORT"])
            open_or_join = open_store if here.rank == 0 else dist.TCPStore
            store = open_or_join(address, port, here.world, timeout=timeout)
    group: dict[str, Any] = {"store": store, "rank": here.rank, "world_size": here.world, "timeout": timeout}
    if device.type == "cuda":
        dist.init_process_group("nccl", device_id=device, **group)
    else:
        dist.init_process_group("gloo", **group)
