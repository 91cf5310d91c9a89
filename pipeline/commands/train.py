"""`reread train`: pretrains by a recipe, or continues its run."""

from reread.pipeline.recipe.continuation import training_recipe
from reread.pipeline.run_folder.train import train as train_recipe


def train(name: str, overrides: list[str]) -> None:
    """Train the recipe; with `from=RUN` as its name, begin a new run from the last checkpoint of another."""
    train_recipe(training_recipe(name, overrides), ["train", name, *overrides])
