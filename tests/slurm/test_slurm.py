"""The scripts of slurm/ on a real Slurm of two nodes, submitted by `reread run --slurm` as a user does."""

import importlib.util
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import yaml

from reread.pipeline.recipe.load import load_recipe
from reread.training.run.metrics import read_metrics
from reread.training.trainer import train
from tests.conftest import not_here, train_values
from tests.distributed.test_training import no_dropout
from tests.forks import Job
from tests.runs import finish
from tests.slurm.cluster import Cluster

pytestmark = pytest.mark.timeout(1800)  # minutes, on cores that other work shares

Submit = Callable[..., dict[str, str]]
ENDLESS = {
    "steps": 1_000_000,
    "global_batch": 2,
    "micro_batch": 1,
    "checkpoint": {"every_steps": 100_000, "keep": 2},
    "validate_every": 1_000_000,
}


def write_task(folder: Path) -> dict[str, Any]:
    """Labelled texts and the recipe of a task with two seeds in `folder`; the entry of `then`."""
    lines = [{"id": str(number), "text": "我喜欢读书" * (1 + number), "label": "xy"[number % 2]} for number in range(8)]
    (folder / "texts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    tune = {
        "name": "tune",
        "task": {"kind": "classify", "sequence_length": 24, "train": "texts.jsonl", "dev": "texts.jsonl"},
        "finetune": {"epochs": 1, "seeds": 2},
        "train": {"global_batch": 4, "optimizer": {"name": "adam", "learning_rate": 0.001}, "peak_tflops": 1.0},
    }
    (folder / "tune.yaml").write_text(yaml.safe_dump(tune))
    return {"recipe": "tune.yaml"}


def test_a_chain_comes_through_a_requeue_and_the_loss_of_a_node(
    cluster: Cluster, submit: Submit, tmp_path: Path
) -> None:
    """Preprocessing, pretraining, export, an array of fine-tunings of two seeds, and the report."""
    steps = 30
    optimizer = {"name": "adam", "learning_rate": 0.003, "eps": 1e-4}  # LAMB would amplify rounding
    checkpoint = {"every_steps": 5, "keep": 2}
    model = no_dropout(train_values(tmp_path))["model"]  # dropout depends on how rows are shared out
    then = [write_task(tmp_path)]
    jobs = submit(steps=steps, model=model, optimizer=optimizer, checkpoint=checkpoint, validate_every=steps, then=then)
    stages = ["read", "duplicates", "vocabulary", "encode", "merge"]
    assert list(jobs) == [*stages, "pretrain", "export", "finetune", "report"]
    wait_for_step(cluster, tmp_path, 7)
    cluster.run("scancel", "--batch", "--signal=USR1", jobs["pretrain"])  # what Slurm sends before the time limit
    cluster.wait(lambda: len(attempts(tmp_path, jobs["pretrain"])) == 1, "the end of the first attempt")
    stopped = attempts(tmp_path, jobs["pretrain"])[0]
    assert (stopped["status"], stopped["nodes"]) == (75, "n[1-2]")
    wait_for_step(cluster, tmp_path, stopped["checkpoint"] + 7)
    cluster.kill_node("n1")  # the one with the batch script
    try:
        assert cluster.ended(jobs["report"]) == "COMPLETED", log_of(tmp_path) + log_of(tmp_path, "finetune")
    finally:
        cluster.start_node("n1")
    last = attempts(tmp_path, jobs["pretrain"])[-1]
    assert (last["status"], last["nodes"], last["checkpoint"]) == (0, "n2", steps)

    # every step was trained, on the samples that one process sees
    reference = load_recipe(str(tmp_path / "tiny.yaml"), [])
    assert reference.train is not None
    (tmp_path / "reference").mkdir()
    train(reference.train, tmp_path / "reference")
    expected, seen = read_metrics(tmp_path / "reference"), read_metrics(tmp_path / "runs/tiny")
    assert [row["step"] for row in seen] == [row["step"] for row in expected]
    of_steps = [[row for row in rows if "loss" in row] for rows in (seen, expected)]
    tokens, losses = ([[row[name] for row in rows] for rows in of_steps] for name in ("tokens", "loss"))
    assert tokens[0] == tokens[1]
    assert losses[0] == pytest.approx(losses[1], abs=1e-3)  # float32 on another number of processes

    # each task of the array is a seed, with the scores that it has on one machine
    scores = []
    for seed in (0, 1):
        run = tmp_path / f"runs/tiny-tune-seed{seed}"
        (attempt,) = jobs_of(run)
        assert (attempt["job"], attempt["status"]) == (f"{jobs['finetune']}_{seed}", 0)
        scores.append(json.loads((run / "scores.json").read_text()))
    finish(Job(tmp_path, "finetune", "tune.yaml", "init=runs/tiny", "name=here", processes=1))
    assert scores == [json.loads((tmp_path / f"runs/here-seed{seed}/scores.json").read_text()) for seed in (0, 1)]
    mean, deviation = (f([one["dev"]["accuracy"] for one in scores]) for f in (np.mean, np.std))
    row = next(line for line in log_of(tmp_path, "report").splitlines() if line.startswith("  ours (dev) "))
    assert f" {mean:.2f} ± {deviation * 2**0.5:.2f} " in row


def test_the_time_limit_and_preemption_requeue_and_scancel_ends(
    cluster: Cluster, submit: Submit, tmp_path: Path, sample_corpus: Path
) -> None:
    jobs = submit(site={"nodes": 1, "hours": 1, "warning_seconds": 20}, corpus=sample_corpus, **ENDLESS)
    job = jobs["pretrain"]
    wait_for_step(cluster, tmp_path, 3)
    hours, minutes, seconds = map(int, cluster.state(job)["RunTime"].split(":"))
    limit = 60 * hours + minutes + (seconds + 35) // 60 + 1  # whole minutes, and at least 35 seconds from now
    cluster.run("scontrol", "update", f"JobId={job}", f"TimeLimit={limit}")
    cluster.wait(lambda: len(attempts(tmp_path, job)) == 1, "the time limit")
    cluster.run("scontrol", "update", f"JobId={job}", "TimeLimit=60")
    wait_for_step(cluster, tmp_path, attempts(tmp_path, job)[0]["checkpoint"] + 1)

    urgent = cluster.run(
        "sbatch", "--parsable", "--partition=urgent", "--nodes=2", "--exclusive", "--output=/dev/null", "--wrap=true"
    )
    cluster.wait(lambda: len(attempts(tmp_path, job)) == 2, f"preemption {log_of(tmp_path)}")
    assert cluster.ended(urgent.strip()) == "COMPLETED"
    wait_for_step(cluster, tmp_path, attempts(tmp_path, job)[1]["checkpoint"] + 1)

    cluster.run("scancel", job)
    assert cluster.ended(job) == "CANCELLED"
    ends = attempts(tmp_path, job)
    assert [(end["status"], end["asked"]) for end in ends[:2]] == [(75, True), (75, True)]
    assert 0 < ends[0]["checkpoint"] < ends[1]["checkpoint"]
    assert cluster.state(job)["Restarts"] == "2"
    cluster.wait(lambda: cluster.state(jobs["export"])["JobState"] == "CANCELLED", "the end of the chain")


@pytest.mark.long
def test_a_killed_worker_is_a_fault_and_three_without_progress_end_the_job(
    cluster: Cluster, submit: Submit, tmp_path: Path, sample_corpus: Path
) -> None:
    """One of two is killed while it trains, then both as soon as they are there, twice."""
    job = submit(corpus=sample_corpus, **ENDLESS)["pretrain"]
    wait_for_step(cluster, tmp_path, 3)
    for fault, killed in enumerate(({1}, {0, 1}, {0, 1}), 1):
        cluster.wait(lambda: workers(tmp_path).keys() == {0, 1}, f"the workers of attempt {fault}")
        for rank in killed:
            os.kill(workers(tmp_path)[rank], signal.SIGKILL)
        cluster.wait(lambda fault=fault: len(attempts(tmp_path, job)) == fault, f"fault {fault}")  # type: ignore[misc]
    assert cluster.ended(job) == "FAILED"
    assert "not requeued: status 137, 3 faults without a new checkpoint, at steps" in log_of(tmp_path)


def test_horovod_joins_the_processes_of_srun(
    cluster: Cluster, submit: Submit, tmp_path: Path, sample_corpus: Path
) -> None:
    if importlib.util.find_spec("horovod") is None:
        not_here("horovod", "is not installed (make horovod)")
    job = submit(corpus=sample_corpus, parallel={"gradients": "horovod"})["pretrain"]
    assert cluster.ended(job) == "COMPLETED", log_of(tmp_path)
    assert "gradients: Horovod over gloo's ring, 2 data-parallel ranks" in log_of(tmp_path)


def test_a_wrong_partition_is_one_line(cluster: Cluster, submit: Submit, sample_corpus: Path) -> None:
    with pytest.raises(RuntimeError) as error:
        submit("slurm.partition=mian", corpus=sample_corpus)
    line = str(error.value).split("status 2: ")[1].strip()
    assert line == (
        "reread: runs/tiny/slurm/pretrain.sbatch: sbatch refused it: invalid partition specified: mian; "
        "set slurm.partition to one of main, urgent"
    )


def test_a_mistake_in_the_settings_is_not_tried_again(
    cluster: Cluster, submit: Submit, tmp_path: Path, sample_corpus: Path
) -> None:
    # found out when the model is built
    job = submit(site={"nodes": 1}, corpus=sample_corpus, trainable=["no.such.weight"])["pretrain"]
    assert cluster.ended(job) == "FAILED"
    assert "reread: " in log_of(tmp_path)
    assert "not requeued: something has to be corrected" in log_of(tmp_path)


def wait_for_step(cluster: Cluster, folder: Path, step: int) -> None:
    def reached() -> bool:
        assert "not requeued" not in log_of(folder), log_of(folder)
        return any(f"step {number}/" in log_of(folder) for number in range(step, step + 5))

    cluster.wait(reached, f"step {step}\n{log_of(folder)}")


def log_of(folder: Path, job: str = "pretrain") -> str:
    return "".join(path.read_text() for path in sorted((folder / "runs/tiny/slurm").glob(f"{job}-*.log")))


def attempts(folder: Path, job: str | None = None) -> list[dict[str, Any]]:
    """The ended attempts of all jobs, or of one."""
    return [end for end in jobs_of(folder / "runs/tiny") if job in (None, end["job"])]


def jobs_of(run: Path) -> list[dict[str, Any]]:
    path = run / "history.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [line for line in lines if line["event"] == "job"]


def workers(folder: Path) -> dict[int, int]:
    """The processes that train below `folder`, by rank."""
    found = {}
    for process in psutil.process_iter(["cmdline", "environ", "cwd"]):
        info = process.info
        own = info["cwd"] == str(folder) and "train" in info["cmdline"] and "python" in info["cmdline"][0]
        if own and "supervise" not in info["cmdline"][1]:
            found[int(info["environ"]["SLURM_PROCID"])] = process.pid
    return found
