"""Horovod, used beside torch.distributed: its ring sums gradients over data-parallel ranks, in a process set for each
tensor rank.

torch's groups come first. Under horovodrun they use the store of its launcher, and Horovod reads its settings from the
environment; under torchrun and srun process 0 opens such a store and the variables are set here. Variables that are
already set stay, so users can override any of Horovod's settings.
"""

import ctypes
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from http.client import HTTPConnection
from ipaddress import ip_address
from typing import Any
from zlib import crc32

import psutil
import torch.distributed as dist
from torch import Tensor

from reread.preprocessing.errors import UserError
from reread.training.parallel.mesh import Mesh
from reread.training.parallel.process import this_process
from reread.training.parallel.tcp_store import on_one_machine, open_store

POLL_SECONDS = 1e-4
"""Seconds between two polls: Horovod's own wait spins, and blocks the thread that draws the next batch."""
STORE_SECONDS = 300.0
"""The longest time that processes wait under horovodrun until process 0 publishes its address."""

_LOST = ("Horovod has been shut down", "gloo", "not exist, or has not been registered")
"""Parts of Horovod's errors if another process is gone: on notification, on a failed send, on dissolved sets."""

_running: dict[str, Any] = {}
"""State between `start` and `stop`: this process' set, the store if it is here, the variables that were set."""


def start(mesh: Mesh, timeout_minutes: float = 30.0) -> None:
    """Join Horovod's processes (collective). Its waits end after `timeout_minutes`, as those of torch's groups.

    Raises `UserError` if it is missing, or was built without NCCL.
    """
    with mesh.together():
        hvd = _horovod()
        if mesh.device.type == "cuda" and not hvd.nccl_built():
            raise UserError(
                "train.parallel.gradients: this Horovod was built without NCCL, so gradients would go through the CPU; "
                "run `make horovod` where nvcc and NCCL are (not by ROCm), or set gradients: nccl-ring"
            )
    # Set the environment variables from which Horovod reads its settings.
    settings = {
        "HOROVOD_FUSION_THRESHOLD": "0",  # Fusion would depend on timing, and so would the order of sums.
        "HOROVOD_GLOO_TIMEOUT_SECONDS": str(round(60 * timeout_minutes)),
    }
    if mesh.tensor_size == 1:
        settings["HOROVOD_LOG_LEVEL"] = "fatal"  # The trainer itself reports a process that is gone.
    if this_process().launcher != "horovodrun":
        settings |= _slot_variables(mesh)
    _running["set here"] = [name for name in settings if name not in os.environ]
    for name, value in settings.items():
        os.environ.setdefault(name, value)
    # Join its processes, in a set for each tensor rank.
    sets = []
    if mesh.tensor_size > 1:
        sets = [hvd.ProcessSet(range(rank, mesh.world, mesh.tensor_size)) for rank in range(mesh.tensor_size)]
    try:
        # "dynamic" sets would poll all processes for new ones, under a lock that a hung process never releases.
        hvd.init(process_sets=sets)
    except ValueError as error:
        raise UserError(f"train.parallel.gradients: Horovod: {error} (HOROVOD_LOG_LEVEL=info logs more)") from None
    _running["process set"] = sets[mesh.tensor_rank] if sets else hvd.global_process_set
    if sets:
        _end_quietly_when_aborted()


def ring(buffer: Tensor, bucket: int) -> Callable[[], object]:
    """A `Reduce` over Horovod's ring. Raises `DistNetworkError`, as torch does, when another process is gone."""
    hvd = _horovod()
    with _raising_as_torch_does():
        handle = hvd.allreduce_async_(buffer, name=f"bucket {bucket}", op=hvd.Sum, process_set=_running["process set"])

    def wait() -> None:
        while not hvd.poll(handle):
            time.sleep(POLL_SECONDS)
        with _raising_as_torch_does():
            hvd.synchronize(handle)

    return wait


def stop() -> None:
    """Leave Horovod if `start` was called; reductions that other processes still have fail."""
    if not _running:
        return
    _horovod().shutdown()
    if "store" in _running:
        _running["store"].shutdown()
        _running["store"].server_close()
    for name in _running.get("set here", []):
        del os.environ[name]
    _running.clear()


def torch_store(rank: int, world: int) -> dist.TCPStore:
    """torch's store under horovodrun: process 0 opens it and publishes its address in the launcher's store."""
    if rank == 0:
        addresses = psutil.net_if_addrs()[os.environ["HOROVOD_GLOO_IFACE"]]  # all hosts reach each other through it
        address = next(one.address for one in addresses if one.family == socket.AF_INET)
        store = open_store(address, 0, world, timeout=timedelta(seconds=STORE_SECONDS), wait=False)
        _launcher("PUT", json.dumps([address, store.port]))
        return store
    deadline = time.monotonic() + STORE_SECONDS
    while not (answer := _launcher("GET")):
        if time.monotonic() > deadline:
            raise UserError(f"process {rank}: no response from process 0 in {STORE_SECONDS:.0f} s")
        time.sleep(0.1)
    address, port = json.loads(answer)
    return dist.TCPStore(address, port, world, is_master=False)


def _horovod() -> Any:
    try:
        import horovod.torch as hvd
    except ImportError as error:
        raise UserError(
            f"train.parallel.gradients: horovod is not installed here ({error}); run `make horovod`, "
            "or set gradients: torch"
        ) from None
    return hvd


def _slot_variables(mesh: Mesh) -> dict[str, str]:
    """The variables that horovodrun would set; process 0 opens the store where the processes find each other.

    Raises `UserError` if Horovod would listen at an address that the others cannot reach.
    """
    host, master = socket.gethostname(), os.environ["MASTER_ADDR"]
    port = 0
    if mesh.rank == 0:
        from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer

        # Horovod's own RendezvousServer listens on all interfaces of every machine
        _running["store"] = RendezvousHTTPServer((master if on_one_machine() else "", 0), RendezvousHandler, False)
        threading.Thread(target=_running["store"].serve_forever, name="rendezvous", daemon=True).start()
        port = _running["store"].server_address[1]
    everyone = mesh.gather(crc32(host.encode()), port)
    hosts = [number for number, _ in everyone]
    with mesh.together():
        check_address(host, alone=len(set(hosts)) == 1)
    return {
        **{f"HOROVOD_{name}": str(number) for name, number in slot(hosts, mesh.rank).items()},
        "HOROVOD_HOSTNAME": host,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(everyone[0][1]),
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": master,
        "HOROVOD_GLOO_IFACE": os.environ.get("GLOO_SOCKET_IFNAME") or _interface_towards(master),
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
    }


def check_address(host: str, alone: bool) -> None:
    """Raise `UserError` if other hosts cannot reach this host by its name.

    Process sets listen at the address of that name, whatever HOROVOD_GLOO_IFACE is. `alone`: there is no other host.
    """
    try:
        address = socket.gethostbyname(host)
    except OSError:
        address = "no address"
    if address == "no address" or (ip_address(address).is_loopback and not alone):
        raise UserError(
            f"train.parallel.gradients: Horovod listens at its host's address, and on {host} that is {address}; "
            "give the name the address that the other hosts reach (/etc/hosts)"
        )


def slot(hosts: list[int], rank: int) -> dict[str, int]:
    """Horovod's numbers of `rank`: on its host, and among equal local ranks of all hosts; `hosts` is by rank."""
    local_ranks = [hosts[:other].count(host) for other, host in enumerate(hosts)]
    across = [other for other, local in enumerate(local_ranks) if local == local_ranks[rank]]
    return {
        "RANK": rank,
        "SIZE": len(hosts),
        "LOCAL_RANK": local_ranks[rank],
        "LOCAL_SIZE": hosts.count(hosts[rank]),
        "CROSS_RANK": across.index(rank),
        "CROSS_SIZE": len(across),
    }


def _interface_towards(host: str) -> str:
    """The network interface through which this machine reaches `host`, or is `host`."""
    family, kind, _, _, address = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(address)  # sends nothing
        own = probe.getsockname()[0]
    interfaces = psutil.net_if_addrs()
    return next(name for name, addresses in interfaces.items() if own in [one.address for one in addresses])


def _launcher(method: str, body: str | None = None) -> str:
    """PUT to, or GET from, horovodrun's store; empty if nothing is there yet."""
    address, port = (os.environ[f"HOROVOD_GLOO_RENDEZVOUS_{name}"] for name in ("ADDR", "PORT"))
    connection = HTTPConnection(address, int(port), timeout=30)
    connection.request(method, "/reread/torch", body)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return text if answer.status == 200 else ""


@contextmanager
def _raising_as_torch_does() -> Iterator[None]:
    try:
        yield
    except (RuntimeError, ValueError) as error:
        if any(words in str(error) for words in _LOST):
            raise dist.DistNetworkError(str(error)) from None
        raise


def _end_quietly_when_aborted() -> None:
    """Turn an uncaught C++ exception into an exit with status 6, without more output or a core file.

    With process sets, Horovod's thread logs a first such exception (a process is gone) and meets a second one while it
    cleans up. It then holds a lock on which the main thread may be waiting with Python's interpreter lock, so no Python
    code can run any more.
    """
    libc = ctypes.CDLL(None)
    ctypes.CDLL("libstdc++.so.6")._ZSt13set_terminatePFvvE(libc.abort)
    libc.signal(signal.SIGABRT, libc._exit)
