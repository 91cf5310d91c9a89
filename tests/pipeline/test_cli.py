"""The command line as a user meets it, in processes of its own."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from reread.pipeline.cli import app
from reread.preprocessing.errors import UserError
from tests.conftest import ROOT

pytestmark = pytest.mark.slow  # an interpreter a test


def reread(*arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "reread", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=environment, check=False)


def test_help_and_preprocessing_of_english_import_neither_torch_nor_dictionaries() -> None:
    code = (
        "import sys, reread.pipeline.cli, reread.pipeline.commands.run, reread.preprocessing.execution.build; "
        "import reread.training.config, reread.training.data.rows.samples, reread.training.data.materialize; "
        "import reread.pipeline.display.rows, reread.pipeline.report.page; "
        "from reread.preprocessing.config import WordSettings; "
        "from reread.preprocessing.text.words import WordSegmenter; "
        "WordSegmenter(WordSettings()).starts('English needs no dictionary'); "
        "heavy = {'torch', 'transformers', 'matplotlib', 'megatron', 'jinja2', 'jieba', 'rjieba'} & "
        "set(sys.modules); assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_a_clone_that_is_not_installed_runs_by_its_path(tmp_path: Path) -> None:
    found = [one for one in sys.path if one and Path(one).is_dir()]
    environment = {"PYTHONPATH": os.pathsep.join([str(ROOT), *found])}
    code = "import reread.preprocessing.errors as ours; print(ours.__file__)"
    # -S: without the finder of an editable installation
    command = [sys.executable, "-S", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, check=False)
    assert done.stdout.strip() == str(ROOT / "preprocessing" / "errors.py"), done.stderr


def test_preprocessing_by_a_recipe_that_trains_needs_no_torch(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("The ferry crosses the lake every morning.\n" * 40)
    overrides = ["input.paths=[a.txt]", "tokenizer.train.size=100", "workers=1", "preprocess.output=corpus"]
    code = (
        f"import sys; from reread.pipeline.cli import app; app({['preprocess', 'quickstart', *overrides]}, "
        "standalone_mode=False); assert not {'torch', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert (tmp_path / "corpus" / "manifest.json").exists()


@pytest.mark.parametrize("command", ["preprocess", "inspect", "train", "run", "export", "convert", "report"])
def test_every_command_explains_itself(command: str) -> None:
    result = CliRunner().invoke(app, [command, "--help"])
    assert result.exit_code == 0
    assert command in result.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "nezha-bse"], "did you mean `nezha-base` or"),
        (["train", "nezha-base", "stepps=3"], "did you mean `train.steps`?"),
        (["inspect", "nowhere"], "is `nowhere` a corpus made by `reread preprocess`?"),
        (["export", "nowhere"], "nowhere/recipe.yaml: not there; is it a run of `reread train`?"),
        (["report", "nowhere"], "is `nowhere` a run folder"),
        (["preprocess", "quickstart", "input.paths=nowhere"], "nowhere"),
        (["preprocess", "quickstart", "--share", "0/2"], "--share needs --stage"),
        (["preprocess", "quickstart", "--stage", "read", "--share", "2/2"], "`2/2` is not a share"),
    ],
)
def test_a_mistake_is_one_line_and_status_2(arguments: list[str], message: str, tmp_path) -> None:
    result = reread(*arguments, cwd=tmp_path)
    assert result.returncode == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_the_launcher_returns_the_status_of_the_process_that_failed(monkeypatch) -> None:
    from reread.pipeline.run_folder import launch as module

    real = subprocess.Popen
    script = "import os, sys, time; rank = int(os.environ['RANK']); time.sleep(30 * (rank == 0)); sys.exit(7)"
    monkeypatch.setattr(module, "DEFAULT_GRACE_SECONDS", 0.0)
    monkeypatch.setattr(module.subprocess, "Popen", lambda command, env: real([sys.executable, "-c", script], env=env))
    assert module.launch([], 2) == 7


def test_the_launcher_returns_the_cause_not_what_followed(monkeypatch) -> None:
    from reread.pipeline.run_folder import launch as module

    real = subprocess.Popen
    script = "import os, sys, time; rank = int(os.environ['RANK']); time.sleep(0.5 * (rank == 0)); sys.exit(2 - rank)"
    monkeypatch.setattr(module.subprocess, "Popen", lambda command, env: real([sys.executable, "-c", script], env=env))
    assert module.launch([], 2) == 2


def test_the_launcher_names_a_killed_process(monkeypatch, capsys) -> None:
    from reread.pipeline.run_folder import launch as module

    real = subprocess.Popen
    script = "import os, time; rank = int(os.environ['RANK']); rank and os.kill(os.getpid(), 9); time.sleep(30)"
    monkeypatch.setattr(module.subprocess, "Popen", lambda command, env: real([sys.executable, "-c", script], env=env))
    assert module.launch([], 2) == 128 + signal.SIGKILL
    assert "process 1 of 2 was killed by SIGKILL" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (
            "train nezha-base --lr 1e-4",
            "`--lr`: no such option; a setting is written KEY=VALUE, without dashes; `t",
        ),
        (
            "train --learning-rate=3 nezha-base",
            "`--learning-rate=3`: no such option; a setting is written KEY=VAL",
        ),
        ("finetune classify --num_train_epochs 3", "without dashes; `finetune.epochs` is what you mean (pretraining"),
        (
            "run nezha-base --steps 5",
            "`--steps`: no such option; a setting is written KEY=VALUE, without dashes: s",
        ),
        ("run nezha-base --slrum", "`--slrum`: no such option; did you mean `--slurm`?"),
        ("export nowhere --pusch o/n", "`--pusch`: no such option; did you mean `--push`?"),
    ],
)
def test_a_setting_that_is_typed_as_an_option_is_answered(arguments: str, line: str, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, arguments.split())
    assert isinstance(result.exception, UserError) and line in str(result.exception)
    assert "\n" not in str(result.exception)


def test_options_of_a_command_and_the_short_help_still_work() -> None:
    assert CliRunner().invoke(app, ["plan", "-h"]).exit_code == 0
    result = CliRunner().invoke(app, ["plan", "nezha-base", "--gpus", "none"])
    assert result.exit_code == 2 and "--gpus" in result.output
