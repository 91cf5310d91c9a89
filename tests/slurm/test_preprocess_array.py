"""Preprocessing as Slurm job arrays on two nodes."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from reread.preprocessing.config import PreprocessSettings
from reread.preprocessing.execution.build import build
from tests.conftest import ROOT, preprocess_values
from tests.slurm.cluster import Cluster
from tests.slurm.test_slurm import attempts, log_of

pytestmark = pytest.mark.timeout(1800)  # as in test_slurm

ON_EACH_NODE = {"preprocess": {"array": 2, "cpus_per_task": 9}}
"""A node has 16 CPUs, so each of the two tasks gets a node of its own."""


def test_a_killed_array_task_costs_only_its_parts_and_the_corpus_is_the_same(
    cluster: Cluster, submit: Callable[..., dict[str, str]], tmp_path: Path
) -> None:
    text = "\n".join(path.read_text() for path in sorted((ROOT / "pipeline" / "sample" / "zh").iterdir()))
    (tmp_path / "raw").mkdir()
    for number in range(80):  # each another document: a killed task should be far from its end
        (tmp_path / "raw" / f"{number:02d}.txt").write_text(f"第{number}册\n{text}")
    values = {**preprocess_values(tmp_path / "corpus"), "input": {"paths": [str(tmp_path / "raw")]}}

    jobs = submit(site=ON_EACH_NODE, preprocess=values)
    work = tmp_path / "corpus" / ".work" / "read"
    cluster.wait(lambda: task_of(tmp_path, "1/2") is not None, "the second task")
    task = task_of(tmp_path, "1/2")
    while not any(work.glob("*[13579].npz")):
        time.sleep(0.005)
    os.kill(task, signal.SIGKILL)
    done = {path: path.stat().st_mtime_ns for path in work.glob("*.npz")}
    cluster.wait(lambda: not running(cluster, jobs["read"]), "the end of the array")
    assert len(done) < len(list(work.glob("*.npz")))
    assert done == {path: path.stat().st_mtime_ns for path in done}
    assert cluster.ended(jobs["merge"]) == "COMPLETED", log_of(tmp_path, "merge")

    killed = [end for end in attempts(tmp_path) if end["status"] != 0]
    assert [(end["job"], end["status"]) for end in killed] == [(f"{jobs['read']}_1", 137)]
    assert {end["nodes"] for end in attempts(tmp_path)} >= {"n1", "n2"}
    build(PreprocessSettings.parse({**values, "output": str(tmp_path / "alone"), "workers": 1}, "test"))
    assert contents(tmp_path / "corpus") == contents(tmp_path / "alone")


def task_of(folder: Path, share: str) -> int | None:
    """The process that srun started for a share, if it exists; its pool of workers ends with it."""
    for process in psutil.process_iter(["cmdline", "environ", "cwd"]):
        info = process.info
        own = info["cwd"] == str(folder) and share in info["cmdline"] and "python" in info["cmdline"][0]
        if own and "supervise" not in info["cmdline"][1]:
            return process.pid
    return None


def running(cluster: Cluster, array: str) -> bool:
    return bool(cluster.run("squeue", "-h", "--job", array).strip())


def contents(corpus: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(corpus)): path.read_bytes()
        for path in sorted(corpus.rglob("*"))
        if path.is_file() and path.name != ".lock"
    }
