"""Fine-tuning with several seeds as jobs of a real Slurm, submitted by `reread finetune --slurm`."""

import json
import re
from functools import partial
from pathlib import Path

import pytest
import yaml

from tests.end_to_end.test_finetune import finetune, finish, prepare
from tests.slurm.cluster import Cluster
from tests.slurm.conftest import SITE, use_cluster

pytestmark = pytest.mark.timeout(1800)  # minutes, on cores that other work shares


def test_each_seed_is_a_job_and_the_scores_are_those_of_one_machine(cluster: Cluster, tmp_path: Path) -> None:
    here, there = prepare(tmp_path / "here"), prepare(tmp_path / "there")
    (there / "slurm").mkdir()
    (there / "slurm/site.yaml").write_text(yaml.safe_dump(SITE | {"nodes": 1}))
    overrides = ("finetune.seeds=2", "finetune.epochs=2")
    on_cluster = partial(use_cluster, cluster.environment["SLURM_CONF"])
    submission = finetune(there, *overrides, "--slurm", before=on_cluster)
    finish(submission)
    jobs = dict(re.findall(r"([a-z0-9-]+) \((\d+)\)", submission.output))
    assert list(jobs) == ["finetune-seed0", "finetune-seed1", "scores"]
    assert cluster.ended(jobs["scores"]) == "COMPLETED"
    finish(finetune(here, *overrides))
    measured = [
        json.loads((there / "runs" / seed / "scores.json").read_text())[0] for seed in ("tiny-seed0", "tiny-seed1")
    ]
    assert measured == json.loads((here / "runs/tiny-seeds.json").read_text())
    (printed,) = (there / "runs/tiny/slurm").glob("scores-*.log")
    assert "ours, 2 seeds " in printed.read_text()
