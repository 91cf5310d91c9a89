"""Figures of a checkpoint on all held-out text or examples."""

from pathlib import Path

from reread.pipeline.recipe.load import recipe_of
from reread.pipeline.recipe.schema import Recipe, train_section
from reread.pipeline.recipe.shell import log_commands


def figures_of(
    run: Path, overrides: list[str], step: int | None, average: str | None = None
) -> tuple[Recipe, dict[str, float]]:
    """Print the figures of all held-out text or examples; `overrides` may name others, or another way to read them,
    `average` several checkpoints.

    Returns the recipe that was used, and the figures.
    """
    from reread.training.evaluation import evaluate_run

    recipe = recipe_of(run, overrides, step)
    log_commands(recipe)
    figures = evaluate_run(run, train_section(recipe), step, overrides, average)
    for name, value in figures.items():
        print(f"{name:24} {value:.4f}")
    return recipe, figures
