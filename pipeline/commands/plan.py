"""`reread plan`: estimates memory, the best parallel split, time and disk space of a recipe before it runs."""

from reread.pipeline.recipe.layers import fine_tunes
from reread.pipeline.recipe.load import load_recipe, recipe_values
from reread.pipeline.recipe.phases import phases_of
from reread.pipeline.recipe.schema import Recipe
from reread.pipeline.recipe.shell import refuse_commands
from reread.pipeline.recipe.suite import suite_of
from reread.pipeline.recipe.task import finetune_recipe
from reread.pipeline.recipe.then import following


def plan(
    name: str, overrides: list[str], machines: tuple[int, str, int, str], share: float | None, allow_pipe: bool = False
) -> None:
    """Print the estimate for `machines` (GPUs, GPU, GPUs a machine, network) whose time follows from bytes and
    FLOPs, or from a stated `share` of the peak.

    Raises `UserError` for a corpus that a command reads, unless `allow_pipe`.
    """
    if (suite := suite_of(name, overrides)) is not None:
        _plan_suite(suite, machines, share)
        return
    tunes = fine_tunes(recipe_values(name, overrides, "train"))
    recipe = finetune_recipe(name, overrides) if tunes else load_recipe(name, overrides, "train")
    from reread.pipeline.estimate.hardware import cluster  # which imports torch
    from reread.pipeline.estimate.summary import print_estimates, print_finetuning_estimate

    where = cluster(*machines)
    if recipe.train is not None and not allow_pipe:
        for phase in phases_of(recipe):
            refuse_commands(phase.data)
    if tunes:
        print_finetuning_estimate(recipe, where, share)
    else:
        print_estimates(recipe, where, share, [one.recipe for one in following(recipe)])


def _plan_suite(suite: Recipe, machines: tuple[int, str, int, str], share: float | None) -> None:
    """Print the estimate of each task whose data exist."""
    found = following(suite)
    from reread.pipeline.estimate.hardware import cluster  # which imports torch
    from reread.pipeline.estimate.summary import print_finetuning_estimate

    for one in found:
        print(f"{one.recipe.name}:")
        print_finetuning_estimate(one.recipe, cluster(*machines), share)
