"""The README's promises hold: what it names exists."""

import re

from pipeline.cli import app
from pipeline.recipe import available_recipes
from tests.conftest import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_every_promise_of_the_readme_and_of_the_table_of_faults_is_a_test() -> None:
    faults = (ROOT / "docs" / "faults.md").read_text(encoding="utf-8")
    promised = set(re.findall(r"`(test_\w+)`", README + faults))
    sources = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    assert promised
    assert not {name for name in promised if f"def {name}(" not in sources}


def test_the_readme_shows_every_command_and_no_other() -> None:
    commands = {command.name or command.callback.__name__ for command in app.registered_commands if command.callback}
    assert set(re.findall(r"\breread ([a-z]+)\b(?=[ `])", README)) <= commands
    assert commands <= set(re.findall(r"\breread ([a-z]+)\b", README))


def test_recipes_of_the_readme_exist() -> None:
    shown = set(re.findall(r"reread (?:train|preprocess|run) ([a-z][\w.-]+)", README))
    assert shown <= set(available_recipes())


def test_files_the_readme_points_to_exist() -> None:
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", README):
        assert (ROOT / target).exists(), target


def test_make_targets_of_the_readme_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^make (\w+)$", README, re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
