"""`reread recipes`: the built-in recipes."""

from reread.pipeline.recipe.layers import available_recipes, finetuning_recipes, suite_recipes
from reread.pipeline.recipe.load import recipe_values


def recipes() -> None:
    """Print the names and descriptions of the recipes that pretrain, then of those that fine-tune."""
    groups = {
        "to pretrain (reread run)": available_recipes(),
        "to score a model on a suite (reread run NAME init=MODEL)": suite_recipes(),
        "to fine-tune (reread finetune)": finetuning_recipes(),
    }
    for title, names in groups.items():
        print(f"{title}:")
        for name in names:
            print(f"  {name:30} {recipe_values(name, [])['description']}")
