"""Commands in this process: mistakes that are refused before any work, and what runs no command of a recipe."""

import logging
import sys
from pathlib import Path
from typing import Any

import pytest

from reread.pipeline.cli import _status_of_command
from reread.pipeline.commands.ablate import with_perplexity
from reread.pipeline.recipe.continuation import training_recipe
from reread.pipeline.recipe.load import load_recipe, write_recipe
from reread.pipeline.recipe.shell import commands_line
from reread.pipeline.run_folder import train as train_module
from reread.pipeline.run_folder.folder import open_run_folder
from reread.training.run.metrics import quality

COMMANDS = {
    "run": ["run", "quickstart"],
    "dry-run": ["run", "quickstart", "--slurm", "--dry-run"],
    "slurm": ["run", "quickstart", "--slurm"],
    "train": ["train", "quickstart"],
    "ablate": ["ablate", "nezha-small"],
    "plan": ["plan", "quickstart"],
}


def refusal(arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """The one line of a command that is refused."""
    monkeypatch.setattr(sys, "argv", ["reread", *arguments])
    monkeypatch.setattr(train_module, "stop_at_once", lambda: None)  # its signal handlers outlive the test
    assert _status_of_command(False) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


@pytest.mark.parametrize("command", COMMANDS)
def test_a_wrong_model_is_refused_before_any_work(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    line = refusal([*COMMANDS[command], "train.model.hiden_size=64"], monkeypatch, capsys)
    expected = "unknown key `hiden_size` for nezha; did you mean `train.model.hidden_size`?"
    assert line == f"reread: train.model: {expected}"
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("command", ["run", "dry-run", "slurm", "train"])
def test_a_missing_init_is_refused_before_any_work(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    line = refusal([*COMMANDS[command], "train.init=nowhere"], monkeypatch, capsys)
    expected = (
        "nowhere holds no config.json; make the folder with `reread convert`; a model of the Hub is given as OWNER"
    )
    assert line == f"reread: train.init: {expected}/NAME"
    assert not any(tmp_path.iterdir())


def test_a_run_as_init_is_to_be_exported_or_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "one").mkdir(parents=True)
    write_recipe(load_recipe("quickstart", []), tmp_path / "runs" / "one" / "recipe.yaml")
    line = refusal(["train", "quickstart", "init=runs/one", "name=two"], monkeypatch, capsys)
    expected = "export it (`reread export runs/one`) and give its export, init=runs/one/export, or continue it by from="
    assert line == f"reread: train.init: runs/one is a run; {expected}runs/one"


@pytest.mark.parametrize("command", [["run"], ["run", "--slurm", "--dry-run"], ["train"], ["ablate"]])
def test_a_start_with_a_wrong_model_is_refused_before_any_work(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    override = "start.overrides=[model.hiden_size=64]"
    line = refusal([*command, "longformer-small", override], monkeypatch, capsys)
    assert "unknown key `hiden_size`" in line
    assert not any(tmp_path.iterdir())


def test_a_pretraining_run_predicts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_recipe(load_recipe("quickstart", []), tmp_path / "recipe.yaml")
    line = refusal(["predict", str(tmp_path), "new.tsv"], monkeypatch, capsys)
    assert line.endswith("is a pretraining run, which has no head for a task; fine-tune it with `reread finetune`")
    line = refusal(["evaluate", str(tmp_path), "task.dev=new.tsv"], monkeypatch, capsys)
    assert line == "reread: `task.dev=new.tsv`: only fine-tuning has a task, and this pretrains (data.kind: rows)"


RUNS_A_COMMAND = ["data.corpus='pipe:touch ran; false'", "data.cache={folder: cache, size: 1GB, tries: 1}"]


@pytest.mark.parametrize("address", ["pipe:touch ran; false", "ftps://host/corpus"])
@pytest.mark.parametrize("look", ["inspect", "inspect a recipe", "inspect a run", "plan"])
def test_what_only_looks_runs_no_command_of_a_recipe(
    look: str, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It may be somebody else's; programs of webdataset's are commands, too."""
    monkeypatch.chdir(tmp_path)
    given = [f"train.data.corpus={address}", "train.data.cache={folder: cache, size: 1GB, tries: 1}"]
    write_recipe(load_recipe("nezha-small", given), Path("recipe.yaml"))
    arguments = {
        "inspect": [address, given[1].removeprefix("train.data.")],
        "inspect a recipe": [address, "--recipe", "recipe.yaml"],
        "inspect a run": ["."],
        "plan": ["recipe.yaml", "--gpus", "1"],
    }
    command = [look.partition(" ")[0], *arguments[look]]
    line = refusal(command, monkeypatch, capsys)
    assert line == (
        f"reread: {address}: opening it runs a command on this machine, which may be anything in a recipe of somebody "
        "else; read it, and give --allow-pipe to run it"
    )
    assert not Path("ran").exists()
    if address.startswith("pipe"):
        monkeypatch.setattr(sys, "argv", ["reread", *command, "--allow-pipe"])
        assert _status_of_command(False) == 1 and "/manifest.json: " in capsys.readouterr().err
        assert Path("ran").exists()


@pytest.mark.parametrize("command", ["train", "run"])
def test_the_first_line_of_the_log_names_the_commands_of_a_recipe(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Before any of them runs, and in the file of the run."""
    monkeypatch.chdir(tmp_path)
    wrong = "train.model.hidden_size=7"
    monkeypatch.setattr(sys, "argv", ["reread", command, "nezha-small", *RUNS_A_COMMAND, wrong])
    monkeypatch.setattr(train_module, "stop_at_once", lambda: None)
    with caplog.at_level("INFO", logger="reread"):
        assert _status_of_command(False) == 2
    line = "recipe nezha-small: a recipe can run commands on this machine; this one runs pipe:touch ran; false"
    assert caplog.messages[0] == line and not Path("ran").exists()
    recipe = load_recipe("nezha-small", RUNS_A_COMMAND, "train")
    with open_run_folder(recipe, Path("run"), commands_line(recipe)):
        logging.getLogger("reread").warning("next")
    assert [one[24:] for one in Path("run/logs/rank-0.log").read_text().splitlines()] == [line, "next"]
    jobs = load_recipe("nezha-small", ["slurm.setup=[touch ran]"], "train")
    assert commands_line(jobs).endswith("this one runs touch ran")


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a run that has not begun to learn, below the working folder."""
    monkeypatch.chdir(tmp_path)
    run = Path("runs/mine")
    run.mkdir(parents=True)
    write_recipe(load_recipe("quickstart", ["name=mine", "train.steps=77"]), run / "recipe.yaml")
    return run


@pytest.mark.parametrize("name", ["mine", "runs/mine"])
def test_a_command_takes_the_name_of_a_run_or_its_folder(
    name: str, mine: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given: list[Any] = []
    for command in ("evaluate", "export", "predict", "inspect"):
        monkeypatch.setattr(f"reread.pipeline.commands.{command}.{command}", lambda run, *_, **__: given.append(run))
    monkeypatch.setattr("reread.pipeline.report.page.write_report", lambda runs, _: given.extend(runs) or ([], []))
    for arguments in (["evaluate"], ["export"], ["predict", "new.tsv"], ["inspect"], ["report"]):
        monkeypatch.setattr(sys, "argv", ["reread", arguments[0], name, *arguments[1:]])
        assert _status_of_command(False) == 0
    assert given == [mine, mine, mine, str(mine), mine]
    assert training_recipe(f"from={name}@3", ["name=two", "train.steps=99"]).train.from_run == "runs/mine@3"  # type: ignore[union-attr]
    assert load_recipe(name, ["train.seed=5"], "train").train.steps == 77  # type: ignore[union-attr]
    line = refusal(["finetune", "nezha-xnli", f"init={name}", "task.train=a.tsv"], monkeypatch, capsys)
    assert line.startswith("reread: init: runs/mine holds no config.json")
    monkeypatch.setattr(sys, "argv", ["reread", "show", name, "train.seed=5"])
    assert _status_of_command(False) == 0
    shown = {" ".join(line.split()) for line in capsys.readouterr().out.splitlines()}
    assert {"name: mine # recipe.yaml", "steps: 77 # recipe.yaml", "seed: 5 # command line"} <= shown


def test_another_folder_of_that_name_goes_before_the_run(
    mine: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("mine").mkdir()
    line = refusal(["evaluate", "mine"], monkeypatch, capsys)
    assert line == "reread: mine/recipe.yaml: not there; give runs/mine, the run"
    line = refusal(["evaluate", "yours"], monkeypatch, capsys)
    assert line == "reread: yours/recipe.yaml: not there; is it a run of `reread train`?"


def test_ablations_of_masked_words_have_their_perplexity() -> None:
    found = with_perplexity({"masked_lm_loss": 2.0, "reorder_loss": 1.0})
    assert quality(found) == ["masked_lm_loss", "reorder_loss", "masked_lm_perplexity"]
    assert found["masked_lm_perplexity"] == pytest.approx(7.389056)
    assert with_perplexity({"perplexity": 9.0}) == {"perplexity": 9.0}
