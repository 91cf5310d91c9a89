"""What docs/papers.md says of each paper's parts is there: recipes, ablations and their rows, commands, files."""

import re

import pytest

from reread.pipeline.cli import app
from reread.pipeline.recipe.layers import available_recipes, finetuning_recipes
from reread.pipeline.recipe.load import recipe_values
from tests.conftest import ROOT

PAPERS = ("NEZHA", "ERNIE-Doc", "RAN", "Longformer")


def parts(page: str) -> dict[str, list[tuple[str, str, str]]]:
    """Paper -> its rows: the part, where it is here, and what is said of it."""
    section = page.partition("\n## What is here\n")[2].partition("\n## ")[0]
    found = {}
    for block in section.split("\n### ")[1:]:
        cells = [[cell.strip() for cell in line.split("|")[1:4]] for line in block.splitlines() if line[:2] == "| "]
        found[block.partition(" (")[0]] = [(part, here, said) for part, here, said in cells[1:]]
    return found


def missing(name: str) -> str:
    """Why what a row names is not here; empty if it is."""
    words = name.split()
    if words[0] == "reread":
        commands = {one.name or one.callback.__name__ for one in app.registered_commands if one.callback}
        if words[1] not in commands:
            return "no such command"
        return missing(f"{words[2]}: ") if words[1] == "ablate" else missing(words[2]) if words[2:] else ""
    recipe, colon, row = name.partition(": ")
    if recipe not in (*available_recipes(), *finetuning_recipes()):
        return "" if "/" in name and (ROOT / name).is_file() else "no such recipe or file"
    rows = [one["name"] for one in recipe_values(recipe, []).get("ablations") or []]
    return "no such row" if colon and (row not in rows if row else not rows) else ""


def test_every_part_of_a_paper_names_what_there_is_or_why_it_is_absent() -> None:
    page = parts((ROOT / "docs" / "papers.md").read_text(encoding="utf-8"))
    assert tuple(page) == PAPERS
    for paper, rows in page.items():
        for part, here, said in rows:
            names = re.findall(r"`([^`]+)`", here)
            assert names or said.startswith("absent: "), f"{paper}, {part}"
            wrong = {name: why for name in names if (why := missing(name))}
            assert said and not wrong, f"{paper}, {part}: {wrong}"


def test_every_finetuning_recipe_of_a_paper_is_in_its_table() -> None:
    page = parts((ROOT / "docs" / "papers.md").read_text(encoding="utf-8"))
    named = " ".join(here for rows in page.values() for _, here, _ in rows)
    recipes = [name for name in finetuning_recipes() if re.match("nezha-|ernie-doc-|ran-|longformer-", name)]
    assert not [name for name in recipes if not re.search(rf"[` ]{name}[`:]", named)]


@pytest.mark.parametrize(
    "name", ["nezha-basis", "reread sing", "reread ablate nezha-base-wwm-x", "ran-small: 9 layers", "training/none.py"]
)
def test_what_is_not_here_is_found(name: str) -> None:
    assert missing(name)
