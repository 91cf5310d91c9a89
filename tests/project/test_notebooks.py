"""The notebooks as they are committed; `make notebooks` runs them."""

import json
import re
from pathlib import Path

import pytest

from reread.pipeline.recipe.layers import available_recipes, finetuning_recipes
from tests.conftest import ROOT, extra

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def test_there_is_one_for_each_language() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["en", "zh"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_valid_and_holds_no_outputs(path: Path) -> None:
    notebook = json.loads(path.read_text(encoding="utf-8"))
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert cells
    assert not any(cell["outputs"] or cell["execution_count"] or cell["metadata"] for cell in cells)
    assert set(notebook["metadata"]) == {"kernelspec", "language_info"}
    extra("notebooks", "nbformat").validate(notebook)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_command_that_fails_ends_its_cell(path: Path) -> None:
    """A pipe has the status of its last command, and `!` ignores it: what fails would be overlooked."""
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "code" and "reread" in source:
            assert not re.search(r"^!|\breread [a-z]+ [^|\n]*\|", source, re.MULTILINE), source


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_recipes_and_files_that_a_notebook_names_exist(path: Path) -> None:
    text = "\n".join("".join(cell["source"]) for cell in json.loads(path.read_text(encoding="utf-8"))["cells"])
    recipes = set(re.findall(r"reread (?:train|preprocess|finetune|show) ([a-z][\w-]+)", text))
    assert recipes
    assert recipes <= {*available_recipes(), *finetuning_recipes()}
    for name in re.findall(r"\$SAMPLE/([\w/.-]+)", text):
        assert (ROOT / "pipeline" / "sample" / name).exists(), name
