"""The README and docs/faults.md name only what exists, the README names all of it, and its pictures can be drawn."""

import ast
import re
import subprocess
import sys
from collections import Counter

from reread.pipeline.cli import app
from reread.pipeline.recipe.layers import available_recipes, finetuning_recipes
from tests.conftest import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
FAULTS = (ROOT / "docs" / "faults.md").read_text(encoding="utf-8")


def table(header: str) -> list[list[str]]:
    """Cells of each row of the README's table whose first line is `header`."""
    lines = README[README.index(f"\n{header}\n") + 1 :].splitlines()[2:]
    rows = [line for line in lines[: [*lines, ""].index("")] if line.startswith("|")]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def names_of_all_tests() -> set[str]:
    names = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        module = ast.parse(path.read_text(encoding="utf-8"))
        scopes = [module, *(node for node in module.body if isinstance(node, ast.ClassDef))]
        names |= {node.name for scope in scopes for node in scope.body if isinstance(node, ast.FunctionDef)}
    return names


def test_every_promise_of_the_readme_names_tests_of_its_own() -> None:
    promises = [re.findall(r"`(test_\w+)`", test) for _, test in table("| promise | test |")]
    assert len(promises) > 10
    assert all(promises)
    assert set().union(*promises) <= names_of_all_tests()
    assert max(Counter(name for names in promises for name in names).values()) == 1


def test_every_test_named_in_the_table_of_failures_exists() -> None:
    named = set(re.findall(r"`(test_\w+)`", FAULTS))
    assert named
    assert named <= names_of_all_tests()
    files = set(re.findall(r"\btests/[\w/]+\.py", FAULTS))
    assert files
    assert not {file for file in files if not (ROOT / file).exists()}


def test_the_readme_shows_every_command_and_no_other() -> None:
    commands = {command.name or command.callback.__name__ for command in app.registered_commands if command.callback}
    assert set(re.findall(r"\breread ([a-z]+)\b(?=[ `])", README)) <= commands
    assert commands <= set(re.findall(r"\breread ([a-z]+)\b", README))


def test_the_models_of_the_readme_name_every_recipe_that_trains_one() -> None:
    of_models = {
        name for *_, recipes in table("| model | paper | reads | objective | recipes |") for name in names(recipes)
    }
    beside = {name for name in available_recipes() if name.startswith("paper-")}
    beside |= {"quickstart", "quickstart-ernie-doc", "quickstart-ran", "roberta-small"}
    assert of_models | beside == set(available_recipes())


def names(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def test_recipes_of_the_readme_exist() -> None:
    shown = set(re.findall(r"reread (?:train|preprocess|run|plan|ablate|finetune) ([a-z][\w.-]+)(?![\w.-]*=)", README))
    assert shown
    assert shown <= {*available_recipes(), *finetuning_recipes()}


def test_files_that_the_documents_point_to_exist() -> None:
    for document in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")):
        for target in re.findall(r"\]\((?!http)([^)#]+)\)", document.read_text(encoding="utf-8")):
            assert (document.parent / target).exists(), f"{document.name}: {target}"
    for picture in re.findall(r'<img src="([^"]+)"', README):
        assert (ROOT / picture).exists(), picture


def test_make_targets_of_the_readme_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = {
        target
        for line in re.findall(r"^make ([a-z -]+)|`make ([a-z -]+)", README, re.MULTILINE)
        for target in "".join(line).split()
    }
    assert {"quickstart", "test", "gpu", "slurm"} <= targets
    for target in targets:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_pictures_without_chromium_are_one_line() -> None:
    command = [sys.executable, "-m", "docs.images.draw"]
    done = subprocess.run(command, cwd=ROOT, env={"PATH": ""}, capture_output=True, text=True, check=False)
    line = "reread: no Chromium to draw with; install it (Debian's package chromium)\n"
    assert (done.returncode, done.stderr) == (2, line)
