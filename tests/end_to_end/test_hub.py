"""Runs that start from a model of the Hub by its name, against a stand-in on loopback."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from reread.training.exchange.card import front_matter
from reread.training.models import model_spec
from reread.training.models.build import build_model, model_config
from reread.training.run.metrics import read_metrics
from tests.conftest import ROOT, train_values
from tests.forks import Job
from tests.hub_server import COMMIT, Hub, serving_hub, use_hub
from tests.tasks import write_lines

NAME, FOLDER = "someone/small@main", "someone--small@main"


def model_of(corpus: Path, folder: Path) -> dict[str, bytes]:
    """The files of the model of `train_values` with the corpus' tokenizer."""
    values = {key: value for key, value in train_values(corpus)["model"].items() if key != "type"}
    spec, size = model_spec("nezha"), len((corpus / "tokenizer" / "vocab.txt").read_text().split("\n")) - 1
    build_model(spec.converted, model_config(spec, values, size, None), None, 0).save_pretrained(folder)
    shutil.copytree(corpus / "tokenizer", folder, dirs_exist_ok=True)
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def hub(sample_corpus: Path, tmp_path: Path) -> Iterator[Hub]:
    with serving_hub() as server:
        server.repositories["someone/small"] = model_of(sample_corpus, tmp_path / "source")
        yield server


class _Forever(pytest.MonkeyPatch):
    """Of a process that ends with the test."""


def asks(hub: Hub, rank: int, cache: str = "", offline: bool = False) -> None:
    """Before `reread` in another process: its Hub is this one."""
    use_hub(hub, _Forever(), cache)
    if offline:
        os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ["HF_TOKEN"] = hub.token


def lookups(hub: Hub) -> int:
    return sum("/api/models/" in path for path in hub.asked)


def reread(hub: Hub, folder: Path, *arguments: str, status: int = 0, **how: Any) -> str:
    before = partial(asks, _Address(hub), cache=str(folder / "cache"), **how)
    with Job(folder, *arguments, processes=1, before=before) as job:
        assert job.statuses() == [status], job.output
        return job.output


class _Address:
    """What `asks` needs of a Hub in another process."""

    def __init__(self, hub: Hub) -> None:
        self.address, self.token = hub.address, hub.token


def test_a_run_on_two_processes_fetches_its_start_once_and_resumes_without_the_hub(
    hub: Hub, sample_corpus: Path, tmp_path: Path
) -> None:
    train = train_values(sample_corpus, parallel={"processes": 2})
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump({"name": "tiny", "train": train}))
    command = ("train", "tiny.yaml", f"init={NAME}")
    line = f"{NAME}: no such path here, so it is fetched from the Hub: revision {COMMIT}, "
    output = reread(hub, tmp_path, *command)
    assert output.count(line) == 1 and lookups(hub) == 1 and len(hub.fetched) == len(set(hub.fetched))
    folder = tmp_path / "models" / f"{FOLDER}-nezha"
    assert f"starting from the weights in models/{folder.name}" in output
    assert front_matter(folder)["base_model"] == "someone/small"
    kept = yaml.safe_load((tmp_path / "runs" / "tiny" / "recipe.yaml").read_text())
    assert (kept["train"]["init"], kept["start"]["weights"]) == (f"models/{folder.name}", NAME)
    losses = [line["loss"] for line in read_metrics(tmp_path / "runs" / "tiny") if "loss" in line]

    shutil.rmtree(tmp_path / "models")
    shutil.rmtree(tmp_path / "cache")
    shutil.rmtree(tmp_path / "runs" / "tiny" / "checkpoints" / "step-00000006")
    hub.status = 503
    again = reread(hub, tmp_path, *command)
    assert "continuing from the checkpoint of step 3" in again and lookups(hub) == 1
    assert [line["loss"] for line in read_metrics(tmp_path / "runs" / "tiny") if "loss" in line] == losses
    reread(hub, tmp_path, "export", "tiny")
    assert front_matter(tmp_path / "runs" / "tiny" / "export")["base_model"] == "someone/small"


def test_a_start_that_cannot_be_fetched_is_one_line_before_any_work(
    hub: Hub, sample_corpus: Path, tmp_path: Path
) -> None:
    train = train_values(sample_corpus, parallel={"processes": 2})
    preprocess = {"input": {"paths": ["none"]}, "output": "c", "tokenizer": {"path": "none"}}
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump({"name": "tiny", "preprocess": preprocess, "train": train}))
    missing = "init=nobody/nothing"
    for command in ("train", "run"):
        output = reread(hub, tmp_path, command, "tiny.yaml", missing, status=2)
        assert output.startswith(
            "reread: nobody/nothing: no such path here, and the Hub has no such repository for you"
        )
        assert len(output.splitlines()) == 1
    output = reread(hub, tmp_path, "train", "tiny.yaml", f"init={NAME}", status=2, offline=True)
    assert output.startswith(f"reread: {NAME}: no such path here, and the Hub is not asked, as HF_HUB_OFFLINE is set;")
    assert not (tmp_path / "runs").exists() and not (tmp_path / "models").exists() and not hub.fetched


def test_a_fine_tuned_model_is_pushed_and_another_fine_tuning_starts_from_it(
    hub: Hub, sample_corpus: Path, tmp_path: Path
) -> None:
    write_lines(tmp_path / "texts.jsonl", [{"text": "我喜欢读书" * n, "label": "xy"[n % 2]} for n in range(1, 9)])
    given = ["task.train=texts.jsonl", "task.dev=texts.jsonl", "task.sequence_length=24", "finetune.epochs=1"]
    given += ["train.peak_tflops=1", "global_batch=4"]
    output = reread(hub, tmp_path, "finetune", "classify", f"init={NAME}", *given, "name=first")
    assert f"starting from the weights in models/{FOLDER};" in output and lookups(hub) == 1
    output = reread(
        hub, tmp_path, "export", "first", "card.license=mit", "card.language=[zh, en]", "--push", "me/first"
    )
    assert "pushed runs/first/export to me/first, a new repository that is private until you publish it: " in output
    pushed = hub.repositories["me/first"]
    assert {path.name: path.read_bytes() for path in (tmp_path / "runs/first/export").iterdir()} == pushed
    card = front_matter(tmp_path / "runs" / "first" / "export")
    assert (card["license"], card["language"], card["base_model"]) == ("mit", ["zh", "en"], "someone/small")
    (result,) = card["model-index"][0]["results"]
    (measured,) = json.loads((tmp_path / "runs" / "first" / "evaluation.json").read_text())
    assert {one["name"]: one["value"] for one in result["metrics"]}["accuracy"] == measured["figures"]["accuracy"]

    output = reread(hub, tmp_path, "finetune", "classify", "init=me/first", *given, "name=second")
    assert "me/first is an export of reread, taken as it is to models/me--first" in output
    assert "starting from the weights in models/me--first" in output and "random: classifier" not in output


def test_a_type_of_model_that_fine_tuning_does_not_know_is_named_with_the_way_out(hub: Hub, tmp_path: Path) -> None:
    from transformers import XLMRobertaConfig, XLMRobertaForMaskedLM

    files = hub.repositories["someone/small"]
    size = json.loads(files["config.json"])["vocab_size"]
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    config = XLMRobertaConfig(vocab_size=size, max_position_embeddings=32, pad_token_id=0, type_vocab_size=1, **sizes)
    XLMRobertaForMaskedLM(config).save_pretrained(tmp_path / "xlm")
    files |= {path.name: path.read_bytes() for path in (tmp_path / "xlm").iterdir()}
    write_lines(tmp_path / "texts.jsonl", [{"text": "我", "label": label} for label in "xy"])
    given = ["finetune", "classify", "init=someone/small", "task.train=texts.jsonl", "finetune.epochs=1"]
    line = reread(hub, tmp_path, *given, status=2).splitlines()[-1]
    made = "`reread convert --model` makes longformer or roberta of it; choose by model.type=TYPE"
    assert line == f"reread: init: someone/small is a model of type xlm-roberta; {made}"
    output = reread(hub, tmp_path, *given, "model.type=longformer", "start.convert.length=64", "train.peak_tflops=1")
    assert "starting from the weights in models/someone--small-longformer-64;" in output


@pytest.mark.long
def test_the_command_asks_the_hub_of_its_environment_and_not_if_that_forbids_it(hub: Hub, tmp_path: Path) -> None:
    """In a process of its own, where HF_HUB_OFFLINE is read before Hugging Face's libraries are imported."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_ENDPOINT": hub.address, "HF_HOME": str(tmp_path / "hf")}
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_TOKEN", "HF_HUB_CACHE"):
        environment.pop(name, None)
    command = [sys.executable, "-m", "reread", "convert", "someone/small", "out"]
    for offline, status in (("1", 2), ("0", 0)):
        variables = {**environment, "HF_HUB_OFFLINE": offline}
        done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, check=False)
        assert done.returncode == status, done.stderr
        assert bool(hub.asked) == (offline == "0")
    lines = done.stderr.splitlines()
    assert lines[0].startswith("someone/small: no such path here, so it is fetched from the Hub: ")
    assert lines[-1].startswith("converted ") and not [one for one in lines if "Warning" in one], lines
    assert (tmp_path / "out" / "model.safetensors").exists()
