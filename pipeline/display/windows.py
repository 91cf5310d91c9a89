"""Windows of labelled examples as the model will see them, with labels, spans and tags marked."""

from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
from rich.table import Table
from rich.text import Text
from tokenizers import Tokenizer

from reread.pipeline.display.classes import classes_of, report_rare, unit_of
from reread.pipeline.display.rows import pieces_of
from reread.pipeline.display.terminal import Terminal
from reread.preprocessing.tokens.base import read_backend
from reread.training.data.batch import Rows
from reread.training.data.kinds import open_task
from reread.training.data.tasks.dataset import Mark, TaskDataset
from reread.training.data.tasks.settings import TaskSettings

STYLES = ("bold black on green", "bold black on yellow", "bold white on red", "bold black on cyan")
"""Styles of marks: each new name of a mark gets the next one."""
MOST_CLASSES = 20
"""Number of most frequent classes, and also of rarest classes, in a table."""


def print_windows(data: TaskSettings, samples: int = 3) -> None:
    """Print `samples` windows of the training examples with labels, how much of the text is read, and classes."""
    console, counts = Terminal(highlight=False), classes_of(data)
    dataset = open_task(data, 0, "train")
    for title, text in islice(windows_of(dataset), samples):
        console.print(Text(f"\n{title}", style="bold"))
        console.print(text)
    console.print()
    table = Table(title=f"{data.kind}: {data.train}", show_header=False)
    for name, value in dataset.statistics([]):
        table.add_row(name, value)
    console.print(table)
    for remark in dataset.remarks():
        console.print(remark, soft_wrap=True)
    if counts:
        console.print(_class_table(counts, unit_of(data)))
        report_rare(data, counts)


def _class_table(counts: dict[str, Counter[str]], unit: str) -> Table:
    """The classes with their counts, the most frequent first; if there are many, only the most frequent and the
    rarest."""
    table = Table("class", *counts, title=f"{unit} of each class")
    for column in table.columns[1:]:
        column.justify = "right"
    every = [name for name, _ in counts["train"].most_common()]
    shown = every if len(every) <= 2 * MOST_CLASSES else [*every[:MOST_CLASSES], None, *every[-MOST_CLASSES:]]
    for name in shown:
        cells = [f"{one[name]:,}" if name else "..." for one in counts.values()]
        table.add_row(Text(name or f"{len(every) - 2 * MOST_CLASSES:,} others"), *cells)
    return table


def windows_of(dataset: TaskDataset[Any, Any]) -> Iterator[tuple[str, Text]]:
    """Titles and texts of windows, in the order in which they are read, with the labelled tokens marked."""
    tokenizer = read_backend(dataset.tokenizer_folder / "tokenizer.json")
    styles: dict[str, str] = {}
    for title, rows in dataset.preview():
        row = {name: values[0] for name, values in rows.items() if len(values)}
        yield title, render_window(row, dataset.marks(rows), tokenizer, styles)


def render_window(row: Rows, marks: list[Mark], tokenizer: Tokenizer, styles: dict[str, str]) -> Text:
    """One row [L] as text without its padding, the marked tokens as ‹text=name› in a colour for each name."""
    text = Text()
    positions = np.flatnonzero(row["attention_mask"] == 1)
    begins = {mark.first: mark for mark in marks}
    ends = {mark.last: mark for mark in marks}
    style = ""
    pieces = pieces_of(tokenizer, row["input_ids"][positions].tolist())
    for position, piece in zip(positions.tolist(), pieces, strict=True):
        if mark := begins.get(position):
            style = styles.setdefault(mark.name, STYLES[len(styles) % len(STYLES)])
            blank, piece = piece[: len(piece) - len(piece.lstrip(" "))], piece.lstrip(" ")  # noqa: PLW2901
            text.append(f"{blank}‹")
        text.append(piece, style)
        if mark := ends.get(position):
            text.append(f"={mark.name}›")
            style = ""
    return text
