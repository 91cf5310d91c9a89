"""`reread train from=RUN`: the recipe of a run that begins at a checkpoint of another run."""

import logging
from pathlib import Path

from reread.pipeline.recipe.load import apply_overrides, load_recipe, override, parsed, recipe_of
from reread.pipeline.recipe.schema import Recipe, train_section
from reread.preprocessing.errors import UserError
from reread.preprocessing.settings import differences
from reread.training.config import origin_of
from reread.training.run.files import RUNS, RunFile, find_run, has_checkpoints

log = logging.getLogger("reread")

FROM = "from="


def training_recipe(name: str, overrides: list[str]) -> Recipe:
    """The recipe of `reread train`, with overrides: the recipe of this name or path, or that of the run in from=RUN.

    Logs the differences from that run. Raises `UserError` for `from` without a run or a new name.
    """
    given = [name, *overrides]
    origins = [one.removeprefix(FROM) for one in given if one.startswith(FROM)]
    if not origins:
        return load_recipe(name, overrides, "train")
    origin, rest = origins[-1], [one for one in given if not one.startswith(FROM)]
    run, step = origin_of(origin)
    if (found := find_run(run)) != run:
        run, origin = found, str(found) if step is None else f"{found}@{step}"
    beginning = [override("train.from_run", origin), "train.init=null", "start=null"]
    if rest and "=" not in rest[0]:
        recipe = load_recipe(rest[0], [*beginning, *rest[1:]], "train")
        begun = _begun(run, recipe.name)
    else:
        names = [one.removeprefix("name=") for one in rest if one.startswith("name=")]
        begun = _begun(run, names[-1] if names else None)
        values = begun.model_dump(mode="json")
        apply_overrides(values, [*beginning, "train.schedule.restart=false", *rest], "train")
        recipe = parsed(values, f"the recipe of {run}")
    if recipe.name == begun.name and RunFile.RECIPE.of(run).exists():
        raise UserError(f"from={origin}: give the new run a name of its own with name=...")
    if not has_checkpoints(RUNS / recipe.name):
        old, new = (train_section(one).model_dump(mode="json", exclude={"from_run", "init"}) for one in (begun, recipe))
        changed = differences(old, new)
        log.info("unlike %s: %s", run, "; ".join(changed) if changed else "nothing")
    return recipe


def _begun(run: Path, name: str | None) -> Recipe:
    """The recipe of `run`; if that is gone, that of the new run `name`, which needs no other once it has begun."""
    if name is not None and not RunFile.RECIPE.of(run).exists() and has_checkpoints(RUNS / name):
        log.info("from: %s is not there; %s goes on with its own recipe", run, RUNS / name)
        return recipe_of(RUNS / name)
    return recipe_of(run)
