"""`reread run`: preprocessing, pretraining and export, and the fine-tunings of the recipe's `then`."""

from typing import NamedTuple

from pipeline.commands import check_model, check_train, export, preprocess, train
from pipeline.finetune import finetune, finetune_recipe, seed_runs
from pipeline.recipe import Recipe, load_recipe, override, recipe_values, train_section
from pipeline.report.page import report
from pipeline.run_folder import RUNS, check_same_run
from preprocessing.errors import UserError
from training.parallel.place import place


class Finetuning(NamedTuple):
    """One entry of `then`."""

    name: str
    """The recipe, as on the command line."""
    overrides: list[str]
    """With the name of the run and the model it starts from."""
    recipe: Recipe


def run(name: str, overrides: list[str]) -> None:
    """Preprocess, train, export, report, and fine-tune by `then`; what is already done is not done again."""
    recipe = load_recipe(name, overrides)
    if recipe.train is not None:
        check_train(recipe)
    finetunings = following(recipe)
    if recipe.preprocess is not None and not place().launcher:
        preprocess(recipe)
    if recipe.train is None:
        return
    train(recipe, ["train", name, *overrides])
    if place().rank != 0:
        return
    folder = export(RUNS / recipe.name, None)
    filled = report([RUNS / recipe.name])
    for sentence, words in (filled[max(filled)] if filled else {}).items():
        print(sentence, " ".join(f"{word} {probability:.2f}" for word, probability in words), sep="  ->  ")
    print(f"Hugging Face folder: {folder}")
    for one in finetunings:
        print(f"fine-tuning: {one.recipe.name}")
        finetune(one.name, one.overrides)


def following(recipe: Recipe) -> list[Finetuning]:
    """The fine-tunings of `recipe.then`, each checked as far as that is possible before the model exists.

    Raises `UserError` for what cannot work, and below torchrun or srun: each fine-tuning starts its own processes.
    """
    if not recipe.then:
        return []
    if place().launcher:
        raise UserError(
            f"recipe {recipe.name}: has `then`; start it by itself, not by torchrun or srun, and set "
            "train.parallel.processes instead, or set then=[]"
        )
    found: list[Finetuning] = []
    for one in recipe.then:
        name = recipe_values(one.recipe, one.overrides, "train").get("name")
        given = [*one.overrides, f"name={recipe.name}-{name}", override("init", RUNS / recipe.name)]
        child = finetune_recipe(one.recipe, given, recipe)
        if child.name in [other.recipe.name for other in found]:
            raise UserError(
                f"recipe {recipe.name}: two of `then` are named {name}; add name=... to the overrides of one"
            )
        _check(child, recipe)
        for run, of_seed in seed_runs(child, given):
            check_same_run(RUNS / run, finetune_recipe(one.recipe, of_seed, recipe))
        found.append(Finetuning(one.recipe, given, child))
    return found


def _check(child: Recipe, recipe: Recipe) -> None:
    """Raises `UserError` if the model that `recipe` makes cannot learn the task."""
    pretraining, settings = train_section(recipe), train_section(child)
    if pretraining.init is None:  # else its size is not known before it has been converted
        model = {**pretraining.model, **settings.model}
        child = child.model_copy(update={"train": settings.model_copy(update={"init": None, "model": model})})
    check_model(child)
