"""The runs and the data of a recipe's `then`."""

from pathlib import Path

from pipeline.recipe import Following, Recipe, recipe_values
from preprocessing.input.streams import SUFFIXES


def following_run(recipe: Recipe, one: Following) -> str:
    """The name of the run of a fine-tuning after `recipe`."""
    return f"{recipe.name}-{recipe_values(one.recipe, one.overrides, 'train').get('name')}"


def task_files(recipe: Recipe, one: Following) -> dict[str, tuple[Path, Path | None]]:
    """Each split (train, dev) that an entry of `then` names -> where it is looked for, and the file or folder there.

    That may be compressed; None if there is none.
    """
    stated = {"train": one.train, "dev": one.dev}
    places = {split: recipe.tasks / path for split, path in stated.items() if path is not None}
    return {
        split: (path, next((found for end in ("", *SUFFIXES) if (found := Path(f"{path}{end}")).exists()), None))
        for split, path in places.items()
    }


def missing_data(recipe: Recipe, one: Following) -> str:
    """Which files of a task are not there, who offers them, and the form they are read in; empty if none is missing."""
    missing = [str(stated) for stated, path in task_files(recipe, one).values() if path is None]
    if not missing:
        return ""
    files = f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not there"
    description = str(recipe_values(one.recipe, one.overrides, "train").get("description", ""))
    form = description[description.find("Files") :] if "Files" in description else ""
    return ". ".join(part for part in (files, one.owner, form) if part)
