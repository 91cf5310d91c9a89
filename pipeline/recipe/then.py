"""The runs and the data of a recipe's `then`."""

import logging
from pathlib import Path
from typing import NamedTuple

from reread.pipeline.recipe.check import check_model, check_same_run
from reread.pipeline.recipe.load import override, recipe_values
from reread.pipeline.recipe.repeats import first_runs
from reread.pipeline.recipe.schema import Following, Recipe, train_section
from reread.pipeline.recipe.task import fetch_init, finetune_recipe
from reread.preprocessing.errors import UserError, close_to
from reread.preprocessing.input.streams import SUFFIXES
from reread.training.parallel.process import this_process
from reread.training.run.files import RUNS


def following_run(recipe: Recipe, one: Following) -> str:
    """The name of the run of a fine-tuning after `recipe`."""
    return f"{recipe.name}-{recipe_values(one.recipe, one.overrides, 'train').get('name')}"


def task_files(recipe: Recipe, one: Following) -> dict[str, tuple[Path, Path | None]]:
    """Split (train, dev, test) that an entry of `then` names -> its path, and the file or folder that exists.

    The latter may have the suffix of a compressed file; None if none exists.
    """
    stated = {"train": one.train, "dev": one.dev, "test": one.test}
    locations = {split: recipe.tasks / path for split, path in stated.items() if path is not None}
    return {
        split: (path, next((found for end in ("", *SUFFIXES) if (found := Path(f"{path}{end}")).exists()), None))
        for split, path in locations.items()
    }


def missing_data(one: Following, files: dict[str, tuple[Path, Path | None]]) -> str:
    """A sentence on the files that the task needs and that do not exist: who offers them, and their format. Empty if
    none is missing."""
    missing = [stated for split, (stated, path) in files.items() if path is None and split != "test"]
    if not missing:
        return ""
    absent = f"{' and '.join(map(str, missing))} {'is' if len(missing) == 1 else 'are'} not there{_nearest(missing[0])}"
    description = str(recipe_values(one.recipe, one.overrides, "train").get("description", ""))
    form = description[description.find("Files") :] if "Files" in description else ""
    return ". ".join(part for part in (absent, one.owner, form) if part)


def _nearest(path: Path) -> str:
    """The way to a file or folder whose name is like that of the first part of `path` that does not exist."""
    first = next((one for one in [*reversed(path.parents), path] if not one.exists()), path)
    try:
        names = sorted(one.name for one in first.parent.iterdir())
    except OSError:
        return ""
    wanted = first.name.lower()
    near = [one for one in names if one.lower().startswith(wanted) or wanted.startswith(one.lower())]
    near += close_to(first.name, names, 0.8)
    return f" (is it {first.with_name(near[0])}?)" if near else ""


log = logging.getLogger("reread")


class FollowingRecipe(NamedTuple):
    """The recipe of one entry of `then`, completed."""

    name: str
    """Name of the recipe, as on the command line."""
    overrides: list[str]
    """Its overrides, which also set the name of the run and the model that it starts from."""
    recipe: Recipe
    random: bool
    """Whether the task is also trained from random weights."""


def following(recipe: Recipe) -> list[FollowingRecipe]:
    """The fine-tunings of `recipe.then` whose data exist, checked as far as possible without the model.

    One line is logged for each of the others. Raises `UserError` for one that cannot work, and under torchrun or srun,
    because each fine-tuning starts its own processes.
    """
    if not recipe.then:
        return []
    if this_process().launcher:
        raise UserError(
            f"recipe {recipe.name}: has `then`, whose tasks start their own processes; run it without torchrun or "
            "srun and set train.parallel.processes, or set then=[]"
        )
    found: list[FollowingRecipe] = []
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
        given = [*data, *one.overrides, f"name={run}"]
        pretraining = recipe if recipe.train is not None else None
        if pretraining is not None:
            given.append(override("init", RUNS / recipe.name))
        else:
            fetch_init(one.recipe, given)
        child = finetune_recipe(one.recipe, given, pretraining)
        if child.name in [other.recipe.name for other in found]:
            raise UserError(
                f"recipe {recipe.name}: two of `then` are named {own}; add name=... to the overrides of one"
            )
        _check(child, pretraining)
        for part in first_runs(child, given):
            check_same_run(RUNS / part.name, finetune_recipe(one.recipe, part.overrides, pretraining))
        if one.random and (recipe.train is None or recipe.train.init or recipe.train.from_run):
            raise UserError(
                f"recipe {recipe.name}: then: {own}: random is true, but only a model that train.model alone describes "
                "can have random weights; leave out random, init and from"
            )
        found.append(FollowingRecipe(one.recipe, given, child, one.random))
    if not found and recipe.train is None:
        raise UserError(f"{recipe.tasks}: holds the data of none of the {len(recipe.then)} tasks; give tasks=FOLDER")
    return found


def _check(child: Recipe, recipe: Recipe | None) -> None:
    """Raises `UserError` if the model that `recipe` makes, or else the one that is there, cannot learn the task."""
    settings = train_section(child)
    pretraining = None if recipe is None else recipe.train
    if pretraining is not None and pretraining.init is None:  # else its size is not known before it has been converted
        model = {**pretraining.model, **settings.model}
        child = child.model_copy(update={"train": settings.model_copy(update={"init": None, "model": model})})
    check_model(child)
