"""GPU-hours of a recipe with all the fine-tunings of its `then`."""

from collections.abc import Sequence

from rich.table import Table

from reread.pipeline.estimate.arrangement import Arrangement, Estimator
from reread.pipeline.estimate.disk import quiet
from reread.pipeline.recipe.schema import Recipe, task_section, train_section
from reread.preprocessing.labelled.examples import Example
from reread.training.config import TrainSettings
from reread.training.data.tasks.examples import examples_of
from reread.training.data.tasks.settings import TaskSettings
from reread.training.data.tasks.windows import room_beside, window_count

BYTES_A_TOKEN = 3
"""Assumed bytes of UTF-8 in a token: those of a Chinese character. An English token has more, so estimates are rather
too high."""


def whole(recipe: Recipe, finetunings: Sequence[Recipe], estimator: Estimator, pretraining: Arrangement) -> Table:
    """GPU-hours of pretraining and of each fine-tuning.

    A fine-tuning is counted by the FLOPs of its windows, at the share of the peak of pretraining's estimate.
    """
    train, cluster = train_section(recipe), estimator.cluster
    hours = {f"pretraining, {train.steps:,} steps": estimator.seconds(pretraining) * cluster.gpus / 3600}
    share = estimator.mfu(pretraining)
    for one in finetunings:
        tuned = train_section(one)
        runs = one.finetune.runs if one.finetune else 1
        seconds = runs * _flops(estimator, tuned, task_section(one)) / (cluster.gpu.peak * share)
        several = f"{runs} runs of {tuned.steps:,} steps" if runs > 1 else f"{tuned.steps:,} steps"
        hours[f"{one.name}, {several}"] = seconds / 3600
    table = Table(caption="Fine-tunings by the FLOPs of their windows; evaluation and a `start` are left out.")
    table.add_column("the whole")
    table.add_column("GPU-hours", justify="right")
    for name, value in hours.items():
        table.add_row(name, hours_of(value))
    table.add_section()
    table.add_row("in all", hours_of(sum(hours.values())), style="bold")
    return table


def _flops(estimator: Estimator, train: TrainSettings, settings: TaskSettings) -> float:
    """Training FLOPs of a fine-tuning, without the head: each step has `global_batch` documents of the mean length."""
    with quiet():
        examples = examples_of(settings, "train")
    tokens = sum(_tokens(settings, one) for one in examples) / len(examples) * train.steps * train.global_batch
    rows = tokens / settings.sequence_length
    totals = {"rows": rows, "skimmed": rows if settings.retrospective else 0, "predicted": 0}
    return estimator.spec.flops(estimator.config, settings.sequence_length, totals)


def _tokens(settings: TaskSettings, example: Example) -> float:
    """Tokens of all windows of an example, with question, option or second text in each."""
    return sum(_tokens_of_row(settings, *texts) for texts in example.rows)


def _tokens_of_row(settings: TaskSettings, text: str, *others: str) -> float:
    own = max(1, len(text.encode()) // BYTES_A_TOKEN)
    limit = settings.other_length or room_beside(own, settings.sequence_length)
    other = min(limit, sum(len(one.encode()) // BYTES_A_TOKEN for one in others))
    room = max(1, settings.sequence_length - other)
    windows = window_count(own, room, settings.step or (max(1, room // 2) if settings.overlaps else room))
    return windows * (min(own, room) + other)


def hours_of(value: float) -> str:
    if value < 0.01:
        return "< 0.01"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
