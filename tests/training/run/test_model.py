"""To resume, evaluate or export a run, its folder and the text to read are enough."""

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from transformers import AutoTokenizer

from reread.preprocessing.errors import UserError
from reread.training.checkpoint.store import CheckpointStore
from reread.training.config import TrainSettings
from reread.training.data.kinds import open_dataset
from reread.training.evaluation import evaluate_run
from reread.training.exchange.run_export import export_run
from reread.training.parallel.mesh import Mesh
from reread.training.run.model import new_run_model, read_run_model, write_run_model
from reread.training.trainer import train
from tests.conftest import document_values, longformer_values, stream_values, thinned, train_values

KINDS: dict[str, Callable[..., dict[str, Any]]] = {
    "rows": train_values,
    "packed": longformer_values,
    "segments": document_values,
    "stream": stream_values,
}
EXAMPLES = ["a [MASK]"]


@pytest.fixture(scope="module", params=["segments"])
def begun(request: pytest.FixtureRequest, sample_corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `corpus`, `init` and a `run` of four steps from `init`, with checkpoints of steps 2 and 4."""
    folder = tmp_path_factory.mktemp(request.param)
    shutil.copytree(sample_corpus, folder / "corpus")
    values = KINDS[request.param](folder / "corpus", steps=0, validate_every=100)
    first = TrainSettings.parse(values, "test")
    (folder / "first").mkdir()
    train(first, folder / "first")
    export_run(folder / "first", folder / "init", first, [])
    values |= {"steps": 4, "init": str(folder / "init"), "seed": 5, "checkpoint": {"every_steps": 2, "keep": 2}}
    (folder / "values.yaml").write_text(yaml.safe_dump(values))
    (folder / "run").mkdir()
    train(settings_of(folder), folder / "run")
    return folder


def settings_of(folder: Path) -> TrainSettings:
    return TrainSettings.parse(yaml.safe_load((folder / "values.yaml").read_text()), "test")


def copied(begun: Path, tmp_path: Path, *removed: str) -> Path:
    """A copy of the run; `removed` are moved away for the rest of the test."""
    shutil.copytree(begun / "run", tmp_path / "run")
    for name in removed:
        (begun / name).rename(tmp_path / name)
    return tmp_path / "run"


@pytest.fixture(autouse=True)
def put_back(begun: Path, tmp_path: Path) -> Any:
    yield
    for name in ("corpus", "init"):
        if not (begun / name).exists():
            (tmp_path / name).rename(begun / name)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def final_weights(run: Path) -> dict[str, torch.Tensor]:
    return CheckpointStore(run / "checkpoints", 2, Mesh()).read_full(4)


@pytest.mark.slow
@pytest.mark.parametrize("begun", thinned(KINDS, 2), indirect=True)
def test_an_export_needs_the_run_folder_alone(begun: Path, tmp_path: Path) -> None:
    """The folder is the same byte for byte without corpus and `init`."""
    settings = settings_of(begun)
    export_run(begun / "run", tmp_path / "before", settings, EXAMPLES)
    run = copied(begun, tmp_path, "corpus", "init")
    export_run(run, tmp_path / "alone", settings, EXAMPLES)
    expected = contents(tmp_path / "before")
    assert {"config.json", "model.safetensors", "README.md", "tokenizer.json"} <= expected.keys()
    assert b"dropped" in expected["README.md"]
    assert contents(tmp_path / "alone") == expected


@pytest.mark.parametrize("begun", thinned(KINDS, 2), indirect=True)
def test_resume_needs_no_init(begun: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """An `init` that exists is not read either: the checkpoint holds every weight, bit for bit."""
    run = copied(begun, tmp_path, "init")
    shutil.rmtree(run / "checkpoints" / "step-00000004")
    with caplog.at_level("INFO", "reread"):
        train(settings_of(begun), run)
    assert "continuing from the checkpoint of step 2" in caplog.text
    assert "starting from the weights" not in caplog.text
    found, expected = final_weights(run), final_weights(begun / "run")
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


def test_a_run_without_its_model_gets_it_when_it_is_resumed(begun: Path, tmp_path: Path) -> None:
    run = copied(begun, tmp_path)
    shutil.rmtree(run / "model")
    (run / "corpus.json").unlink()
    train(settings_of(begun), run)
    for name in ("model", "corpus.json"):
        assert contents(run / name) == contents(begun / "run" / name)


def test_the_model_is_there_before_the_first_step(begun: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is complete, config and tokenizer; one of a run that never saved is replaced."""
    settings = settings_of(begun)
    (tmp_path / "new" / "model").mkdir(parents=True)
    (tmp_path / "new" / "model" / "stale.txt").touch()
    monkeypatch.setattr(
        "reread.training.trainer.Trainer._train_step", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt)
    )
    with pytest.raises(KeyboardInterrupt):
        train(settings, tmp_path / "new")
    assert not (tmp_path / "new" / "checkpoints").exists()
    assert contents(tmp_path / "new" / "model") == contents(begun / "run" / "model")
    config = json.loads((tmp_path / "new" / "model" / "config.json").read_text())
    assert config["segment_length"] == 48
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "new" / "model")
    assert tokenizer.mask_token == "[MASK]"


def test_a_run_is_evaluated_on_text_that_has_moved(begun: Path, tmp_path: Path) -> None:
    settings = settings_of(begun)
    before = evaluate_run(begun / "run", settings)
    run = copied(begun, tmp_path, "corpus", "init")
    data = settings.data.model_copy(update={"corpus": tmp_path / "corpus"})
    assert evaluate_run(run, settings.model_copy(update={"data": data})) == pytest.approx(before, nan_ok=True)


def test_a_run_without_its_model_is_one_line_with_the_way_out(begun: Path, tmp_path: Path) -> None:
    run = copied(begun, tmp_path)
    shutil.rmtree(run / "model")
    with pytest.raises(UserError, match=rf"{run}/model: not there; `reread train` writes it again from .*corpus"):
        evaluate_run(run, settings_of(begun))


def test_a_damaged_model_of_a_run_is_one_line_with_the_way_out(begun: Path, tmp_path: Path) -> None:
    run = copied(begun, tmp_path)
    for damaged in (run / "model" / "config.json", run / "corpus.json"):
        damaged.write_bytes(damaged.read_bytes()[:-5])
        with pytest.raises(UserError, match=rf"{damaged}: not readable as JSON .* remove {run}/model, and `reread"):
            read_run_model(run, settings_of(begun))
        shutil.rmtree(run / "model")
        train(settings_of(begun), run)  # the way out
        assert contents(run / "model") == contents(begun / "run" / "model")


def test_on_a_full_disk_the_model_is_not_half_written(begun: Path, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=32k", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small disk needs root")
    try:
        settings = settings_of(begun)
        model = new_run_model(settings, open_dataset(settings.data, settings.seed, "train"))
        with pytest.raises(UserError, match=rf"{disk}/model: cannot be written \(No space left on device\); make room"):
            write_run_model(disk, model)
        assert not (disk / "model").exists()
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


def test_a_pooler_that_nothing_has_trained_is_named(sample_corpus, tmp_path, caplog) -> None:
    """At the export, in its card and where a run starts from it, until a run trains it; a continued run keeps it so."""
    without = {"next_sentence": False}

    def export(name: str, data: dict[str, Any], **changes: Any) -> str:
        values = train_values(sample_corpus, validate_every=100, **{"steps": 1, **changes})
        values["data"] |= data
        (tmp_path / name).mkdir()
        settings = TrainSettings.parse(values, "test")
        caplog.clear()
        with caplog.at_level("INFO", "reread"):
            train(settings, tmp_path / name)
            export_run(tmp_path / name, tmp_path / name / "export", settings, [])
        return caplog.text

    said = "nothing has trained the pooler"
    used = r"random there, since nothing has trained it: \S+\.pooler\.dense\.bias, "
    start = {"init": str(tmp_path / "without" / "export")}
    assert said in export("without", without)
    assert "Nothing has trained its pooler" in (tmp_path / "without" / "export" / "README.md").read_text()
    again = export("again", without, **start)
    assert said in again and re.search(used, again)
    assert said in export("continued", without, from_run=str(tmp_path / "without"), steps=2)
    learned = export("learned", {}, **start)
    assert said not in learned and re.search(used, learned)
    assert "Nothing has trained" not in (tmp_path / "learned" / "export" / "README.md").read_text()
    kept = export("kept", without, init=str(tmp_path / "learned" / "export"))
    assert said not in kept and not re.search(used, kept)
