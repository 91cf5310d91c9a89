"""The paper's table beside ours: a column for each score of the pretrained model and of the tasks of `then`."""

import json
from pathlib import Path
from typing import Any, NamedTuple

from rich import box
from rich.table import Table

from pipeline.following import following_run, missing_data
from pipeline.recipe import Following, Published, recipe_values
from pipeline.report.runs import Run
from pipeline.scores import mean_and_deviation
from preprocessing.errors import UserError


class PaperTable(NamedTuple):
    """The first row is ours, the others the papers'."""

    columns: list[str]
    """Task and score."""
    rows: list[tuple[str, list[str]]]
    """Name of a model, and its cells; a number in brackets refers to `notes`."""
    notes: list[str]
    """What differs from ours; and after these, without a number, the tasks without scores."""


class _Column(NamedTuple):
    task: str
    score: str
    ours: str
    published: list[Published]


def paper_table(run: Run) -> PaperTable | None:
    """The table of a run whose recipe has `published` figures or goes on to tasks; None for others.

    A task without scores has the paper's alone. Ours are those of the held-out examples.
    """
    columns = _columns("held-out text", run.recipe.published, _evaluated(run))
    without = []
    for one in run.recipe.then:
        try:
            values = recipe_values(one.recipe, one.overrides, "train")
            published = [Published.parse(row, one.recipe) for row in values.get("finetune", {}).get("published", [])]
        except UserError as error:
            without.append(f"{one.recipe}: not shown ({error})")
            continue
        found = measured(run.folder.parent, following_run(run.recipe, one))
        columns += _columns(_task(one), published, _means(found))
        if not found:
            without.append(f"{one.recipe}: {missing_data(run.recipe, one) or 'not fine-tuned yet'}")
    if not columns and not without:
        return None
    models = dict.fromkeys(row.model for column in columns for row in column.published)
    notes = list(dict.fromkeys(row.differs for column in columns for row in column.published if row.differs))
    rows = [("ours", [column.ours for column in columns])]
    rows += [(model, [_cell(column, model, notes) for column in columns]) for model in models]
    numbered = [f"[{number}] {note}" for number, note in enumerate(notes, 1)]
    return PaperTable([f"{column.task}, {column.score}" for column in columns], rows, [*numbered, *without])


def as_text(table: PaperTable, title: str) -> Table:
    """The table for a terminal."""
    result = Table(title=title, box=box.SIMPLE)
    result.add_column("")
    for name in table.columns:
        result.add_column(name.replace(", ", "\n"), justify="right")
    for model, cells in table.rows:
        result.add_row(model, *cells)
    return result


def measured(runs: Path, name: str) -> list[dict[str, float]]:
    """The scores of each seed of a fine-tuning in the folder `runs`; none if it has not ended."""
    for path in (runs / f"{name}-seeds.json", runs / name / "scores.json"):
        try:
            found: Any = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            continue
        if isinstance(found, list) and all(isinstance(one, dict) for one in found):
            return found
    return []


def _columns(task: str, published: list[Published], ours: dict[str, str]) -> list[_Column]:
    scores = dict.fromkeys(score for row in published for score in row.scores)
    return [_Column(task, score, ours.get(score, "-"), published) for score in scores]


def _evaluated(run: Run) -> dict[str, str]:
    """The last figures of all held-out text, as the run reads it."""
    figures = [one["figures"] for one in run.evaluations if not one["overrides"]]
    return {name: f"{value:.2f}" for name, value in figures[-1].items()} if figures else {}


def _means(found: list[dict[str, float]]) -> dict[str, str]:
    names = dict.fromkeys(name for one in found for name in one)
    return {name: mean_and_deviation([one[name] for one in found if name in one]) for name in names}


def _cell(column: _Column, model: str, notes: list[str]) -> str:
    for row in column.published:
        if row.model == model and column.score in row.scores:
            mark = f" [{notes.index(row.differs) + 1}]" if row.differs else ""
            return f"{row.scores[column.score]:g}{mark}"
    return "-"


def _task(one: Following) -> str:
    return Path(one.recipe).stem
