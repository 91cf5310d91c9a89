"""Fine-tunes a model in one run for each seed, and scores each run."""

import logging

from reread.pipeline.display.classes import report_classes
from reread.pipeline.display.scores import Scores, write_scores
from reread.pipeline.recipe.load import override
from reread.pipeline.recipe.schema import Recipe, task_section, train_section
from reread.pipeline.recipe.task import export_missing, finetune_recipe, seed_runs
from reread.pipeline.run_folder.export import export
from reread.pipeline.run_folder.figures import figures_of
from reread.pipeline.run_folder.folder import held_records
from reread.pipeline.run_folder.train import train
from reread.preprocessing.labelled.splits import duplicates
from reread.training.data.kinds import open_task
from reread.training.data.tasks.examples import examples_of
from reread.training.run.files import RUNS

log = logging.getLogger("reread")


def train_seeds(recipe: Recipe, name: str, overrides: list[str]) -> dict[str, list[Scores]]:
    """Train each seed of a recipe from `finetune_recipe`. Returns split (dev, test) -> the scores of each seed, which
    are also kept in the folder of its run."""
    make_export(recipe)
    with held_records() as logged:
        report_reading(recipe)
    splits = {
        split: [] if split == "dev" else [override("task.dev", one.held_out)]
        for split, one in task_section(recipe).splits.items()
    }
    measured: dict[str, list[Scores]] = {split: [] for split in splits}
    for run, given in seed_runs(recipe, overrides):
        train(finetune_recipe(name, given), ["finetune", name, *given], logged)
        # Dev, too, on which training scored in its own precision: as `reread evaluate` would, in float32.
        scores = {split: figures_of(RUNS / run, others, None)[1] for split, others in splits.items()}
        if scores:
            write_scores(RUNS / run, scores)
        for split, one in scores.items():
            measured[split].append(one)
    return measured


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
