"""`import reread`: its names, what importing costs, where it runs, and the commands that it starts."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import reread
from reread.pipeline.library.command import overrides_of, run_command
from reread.pipeline.library.runs import Run
from reread.pipeline.recipe.load import apply_overrides
from reread.preprocessing.corpus import Corpus
from reread.preprocessing.errors import UserError
from reread.training.run.metrics import read_evaluations
from tests.conftest import ROOT, preprocess_values
from tests.forks import Job
from tests.runs import finish


def python(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], check=False, cwd=folder, capture_output=True, text=True)


def test_importing_reread_is_light_and_its_names_are_there(tmp_path: Path) -> None:
    code = (
        "import sys, reread\n"
        "assert not {'torch', 'transformers', 'pyarrow', 'numpy', 'pydantic'} & sys.modules.keys()\n"
        "assert all(name in dir(reread) for name in reread.__all__)\n"
        "reread.UserError, reread.preprocess, reread.open_corpus\n"
        "assert not {'torch', 'transformers'} & sys.modules.keys()\n"
        "try: reread.nothing\n"
        "except AttributeError as error: print(error)\n"
    )
    done = python(code, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "module 'reread' has no attribute 'nothing'\n"


def test_windows_is_refused_in_one_line(tmp_path: Path) -> None:
    code = "import sys, reread; sys.platform = 'win32'\ntry: reread.load\nexcept Exception as error: print(error)\n"
    done = python(code, tmp_path)
    assert "WSL 2" in done.stdout and not done.stderr
    code = (
        "import shutil, sys; sys.platform = 'win32'; sys.argv = ['reread', 'recipes']\n"
        "from reread.__main__ import main\nmain()"
    )
    done = python(code, tmp_path)
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1 and "WSL 2" in done.stderr


@pytest.mark.parametrize(
    "values",
    [
        {
            "steps": 3,
            "optimizer": {"learning_rate": 1e-5, "name": "adam"},
            "data": {"corpus": Path("a b"), "cache": None},
        },
        {"name": "1", "then": [{"recipe": "x: y", "overrides": ["a=[MASK]"]}], "examples": ["今天[MASK]", "a\nb", ""]},
        {"model": {}, "compile": True, "rate": 0.1 + 0.2},
    ],
)
def test_overrides_say_what_the_values_say(values: dict[str, Any]) -> None:
    found: dict[str, Any] = {}
    apply_overrides(found, overrides_of({"train": values}))
    assert found == {"train": {**values, **_as_text(values)}}


def _as_text(values: dict[str, Any]) -> dict[str, Any]:
    """The sections with their paths as text."""
    sections = {name: one for name, one in values.items() if isinstance(one, dict)}
    return {
        name: {key: str(value) if isinstance(value, Path) else value for key, value in one.items()}
        for name, one in sections.items()
    }


def test_a_value_that_no_recipe_can_hold_is_named() -> None:
    with pytest.raises(UserError, match=r"data\.corpus: .* is a object"):
        overrides_of({"data": {"corpus": object()}})


def test_the_error_of_a_command_is_raised_with_its_line(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UserError, match=r"no built-in recipe.*did you mean `nezha-small`"):
        run_command(["show", "nezha-smal"])
    with pytest.raises(UserError, match="did you mean `nezha-small`"):
        reread.train("nezha-smal")
    with pytest.raises(UserError, match=r"unknown key `train\.stepz`"):
        reread.train("nezha-small", stepz=3)
    with pytest.raises(UserError, match="not there"):
        Run("none")


@pytest.mark.slow
def test_a_program_goes_from_text_to_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Preprocessing and the first training are commands that are started; those after them are forked."""
    monkeypatch.chdir(tmp_path)
    values = preprocess_values(tmp_path / "corpus")
    paths = values.pop("input")["paths"]
    output, tokenizer = values.pop("output"), values.pop("tokenizer")
    values["workers"] = 1
    corpus = reread.preprocess(paths, output=output, tokenizer=tokenizer, **values)
    assert isinstance(corpus, Corpus) and corpus.documents > 0
    settings = {
        "name": "mine",
        "data": {"corpus": output, "sequence_length": 32},
        "model": {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32},
        "steps": 2,
        "global_batch": 4,
        "checkpoint": {"every_steps": 1},
        "parallel": {"processes": 1},
    }
    run = reread.train("nezha-small", **settings)
    assert run.folder == Path("runs/mine") and run.metrics[-1]["step"] == 2
    monkeypatch.setattr(
        "reread.pipeline.library.runs.run_command", lambda arguments: finish(Job(tmp_path, *arguments, processes=1))
    )
    figures = run.evaluate()
    (kept,) = read_evaluations(run.folder)
    assert figures == kept["figures"] and figures["loss"] > 0
    again = reread.train("nezha-small", **settings)
    assert again.metrics == run.metrics
    averaged = json.loads((run.export("averaged", average=2) / "config.json").read_text(encoding="utf-8"))
    assert averaged["averaged_steps"] == [1, 2] and run.evaluate(average=[1, 2])["loss"] != figures["loss"]
    with pytest.raises(UserError, match=r"average 3: .*checkpoints holds 2 checkpoints \(1, 2\)"):
        run.export(average=3)
    exported = reread.load(run.export())
    assert exported.fill("今天[MASK]好。") == run.load().fill("今天[MASK]好。")
    tasks = ROOT / "pipeline" / "sample" / "tasks" / "chnsenticorp"
    files = {"train": tasks / "train.tsv", "dev": tasks / "dev.tsv"}
    (tuned,) = reread.finetune("classify", run.folder, task=files, finetune={"epochs": 1}, parallel={"processes": 1})
    assert set(tuned.load().predict("房间很干净。")["probabilities"]) == {"0", "1"}
