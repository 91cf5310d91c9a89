"""The paper's table beside ours: a column for each score of the pretrained model and of the tasks of `then`."""

from pathlib import Path
from typing import NamedTuple

from rich import box
from rich.table import Table

from reread.pipeline.display.scores import means, published_for, read_scores
from reread.pipeline.recipe.load import recipe_of, recipe_values
from reread.pipeline.recipe.schema import Finetuning, Following, Published, task_section
from reread.pipeline.recipe.then import following_run, missing_data, task_files
from reread.pipeline.report.runs import Run
from reread.preprocessing.errors import UserError
from reread.training.run.metrics import read_mistakes

SPLITS = "(dev): the examples that choose the checkpoint; (test): others. A paper's row without either names no split."


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
    ours: dict[str, str]
    """Split (dev, test) -> our score."""
    published: list[Published]


def paper_table(run: Run) -> PaperTable | None:
    """The table of a run whose recipe has `published` figures or goes on to tasks; None for others.

    A task without scores has the paper's alone, and one that was scored on other data than the paper's has ours alone.
    A score that the paper lacks has a column if the task has no other.
    """
    published = run.recipe.published
    columns = _columns("held-out text", published, {"dev": _evaluated(run)} if published else {}, published)
    without = []
    for one in run.recipe.then:
        try:
            values = recipe_values(one.recipe, one.overrides, "train")
            finetuning = Finetuning.parse(values.get("finetune", {}), one.recipe)
            children, measured = read_scores(run.folder.parent, following_run(run.recipe, one))
            counts = _scored(children[0]) if children else {}
        except UserError as error:
            without.append(f"{one.recipe}: not shown ({error})")
            continue
        ours = {split: means(seeds) for split, seeds in measured.items()}
        published, reason = published_for(finetuning, counts) if children else (finetuning.published, "")
        columns += _columns(_task(one), finetuning.published, ours, published)
        if reason:
            without.append(f"{one.recipe}: {reason}")
        if not children:
            without.append(f"{one.recipe}: {missing_data(one, task_files(run.recipe, one)) or 'not fine-tuned yet'}")
        elif len(children) < finetuning.seeds:
            without.append(f"{one.recipe}: {len(children)} of {finetuning.seeds} seeds")
    if not columns and not without:
        return None
    models = dict.fromkeys(row.model for column in columns for row in column.published)
    notes = list(dict.fromkeys(row.differs for column in columns for row in column.published if row.differs))
    splits = dict.fromkeys(["dev", *(split for column in columns for split in column.ours)])
    rows = [
        (f"ours ({split})" if run.recipe.then else "ours", [column.ours.get(split, "-") for column in columns])
        for split in splits
    ]
    rows += [(model, [_cell(column, model, notes) for column in columns]) for model in models]
    explained = [SPLITS] if run.recipe.then else []
    numbered = [f"[{number}] {note}" for number, note in enumerate(notes, 1)]
    return PaperTable([f"{column.task}, {column.score}" for column in columns], rows, [*numbered, *explained, *without])


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
    task: str, published: list[Published], ours: dict[str, dict[str, str]], shown: list[Published]
) -> list[_Column]:
    """The columns of the scores in `published`, or else of ours, of which the rows `shown` hold the papers'."""
    theirs = [score for row in published for score in row.scores]
    scores = dict.fromkeys(theirs or [score for row in ours.values() for score in row])
    return [
        _Column(task, score, {split: row[score] for split, row in ours.items() if score in row}, shown)
        for score in scores
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
