"""`make gpu` at toy sizes on CPU: this runs the code; only a GPU gives figures with a meaning."""

import json
import math
import sys
import time
from pathlib import Path

import pytest
import torch

from benchmarks.gpu import measure, models, run
from benchmarks.gpu.cases import CASES, Case
from benchmarks.gpu.models import (
    BERT_512,
    LONGFORMER,
    NEZHA_512,
    OURS,
    THEIR_LONGFORMER,
    VOCABULARIES,
    Model,
    steps,
)
from benchmarks.gpu.profiles import BACKWARD, idle
from benchmarks.gpu.sides import Comparison, Figures, LeftOutError, Place, compare
from benchmarks.gpu.table import tables
from benchmarks.gpu.without import KERNELS, without
from benchmarks.harness import matching
from reread.preprocessing.errors import UserError
from reread.training.assembly import Assembly, resolve
from reread.training.kernels.layers import LAYERS
from reread.training.models import model_spec
from reread.training.models.build import model_config
from reread.training.optim.flat import STEPS
from reread.training.parallel.mesh import Mesh
from tests.conftest import extra

CPU = torch.device("cpu")


def lines(case: Case, folder: Path, **place: object) -> list[Figures]:
    given = {"precision": "fp32", "tokens": 64, "toy": True, **place}
    return [*measure.measure(case, Place(folder, CPU, **given), time.monotonic() + 600)]  # type: ignore[arg-type]


@pytest.mark.parametrize("model", [*OURS, BERT_512, THEIR_LONGFORMER], ids=lambda model: model.name)
def test_each_model_is_measured_on_the_trainers_own_step(model: Model, tmp_path: Path) -> None:
    precision = "fp16" if model.recipe == "nezha-base" else "fp32"
    (figures,) = lines(Case("one", steps(model)), tmp_path, precision=precision)
    settings = model.settings(tmp_path, precision, 2, True)
    assert (settings.micro_batch, settings.global_batch, settings.precision) == (2, 4, precision)
    assert figures["parameters"] < 10**6 and figures["loss"] == pytest.approx(math.log(500), rel=1)
    assert figures["skipped_steps"] == 0 and all(figures[name] > 0 for name in ("mfu", "ms")) and figures["times"] == 1
    tokens = figures["tokens_per_second"] * figures["ms"] / 1000
    assert 2 * model.tokens(True) < tokens < 1.1 * 4 * model.tokens(True), "rows are full"
    assert figures["attention"] == ([] if model is THEIR_LONGFORMER else ["math"])


OPERATIONS = [case for case in CASES if not case.comparisons.__qualname__.startswith("steps")]
LEFT_OUT = {"addmm", "graph", "compiled"}
"""Sides that need a GPU."""


@pytest.mark.parametrize("case", OPERATIONS, ids=lambda case: case.name)
def test_each_operation_is_measured(case: Case, tmp_path: Path) -> None:
    """Our kernels by Triton's interpreter, and what they compute is what the plain form does."""
    extra("kernels", "triton")
    found = lines(case, tmp_path)
    assert {one["side"] for one in found if "error" in one} <= LEFT_OUT
    assert all(one["error"].startswith("left out: ") for one in found if "error" in one)
    done = [one for one in found if "error" not in one]
    assert done and all(one["ms"] > 0 and one["times"] > 0 for one in done)
    assert case.name == "graphs" or all(one["bytes"] > 0 for one in done)
    compared = [one["difference"] for one in done if "difference" in one]
    assert all(one < 1e-3 for one in compared) and len(compared) == {"own kernels": 9, "update": 1}.get(case.name, 0)


def test_the_full_sizes_are_the_recipes() -> None:
    for one in OURS:
        values = one.settings(Path("corpus"), "fp16", 8, False).model
        config = model_config(model_spec(values["type"]), values, VOCABULARIES[one.recipe], None)
        assert (config.hidden_size, config.num_hidden_layers) == (768, 2 if one is models.RAN else 12), one.name
    config = models.their_config(LONGFORMER.settings(Path("corpus"), "fp16", 8, False), 50265)
    assert (config.attention_window, config.hidden_size, config.num_hidden_layers) == (512, 768, 12)
    assert (NEZHA_512.rows(16384, False), LONGFORMER.rows(16384, False)) == (32, 4)


def test_whole_steps_stand_beside_bert_and_what_decides_most_comes_first() -> None:
    place = Place(Path(), CPU, "fp32", 64, True)
    whole = [case for case in CASES if case not in OPERATIONS]
    for case in whole:
        (comparison,) = case.comparisons(place)
        assert next(iter(comparison.sides)).startswith("BERT-base"), case.name
    assert [case.name for case in CASES[:4]] == ["steps 512", "steps 128", "large steps 512", "large steps 128"]
    assert len({case.name for case in CASES}) == len(CASES)


class Pretended:
    """A side whose turns take what it is told."""

    def __init__(self, *milliseconds: float, result: float = 1.0) -> None:
        self.left, self.result, self.is_open = list(milliseconds), result, True

    def turn(self) -> Figures:
        return {"ms": self.left.pop(0)}

    def about(self) -> Figures:
        return {"bytes": 7}

    def results(self) -> list[torch.Tensor]:
        return [torch.tensor([self.result, 0.5])]

    def close(self) -> None:
        self.is_open = False


def test_sides_take_turns_and_the_median_counts(tmp_path: Path) -> None:
    """Three turns warm up; ten count, or three if the time is up."""
    plain = Pretended(*[1000] * 3, *[4.0] * 6, *[90] * 4)
    ours = Pretended(*[1000] * 3, *[2.0] * 10, result=1.1)

    def fails(place: Place) -> Pretended:
        raise LeftOutError("no such kernel")

    sides = {"plain": lambda place: plain, "none": fails, "ours": lambda place: ours}
    place = Place(tmp_path, CPU, "fp32", 64)
    found = {one["side"]: one for one in compare(Comparison("a", sides), place, time.monotonic() + 100)}  # type: ignore[arg-type]
    assert found["none"] == {"comparison": "a", "side": "none", "error": "left out: no such kernel"}
    assert (found["plain"]["ms"], found["plain"]["times"], found["plain"]["bytes"]) == (4, 1, 7)
    assert (found["ours"]["ms"], found["ours"]["times"], found["ours"]["turns"]) == (2, 2, 10)
    assert found["ours"]["difference"] == pytest.approx(0.1) and "difference" not in found["plain"]
    assert not plain.is_open and not ours.is_open
    late = {"plain": lambda place: Pretended(*[1.0] * 6)}
    (figures,) = compare(Comparison("a", late), place, time.monotonic() - 1)  # type: ignore[arg-type]
    assert figures["turns"] == 3 and "bytes" not in figures


def installed(model: Model) -> set[str]:
    """The kernels by which a small one of this model would compute on a GPU."""
    settings = model.settings(Path("corpus"), "fp16", 2, True)
    special = {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4}
    assembly = Assembly(resolve(settings, 500, None, special), Mesh(device=torch.device("meta")), torch.float16)
    layers = {type(layer) for layer in assembly.model.modules() if {"forward", *FUNCTIONS} & vars(layer).keys()}
    found = {name for name, (table, rows) in KERNELS.items() if table is LAYERS and layers & set(rows)}
    return found | ({"update"} if assembly._by_kernels else set())


FUNCTIONS = {name for layer in LAYERS.values() for name in layer.functions}


@pytest.mark.parametrize(
    ("model", "kernels"),
    [
        (NEZHA_512, {"update", "residual", "gelu", "rotation"}),
        (models.ERNIE_DOC, {"update", "residual", "gelu", "shift"}),
        (models.RAN, {"update", "ran"}),
    ],
    ids=lambda one: getattr(one, "name", None),
)
def test_each_kernel_can_be_left_out(model: Model, kernels: set[str]) -> None:
    before = {**LAYERS}, {**STEPS}
    assert installed(model) == kernels
    for name in kernels:
        with without([name]):
            assert installed(model) == kernels - {name}
    with without(["all"]):
        assert installed(model) == set()
    assert before == ({**LAYERS}, {**STEPS})


def test_without_adds_a_side_to_each_model_of_ours() -> None:
    place = Place(Path(), CPU, "fp32", 64, True, ("gelu", "update"))
    (comparison,) = steps(BERT_512, NEZHA_512)(place)
    assert [*comparison.sides] == ["BERT-base 512", "nezha-base 512", "nezha-base 512, without gelu, update"]


def test_idle_time_is_that_before_a_kernel_by_the_phase_that_launched_it() -> None:
    """Two backward passes, 10 to 20 and 40 to 50; kernels run later than they are launched."""

    def kernel(launched: float, begin: float, end: float, number: int) -> list[dict[str, object]]:
        of = {"ph": "X", "args": {"correlation": number}}
        launch = {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": launched, "dur": 1}
        return [of | launch, of | {"cat": "kernel", "name": "k", "ts": begin, "dur": end - begin}]

    passes = [
        {"ph": "X", "cat": "user_annotation", "name": BACKWARD, "ts": begin, "dur": 10, "args": {}}
        for begin in (10, 40)
    ]
    events = [
        *passes,
        *kernel(1, 5, 12, 1),  # the first: nothing before it counts
        *kernel(3, 13, 15, 2),  # forward, 1
        *kernel(15, 19, 25, 3),  # backward, 4, though it runs on after the pass
        *kernel(30, 31, 60, 4),  # forward of the second, 6
        *kernel(45, 40, 58, 5),  # beside another
        *kernel(55, 70, 80, 6),  # update, 10
    ]
    found = {phase: 1000 * time for phase, time in idle(events).items()}
    assert found == pytest.approx({"forward": 1 + 6, "backward": 4, "update": 10})


@pytest.mark.long
def test_results_are_kept_as_they_come_and_the_table_has_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One case in a process of its own, whose first try runs out of memory, and one whose process fails."""
    run_case = run.run_case
    fails = tmp_path / "fails.py"
    fails.write_text("raise ValueError('no kernel image')")
    tried = []

    def with_faults(case: Case, tokens: int, *rest: object) -> tuple[list[Figures], str | None]:
        tried.append((case.name, tokens))
        if case.name == "broken":
            monkeypatch.setattr(measure, "__file__", str(fails))
        elif tokens == run.TOKENS:
            return [], "torch.OutOfMemoryError: CUDA out of memory"
        return run_case(case, tokens, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(run, "run_case", with_faults)
    chosen = [Case("steps 512", CASES[0].comparisons, 600.0), Case("broken", CASES[0].comparisons, 600.0)]
    run.run_all(chosen, tmp_path, time.monotonic() + 1000, toy=True)
    assert tried == [("steps 512", run.TOKENS), ("steps 512", run.TOKENS // 2), ("broken", run.TOKENS)]
    kept = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert "torch" in kept[0]["machine"] and ["error" in line for line in kept[1:]] == [True, False, False, True]
    table = (tmp_path / "table.md").read_text()
    assert table in capsys.readouterr().out
    (bert, ours) = [line.split(" | ")[:3] for line in table.splitlines() if "-base 512 | fp32" in line]
    assert bert == ["| 1.00", "steps 512", "BERT-base 512"] and ours[2] == "nezha-base 512"
    assert "- broken, the rest: ValueError: no kernel image" in table
    run.run_all(chosen, tmp_path, time.monotonic() + 1, toy=True)  # the time is nearly up
    assert len(tried) == 3
    assert "Not run, the time was up: steps 512, broken" in (tmp_path / "table.md").read_text()


def test_tables_have_steps_beside_bert_and_operations_beside_the_first() -> None:
    step = {"case": "a", "side": "b", "ms": 100.0, "mfu": 0.3, "times": 1.25, "tokens_per_second": 3e5, "turns": 10}
    step |= {"idle": {"forward": 1.0, "backward": 2.0, "update": 3.0}, "milliseconds": {"products": 40.0}}
    step |= {"launches": {"products": 12}, "waits": 1}
    single = {"case": "c", "comparison": "d", "side": "e", "ms": 2.0, "bytes": 4 * 10**9, "flops": 10**12, "times": 0.5}
    whole, kernels, operations, failed = tables([step, single, {"case": "f", "error": "g | h"}]).split("\n\n")
    assert whole.startswith("| x BERT | ") and "| 1.25 | a | b |" in whole and "| 1.0 / 2.0 / 3.0 |" in whole
    assert "| 40.0 |" in kernels and "| 12 | 1 |" in kernels
    assert operations.startswith("| x first | ") and "| 0.50 | c | d | e | 2.000 | 2,000 | 500 |" in operations
    assert failed == "- f: g | h"


def test_without_a_gpu_it_prints_what_it_would_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["run.py", "--out", str(tmp_path / "out")])
    monkeypatch.setattr(run.torch.cuda, "is_available", lambda: False)
    run.main()
    printed = capsys.readouterr().out
    assert all(case.name in printed for case in CASES) and "tests/gpu" in printed
    assert "torch sees no GPU here" in printed and not (tmp_path / "out").exists()


def test_only_takes_names_and_globs() -> None:
    names = [case.name for case in CASES]
    assert matching(names, ["steps*", "ran"]) == ["steps 512", "steps 128", "ran"]
    with pytest.raises(UserError, match="--only step: nothing has this name; there are steps 512, "):
        matching(names, ["step"])
