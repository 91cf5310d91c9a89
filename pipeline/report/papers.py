"""The paper's table beside ours: a column for each score of the pretrained model and of the tasks of `then`."""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from rich import box
from rich.table import Table

from reread.pipeline.display.scores import best, means, published_for, read_scores
from reread.pipeline.recipe.load import recipe_of, recipe_values
from reread.pipeline.recipe.schema import Finetuning, Following, Published, Recipe, task_section
from reread.pipeline.recipe.then import following_run, missing_data, task_files
from reread.pipeline.report.runs import Run
from reread.preprocessing.errors import UserError
from reread.training.run.metrics import read_mistakes

SPLITS = "(dev): the examples that choose the checkpoint; (test): others. A paper's row without either names no split."


MEAN = (
    "mean: over the tasks of a row that have scores of ours, of which it counts (N); of a task with several columns "
    "their mean counts, of correlations 100 times their value."
)
CORRELATIONS = ("pearson", "spearman")
"""Scores from -1 to 1."""


class PaperTable(NamedTuple):
    """A table whose first rows are ours and whose other rows are the papers'."""

    columns: list[str]
    """Task and score."""
    rows: list[tuple[str, list[str]]]
    """Name of a model, and its cells; a number in brackets refers to `notes`."""
    notes: list[str]
    """Numbered notes on what differs from ours, then the tasks without scores of ours or of the paper."""


class _Column(NamedTuple):
    task: str
    score: str
    ours: "dict[_Row, str]"
    published: list[Published]

    def joined(self, other: "_Column") -> "_Column":
        """This column with the scores of another fine-tuning of the same task."""
        return self._replace(ours={**self.ours, **other.ours}, published=self.published or other.published)


class _Row(NamedTuple):
    """Whose scores a row of ours has; rows are in this order."""

    split: str
    """dev or test."""
    form: str = ""
    """`Following.row`."""
    best: bool = False
    """Whether it has each score's best over the seeds, not their mean."""

    def __str__(self) -> str:
        form = f", {self.form}" if self.form else ""
        return f"ours{form}{', best of seeds' if self.best else ''} ({self.split})"


def paper_table(run: Run) -> PaperTable | None:
    """`published_table` of a run, with its own figures of held-out text."""
    return published_table(run.recipe, run.folder.parent, _evaluated(run))


def published_table(recipe: Recipe, runs: Path, evaluated: Mapping[str, str] = {}) -> PaperTable | None:
    """The table of a recipe that has `published` figures or goes on to tasks, whose runs are in the folder `runs`; None
    for others. `evaluated` are the figures of held-out text beside the former.

    A task without scores has the paper's alone, and one that was scored on other data than the paper's has ours alone.
    A score that the paper lacks has a column if the task has no other. Fine-tunings of one task share its columns.
    """
    published = recipe.published
    columns = _columns("held-out text", published, {_Row("dev"): dict(evaluated)} if published else {}, published)
    of_tasks, steps, without = _task_columns(recipe, runs)
    columns += of_tasks
    if not columns and not without:
        return None
    # Rows of ours, then a row for each model of the papers
    notes = list(dict.fromkeys(row.differs for column in columns for row in column.published if row.differs))
    forms = list(dict.fromkeys(one.row for one in recipe.then)) or [""]
    found = {_Row("dev", forms[0]), *(row for column in columns for row in column.ours)}
    ours_rows = sorted(found, key=lambda row: (row.split, forms.index(row.form) if row.form in forms else -1, row.best))
    rows = [
        (str(row) if recipe.then else "ours", [column.ours.get(row, "-") for column in columns]) for row in ours_rows
    ]
    models = dict.fromkeys(row.model for column in columns for row in column.published)
    rows += [(model, [_cell(column, model, notes) for column in columns]) for model in models]
    names = [f"{column.task}, {column.score}" for column in columns]
    # What stands below, and a last column with means
    explained = [SPLITS, f"Examples of a step of ours: {', '.join(steps)}."] if steps else []
    if recipe.mean:
        ours_tasks = [column for column in columns if column.ours]
        rows = [(name, [*cells, _mean(columns, ours_tasks or columns, cells)]) for name, cells in rows]
        names, explained = [*names, "mean, tasks"], [*explained, MEAN]
    numbered = [f"[{number}] {note}" for number, note in enumerate(notes, 1)]
    return PaperTable(names, rows, [*numbered, *explained, *without])


def _task_columns(recipe: Recipe, runs: Path) -> tuple[list[_Column], list[str], list[str]]:
    """The columns of the tasks of `then`, the examples of a step of each task, and the tasks without scores, with the
    reason."""
    of_task: dict[tuple[str, str], _Column] = {}
    without, steps = [], []
    for one in recipe.then:
        try:
            values = recipe_values(one.recipe, one.overrides, "train")
            finetuning = Finetuning.parse(values.get("finetune", {}), one.recipe)
            children, measured = read_scores(runs, following_run(recipe, one))
            counts = _scored(children[0]) if children else {}
        except UserError as error:
            without.append(f"{one.recipe}: not shown ({error})")
            continue
        steps.append(f"{_task(one)} {values['train'].get('global_batch', 'by tokens')}")
        ours = {_Row(split, one.row): means(seeds) for split, seeds in measured.items()}
        if not finetuning.folds:
            ours |= {_Row(split, one.row, True): best(seeds) for split, seeds in measured.items() if len(seeds) > 1}
        published, reason = published_for(finetuning, counts) if children else (finetuning.published, "")
        for column in _columns(_task(one), finetuning.published, ours, published):
            if (key := (str(one.train) if one.row else column.task, column.score)) in of_task:
                of_task[key] = of_task[key].joined(column)
            else:
                of_task[key] = column
        if reason:
            without.append(f"{one.recipe}: {reason}")
        if not children:
            without.append(f"{one.recipe}: {missing_data(one, task_files(recipe, one)) or 'not fine-tuned yet'}")
        elif len(children) < (whole := finetuning.seeds * (finetuning.folds or 1)):
            without.append(f"{one.recipe}: {len(children)} of {whole} {'runs' if finetuning.folds else 'seeds'}")
    return [*of_task.values()], steps, without


def _mean(columns: Sequence[_Column], counted: Sequence[_Column], cells: Sequence[str]) -> str:
    """The mean over the tasks of a row's cells, of those columns that are `counted`, and the number of these tasks."""
    of_task: dict[str, list[float]] = {}
    for column, cell in zip(columns, cells, strict=True):
        if column in counted and cell != "-":
            factor = 100 if column.score in CORRELATIONS else 1
            of_task.setdefault(column.task, []).append(factor * float(cell.split()[0]))
    means = [statistics.fmean(values) for values in of_task.values()]
    return f"{statistics.fmean(means):.2f} ({len(means)})" if means else "-"


def as_text(table: PaperTable, title: str) -> Table:
    """The table for a terminal."""
    result = Table(title=title, box=box.SIMPLE)
    result.add_column("")
    for name in table.columns:
        result.add_column(name.replace(", ", "\n"), justify="right")
    for model, cells in table.rows:
        result.add_row(model, *cells)
    return result


def _columns(
    task: str, published: list[Published], ours: dict[_Row, dict[str, str]], shown: list[Published]
) -> list[_Column]:
    """The columns of the scores in `published`, or else of ours, of which the rows `shown` hold the papers'."""
    theirs = [score for row in published for score in row.scores]
    names = dict.fromkeys(theirs or [score for found in ours.values() for score in found])
    return [
        _Column(task, score, {row: scores[score] for row, scores in ours.items() if score in scores}, shown)
        for score in names
    ]


def _scored(run: Path) -> dict[str, int]:
    """Split -> number of examples that a fine-tuned run was scored on, as far as it keeps it. Raises `UserError` for a
    damaged recipe."""
    kept = read_mistakes(run)
    counts = {
        split: kept.get(str(one.held_out), {}).get("examples")
        for split, one in task_section(recipe_of(run)).splits.items()
    }
    return {split: count for split, count in counts.items() if isinstance(count, int)}


def _evaluated(run: Run) -> dict[str, str]:
    """The figures of the last evaluation on all held-out text with the settings of the run."""
    figures = [one["figures"] for one in run.evaluations if not one["overrides"]]
    return {name: f"{value:.2f}" for name, value in figures[-1].items()} if figures else {}


def _cell(column: _Column, model: str, notes: list[str]) -> str:
    for row in column.published:
        if row.model == model and column.score in row.scores:
            mark = f" [{notes.index(row.differs) + 1}]" if row.differs else ""
            return f"{row.scores[column.score]:g}{mark}"
    return "-"


def _task(one: Following) -> str:
    return Path(one.recipe).stem
