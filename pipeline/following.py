"""The runs and the data of a recipe's `then`."""

from pathlib import Path

from pipeline.recipe import Following, Recipe, recipe_values
from preprocessing.input.streams import SUFFIXES


def following_run(recipe: Recipe, one: Following) -> str:
    """The name of the run of a fine-tuning after `recipe`."""
    return f"{recipe.name}-{recipe_values(one.recipe, one.overrides, 'train').get('name')}"


def task_files(recipe: Recipe, one: Following) -> dict[str, tuple[Path, Path | None]]:
    """Each split (train, dev, test) that an entry of `then` names -> its path, and the file or folder that is there.

    The latter may be compressed; None if there is none.
    """
    stated = {"train": one.train, "dev": one.dev, "test": one.test}
    places = {split: recipe.tasks / path for split, path in stated.items() if path is not None}
    return {
        split: (path, next((found for end in ("", *SUFFIXES) if (found := Path(f"{path}{end}")).exists()), None))
        for split, path in places.items()
    }


def missing_data(one: Following, files: dict[str, tuple[Path, Path | None]]) -> str:
    """Which of `task_files` that the task needs are not there, who offers them, and the form they are read in; empty if
    none is missing."""
    missing = [str(stated) for split, (stated, path) in files.items() if path is None and split != "test"]
    if not missing:
        return ""
    absent = f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not there"
    description = str(recipe_values(one.recipe, one.overrides, "train").get("description", ""))
    form = description[description.find("Files") :] if "Files" in description else ""
    return ". ".join(part for part in (absent, one.owner, form) if part)
