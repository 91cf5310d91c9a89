"""Each command that a page shows is one: its arguments parse, its recipe loads with the settings that it changes."""

import re
import shlex

import pytest
from typer.main import get_command

from reread.pipeline.cli import app
from reread.pipeline.recipe.layers import finetuning_recipes
from reread.pipeline.recipe.load import load_recipe
from reread.pipeline.recipe.task import finetune_recipe
from tests.conftest import ROOT
from tests.docs.tutorial import blocks

PAGES = [
    "README.md",
    "docs/commands.md",
    "docs/faults.md",
    "docs/plan.md",
    "docs/models.md",
    "docs/serving.md",
    "slurm/README.md",
]
"""Those of the tutorials are run (test_tutorials.py)."""
MODEL = ROOT / "tests" / "fixtures" / "first" / "opinion-export"
"""Stands for the models that commands start from."""
TASKS = {"classify": "chnsenticorp", "nezha-chnsenticorp": "chnsenticorp", "nezha-xnli": "xnli"}
"""Recipe that a page fine-tunes by -> the folder of the sample's tasks that stands for the files that it names."""


def shown(page: str) -> list[str]:
    """What follows `reread` in lines of a page's blocks of commands, behind torchrun and srun, too."""
    found = blocks((ROOT / page).read_text(encoding="utf-8"))
    lines = [line for block in found if block.language in ("", "sh") for line in block.text.splitlines()]
    return [found.group(1) for line in lines if (found := re.search(r"(?:^|^torchrun .*|^srun .*)\breread (.*)", line))]


COMMANDS = sorted({command for page in PAGES for command in shown(page)})


def test_the_pages_show_commands() -> None:
    assert all(shown(page) for page in PAGES[:2])
    assert len(COMMANDS) > 30


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_that_a_page_shows_can_be_given(command: str) -> None:
    name, *arguments = shlex.split(command, comments=True)
    given = get_command(app).commands[name].make_context(name, arguments).params  # type: ignore[attr-defined]
    recipe, overrides = given.get("recipe"), given.get("overrides") or []
    if recipe is None or recipe.isupper() or "=" in recipe:  # RECIPE is any, and from=RUN has a run's
        return
    if recipe in finetuning_recipes():
        files = ROOT / "pipeline" / "sample" / "tasks" / TASKS[recipe]
        there = [f"init={MODEL}", f"task.train={files / 'train.tsv'}", f"task.dev={files / 'dev.tsv'}"]
        changed = [one for one in overrides if one.split("=")[0] not in ("init", "task.train", "task.dev")]
        finetune_recipe(recipe, [*changed, *there])
    else:
        load_recipe(recipe, overrides, "preprocess" if name in ("preprocess", "peek") else "train")
