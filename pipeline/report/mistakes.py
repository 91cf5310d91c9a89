"""The examples and mistakes of fine-tuned models: lengths, classes and their scores, baselines, the worst errors."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from reread.pipeline.display.classes import classes_of, unit_of
from reread.pipeline.display.scores import read_baselines
from reread.pipeline.report.runs import Run
from reread.pipeline.report.tables import Scores
from reread.preprocessing.errors import UserError
from reread.training.data.batch import percentiles
from reread.training.data.kinds import open_task
from reread.training.data.tasks.settings import TaskSettings, task_of
from reread.training.run.metrics import read_mistakes
from reread.training.scoring.gather import f1, percent


class Confusion(NamedTuple):
    labels: list[str]
    rows: list[tuple[str, list[tuple[int, int]]]]
    """A gold class and, for each predicted class, (count, percentage of the row)."""


class FileView(NamedTuple):
    """One held-out file of a run."""

    title: str
    classes: list[tuple[str, ...]]
    """Class, gold, predicted, right, precision, recall, F1."""
    confusion: Confusion | None
    worst: list[dict[str, str]]
    """id, text, gold, predicted."""


class TaskView(NamedTuple):
    run: Run
    unit: str
    """Unit of the counts: examples or tokens."""
    counts: dict[str, dict[str, int]]
    """Split -> class -> count; empty for tasks without classes, and if the files no longer exist."""
    lengths: list[tuple[str, str, dict[str, str]]]
    """(split, what is counted, its percentiles in tokens); empty if the files no longer exist."""
    files: list[FileView]
    baselines: list[Scores]


def task_views(runs: Sequence[Run]) -> list[TaskView]:
    """A view of each run that is a fine-tuning; files that cannot be read are left out."""
    found = []
    for run in runs:
        data = task_of(run.train.data)
        if data is None:
            continue
        counts: dict[str, dict[str, int]] = {}
        with suppress(UserError, OSError):
            counts = {split: dict(one.most_common()) for split, one in classes_of(data).items()}
        lengths: list[tuple[str, str, dict[str, str]]] = []
        with suppress(UserError, OSError):
            lengths = _lengths(run, data)
        files = []
        for file, one in read_mistakes(run.folder).items():
            with suppress(KeyError, TypeError, ValueError, AttributeError):  # of another version, or damaged
                files.append(_view(file, one))
        baselines = [
            Scores(f"{run.name}, baseline: {name}", file, {score: f"{value:.2f}" for score, value in scores.items()})
            for file, every in read_baselines(run.folder).items()
            for name, scores in every.items()
        ]
        found.append(TaskView(run, unit_of(data), counts, lengths, files, baselines))
    return found


def _lengths(run: Run, data: TaskSettings) -> list[tuple[str, str, dict[str, str]]]:
    splits: dict[str, Any] = {"train": run.learned}
    splits |= {split: open_task(one, run.train.seed, "validation") for split, one in data.splits.items()}
    return [
        (split, name, percentiles(values))
        for split, dataset in splits.items()
        for name, values in (dataset.lengths().items() if len(dataset) else ())
        if len(values)
    ]


def baseline_rows(views: Sequence[TaskView]) -> list[Scores]:
    """The rows of the baselines for the table of fine-tunings."""
    return [row for view in views for row in view.baselines]


def _view(file: str, found: dict[str, Any]) -> FileView:
    classes = [
        (str(name), *(f"{one:,}" for one in (gold, made, right)), *_scores(gold, made, right))
        for name, gold, made, right in found["classes"]
    ]
    worst = [{name: str(one[name]) for name in ("id", "text", "gold", "predicted")} for one in found["worst"]]
    title = f"{file}: {found['wrong']:,} of {found['examples']:,} wrong, step {found['step']:,}"
    return FileView(title, classes, _confusion(found["confusion"]), worst)


def _scores(gold: int, made: int, right: int) -> list[str]:
    return [f"{value:.1f}" for value in (percent(right, made), percent(right, gold), f1(right, made, gold))]


def _confusion(found: dict[str, Any] | None) -> Confusion | None:
    if found is None:
        return None
    labels = [str(label) for label in found["labels"]]
    rows = [
        (label, [(int(count), round(percent(count, sum(row)))) for count in row])
        for label, row in zip(labels, found["rows"], strict=True)
    ]
    return Confusion(labels, rows)
