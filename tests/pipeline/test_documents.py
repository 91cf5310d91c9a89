"""The pages of docs/ against the tree: files that they name, the layout of design.md, the Python of extending.md, the
names of code.md, the words of glossary.md."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from reread.training.config import OptimizerSettings
from reread.training.data import kinds
from reread.training.objectives.rows import RowObjective
from reread.training.optim import build
from reread.training.parallel.mesh import Mesh
from tests.conftest import ROOT
from tests.pipeline.test_readme import names_of_all_tests

DOCUMENTS = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "slurm/README.md")),
    *sorted((ROOT / "docs").glob("*.md")),
]
FOLDERS = "benchmarks|docs|pipeline|preprocessing|reread|slurm|tests|training"


def text_of(document: Path) -> str:
    return document.read_text(encoding="utf-8")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_file_that_a_page_names_exists(document: Path) -> None:
    """NAME and MODEL stand for any name."""
    named = set(re.findall(rf"`((?:{FOLDERS})/[\w./*-]*)`", text_of(document)))
    absent = {one for one in named if not list(ROOT.glob(re.sub("NAME|MODEL", "*", one).rstrip("/")))}
    assert not absent, "name the file that took its place"


def layout() -> dict[str, set[str]]:
    """Folder -> the modules that the layout names: what stands between commas outside brackets."""
    block = text_of(ROOT / "docs" / "design.md").split("```")[1]
    entries = re.findall(r"^((?:pipeline|preprocessing|training)\S*)\s+(.*(?:\n {8,}.*)*)", block, re.MULTILINE)
    plain = {folder: re.sub(r"\([^)]*\)", "", " ".join(entry.split())) for folder, entry in entries}
    return {folder: set(re.findall(r"\b[a-z_]+\b", entry)) for folder, entry in plain.items()}


def test_the_layout_names_every_module_and_no_other_folder() -> None:
    rooms: dict[str, set[str]] = {}
    for top in ("pipeline", "preprocessing", "training"):
        for path in (ROOT / top).rglob("*.py"):
            rooms.setdefault(path.parent.relative_to(ROOT).as_posix(), set()).add(path.stem)
    tables = {"pipeline/commands", *(room for room in rooms if room.startswith("training/models/"))}
    named = layout()
    assert set(named) == {room for room, modules in rooms.items() if modules != {"__init__"}} - tables | {
        "pipeline/commands"
    }
    absent = {room: rooms[room] - words - {"__init__"} for room, words in named.items() if room not in tables}
    assert not {room: modules for room, modules in absent.items() if modules}


def test_the_layout_names_no_module_that_is_gone() -> None:
    prose = {"a", "and", "at", "address", "command", "corpus", "each", "folder", "for", "model", "module", "of", "an"}
    for folder, words in layout().items():
        gone = {word for word in words - prose if not (ROOT / folder / f"{word}.py").exists()}
        assert not gone, folder


def test_tests_that_the_page_of_changes_names_exist() -> None:
    named = set(re.findall(r"`(test_\w+)`", text_of(ROOT / "docs" / "where.md")))
    assert named
    assert named <= names_of_all_tests()


def snippets() -> list[str]:
    return re.findall(r"```python\n(.*?)```", text_of(ROOT / "docs" / "extending.md"), re.DOTALL)


def run_snippet(defines: str) -> dict[str, Any]:
    """The names that the snippet which contains `defines` leaves."""
    (code,) = (one for one in snippets() if defines in one)
    names: dict[str, Any] = {"__name__": "reread.snippet"}
    exec(compile(code, "docs/extending.md", "exec"), names)
    return names


def test_the_snippet_of_an_objective_is_one() -> None:
    objective = run_snippet("ReplacedTokenObjective")["ReplacedTokenObjective"]
    assert issubclass(objective, RowObjective)
    assert not objective.__abstractmethods__
    figures = objective.summary(dict.fromkeys(objective.figures, 2.0), 1)
    assert set(objective.shown.values()) <= set(figures)


def test_the_snippet_of_a_kind_of_data_makes_a_row_of_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kinds, "KINDS", dict(kinds.KINDS))
    names = run_snippet("SentenceSettings")
    row = kinds.KINDS["sentences"]
    settings = row.settings.parse({"kind": "sentences", "corpus": "somewhere"}, "test")
    assert set(settings.blank(2)) == {"input_ids", "labels", "attention_mask"}
    assert callable(row.open) and not names["Sentences"].__abstractmethods__


def test_the_snippet_of_a_model_is_a_spec() -> None:
    spec = run_snippet("ModelSpec(")["SPEC"]
    assert spec.converted is spec.heads["masked_lm"] and spec.longest(spec.config()) is None


def test_the_snippet_of_an_optimiser_is_built_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "OPTIMIZERS", dict(build.OPTIMIZERS))
    run_snippet("OptimizerRow(")
    settings = OptimizerSettings(learning_rate=1.0).model_copy(update={"name": "momentum"})
    layer = nn.Linear(2, 1)
    optimizer = build.build_optimizer(layer.named_parameters(), settings, Mesh())
    layer(torch.ones(1, 2)).sum().backward()
    before = layer.bias.item()
    optimizer.step()
    assert layer.bias.item() == pytest.approx(before - 1.0)
    assert set(optimizer.state[layer.bias]) == {"momentum_buffer"}


def test_every_snippet_is_run() -> None:
    assert len(snippets()) == 4


def cells(page: str) -> Iterator[list[str]]:
    """The cells of each row of a page's tables."""
    for line in text_of(ROOT / "docs" / page).splitlines():
        if line.startswith("|"):
            yield [cell.strip() for cell in line.strip("|").split("|")]


def defined_in(path: Path) -> set[str]:
    """The functions and classes at the top of a module, and the methods as `Class.method`."""
    body = ast.parse(text_of(path)).body
    classes = [node for node in body if isinstance(node, ast.ClassDef)]
    return {node.name for node in body if isinstance(node, ast.ClassDef | ast.FunctionDef)} | {
        f"{one.name}.{node.name}" for one in classes for node in one.body if isinstance(node, ast.FunctionDef)
    }


def test_each_name_of_the_page_of_code_is_defined_in_the_file_beside_it() -> None:
    lines = [(file.strip("`"), re.findall(r"`([^`]+)`", names)) for _, file, names in cells("code.md") if "/" in file]
    assert sum(len(names) for _, names in lines) > 30
    for file, names in lines:
        assert set(names) <= defined_in(ROOT / file), file


def test_the_page_of_code_begins_with_six_files() -> None:
    first = [file.strip("`") for number, file, _ in cells("code.md") if number.isdecimal()]
    assert len(first) == 6
    assert all((ROOT / file).exists() for file in first)


def test_each_term_of_the_glossary_is_in_its_file() -> None:
    terms = [(term, file.strip("`")) for term, _, file in (row for row in cells("glossary.md") if len(row) == 3)]
    terms = [(term, file) for term, file in terms if "/" in file]
    assert 30 <= len(terms) <= 50
    for term, file in terms:
        words = re.sub("[ -]", "[ _-]", term)
        assert re.search(rf"(?<![a-z]){words}(?![a-rt-z])", text_of(ROOT / file), re.IGNORECASE), f"{term}: {file}"


def defined_names() -> set[str]:
    """The names that the code gives: of modules, classes, functions, arguments and variables."""
    names = set()
    for folder in ("pipeline", "preprocessing", "reread", "slurm", "training"):
        for path in (ROOT / folder).rglob("*.py"):
            names.add(path.stem)
            for node in ast.walk(ast.parse(text_of(path))):
                if isinstance(node, ast.ClassDef | ast.FunctionDef):
                    names.add(node.name)
                elif isinstance(node, ast.arg):
                    names.add(node.arg)
                elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                    names.add(node.id)
    return names


def test_no_page_and_no_name_has_a_word_that_the_glossary_replaces() -> None:
    words = [word for row in cells("glossary.md") if len(row) == 2 for word in row[0].split(", ")][2:]
    assert len(words) > 20
    pages = {path: text_of(path).lower() for path in DOCUMENTS if path.name != "glossary.md"}
    pages |= {path: re.sub(r"\[[^]]*\]\(http[^)]*\)", "", text) for path, text in pages.items()}  # titles of papers
    names = {re.sub("(?<=[a-z])(?=[A-Z])", "_", name).lower() for name in defined_names()}
    for word in words:
        found = [path.name for path, text in pages.items() if re.search(rf"\b{re.escape(word)}s?\b", text)]
        assert not found, f"{word}: see docs/glossary.md"
        as_name = re.compile(rf"(?:^|_){word.replace(' ', '_')}s?(?:$|_)")  # a hyphen is for prose alone
        assert not [name for name in names if as_name.search(name)], f"{word}: see docs/glossary.md"
