"""The points of a grid of fine-tunings with their scores on dev: runs/NAME-grid.json."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from rich import box
from rich.table import Table

from reread.pipeline.display.terminal import print_wide
from reread.preprocessing.files import write_atomically
from reread.training.run.files import read_mapping
from reread.training.scoring.task_scores import formatted


class GridPoint(NamedTuple):
    run: str
    """Name of its run with the first seed."""
    settings: list[str]
    """As overrides."""
    scores: dict[str, float]
    """On dev."""


class Grid(NamedTuple):
    by: str
    """The score that points are compared by."""
    points: list[GridPoint]
    """Those that are trained."""
    chosen: str
    """The beginning of the names of the best point's runs; empty until all points are trained."""


def write_grid(runs: Path, name: str, grid: Grid) -> None:
    values = {**grid._asdict(), "points": [one._asdict() for one in grid.points]}
    write_atomically(runs / f"{name}-grid.json", json.dumps(values, ensure_ascii=False, indent=1).encode())


def read_grid(runs: Path, name: str) -> Grid:
    """The grid of a fine-tuning; without points if it has none, or if its file cannot be read."""
    found = read_mapping(runs / f"{name}-grid.json")
    try:
        points = [GridPoint(one["run"], list(one["settings"]), dict(one["scores"])) for one in found["points"]]
        return Grid(str(found["by"]), points, str(found["chosen"]))
    except (KeyError, TypeError, ValueError):
        return Grid("", [], "")


def print_grid(grid: Grid) -> None:
    """Print a row for each point, with a mark at the one that was chosen."""
    result = Table(box=box.SIMPLE)
    for column in ("grid", *_keys(grid), f"{grid.by} (dev)", ""):
        result.add_column(column)
    for point in grid.points:
        result.add_row(*cells(grid, point))
    print_wide(result)


def cells(grid: Grid, point: GridPoint) -> list[str]:
    """Run, settings, score, and whether the point was chosen."""
    values = [one.partition("=")[2] for one in point.settings]
    return [point.run, *values, formatted(grid.by, point.scores[grid.by]), "chosen" if is_chosen(grid, point) else ""]


def is_chosen(grid: Grid, point: GridPoint) -> bool:
    return point.run == grid.chosen or (bool(grid.chosen) and point.run.startswith(f"{grid.chosen}-seed"))


def _keys(grid: Grid) -> Sequence[str]:
    return [one.partition("=")[0] for one in grid.points[0].settings] if grid.points else []
