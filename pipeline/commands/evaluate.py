"""`reread evaluate`: figures of a checkpoint on held-out text or examples."""

from pathlib import Path

from reread.pipeline.recipe.load import recipe_of
from reread.pipeline.recipe.schema import train_section
from reread.pipeline.run_folder.figures import figures_of
from reread.preprocessing.labelled.splits import check_labels
from reread.training.data.tasks.examples import examples_of
from reread.training.data.tasks.settings import task_of


def evaluate(run: Path, overrides: list[str], step: int | None, average: str | None = None) -> dict[str, float]:
    """Print the figures of all held-out text or examples; for a task, also the scores of baselines and papers."""
    task = task_of(train_section(recipe_of(run, overrides, step)).data)
    if task is not None:
        check_labels(task.labels, examples_of(task, "validation"))
    recipe, figures = figures_of(run, overrides, step, average)
    if task is not None:
        from reread.pipeline.display.scores import baseline_scores, keep_baselines, print_scores

        found = baseline_scores(recipe)
        keep_baselines(run, task.held_out, found)
        print_scores(recipe, {"dev": [figures]}, found)
    return figures
