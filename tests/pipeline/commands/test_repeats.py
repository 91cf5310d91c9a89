"""The folds, grids and seeds of a fine-tuning: which runs there are, what each learns from, and what is chosen."""

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from reread.pipeline.commands import finetune
from reread.pipeline.display.grid import read_grid
from reread.pipeline.display.scores import read_scores
from reread.pipeline.recipe.task import finetune_recipe
from reread.pipeline.report.tables import _points
from reread.pipeline.run_folder import finetuning
from reread.pipeline.slurm.submit import submit_finetuning
from reread.preprocessing.errors import UserError
from reread.training.data.tasks.examples import examples_of
from tests.pipeline.commands.test_finetuning import folder, jobs_of, write_lines  # noqa: F401

TEXTS = [
    {"id": str(n), "text": f"a {'bcdefghij'[n % 9]} {'klm'[n // 9]}", "label": "xy"[n % 3 == 0]} for n in range(27)
]
GRID = ["finetune.grid.optimizer.learning_rate=[1e-3, 2e-3]", "finetune.grid.global_batch=[4, 2]"]


@pytest.fixture
def trained(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any]]:  # noqa: F811
    """What was trained (its name and recipe), and evaluated (run and file), instead of doing it; a score is twice the
    thousandfold learning rate plus the batch, and 1 for each seed."""
    calls: list[tuple[str, Any]] = []
    recipes: dict[str, Any] = {}
    write_lines(folder / "train.jsonl", TEXTS)

    def train(recipe: Any, arguments: list[str], logged: object = ()) -> None:
        calls.append((recipe.name, recipe))
        recipes[recipe.name] = recipe
        (Path("runs") / recipe.name / "checkpoints" / "step-00000001").mkdir(parents=True, exist_ok=True)

    def figures_of(run: Path, overrides: list[str], step: int | None) -> tuple[None, dict[str, float]]:
        settings = recipes[run.name].train
        calls.append((f"{run.name}: {'test' if overrides else 'dev'}", overrides))
        score = 2000 * settings.optimizer.learning_rate + settings.global_batch + settings.seed
        return None, {"accuracy": score}

    monkeypatch.setattr(finetuning, "train", train)
    monkeypatch.setattr(finetuning, "figures_of", figures_of)
    monkeypatch.setattr(finetune, "print_scores", lambda recipe, measured, found: None)
    monkeypatch.setattr(finetune, "baseline_scores", lambda recipe: {})
    return calls


def ids(recipe: Any, split: str) -> set[str]:
    data = recipe.train.data if split == "train" else recipe.train.data.splits[split]
    return {one.id for one in examples_of(data, "train" if split == "train" else "validation")}


def test_every_example_is_tested_in_one_fold_and_chooses_in_another(trained: list[tuple[str, Any]]) -> None:
    given = ["init=model", "finetune.folds=5", "task.dev=null"]
    finetune.finetune("tune.yaml", given)
    recipes = [recipe for name, recipe in trained if re.fullmatch(r"tune-fold\d", name)]
    assert [recipe.name for recipe in recipes] == [f"tune-fold{number}" for number in range(1, 6)]
    every = {str(number) for number in range(27)}
    for recipe, following in zip(recipes, [*recipes[1:], recipes[0]], strict=True):
        parts = [ids(recipe, split) for split in ("train", "dev", "test")]
        assert set.union(*parts) == every and sum(map(len, parts)) == 27
        assert ids(recipe, "dev") == ids(following, "test")
        labels = Counter(TEXTS[int(one)]["label"] for one in ids(recipe, "test"))
        assert len(ids(recipe, "test")) in (5, 6) and labels["y"] in (1, 2)
    runs, scores = read_scores(Path("runs"), "tune")
    assert [run.name for run in runs] == [recipe.name for recipe in recipes]
    assert len(scores["dev"]) == len(scores["test"]) == 5
    again = finetune_recipe("tune.yaml", [*given, "finetune.fold=3", "seed=7"])
    assert ids(again, "test") == ids(recipes[2], "test")
    other = finetune_recipe("tune.yaml", [*given, "finetune.fold=3", "finetune.fold_seed=1"])
    assert ids(other, "test") != ids(recipes[2], "test")


def test_a_group_and_equal_texts_are_in_one_fold(trained: list[tuple[str, Any]], folder: Path) -> None:  # noqa: F811
    lines = [{**one, "site": f"s{n % 7}"} for n, one in enumerate(TEXTS)]
    write_lines(folder / "train.jsonl", lines)
    given = ["init=model", "finetune.folds=4", "task.dev=null"]
    tests = [
        ids(finetune_recipe("tune.yaml", [*given, "finetune.group=site", f"finetune.fold={n}"]), "test")
        for n in range(1, 5)
    ]
    assert sum(map(len, tests)) == 27
    for site in range(7):
        assert sum(any(int(one) % 7 == site for one in found) for found in tests) == 1
    write_lines(folder / "train.jsonl", [*TEXTS, {**TEXTS[0], "id": "again"}])
    found = [ids(finetune_recipe("tune.yaml", [*given, f"finetune.fold={n}"]), "test") for n in range(1, 5)]
    assert [{"0", "again"} <= one for one in found].count(True) == 1


def test_the_best_point_on_dev_is_trained_with_all_seeds_and_it_alone_is_tested(
    trained: list[tuple[str, Any]],
) -> None:
    given = ["init=model", *GRID, "finetune.seeds=2", "task.test=train.jsonl"]
    finetune.finetune("tune.yaml", given)
    points = [f"tune-point{number}-seed0" for number in range(1, 5)]
    assert [name for name, _ in trained if "point" in name] == [
        *(name for point in points for name in (point, f"{point}: dev")),
        *(points[2], f"{points[2]}: dev", f"{points[2]}: test"),
        *("tune-point3-seed1", "tune-point3-seed1: dev", "tune-point3-seed1: test"),
    ]
    grid = read_grid(Path("runs"), "tune")
    assert grid.chosen == "tune-point3" and [point.scores["accuracy"] for point in grid.points] == [6, 4, 8, 6]
    assert grid.points[2].settings == ["optimizer.learning_rate=2e-3", "global_batch=4"]
    assert read_scores(Path("runs"), "tune")[1]["test"] == [{"accuracy": 8}, {"accuracy": 9}]
    assert [row.detail for row in _points(Path("runs"), "tune")][2].endswith("global_batch=4, chosen")
    # After a kill in the second point the first one is not trained again.
    kept = json.loads(Path("runs/tune-grid.json").read_text())
    Path("runs/tune-grid.json").write_text(json.dumps({**kept, "points": kept["points"][:1], "chosen": ""}))
    del trained[:]
    finetune.finetune("tune.yaml", given)
    assert [name for name, _ in trained][:2] == [points[1], f"{points[1]}: dev"]
    assert read_grid(Path("runs"), "tune") == grid


def test_each_fold_has_a_grid_of_its_own(trained: list[tuple[str, Any]]) -> None:
    finetune.finetune("tune.yaml", ["init=model", GRID[0], "finetune.folds=3", "task.dev=null"])
    assert len([name for name, _ in trained if name.endswith(": test")]) == 3
    runs, _ = read_scores(Path("runs"), "tune")
    assert [run.name for run in runs] == [f"tune-fold{number}-point2" for number in (1, 2, 3)]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["finetune.grid={optimizer.learnin_rate: [1]}"], "point1: .*did you mean `train.optimizer.learning_rate`"),
        (["finetune.grid={global_batch: 16}"], "`global_batch` has one value; give a list"),
        (["finetune.grid={seed: [1, 2]}"], "`seed` is no setting that points of a grid differ in"),
        (["finetune.grid={global_batch: []}"], "finetune.grid"),
        ([GRID[0], "task.dev=null"], "finetune.grid: its points are compared on task.dev"),
        (["finetune.folds=28"], "finetune.folds: 28, but train.jsonl has 27 different examples; give fewer folds"),
        (["finetune.folds=2", "task.dev=null"], "finetune.folds: 2; .* give at least 3, or task.dev"),
        (["finetune.folds=1"], "finetune.folds"),
        (["finetune.fold=2"], "fold is 2, and folds is not given"),
        (["finetune.folds=3", "finetune.group=sight"], "no field `sight`"),
        (["finetune.folds=3", "task.test=dev.jsonl"], "each fold is the test of a run, and task.test is given, too"),
        (["finetune.folds=3", "task.train=gone.jsonl"], "gone.jsonl"),
    ],
)
def test_mistakes_are_one_line_before_anything_is_trained(
    trained: list[tuple[str, Any]], given: list[str], message: str
) -> None:
    with pytest.raises((UserError, FileNotFoundError), match=message) as caught:
        finetune.finetune("tune.yaml", ["init=model", *given])
    assert "\n" not in str(caught.value) and not trained


def test_slurm_has_a_task_for_each_point_and_then_the_rest(
    trained: list[tuple[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    submit_finetuning("tune.yaml", ["init=model", GRID[0], "finetune.seeds=2"], None, dry_run=True)
    scripts = jobs_of(capsys.readouterr().out)
    assert "#SBATCH --array=0-1\n" in scripts["finetune.sbatch"]
    assert (
        "tune-point2-seed0 tune.yaml" in scripts["finetune.sbatch"] and "task.test=null" in scripts["finetune.sbatch"]
    )
    assert "finetune.seeds=2" in scripts["scores.sbatch"]
