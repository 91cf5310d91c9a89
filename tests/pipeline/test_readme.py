"""The README and the pages that it sends its readers to name only what exists, and together all of it."""

import ast
import json
import re
import subprocess
import sys
from collections import Counter
from statistics import median
from unittest.mock import create_autospec

import pytest

import reread
from reread.pipeline.cli import app
from reread.pipeline.recipe.layers import available_recipes, finetuning_recipes, suite_recipes
from tests.conftest import ROOT


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


README = text_of("README.md")
PROMISES = "| promise | test |"
BESIDE = next(line for line in README.splitlines() if line.startswith("| | reread |"))
THEIR_LONGFORMER = "transformers' Longformer, the same"
STEPS = "| model, rows of, tokens of a micro-batch | BERT | ours | times | MFU | kernels' ms of the step's |"


def table(text: str, header: str) -> list[list[str]]:
    """Cells of each row of the table of a page whose first line is `header`."""
    lines = text[text.index(f"\n{header}\n") + 1 :].splitlines()[2:]
    rows = [line for line in lines[: [*lines, ""].index("")] if line.startswith("|")]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def names_of_all_tests() -> set[str]:
    names = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        module = ast.parse(path.read_text(encoding="utf-8"))
        scopes = [module, *(node for node in module.body if isinstance(node, ast.ClassDef))]
        names |= {node.name for scope in scopes for node in scope.body if isinstance(node, ast.FunctionDef)}
    return names


def test_every_promise_names_tests_of_its_own() -> None:
    promises = [re.findall(r"`(test_\w+)`", test) for _, test in table(text_of("docs/promises.md"), PROMISES)]
    assert len(promises) >= 30
    assert all(promises)
    assert set().union(*promises) <= names_of_all_tests()
    assert max(Counter(name for names in promises for name in names).values()) == 1


def test_the_readme_keeps_five_of_the_promises() -> None:
    kept = table(README, PROMISES)
    assert len(kept) == 5
    assert all(promise in table(text_of("docs/promises.md"), PROMISES) for promise in kept)


def test_every_test_named_in_the_table_of_failures_exists() -> None:
    faults = text_of("docs/faults.md")
    named = set(re.findall(r"`(test_\w+)`", faults))
    assert named
    assert named <= names_of_all_tests()
    files = set(re.findall(r"\btests/[\w/]+\.py", faults))
    assert files
    assert not {file for file in files if not (ROOT / file).exists()}


def test_the_page_of_commands_has_every_command_and_no_other() -> None:
    commands = {command.name or command.callback.__name__ for command in app.registered_commands if command.callback}
    rows = [name for name, _ in table(text_of("docs/commands.md"), "| command | |")]
    assert {name.split()[1].strip("`") for name in rows} == commands and len(rows) == len(commands)
    for page in ("README.md", "docs/commands.md", "docs/install.md"):
        assert set(re.findall(r"[`\n]reread ([a-z]+)\b(?=[ `])", text_of(page))) <= commands, page


def test_the_models_of_the_readme_name_every_recipe_that_trains_one() -> None:
    of_models = {
        name
        for *_, recipes in table(README, "| model | paper | reads | learns to predict | recipes |")
        for name in names(recipes)
    }
    beside = {name for name in available_recipes() if name.startswith("paper-")}
    beside |= {"quickstart", "quickstart-ernie-doc", "quickstart-ran", "roberta-small"}
    assert of_models | beside == set(available_recipes())


def names(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def test_recipes_that_the_pages_name_exist() -> None:
    pages = README + text_of("docs/commands.md")
    shown = set(re.findall(r"reread (?:train|preprocess|run|plan|ablate|finetune) ([a-z][\w.-]+)(?![\w.-]*=)", pages))
    assert shown
    assert shown <= {*available_recipes(), *suite_recipes(), *finetuning_recipes()}


def test_files_that_the_documents_point_to_exist() -> None:
    for document in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")):
        for target in re.findall(r"\]\((?!http)([^)#]+)\)", document.read_text(encoding="utf-8")):
            assert (document.parent / target).exists(), f"{document.name}: {target}"
    for picture in re.findall(r'<img src="([^"]+)"', README):
        assert (ROOT / picture).exists(), picture


def test_the_readme_sets_up_by_two_commands_near_its_top() -> None:
    first = re.findall(r"^```\n(.*?)^```", README, re.MULTILINE | re.DOTALL)[0]
    assert first == "make quickstart\nmake test\n"
    assert README.index(first) < 1000
    assert len(README.encode("utf-8")) < 9_500


def test_the_python_of_the_readme_calls_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    called = {name: create_autospec(getattr(reread, name)) for name in ("preprocess", "train", "finetune")}
    for name, function in called.items():
        monkeypatch.setattr(reread, name, function, raising=False)
    exec(compile(code, "README.md", "exec"), {})
    assert all(function.call_count == 1 for function in called.values())


def test_the_readmes_figures_are_those_that_were_measured() -> None:
    rows = {cells[0]: cells[1:] for cells in table(README, BESIDE)}
    results = json.loads(text_of("benchmarks/peers/results.json"))["cases"]["bert"]
    ours, theirs = (median(one["step 128"] for one in results[side]) for side in ("ours", "theirs"))
    on_cpu, on_gpu, longformer = (
        next(cells for name, cells in rows.items() if start in name) for start in ("small BERT", "base,", "Longformer")
    )
    assert on_cpu[:2] == [f"**{ours:.3f} s**", f"{theirs:.3f} s"]
    steps = {cells[0]: [cell.strip("*") for cell in cells[1:3]] for cells in table(text_of("docs/lab-log.md"), STEPS)}
    (bert, nezha), (large_bert, large) = steps["NEZHA, 512, 16,384"], steps["NEZHA, 512, 65,536"]
    assert on_gpu[0] == f"**{nezha} thousand tokens/s**; **{large}** in micro-batches of 65,536"
    assert on_gpu[1] == f"{bert} and {large_bert} thousand (BERT)"
    assert longformer[0] == f"**{steps['Longformer, 4,096, 16,384'][1]} thousand tokens/s**"
    assert longformer[1] == f"{steps[THEIR_LONGFORMER][1]} thousand"


def test_make_targets_that_the_pages_name_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = {
        target
        for page in ("README.md", "docs/install.md", "docs/commands.md", "CONTRIBUTING.md")
        for line in re.findall(r"^make ([a-z -]+)|`make ([a-z -]+)", text_of(page), re.MULTILINE)
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
