"""Ranks over loopback or, as root with iproute2, over a network whose cards are throttled."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def launch(command: list[str], ranks: int, rate: str | None = None, burst: str = "256kb") -> Any:
    """Run `command` as so many ranks, with torch.distributed's variables; returns the JSON line that rank 0 printed.

    With `rate` (1gbit) each rank has a network namespace of its own and sends no faster than that.
    """
    shared = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "10.213.0.1" if rate else "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "GLOO_SOCKET_IFNAME": "eth0" if rate else "lo",
    }
    with hosts(ranks, rate, burst) as prefixes:
        started = [
            subprocess.Popen(
                [*prefix, *command],
                env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank, prefix in enumerate(prefixes)
        ]
        outputs = [process.communicate()[0] for process in started]
    statuses = [process.returncode for process in started]
    if any(statuses):
        sys.exit(f"the ranks ended with status {statuses}")
    return json.loads(next(line for line in reversed(outputs[0].splitlines()) if line.startswith(("{", "["))))


@contextmanager
def hosts(ranks: int, rate: str | None, burst: str) -> Iterator[list[list[str]]]:
    """The prefix of each rank's command; with a rate, namespaces on a bridge, which are removed at the end."""
    if rate is None:
        yield [[]] * ranks
        return
    bridge = f"rr{os.getpid() % 10_000}"
    names = [f"{bridge}-{number}" for number in range(ranks)]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that they are removed then, too
    run(f"ip link add {bridge} type bridge", f"ip link set {bridge} up")
    try:
        for number, name in enumerate(names):
            # Horovod's process sets listen on the address of the machine's name
            Path(f"/etc/netns/{name}").mkdir(parents=True)
            Path(f"/etc/netns/{name}/hosts").write_text(f"10.213.0.{number + 1} {socket.gethostname()}\n")
            run(
                f"ip netns add {name}",
                f"ip link add {bridge}v{number} type veth peer name eth0 netns {name}",
                f"ip link set {bridge}v{number} master {bridge} up",
                f"ip netns exec {name} ip link set lo up",
                f"ip netns exec {name} ip address add 10.213.0.{number + 1}/24 dev eth0",
                f"ip netns exec {name} ip link set eth0 up",
                f"ip netns exec {name} tc qdisc add dev eth0 root tbf rate {rate} burst {burst} latency 400ms",
            )
        yield [["ip", "netns", "exec", name] for name in names]
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], check=False)
            shutil.rmtree(f"/etc/netns/{name}", ignore_errors=True)
        subprocess.run(["ip", "link", "delete", bridge], check=False)


def can_throttle() -> bool:
    return os.geteuid() == 0 and shutil.which("tc") is not None


def run(*commands: str) -> None:
    for command in commands:
        subprocess.run(command.split(), check=True)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
