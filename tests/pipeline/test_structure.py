"""The program's own code, read as syntax trees."""

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.conftest import ROOT

PROGRAM = ("reread", "pipeline", "preprocessing", "training", "slurm")
MOST_TYPE_TESTS = 24
"""Questions by `isinstance` or `issubclass` for a class of our own. A new kind of thing answers by an attribute or a
method instead; lower the number with each question that goes."""


def modules() -> dict[Path, ast.Module]:
    paths = [path for folder in PROGRAM for path in sorted((ROOT / folder).rglob("*.py"))]
    return {path: ast.parse(path.read_text(encoding="utf-8")) for path in paths}


def own_names(module: ast.Module) -> set[str]:
    """The classes that a module defines, and the names that it imports from the program."""
    names = set[str]()
    for node in ast.walk(module):
        if isinstance(node, ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.ImportFrom) and (node.level or (node.module or "").split(".")[0] == "reread"):
            names |= {alias.asname or alias.name for alias in node.names}
    return names


def type_tests(module: ast.Module) -> Iterator[str]:
    """The calls of isinstance and issubclass whose second argument names one of `own_names`."""
    own = own_names(module)
    for node in ast.walk(module):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("isinstance", "issubclass"):
            asked = {name.id for name in ast.walk(node.args[1]) if isinstance(name, ast.Name)}
            if asked & own:
                yield f"{node.lineno}: {ast.unparse(node)}"


def test_few_questions_ask_for_a_class_of_our_own() -> None:
    found = [f"{path.relative_to(ROOT)}:{line}" for path, module in modules().items() for line in type_tests(module)]
    assert len(found) <= MOST_TYPE_TESTS, "\n".join(found)


def test_questions_for_own_classes_are_found_by_every_way_to_name_them() -> None:
    code = """
from torch import Tensor
from reread.training.parallel import mesh
from .heads import Head as Top
class Own: ...
isinstance(x, Own), issubclass(x, int | Top), isinstance(x, (str, mesh.Mesh))
isinstance(x, Tensor), isinstance(x, dict)
"""
    assert [line.partition(": ")[0] for line in type_tests(ast.parse(code))] == ["6", "6", "6"]
