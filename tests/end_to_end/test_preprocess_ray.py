"""`preprocess.executor: ray` on two Ray nodes: the bytes of one machine, also where workers and nodes are killed."""

import logging
import os
import secrets
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from reread.preprocessing.errors import UserError
from reread.preprocessing.execution.executors import ray_tasks
from reread.preprocessing.execution.executors.ray_tasks import RayExecutor
from tests.conftest import rarer
from tests.raw_text import EVERY_STAGE, children, contents, errors_of, kill, start, wait_for

# The store of a node: 80 MB are Ray's least.
NODE = {
    "num_cpus": 1,
    "object_store_memory": 80_000_000,
    "include_dashboard": False,
    "include_log_monitor": False,
    "no_monitor": True,
}

COUNTED = """
import os, signal
from reread.preprocessing.execution.executors import ray_tasks

def counted(here, folder, work_plan, stage, number):
    "Note who begins which task; the first one at the node VICTIM stands still half-way, and others wait for it."
    import time
    from reread.preprocessing.execution import progress
    from reread.preprocessing.execution.executors.ray_tasks import do_task
    with open(STARTS, "a+") as file:
        file.write(f"{{stage}} {{number}} {{os.getppid()}} {{os.getpid()}}\\n")
        file.seek(0)
        begun_here = [line for line in file if line.split()[2] == str(VICTIM)]
    if os.getppid() == VICTIM and len(begun_here) == 1:
        progress.report_progress_to(lambda size: signal.pause())
    wanted = f" {{VICTIM}} "
    for _ in range(6000 if VICTIM else 0):  # else the other node may be done with all before this one has a worker
        if wanted in open(STARTS).read():
            break
        time.sleep(0.01)
    return do_task(here, folder, work_plan, stage, number)

STARTS, VICTIM = {starts!r}, {victim}
ray_tasks.do_task = counted
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """It asks for a token."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "token")
        patch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
        ray_cluster = pytest.importorskip("ray.cluster_utils", reason="needs Ray: pip install -e '.[ray]'")
        from ray._raylet import AuthenticationTokenLoader, Config

        Config.initialize("")  # an earlier test may have imported it
        AuthenticationTokenLoader.instance().reset_cache()
        cluster = ray_cluster.Cluster(initialize_head=True, head_node_args=NODE)
        cluster.add_node(**NODE)
        yield cluster
        cluster.shutdown()


@pytest.fixture
def connected(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("RAY_ADDRESS", cluster.address)
    return cluster


def raylet(node: Any) -> int:
    return node.all_processes["raylet"][0].process.pid


class Starts:
    """Where tasks note that they begin."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def before(self, victim: int = 0) -> str:
        return COUNTED.format(starts=str(self.path), victim=victim)

    def lines(self) -> list[list[str]]:
        return [line.split() for line in self.path.read_text().splitlines()] if self.path.exists() else []

    def at(self, node: int) -> list[list[str]]:
        return [line for line in self.lines() if line[2] == str(node)]

    def counts(self) -> dict[tuple[str, str], int]:
        return Counter((stage, number) for stage, number, *_ in self.lines())


def finish(process: subprocess.Popen[str]) -> str:
    errors = errors_of(process)
    assert process.returncode == 0, errors
    return errors


def test_without_ray_the_way_to_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UserError, match=r"executor: ray cannot be used .*pip install 'reread\[ray\]'"):
        RayExecutor(1).__enter__()


def test_a_cluster_that_does_not_answer_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray")
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    with pytest.raises(UserError, match=r"^RAY_ADDRESS: the Ray cluster at `127.0.0.1:1` cannot be used: .*refused"):
        RayExecutor(1).__enter__()


def test_a_cluster_that_was_killed_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ray = pytest.importorskip("ray")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "ray_current_cluster").write_text("127.0.0.1:1")  # `ray start` writes it, `ray stop` removes it
    started: list[str] = []
    monkeypatch.setattr(ray, "init", lambda address, **_: started.append(address))
    with caplog.at_level(logging.INFO, "reread"):
        ray_tasks._connected(1)
    assert started == ["local"]
    assert ":1, is not used: [Errno 111] Connection refused" in caplog.text


@pytest.fixture
def without_tokens(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Ray as if a cluster ran that knows no tokens; what is started or left instead."""
    ray, done = pytest.importorskip("ray"), list[str]()
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN"):
        monkeypatch.setenv(name, "")  # it is set as it was before afterwards
        monkeypatch.delenv(name)
    monkeypatch.setattr(ray_tasks, "_check_answers", lambda address: None)
    monkeypatch.setattr(ray, "init", lambda address, **_: done.append(address))
    monkeypatch.setattr(ray, "shutdown", lambda: done.append("left"))
    monkeypatch.setattr(ray, "remote", lambda **_: lambda task: SimpleNamespace(remote=lambda: task))
    monkeypatch.setattr(ray, "get", lambda task: "disabled")
    return done


def test_a_cluster_without_tokens_is_refused(without_tokens: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "host:6379")
    line = (
        "the Ray cluster at `host:6379` cannot be used: it takes tasks without a token; start its nodes with RAY_AUTH"
    )
    with pytest.raises(UserError, match=line):
        RayExecutor(1).__enter__()
    assert without_tokens == ["host:6379", "left"]
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    with pytest.raises(
        UserError, match=r"RAY_AUTH_MODE: disabled, so anyone who reaches .*; unset it, or set executor=proc"
    ):
        RayExecutor(1).__enter__()


def test_a_cluster_found_here_without_tokens_is_not_used(
    without_tokens: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that is started instead has a token that nobody else can read."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "ray_current_cluster").write_text("127.0.0.1:1")
    ray_tasks._connected(1)
    assert without_tokens == ["auto", "left", "local"]
    assert os.environ["RAY_AUTH_MODE"] == "token" and len(os.environ["RAY_AUTH_TOKEN"]) == 64


@pytest.mark.long
def test_without_a_cluster_one_is_started_and_a_mistake_is_one_line(
    raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    inputs = {"paths": [str(raw / "texts")], "bad_input": "refuse"}
    process = start(raw, tmp_path / "corpus", "read", "0/1", executor="ray", input=inputs)
    errors = errors_of(process)
    assert process.returncode == 1
    assert "ray: no cluster is running and RAY_ADDRESS is not set, so one is started here for 1 tasks" in errors
    assert "input.bad_input=report" in errors.splitlines()[-1]
    assert "Traceback" not in errors


def test_ray_makes_the_bytes_of_one_machine(
    raw: Path, reference: dict[str, bytes], tmp_path: Path, connected: Any
) -> None:
    starts = Starts(tmp_path / "starts")
    process = start(raw, tmp_path / "corpus", before=starts.before(), **EVERY_STAGE, executor="ray", workers=0)
    assert f"ray: the cluster at {connected.address}, 2 nodes, 2 CPUs" in finish(process)
    assert contents(tmp_path / "corpus") == reference
    assert set(starts.counts().values()) == {1}
    assert all(starts.at(raylet(node)) for node in connected.list_all_nodes())


@pytest.mark.parametrize("whole_node", [rarer(False), True])
def test_of_a_killed_worker_or_node_only_its_part_is_done_again(
    raw: Path, reference: dict[str, bytes], tmp_path: Path, connected: Any, whole_node: bool
) -> None:
    node, starts = connected.list_all_nodes()[1], Starts(tmp_path / "starts")
    victim = raylet(node)
    process = start(raw, tmp_path / "corpus", before=starts.before(victim), **EVERY_STAGE, executor="ray", workers=0)
    wait_for(lambda: bool(starts.at(victim)), process)
    stage, number, _, worker = starts.at(victim)[0]
    wait_for(lambda: any((tmp_path / "corpus" / ".work" / stage).glob(f"*{int(number):05d}.*")), process)
    for pid in [victim, *children(victim)] if whole_node else [int(worker)]:
        kill(pid)
    if whole_node:
        connected.remove_node(node, allow_graceful=False)
        connected.add_node(**NODE)
    errors = finish(process)
    assert f"a Ray worker or its node was lost; part {number} of {stage} is done again" in errors
    assert contents(tmp_path / "corpus") == reference
    counts = starts.counts()
    assert counts.pop((stage, number)) == 2
    assert set(counts.values()) == {1}


@pytest.mark.long
def test_a_part_whose_worker_dies_every_time_ends_the_run_with_one_line(
    raw: Path, tmp_path: Path, connected: Any
) -> None:
    deadly = (
        "import os\nfrom reread.preprocessing.execution.executors import ray_tasks\n"
        "ray_tasks.do_task = lambda here, folder, work_plan, stage, number: number != 2 or os.kill(os.getpid(), 9)\n"
    )
    process = start(raw, tmp_path / "corpus", "read", "2/8", before=deadly, executor="ray")
    errors = errors_of(process)
    assert process.returncode == 1
    assert errors.count("part 2 of read is done again") == 3
    assert "part 2 of `read` lost its Ray worker 4 times" in errors.splitlines()[-1]
    assert "Traceback" not in errors and "raylet" not in errors


@pytest.mark.long
def test_a_node_that_does_not_see_the_folder_is_told(raw: Path, tmp_path: Path, connected: Any) -> None:
    """A third node in a mount namespace of its own, where another disk lies over the folder."""
    folder = tmp_path / "shared"
    folder.mkdir()
    hidden = f"mount -t tmpfs tmpfs {folder} && exec {sys.executable} -m ray.scripts.scripts start --block"
    options = f"--address={connected.address} --num-cpus=1 --object-store-memory=80000000"
    if os.geteuid() != 0 or subprocess.run(["unshare", "--mount", "true"], check=False).returncode:
        pytest.skip("mounting needs root")
    node = subprocess.Popen(
        ["unshare", "--mount", "sh", "-c", f"{hidden} {options}"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"RAY_USAGE_STATS_ENABLED": "0"},
    )
    try:
        while sum(one["Alive"] for one in connected.global_state.node_table()) < 3:
            assert node.poll() is None
            time.sleep(0.05)
        returncode = 0
        for attempt in range(10):  # until that node, which may still be starting its workers, gets a part
            process = start(raw, folder / f"corpus-{attempt}", "read", "0/1", executor="ray", workers=0)
            errors = errors_of(process)
            returncode = process.returncode
            if returncode:
                break
    finally:
        node.terminate()
        node.wait()
    assert returncode == 1
    assert "/.work: the Ray worker on" in errors.splitlines()[-1]
