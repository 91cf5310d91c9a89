"""`reread run`: preprocessing, pretraining and export, and the fine-tunings of the recipe's `then`."""

import logging
from typing import NamedTuple

from pipeline.commands import check_model, check_train, evaluate, export, preprocess, train
from pipeline.finetune import finetune, finetune_recipe, seed_runs
from pipeline.following import following_run, missing_data, task_files
from pipeline.recipe import Recipe, load_recipe, override, train_section
from pipeline.report.page import print_papers, report, write_report
from pipeline.run_folder import RUNS, check_same_run
from preprocessing.errors import UserError
from training.data.kinds import check_held_out
from training.metrics import read_evaluations
from training.parallel.place import place

log = logging.getLogger("reread")


class Finetuning(NamedTuple):
    """One entry of `then`."""

    name: str
    """The recipe, as on the command line."""
    overrides: list[str]
    """With the name of the run and the model it starts from."""
    recipe: Recipe


def run(name: str, overrides: list[str]) -> None:
    """Preprocess, train, export, report, and fine-tune by `then`; what is already done is not done again."""
    recipe = load_recipe(name, overrides, "train")
    if recipe.train is not None:
        check_train(recipe)
    finetunings = following(recipe)
    if recipe.preprocess is not None and not place().launcher:
        preprocess(recipe)
    if recipe.train is None:
        return
    if recipe.published and not place().launcher:
        check_held_out(recipe.train.data, recipe.train.seed)
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
    if recipe.published and not evaluated(recipe):
        evaluate(RUNS / recipe.name, [], None)
    if recipe.then or recipe.published:
        runs = write_report([RUNS / recipe.name])[0]
        print_papers(runs)


def following(recipe: Recipe) -> list[Finetuning]:
    """The fine-tunings of `recipe.then` whose data are there, each checked as far as that is possible before the model
    exists; one line is logged for each of the others.

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
        files = task_files(recipe, one)
        if missing := missing_data(one, files):
            log.info("then: %s is left out: %s", one.recipe, missing)
            continue
        if "test" in files and files["test"][1] is None:
            log.info("then: %s is scored on dev alone: %s is not there", one.recipe, files["test"][0])
        data = [override(f"task.{split}", path) for split, (_, path) in files.items() if path is not None]
        run = following_run(recipe, one)
        own = run.removeprefix(f"{recipe.name}-")
        given = [*data, *one.overrides, f"name={run}", override("init", RUNS / recipe.name)]
        child = finetune_recipe(one.recipe, given, recipe)
        if child.name in [other.recipe.name for other in found]:
            raise UserError(
                f"recipe {recipe.name}: two of `then` are named {own}; add name=... to the overrides of one"
            )
        _check(child, recipe)
        for of_one, of_seed in seed_runs(child, given):
            check_same_run(RUNS / of_one, finetune_recipe(one.recipe, of_seed, recipe))
        found.append(Finetuning(one.recipe, given, child))
    return found


def evaluated(recipe: Recipe) -> bool:
    """Whether the last checkpoint was evaluated on the recipe's own held-out text."""
    done = [one["step"] for one in read_evaluations(RUNS / recipe.name) if not one["overrides"]]
    return train_section(recipe).steps in done


def _check(child: Recipe, recipe: Recipe) -> None:
    """Raises `UserError` if the model that `recipe` makes cannot learn the task."""
    pretraining, settings = train_section(recipe), train_section(child)
    if pretraining.init is None:  # else its size is not known before it has been converted
        model = {**pretraining.model, **settings.model}
        child = child.model_copy(update={"train": settings.model_copy(update={"init": None, "model": model})})
    check_model(child)
