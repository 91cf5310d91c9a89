"""The table of peers; `make peers` measures, no test does."""

import ast
import json
import re
import sys
from pathlib import Path

import pytest

from benchmarks.peers import environments, run, table
from benchmarks.peers.cases import CASES
from benchmarks.peers.ours import train_settings
from benchmarks.trainer_steps import TrainerSteps
from tests.conftest import ROOT
from tests.corpora import make_corpus

PEERS = ROOT / "benchmarks" / "peers"
RESULTS = json.loads(table.RESULTS.read_text(encoding="utf-8"))


def test_the_page_is_what_the_results_give() -> None:
    assert table.PAGE.read_text(encoding="utf-8") == table.page(RESULTS)


def test_every_case_has_results_or_a_reason_and_says_why_it_is_behind() -> None:
    assert set(RESULTS["cases"]) == {case.name for case in CASES}
    for case in CASES:
        result = RESULTS["cases"][case.name]
        if "not run" not in result:
            assert len(result["ours"]) == len(result["theirs"]) == RESULTS["rounds"] >= 3
            assert set(table.behind_in(case, result)) <= set(case.why), case.name


def test_every_side_exists_and_every_requirement_is_pinned() -> None:
    functions = {
        (path.stem, node.name)
        for path in PEERS.glob("*.py")
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef)
    }
    assert {side for case in CASES for side in (case.ours, case.theirs, case.writer) if side} <= functions
    files = {path.stem: path.read_text() for path in environments.REQUIREMENTS.glob("*.txt")}
    assert set(files) == {case.environment for case in CASES}
    assert all(re.fullmatch(r"[\w,.\[\]-]+==[\w.]+", line) for text in files.values() for line in text.splitlines())


def test_a_peer_that_fails_is_named_with_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES[0]
    monkeypatch.setattr(run, "python_of", lambda *_: Path(sys.executable))
    fails = tmp_path / "fails.py"
    fails.write_text("raise ValueError('no kernel | image')")
    monkeypatch.setattr(run.side, "__file__", str(fails))
    found = run.run_case(case, tmp_path, tmp_path, 3)
    assert found == {"not run": "bert: ValueError: no kernel / image"}
    results = {**RESULTS, "cases": {**RESULTS["cases"], case.name: found}}
    assert f"| {case.peer} | {case.job} | not run | bert: ValueError: no kernel / image |" in table.short(results)


@pytest.mark.parametrize("model", ["position_type=parametric_absolute", "max_relative_position=64"])
def test_our_side_of_training_takes_a_step(tmp_path: Path, model: str) -> None:
    make_corpus(tmp_path / "corpus", [700] * 8)
    side = TrainerSteps(train_settings(tmp_path, 512, model), tmp_path / "run")
    assert side.figures(1)["loss"] > 0
    side.batches.close()
