"""`reread train from=RUN`: the recipe of a run that begins where another one stands."""

import logging
from pathlib import Path

from pipeline.recipe import Recipe, apply_overrides, differences, load_recipe, override, train_section
from pipeline.run_folder import RUNS, has_checkpoints, recipe_of
from preprocessing.errors import UserError
from training.config import origin_of

log = logging.getLogger("reread")

FROM = "from="


def training_recipe(name: str, overrides: list[str]) -> Recipe:
    """The recipe of `reread train`: by name or path, or that of the run given by from=RUN, with overrides.

    Logs what differs from the run. Raises `UserError` for `from` without a run or a new name.
    """
    given = [name, *overrides]
    origins = [one.removeprefix(FROM) for one in given if one.startswith(FROM)]
    if not origins:
        return load_recipe(name, overrides, "train")
    origin, rest = origins[-1], [one for one in given if not one.startswith(FROM)]
    run, _ = origin_of(origin)
    beginning = [override("train.from_run", origin), "train.init=null", "start=null"]
    if rest and "=" not in rest[0]:
        recipe = load_recipe(rest[0], [*beginning, *rest[1:]], "train")
        begun = _begun(run, recipe.name)
    else:
        names = [one.removeprefix("name=") for one in rest if one.startswith("name=")]
        begun = _begun(run, names[-1] if names else None)
        values = begun.model_dump(mode="json")
        apply_overrides(values, [*beginning, *rest], "train")
        recipe = Recipe.parse(values, f"the recipe of {run}")
    if recipe.name == begun.name and (run / "recipe.yaml").exists():
        raise UserError(f"from={origin}: give the new run a name of its own with name=...")
    if not has_checkpoints(RUNS / recipe.name):
        old, new = (train_section(one).model_dump(mode="json", exclude={"from_run", "init"}) for one in (begun, recipe))
        changed = differences(old, new)
        log.info("unlike %s: %s", run, "; ".join(changed) if changed else "nothing")
    return recipe


def _begun(run: Path, name: str | None) -> Recipe:
    """The recipe of `run`; if that is gone, that of the new run `name`, which needs no other once it has begun."""
    if name is not None and not (run / "recipe.yaml").exists() and has_checkpoints(RUNS / name):
        log.info("from: %s is not there; %s goes on with its own recipe", run, RUNS / name)
        return recipe_of(RUNS / name)
    return recipe_of(run)
