"""A Slurm of two nodes for the whole session, and a folder from which a user submits."""

import os
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import ROOT, not_here, preprocess_values, train_values
from tests.forks import Job
from tests.slurm.cluster import Cluster, why_not

SITE: dict[str, Any] = {
    "nodes": 2,
    "minimum_nodes": 1,
    "gpus_per_node": 0,
    "tasks_per_node": 1,
    "cpus_per_task": 1,
    "preprocess": {"array": 2, "cpus_per_task": 1},
    "setup": [
        "export MASTER_ADDR=127.0.0.1 OMP_NUM_THREADS=1",  # n1 and n2 are not names of hosts
        f"export PYTHONPATH={ROOT / 'tests' / 'slurm' / 'slow_steps'}:{ROOT}",
    ],
}


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    reason = why_not()
    if reason is not None:
        not_here("slurm", reason)
    slurm = Cluster(tmp_path_factory.mktemp("slurm"))
    try:
        slurm.start()
        yield slurm
    finally:
        slurm.stop()


def use_cluster(configuration: str, rank: int) -> None:
    """Let this process submit to the cluster, whose jobs inherit its environment."""
    os.environ["SLURM_CONF"] = configuration
    del os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]


@pytest.fixture
def submit(cluster: Cluster, tmp_path: Path) -> Iterator[Callable[..., dict[str, str]]]:
    """`submit(*overrides, site={}, preprocess={}, corpus=None, then=[], **train)`: `reread run tiny.yaml --slurm`.

    It is started in `tmp_path`. Returns the jobs by name. With a `corpus` there is nothing to preprocess, with
    `preprocess` values nothing to train.
    """
    cluster.wait(lambda: cluster.run("sinfo", "-h", "-t", "idle", "-o", "%D").strip() == "2", "two idle nodes")

    def run(
        *overrides: str,
        site: dict[str, Any] | None = None,
        preprocess: dict[str, Any] | None = None,
        corpus: Path | None = None,
        then: Sequence[dict[str, Any]] = (),
        **train: Any,
    ) -> dict[str, str]:
        recipe: dict[str, Any] = {"name": "tiny", "then": list(then)}
        if corpus is None:
            recipe["preprocess"] = preprocess or preprocess_values(tmp_path / "corpus")
        if preprocess is None:
            recipe["train"] = train_values(corpus or tmp_path / "corpus", **train)
        (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(recipe))
        (tmp_path / "slurm").mkdir(exist_ok=True)
        (tmp_path / "slurm" / "site.yaml").write_text(yaml.safe_dump({**SITE, **(site or {})}))
        on_cluster = partial(use_cluster, cluster.environment["SLURM_CONF"])
        with Job(tmp_path, "run", "tiny.yaml", "--slurm", *overrides, processes=1, before=on_cluster) as job:
            (status,) = job.statuses()
        if status:
            raise RuntimeError(f"status {status}: {job.output}")
        return dict(re.findall(r"([a-z-]+) \((\d+)\)", job.output))

    yield run
    cluster.run("scancel", "--user=root")
