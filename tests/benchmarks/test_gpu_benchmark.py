"""`make gpu` at toy sizes on CPU: this runs the code; only a GPU gives figures with a meaning."""

import json
import math
import sys
import time
from pathlib import Path

import pytest

from benchmarks.gpu import measure, run
from benchmarks.gpu.cases import CASES, Case


@pytest.mark.parametrize(
    "case", [case for case in CASES if "compile=true" not in case.overrides], ids=lambda case: case.name
)
def test_each_case_is_measured_on_the_trainers_own_step(case: Case, tmp_path: Path) -> None:
    precision = "fp16" if case.recipe == "nezha-base" else "fp32"
    figures = measure.measure(case, precision, 2, True, tmp_path)
    settings = case.settings(tmp_path / "corpus", precision, 2, True)
    assert (settings.micro_batch, settings.global_batch, settings.precision) == (2, 4, precision)
    assert figures["parameters"] < 10**6 and figures["loss"] == pytest.approx(math.log(500), rel=1)
    assert figures["skipped_steps"] == 0 and all(figures[name] > 0 for name in ("mfu", "seconds_per_step"))
    tokens = figures["tokens_per_second"] * figures["seconds_per_step"]
    assert 2 * case.tokens(True) < tokens < 1.1 * 4 * case.tokens(True), "rows are full"
    assert figures["attention"] == ([] if case.name == "transformers' Longformer 4096" else ["math"])


def test_the_full_sizes_are_the_recipes() -> None:
    widths = {case.name: case.settings(Path("corpus"), "fp16", 8, False).model["hidden_size"] for case in CASES[:2]}
    assert set(widths.values()) == {768}
    longformer = next(case for case in CASES if case.recipe == "longformer-base" and case.theirs)
    config = measure.their_config(longformer.settings(Path("corpus"), "fp16", 8, False), 50265)
    assert (config.attention_window, config.hidden_size, config.num_hidden_layers) == (512, 768, 12)


def test_results_are_kept_as_they_come_and_the_table_has_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One case in a process of its own, whose first try runs out of memory, and one whose process fails."""
    run_case = run.run_case
    fails = tmp_path / "fails.py"
    fails.write_text("raise ValueError('no kernel image')")
    tried = []

    def with_faults(case: Case, precision: str, rows: int, *rest: object) -> run.Figures:
        tried.append((case.name, rows))
        if case.name == "broken":
            monkeypatch.setattr(measure, "__file__", str(fails))
        elif rows == 2:
            return {"error": "torch.OutOfMemoryError: CUDA out of memory"}
        return run_case(case, precision, rows, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(run, "run_case", with_faults)
    monkeypatch.setattr(run, "CASE_SECONDS", 600.0)  # on a machine that does other work
    chosen = [CASES[0], Case("broken", "nezha-base", 128)]
    run.run_all(chosen, True, tmp_path, time.monotonic() + 1000)
    assert tried == [("nezha-base 128", 2), ("nezha-base 128", 1), ("broken", 2)]
    kept = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert [("error" in line, line["micro_batch"]) for line in kept] == [(True, 2), (False, 1), (True, 2)]
    table = (tmp_path / "table.md").read_text()
    assert table in capsys.readouterr().out
    rows = [line for line in table.splitlines() if line.startswith("| ")]
    assert len({line.count(" |") for line in rows}) == 1 and len(rows) == 4
    assert "| nezha-base 128 | fp32 | 2 x 1 | " in table and "| ValueError: no kernel image |" in table
    run.run_all(chosen, True, tmp_path, time.monotonic() + 1)  # the time is nearly up
    assert len(tried) == 3
    assert "Not run, the time was up: nezha-base 128 fp32, broken fp32" in (tmp_path / "table.md").read_text()


def test_without_a_gpu_it_prints_what_it_would_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["run.py", "--out", str(tmp_path / "out")])
    monkeypatch.setattr(run.torch.cuda, "is_available", lambda: False)
    run.main()
    printed = capsys.readouterr().out
    assert all(f"  {case.name}: " in printed for case in CASES)
    assert "torch sees no GPU here" in printed and not (tmp_path / "out").exists()
