"""`reread finetune`: trains a pretrained model on the task of a recipe, in one run for each seed."""

from reread.pipeline.display.scores import baseline_scores, keep_baselines, print_scores
from reread.pipeline.recipe.check import check_model
from reread.pipeline.recipe.schema import task_section
from reread.pipeline.recipe.task import fetch_init, finetune_recipe, seed_runs
from reread.pipeline.run_folder.seeds import train_seeds
from reread.pipeline.run_folder.train import train
from reread.training.parallel.process import this_process
from reread.training.run.files import RUNS


def finetune(name: str, overrides: list[str]) -> None:
    """Train a task from a pretrained model, once for each seed, and print the scores of the best checkpoints.

    Raises `UserError` for settings that cannot work, before any training.
    """
    fetch_init(name, overrides)
    recipe = finetune_recipe(name, overrides)
    if this_process().launcher:
        train(recipe, [])
        return
    check_model(recipe)
    measured = train_seeds(recipe, name, overrides)
    if measured:
        found = baseline_scores(recipe)
        for run, _ in seed_runs(recipe, overrides):
            keep_baselines(RUNS / run, task_section(recipe).held_out, found)
        print_scores(recipe, measured, found)
