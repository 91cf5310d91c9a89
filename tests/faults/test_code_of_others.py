"""Python that somebody else put into a model, a corpus or a run is neither run nor handed on, whatever the command."""

import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from transformers import AutoModelForMaskedLM, AutoTokenizer

from reread.pipeline.cli import _status_of_command
from reread.pipeline.run_folder import train as train_module
from reread.preprocessing.corpus import Manifest
from reread.preprocessing.errors import UserError
from reread.training.config import TrainSettings
from reread.training.models import nezha
from reread.training.run.model import read_run_model
from tests.conftest import train_values
from tests.tasks import write_lines

BOMB = "open('exploded', 'w')\nclass Evil: pass\n"
CODE = ("evil.py", "modeling_nezha.py", "configuration_nezha.py", "custom_generate/generate.py")
"""A file that `auto_map` names, those that an export has itself, and one that transformers 4.53 ran without asking."""
ASKS = {
    "config.json": {
        "auto_map": {"AutoTokenizer": ["evil.Evil", "evil.Evil"]}
        | {f"Auto{name}": "evil.Evil" for name in ("Config", "Model", "ModelForMaskedLM", "ModelForPreTraining")},
        "custom_pipelines": {"fill-mask": {"impl": "evil.Evil"}},
    },
    "tokenizer_config.json": {"auto_map": {"AutoTokenizer": ["evil.Evil", "evil.Evil"]}},
}
EXAMPLE = "The ferry crosses the [MASK] every morning."


@pytest.fixture(autouse=True)
def nothing_explodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(train_module, "stop_at_once", lambda: None)  # its signal handlers outlive the test
    yield
    assert not Path("exploded").exists()


def plant(folder: Path) -> Path:
    """Put code into a folder, and ask for it wherever transformers would look."""
    for name in CODE:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(BOMB)
    for name, values in ASKS.items():
        if (path := folder / name).exists():
            path.write_text(json.dumps(json.loads(path.read_text()) | values))
    return folder


def assert_clean(folder: Path) -> None:
    """No code but ours lies in the folder, and none is named."""
    ours = Path(nezha.__file__).parent
    for path in (path for path in folder.rglob("*") if path.is_file()):
        assert "exploded" not in (text := path.read_bytes().decode("utf-8", "replace")), path
        assert "evil" not in text, path
        assert path.suffix != ".py" or path.name in {file.name for file in ours.parent.rglob("*.py")}, path


def reread(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> None:
    monkeypatch.setattr(sys, "argv", ["reread", *map(str, arguments)])
    assert _status_of_command(False) == 0


@pytest.fixture
def run(sample_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run of a corpus with code in it."""
    corpus = shutil.copytree(sample_corpus, tmp_path / "corpus")
    manifest = Manifest.read(corpus)
    shutil.rmtree(plant(corpus / "tokenizer") / "custom_generate")  # no corpus has a folder there
    manifest.write(corpus)  # with a valid checksum, as its author would write it
    recipe = {"name": "tiny", "train": train_values(Path("corpus"), steps=1), "examples": [EXAMPLE]}
    Path("tiny.yaml").write_text(yaml.safe_dump(recipe))
    reread(monkeypatch, "train", "tiny.yaml")
    assert_clean(Path("runs/tiny/model"))
    return Path("runs/tiny")


def test_the_report_and_the_export_of_somebodys_run_execute_none_of_its_code(run, monkeypatch) -> None:
    plant(run / "model")
    reread(monkeypatch, "export", run)
    assert_clean(run / "export")
    AutoTokenizer.from_pretrained(run / "export", trust_remote_code=True)
    AutoModelForMaskedLM.from_pretrained(run / "export", trust_remote_code=True)
    plant(run / "export")
    reread(monkeypatch, "report", run)
    assert list(json.loads((run / "fills.json").read_text())["1"]) == [EXAMPLE]
    reread(monkeypatch, "inspect", run)
    reread(monkeypatch, "evaluate", run)


@pytest.mark.slow
def test_fine_tuning_from_somebodys_model_executes_and_keeps_none_of_its_code(run, monkeypatch) -> None:
    reread(monkeypatch, "export", run)
    plant(run / "export")
    lines = [{"text": "The ferry is late." if n % 2 else "The bread is good.", "label": str(n % 2)} for n in range(8)]
    file = write_lines(Path("task.jsonl"), lines)
    task = {"kind": "classify", "train": str(file), "dev": str(file), "sequence_length": 16}
    train = {"global_batch": 4, "micro_batch": 2, "optimizer": {"learning_rate": 0.001}, "peak_tflops": 1.0}
    recipe = {"name": "tuned", "task": task, "finetune": {"epochs": 1}, "train": train}
    Path("tuned.yaml").write_text(yaml.safe_dump(recipe))
    reread(monkeypatch, "finetune", "tuned.yaml", f"init={run / 'export'}")
    tuned = Path("runs/tuned")
    assert_clean(tuned / "model")
    plant(tuned / "model")
    for command in ("report", "evaluate", "inspect", "export"):
        reread(monkeypatch, command, tuned)
    assert_clean(tuned / "export")
    plant(tuned / "export")
    for model in (tuned, tuned / "export"):
        reread(monkeypatch, "predict", model, file, "--out", "predictions.jsonl")


def test_a_run_without_its_model_opens_no_address_for_an_export(run, sample_corpus) -> None:
    """An address may be a command (`pipe:`), and all runs of corpora at an address have RUN/model."""
    shutil.rmtree(run / "model")
    values = train_values(sample_corpus)
    values["data"] |= {"corpus": "pipe:touch exploded; cat corpus/{}", "cache": {"folder": "cache", "size": "1MB"}}
    with pytest.raises(UserError, match=r"runs/tiny/model: not there; `reread train` writes it again"):
        read_run_model(run, TrainSettings.parse(values, "test"))
    assert not os.path.exists("cache")
