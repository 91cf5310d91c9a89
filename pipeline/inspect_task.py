"""`reread inspect` of labelled examples: windows as the model will see them, with labels, spans and tags marked."""

import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text
from tokenizers import Tokenizer

from pipeline.finetune import finetune_recipe
from pipeline.inspect import pieces_of
from pipeline.recipe import TASK, fine_tunes, override, recipe_values, train_section
from pipeline.run_folder import recipe_of
from training.data.kinds import KINDS
from training.data.rows import Rows
from training.data.tasks.dataset import Mark, TaskDataset
from training.data.tasks.settings import TaskSettings

STYLES = ("bold black on green", "bold black on yellow", "bold white on red", "bold black on cyan")
"""One for each name of a mark, in the order in which they occur."""


def task_of(folder: Path, overrides: list[str], recipe: str | None) -> TaskSettings | None:
    """The task of the fine-tuned run in `folder`, or of `recipe` with the model in `folder`; None for a corpus.

    Raises `UserError` for a recipe that cannot fine-tune that model.
    """
    if recipe is None and not os.path.exists(folder / "recipe.yaml"):  # Path.exists raises for a name that is too long
        return None
    given = [f"{TASK}.{one.removeprefix(f'{TASK}.')}" for one in overrides]
    if recipe is None:
        data = train_section(recipe_of(folder, given)).data
    elif fine_tunes(recipe_values(recipe, [])):
        data = train_section(finetune_recipe(recipe, [*given, override("init", folder)])).data
    else:
        return None
    return data if isinstance(data, TaskSettings) else None


def inspect_task(data: TaskSettings, samples: int = 3) -> None:
    """Print `samples` windows of the training examples with their labels, and how much of the text is read."""
    console = Console(highlight=False)
    dataset = KINDS[data.kind].open(data, 0, "train")
    assert isinstance(dataset, TaskDataset)
    for title, text in islice(windows_of(dataset), samples):
        console.print(Text(f"\n{title}", style="bold"))
        console.print(text)
    console.print()
    table = Table(title=f"{data.kind}: {data.train}", show_header=False)
    for name, value in dataset.statistics([]):
        table.add_row(name, value)
    console.print(table)


def windows_of(dataset: TaskDataset[Any, Any]) -> Iterator[tuple[str, Text]]:
    """Titles and texts of windows, in the order in which they are read, with the labelled tokens marked."""
    tokenizer = Tokenizer.from_file(str(dataset.tokenizer_folder / "tokenizer.json"))
    styles: dict[str, str] = {}
    for title, rows in dataset.preview():
        row = {name: values[0] for name, values in rows.items() if len(values)}
        yield title, render_window(row, dataset.marks(rows), tokenizer, styles)


def render_window(row: Rows, marks: list[Mark], tokenizer: Tokenizer, styles: dict[str, str]) -> Text:
    """One row [L] as text without its padding, the marked tokens as ‹text=name› in a colour for each name."""
    text = Text()
    places = np.flatnonzero(row["attention_mask"] == 1)
    begins = {mark.first: mark for mark in marks}
    ends = {mark.last: mark for mark in marks}
    style = ""
    for place, piece in zip(places.tolist(), pieces_of(tokenizer, row["input_ids"][places].tolist()), strict=True):
        if mark := begins.get(place):
            style = styles.setdefault(mark.name, STYLES[len(styles) % len(STYLES)])
            blank, piece = piece[: len(piece) - len(piece.lstrip(" "))], piece.lstrip(" ")  # noqa: PLW2901
            text.append(f"{blank}‹")
        text.append(piece, style)
        if mark := ends.get(place):
            text.append(f"={mark.name}›")
            style = ""
    return text
