"""A run on a corpus at an address: its losses and weights, a shard that cannot be had, and the other commands."""

import os
import shutil
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import torch

from reread.preprocessing.corpus import Corpus, Manifest, ShardWriter
from reread.training.checkpoint.store import CheckpointStore
from reread.training.data import loader
from reread.training.data.kinds import KINDS
from reread.training.data.rows.samples import Samples
from reread.training.parallel.mesh import Mesh
from tests.file_server import serving
from tests.forks import Job
from tests.runs import figures, finish, write_recipe

STEPS, BATCH, BLOCK = 10, 50, 24_000
OVERRIDES = (f"steps={STEPS}", f"global_batch={BATCH}", "checkpoint.every_steps=2", "validate_every=5")


def data_of(corpus: Any, **values: Any) -> dict[str, Any]:
    return {"corpus": str(corpus), "sequence_length": 128, "pool_tokens": BLOCK, "copies": 2, **values}


@pytest.fixture
def corpus(sample_corpus: Path, tmp_path: Path) -> Path:
    """The sample text eight times, in a shard each, whose blocks have more than a page."""
    folder, text = tmp_path / "corpus", Corpus(sample_corpus)
    shutil.copytree(sample_corpus / "tokenizer", folder / "tokenizer")
    shards = []
    for number, split in enumerate([*["train"] * 8, "validation"]):
        written = Corpus(sample_corpus, split)
        writer = ShardWriter(folder / f"{split}-{number:05d}.tar", split, "uint16", block_tokens=BLOCK)
        for document in range(written.documents):
            writer.add(*written.document(document))
        shards.append(writer.close())
    Manifest.of(text.manifest.tokenizer, "uint16", shards, statistics=text.manifest.statistics).write(folder)
    return folder


def a_step_at_once(rank: int) -> None:
    """The loader draws thousands of rows at once, which here would be several passes."""
    loader._VALUES_AT_ONCE = 1


def started(folder: Path, data: dict[str, Any]) -> Job:
    write_recipe(folder, Path(), data=data)
    return Job(folder, "train", "tiny.yaml", *OVERRIDES, processes=1, before=a_step_at_once)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return CheckpointStore(folder / "runs" / "tiny" / "checkpoints", 2, Mesh()).read_full(STEPS, "")


def test_a_run_is_that_on_the_folder_and_a_missing_shard_ends_all_processes_with_one_line(
    corpus: Path, tmp_path: Path
) -> None:
    local, remote, cache = tmp_path / "local", tmp_path / "remote", tmp_path / "cache"
    finish(started(local, data_of(corpus)))
    dataset = KINDS["rows"].open(KINDS["rows"].settings.parse(data_of(corpus), "data"), 0, "train")
    assert isinstance(dataset, Samples)
    begins = dataset.order._layout(0).pools.tolist()
    assert begins[2] < STEPS * BATCH < begins[3]  # the run reads three pools
    first, *rest = (dataset.corpus._names[dataset.corpus._shard_of[dataset.order.extent(pool)]] for pool in range(3))
    missing = next(shard for shard in rest if shard != first)
    size = 900_000
    assert size < sum(shard.bytes for shard in Manifest.read(corpus).shards)
    with serving(corpus) as server:
        server.faults, server.forever = {missing: [404]}, {missing}
        data = data_of(server.address, cache={"folder": str(cache), "size": size, "tries": 4})
        with started(remote, data) as job:
            assert job.statuses() == [2], job.output
        line = f"reread: {server.address}/{missing}: not there, after 4 tries; repair the server or the connection"
        assert job.output.count(line) == 1 and "Traceback" not in job.output and "step 2/" in job.output
        server.forever.clear()
        output = finish(started(remote, data))  # goes on from a checkpoint
        assert f"holds a part of it, {dataset.order.pools} pools are fetched in turn" in output
        assert "continuing from the checkpoint of step" in output
        assert figures(remote) == figures(local)
        for name, tensor in weights(local).items():
            assert torch.equal(tensor, weights(remote)[name]), name
        assert sum(path.stat().st_size for path in cache.rglob("*") if path.is_file()) <= size
        shown = [f"cache.folder={cache}", f"cache.size={size}", f"pool_tokens={BLOCK}", "sequence_length=128"]
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


SECRET = "s3cr3t/Wert+7=="


def with_the_secret(rank: int) -> None:
    a_step_at_once(rank)
    os.environ["REREAD_TEST"] = quote(SECRET, safe="")


def test_a_secret_of_an_address_is_in_no_file_and_no_line(corpus: Path, tmp_path: Path) -> None:
    """Of a run, its report, its export and the commands that look, and where the server refuses it or is mistyped."""
    folder, cache = tmp_path / "run", {"folder": str(tmp_path / "cache"), "size": "20MB", "tries": 1}
    with serving(corpus) as server:
        server.secret = SECRET
        host = server.address.removeprefix("http://")
        address = f"http://me:${{REREAD_TEST}}@{host}?sig=${{REREAD_TEST}}"
        write_recipe(folder, Path(), data=data_of(address, cache=cache))
        shown = [f"cache={cache}", f"pool_tokens={BLOCK}", "sequence_length=128"]

        def reread(*arguments: str, status: int = 0) -> str:
            with Job(folder, *arguments, processes=1, before=with_the_secret) as job:
                assert job.statuses() == [status], job.output
                return job.output

        reread("train", "tiny.yaml", *OVERRIDES, "steps=2", "train.writers=[tensorboard]")
        reread("export", "runs/tiny")
        reread("report", "runs/tiny")
        reread("inspect", address, *shown)
        assert address in (folder / "runs" / "tiny" / "recipe.yaml").read_text()
        server.secret = "another"
        refused = reread("inspect", address, *shown, status=2)
        assert "/manifest.json?sig=${REREAD_TEST}: 403 Forbidden; get the right to read it" in refused
        mistyped = reread("inspect", "http://127.0.0.1:9/${REREAD_TEST}", *shown, status=1)
        assert "http://127.0.0.1:9/${REREAD_TEST}/manifest.json: " in mistyped and "Traceback" not in mistyped
    written = [path for path in tmp_path.rglob("*") if path.is_file() and corpus not in path.parents]
    assert {"recipe.yaml", "report.html", "model.safetensors", "README.md", "metrics.jsonl", "rank-0.log"} <= {
        path.name for path in written
    }
    for form in {SECRET, quote(SECRET), quote(SECRET, safe="")}:
        assert not [path for path in written if form.encode() in path.read_bytes()]
