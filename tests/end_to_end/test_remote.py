"""A run on a corpus at an address: its losses and weights, a shard that cannot be had, and the other commands."""

from pathlib import Path
from typing import Any

import torch

from preprocessing.corpus import Manifest
from tests.file_server import serving
from tests.forks import Job
from tests.runs import figures, finish, write_recipe
from training.checkpoint.store import CheckpointStore
from training.data import loader
from training.data.kinds import KINDS
from training.data.samples import Samples
from training.parallel.mesh import Mesh

STEPS, BATCH = 10, 44
OVERRIDES = (f"steps={STEPS}", f"global_batch={BATCH}", "checkpoint.every_steps=2", "validate_every=5")


def data_of(corpus: Any, **values: Any) -> dict[str, Any]:
    return {"corpus": str(corpus), "sequence_length": 128, "pool_tokens": 26_000, "copies": 2, **values}


def a_step_at_once(rank: int) -> None:
    """The loader draws a thousand rows at once, which here would be several passes."""
    loader.ROWS_AT_ONCE = 1


def started(folder: Path, data: dict[str, Any]) -> Job:
    write_recipe(folder, Path(), data=data)
    return Job(folder, "train", "tiny.yaml", *OVERRIDES, processes=1, before=a_step_at_once)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return CheckpointStore(folder / "runs" / "tiny" / "checkpoints", 2, Mesh()).read_full(STEPS, "")


def test_a_run_is_that_on_the_folder_and_a_missing_shard_ends_all_processes_with_one_line(
    sample_corpus: Path, tmp_path: Path
) -> None:
    local, remote, cache = tmp_path / "local", tmp_path / "remote", tmp_path / "cache"
    finish(started(local, data_of(sample_corpus)))
    dataset = KINDS["rows"].open(KINDS["rows"].settings.parse(data_of(sample_corpus), "data"), 0, "train")
    assert isinstance(dataset, Samples) and dataset.order.pools == 3
    first = int(dataset.order._layout(0).pools[1])
    assert first < STEPS * BATCH  # the run reads two pools
    second = dataset.corpus._names[dataset.order.extent(1)]
    text = sum(shard.bytes for shard in Manifest.read(sample_corpus).shards)
    beside = (*sample_corpus.glob("*.npz"), *sample_corpus.glob("tokenizer/*"))
    size = text + sum(path.stat().st_size for path in beside)
    with serving(sample_corpus) as server:
        server.faults, server.forever = {second: [404]}, {second}
        data = data_of(server.address, cache={"folder": str(cache), "size": size, "tries": 4})
        with started(remote, data) as job:
            assert job.statuses() == [2]
        line = f"reread: {server.address}/{second}: not there, after 4 tries; see to it, then run the same command"
        assert job.output.count(line) == 1 and "Traceback" not in job.output
        server.forever.clear()
        output = finish(started(remote, data))
        assert f"{server.address}: {cache} holds a part of it, 3 pools are fetched in turn" in output
        assert figures(remote) == figures(local)
        for name, tensor in weights(local).items():
            assert torch.equal(tensor, weights(remote)[name]), name
        assert sum(path.stat().st_size for path in cache.rglob("*") if path.is_file()) <= size
        shown = [f"cache.folder={cache}", f"cache.size={size}", "pool_tokens=26000", "sequence_length=128"]
        evaluated, inspected, planned = (
            finish(Job(remote, *command, processes=1))
            for command in (
                ("evaluate", "runs/tiny"),
                ("inspect", server.address, *shown, "--verify"),
                ("plan", "tiny.yaml"),
            )
        )
    assert "masked_lm_loss" in evaluated
    assert "every block of the train split has the checksum" in inspected and "predicted tokens" in inspected
    assert f"the manifest of {server.address}" in planned
