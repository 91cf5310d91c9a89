"""`reread finetune`: trains a pretrained model on the task of a recipe, in one run for each fold and seed."""

from reread.pipeline.display.scores import baseline_scores, keep_baselines, print_scores, read_scores
from reread.pipeline.recipe.check import check_model
from reread.pipeline.recipe.repeats import Part, folds_of, points_of
from reread.pipeline.recipe.schema import Recipe, task_section
from reread.pipeline.recipe.task import fetch_init, finetune_recipe
from reread.pipeline.run_folder.finetuning import train_all
from reread.pipeline.run_folder.train import train
from reread.preprocessing.errors import UserError
from reread.training.parallel.process import this_process
from reread.training.run.files import RUNS


def finetune(name: str, overrides: list[str]) -> None:
    """Train a task from a pretrained model, once for each fold and seed, of a grid by its best point, and print the
    scores of the best checkpoints.

    Raises `UserError` for settings that cannot work, before any training.
    """
    fetch_init(name, overrides)
    recipe = finetune_recipe(name, overrides)
    if this_process().launcher:
        if folds_of(recipe, overrides)[1:] or points_of(recipe, Part(recipe.name, overrides))[1:]:
            raise UserError(
                f"recipe {name}: folds and points of a grid start their own processes; run it without torchrun or srun "
                "and set train.parallel.processes, or use --slurm"
            )
        train(recipe, [])
        return
    _check_parts(name, recipe, overrides)
    measured = train_all(recipe, name, overrides)
    if measured:
        found = baseline_scores(recipe)
        for run in read_scores(RUNS, recipe.name)[0]:
            keep_baselines(run, task_section(recipe).held_out, found)
        print_scores(recipe, measured, found)


def _check_parts(name: str, recipe: Recipe, overrides: list[str]) -> None:
    """Raises `UserError` for a fold or a point of the grid that cannot be trained, before any is."""
    check_model(recipe)
    for fold in folds_of(recipe, overrides):
        for point in points_of(recipe, fold):
            if point.overrides == overrides:
                continue
            try:
                check_model(finetune_recipe(name, point.overrides))
            except UserError as error:
                raise UserError(f"{point.name.removeprefix(f'{recipe.name}-')}: {error}") from None
