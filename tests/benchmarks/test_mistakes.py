"""A mistake on the command line of a benchmark is one line, as one on `reread`'s."""

import sys
from pathlib import Path
from types import ModuleType

import pytest

from benchmarks.claims import run as claims
from benchmarks.data import loader, padding
from tests.conftest import ROOT


@pytest.mark.parametrize(
    ("benchmark", "arguments", "line"),
    [
        (claims, ["--text", "nowhere.txt"], "nowhere.txt: No such file or directory; check the path"),
        (loader, ["nowhere"], "nowhere/manifest.json: not there; is `nowhere` a corpus made by `reread preprocess`?"),
        (padding, ["nowhere"], "nowhere/manifest.json: not there; is `nowhere` a corpus made by `reread preprocess`?"),
    ],
)
def test_what_is_not_there_is_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    benchmark: ModuleType,
    arguments: list[str],
    line: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["benchmark", *arguments])
    with pytest.raises(SystemExit) as ended:
        benchmark.main()
    assert ended.value.code == 2
    assert capfd.readouterr().err == f"reread: {line}\n"


def test_all_benchmarks_do_so() -> None:
    mains = {path: path.read_text().count("def main(") for path in (ROOT / "benchmarks").glob("*/*.py")}
    for started_by_run in ("peers/side.py", "gpu/measure.py"):  # for its log, tracebacks included
        del mains[ROOT / "benchmarks" / started_by_run]
    assert sum(mains.values()) > 20
    for path, count in mains.items():
        assert path.read_text().count("@one_line()\ndef main(") == count, path
