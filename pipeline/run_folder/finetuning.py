"""Fine-tunes a model in one run for each fold, point of a grid and seed, and scores each run."""

import logging
from collections.abc import Mapping, Sequence

from reread.pipeline.display.classes import report_classes
from reread.pipeline.display.grid import Grid, GridPoint, print_grid, read_grid, write_grid
from reread.pipeline.display.scores import Scores, write_scores
from reread.pipeline.recipe.check import check_same_run
from reread.pipeline.recipe.load import override
from reread.pipeline.recipe.repeats import Part, folds_of, of_recipe, points, points_of, seeds_of
from reread.pipeline.recipe.schema import Recipe, task_section, train_section
from reread.pipeline.recipe.task import export_missing, finetune_recipe
from reread.pipeline.run_folder.export import export
from reread.pipeline.run_folder.figures import figures_of
from reread.pipeline.run_folder.folder import held_records
from reread.pipeline.run_folder.train import train
from reread.preprocessing.labelled.splits import duplicates
from reread.training.data.kinds import open_task
from reread.training.data.tasks.examples import examples_of
from reread.training.data.tasks.settings import TaskSettings
from reread.training.run.files import RUNS, has_checkpoints
from reread.training.scoring.task_scores import best_of

log = logging.getLogger("reread")


Measured = dict[str, list[Scores]]
"""Split (dev, test) -> the scores of each run."""


def train_all(recipe: Recipe, name: str, overrides: list[str]) -> Measured:
    """Train the folds, the points of the grid and the seeds of a recipe from `finetune_recipe`. Returns the scores of
    each fold and seed, of a grid those of its best point, which are also kept in the folders of the runs."""
    make_export(recipe)
    with held_records() as logged:
        report_reading(recipe)
    measured: Measured = {}
    for fold in folds_of(recipe, overrides):
        splits = task_section(finetune_recipe(name, fold.overrides)).splits
        best = _best_point(recipe, name, fold, logged)
        for run in seeds_of(recipe, best):
            for split, scores in _trained(name, run, splits, logged).items():
                measured.setdefault(split, []).append(scores)
    return measured


def _trained(
    name: str, run: Part, splits: Mapping[str, TaskSettings], logged: Sequence[logging.LogRecord]
) -> dict[str, Scores]:
    """Train a run, or what is left of it. Returns its scores on each of the `splits`, which its folder keeps."""
    train(finetune_recipe(name, run.overrides), ["finetune", name, *run.overrides], logged)
    files = {split: [] if split == "dev" else [override("task.dev", one.held_out)] for split, one in splits.items()}
    # Dev, too, on which training scored in its own precision: as `reread evaluate` would, in float32.
    scores = {split: figures_of(RUNS / run.name, others, None)[1] for split, others in files.items()}
    if scores:
        write_scores(RUNS / run.name, scores)
    return scores


def _best_point(recipe: Recipe, name: str, fold: Part, logged: Sequence[logging.LogRecord]) -> Part:
    """The point of the grid that is best on dev, of equal ones the first; without a grid the fold itself.

    Every point is trained with the first seed. Those that are done stand in runs/NAME-grid.json.
    """
    parts = points_of(recipe, fold)
    if parts == [fold]:
        return fold
    found: list[GridPoint] = []
    done = {point.run: point for point in read_grid(RUNS, fold.name).points}
    settings = list(points(of_recipe(recipe).grid))
    for part, stated in zip(parts, settings, strict=True):
        (run,) = seeds_of(recipe, part, first_alone=True)
        child = finetune_recipe(name, run.overrides)
        check_same_run(RUNS / run.name, child)
        point = done.get(run.name)
        if point is None or point.settings != stated or not has_checkpoints(RUNS / run.name):
            log.info("finetune.grid: %d of %d: %s", len(found) + 1, len(parts), " ".join(stated))
            make_export(child)
            dev = {split: one for split, one in task_section(child).splits.items() if split == "dev"}
            point = GridPoint(run.name, stated, _trained(name, run, dev, logged)["dev"])
        found.append(point)
        by = train_section(child).best_by
        assert by is not None  # `finetune_recipe` refuses a grid without dev
        best = best_of(by, [one.scores[by] for one in found])
        number = [one.scores[by] for one in found].index(best)
        whole = len(found) == len(parts)
        write_grid(RUNS, fold.name, Grid(by, found, parts[number].name if whole else ""))
    print_grid(read_grid(RUNS, fold.name))
    return parts[number]


def make_export(recipe: Recipe) -> None:
    """Export the run that the recipe starts from, unless it is exported already or the fine-tuning has begun."""
    init = train_section(recipe).init
    if init is not None and export_missing(recipe):
        log.info("init: %s, the export of run %s", init, init.parent)
        export(init.parent, None)


def report_reading(recipe: Recipe) -> None:
    """Log how much of the text the windows read, the classes, and how many held-out texts are also training texts."""
    settings = task_section(recipe)
    held_out = settings.splits
    splits = {"train": open_task(settings, 0, "train")}
    splits |= {split: open_task(one, 0, "validation") for split, one in held_out.items()}
    for split, data in splits.items():
        for remark in data.remarks() if len(data) else ():
            log.info("task.%s: %s", split, remark)
        if len(data):
            log.info(
                "task.%s: %s",
                split,
                ", ".join(
                    f"{value} {name}" if name == "examples" else f"{name} {value}" for name, value in data.coverage()
                ),
            )
    report_classes(settings)
    for remark in settings.remarks:
        log.info("%s", remark)
    if (settings.learns, settings.predict) == ("last", "mean"):
        log.info(
            "task.learns is last, but task.predict is mean: windows without a loss are averaged with the last one; "
            "set predict to last, or learns to all, if that is not what you want"
        )
    for split, one in held_out.items():
        if known := duplicates(examples_of(settings, "train"), examples_of(one, "validation")):
            log.info("task.%s: %d of %d texts are in task.train, too", split, known, len(splits[split]))
