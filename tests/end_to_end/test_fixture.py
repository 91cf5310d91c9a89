"""What an earlier version left on disk is opened, continued and predicted from (tests/fixtures/README.md)."""

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reread.pipeline.recipe.load import recipe_of
from reread.training.data.kinds import open_dataset
from reread.training.run.metrics import read_metrics
from tests.conftest import ROOT
from tests.forks import Job
from tests.runs import finish

FIRST = ROOT / "tests" / "fixtures" / "first"
EXPECTED: dict[str, Any] = json.loads((FIRST / "expected.json").read_text(encoding="utf-8"))


@pytest.fixture
def first(tmp_path: Path) -> Path:
    return shutil.copytree(FIRST, tmp_path / "first")


def reread(folder: Path, *arguments: str) -> str:
    return finish(Job(folder, *arguments, processes=1))


def test_its_corpus_gives_the_same_rows(first: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(first)
    train = recipe_of(Path("runs/small")).train
    assert train is not None
    data = open_dataset(train.data, train.seed, "train")
    for position, expected in EXPECTED["rows"].items():
        digest = hashlib.md5()
        rows = data.rows(np.arange(int(position), int(position) + 8))
        for name in sorted(rows):
            digest.update(np.ascontiguousarray(rows[name], np.int32).tobytes())
        assert digest.hexdigest() == expected


def test_its_run_goes_on_by_the_same_command(first: Path) -> None:
    before = len(read_metrics(first / "runs" / "small"))
    reread(first, "train", "small.yaml")
    lines = read_metrics(first / "runs" / "small")
    assert len(lines) > before and lines[-1]["step"] == 300
    found = {str(line["step"]): line["loss"] for line in lines if "loss" in line}
    assert {step: found[step] for step in EXPECTED["losses"]} == pytest.approx(EXPECTED["losses"], rel=1e-4)


def test_its_run_is_evaluated_exported_and_reported(first: Path) -> None:
    figures = dict(line.split() for line in reread(first, "evaluate", "small").splitlines() if len(line.split()) == 2)
    expected = EXPECTED["evaluation"]
    assert {name: float(figures[name]) for name in expected} == pytest.approx(expected, abs=2e-4)
    reread(first, "export", "small")
    assert (first / "runs" / "small" / "export" / "model.safetensors").exists()
    reread(first, "report", "small", "opinion")


@pytest.mark.parametrize("model", ["opinion", "opinion-export"])
def test_its_fine_tuned_model_predicts_the_same(first: Path, model: str) -> None:
    reread(first, "predict", model, "texts.tsv", "--out", "found.jsonl")
    found = [json.loads(line) for line in (first / "found.jsonl").read_text(encoding="utf-8").splitlines()]
    for one, expected in zip(found, EXPECTED["predictions"], strict=True):
        assert one["probabilities"] == pytest.approx(expected["probabilities"], abs=1e-5)
        assert {**one, "probabilities": 0} == {**expected, "probabilities": 0}
