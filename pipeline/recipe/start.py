"""A recipe's `start`, which makes `train.init` from released weights or by training another recipe."""

import json
from pathlib import Path

from reread.pipeline.recipe.load import load_recipe, override
from reread.pipeline.recipe.schema import Recipe, train_section
from reread.preprocessing.errors import UserError
from reread.training.data.settings import CorpusSettings
from reread.training.exchange.hub import HubName, fetch, hub_name, not_looked_for
from reread.training.run.files import RUNS, has_checkpoints


def start_weights(recipe: Recipe) -> tuple[Path | HubName, str]:
    """The released weights that `recipe.start` converts, and the type of model to make. Those of the Hub are fetched.

    Raises `UserError` if they do not exist, and for options that the conversion would refuse.
    """
    start, model = recipe.start, _convertible(recipe)
    assert start is not None and start.weights is not None
    if start.weights.exists():
        return start.weights, model
    if name := hub_name(start.weights):
        fetch(name)
        return name, model
    raise UserError(
        f"start.weights: {start.weights} is not there; get it from its owners and name the folder by "
        f"start.weights=FOLDER{not_looked_for(start.weights)}"
    )


def _convertible(recipe: Recipe) -> str:
    """The type of model that `recipe.start` makes; raises `UserError` for options that are not for it."""
    from reread.training.models import model_spec
    from reread.training.models.forms import forms_of

    model = model_spec(train_section(recipe).model.get("type", "")).name
    forms_of(model, recipe.start.convert.given() if recipe.start else {})
    return model


def start_recipe(recipe: Recipe) -> tuple[Recipe, list[str], str]:
    """The recipe whose model `recipe.start` converts, its arguments on the command line, and the type of model to make.

    Raises `UserError` for a `start` that cannot work.
    """
    settings, start = train_section(recipe), recipe.start
    assert start is not None and start.recipe is not None
    if not isinstance(settings.data, CorpusSettings):
        raise UserError(f"recipe {recipe.name}: `start` is for pretraining; set start=null and name the model by init")
    overrides = [*corpus_overrides(settings.data), *start.overrides]
    other = load_recipe(start.recipe, overrides, "train")
    if other.name == recipe.name:
        raise UserError(f"recipe {recipe.name}: start.recipe has this name, too, and so the same run folder; change it")
    return other, [start.recipe, *overrides], _convertible(recipe)


def corpus_overrides(data: CorpusSettings) -> list[str]:
    """The overrides with which another recipe reads the same corpus."""
    cache = [] if data.cache is None else [f"data.cache={data.cache.model_dump_json()}"]
    if data.corpora:
        mixed = json.dumps([one.model_dump(mode="json", exclude_defaults=True) for one in data.corpora])
        return ["data.corpus=null", f"data.corpora={mixed}", *cache]
    return [override("data.corpus", data.location), *cache]


def missing_start(recipe: Recipe) -> Path | None:
    """The folder that `start` has to make; None if it exists, or if the run has a checkpoint, which has all weights."""
    if recipe.start is None:
        return None
    init = train_section(recipe).init
    if init is None:
        raise UserError(f"recipe {recipe.name}: `start` makes train.init, which is null; name it, or set start=null")
    return None if (init / "config.json").exists() or has_checkpoints(RUNS / recipe.name) else init
