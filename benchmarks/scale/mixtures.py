"""A mixture of corpora: what a process pays to open it, and for a row, by the number of corpora.

    python benchmarks/scale/mixtures.py --folder /somewhere/with/1/GB

All mixtures hold the same documents, of 400 random tokens, dealt to more and more corpora of equal weight, so a batch
of 64 rows reads as many corpora. Each cell is a process of its own. Opening: CPU milliseconds a corpus, and the
anonymous memory of the process (pages that are no file's). A row: CPU microseconds, over batches after those that warm
the caches up, and how many times that of a single corpus.

Where `datasets` can be imported (PYTHONPATH may name its folder) its side is there, too: as many Arrow files of random
ids in rows of 128, mapped and interleaved by equal probabilities; it returns ids alone, where ours masks them.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import tempfile
from importlib.util import find_spec
from typing import Any

import numpy as np

from benchmarks.harness import exponent, heading, measured, parser, row, seconds
from benchmarks.random_corpus import random_corpus
from reread.preprocessing.errors import one_line

DOCUMENTS, TOKENS, VOCABULARY = 40_000, 400, 8000
ROWS, WARM, BATCHES = 64, 30, 60
LENGTH = 128
"""Tokens of a row."""


def write_corpora(folder: Path, count: int) -> None:
    """`count` corpora with one tokenizer, which bears the name of their folder."""
    for number in range(count):
        random_corpus(folder / f"{number}/same", VOCABULARY, [TOKENS] * (DOCUMENTS // count))


def open_and_read(folder: Path, count: int, kind: str) -> tuple[float, float]:
    """CPU seconds of opening, and of a row."""
    from pydantic import TypeAdapter

    from reread.training.data.kinds import KINDS, open_dataset

    corpora = [{"path": str(folder / f"{number}/same"), "name": str(number), "weight": 1.0} for number in range(count)]
    settings = TypeAdapter(KINDS[kind].settings).validate_python({"kind": kind, "corpora": corpora})
    opened: list[Any] = []
    opening = seconds(lambda: opened.append(open_dataset(settings, 0, "train")))
    batches = iter(range(0, 10**9, ROWS))

    def read(steps: int) -> None:
        for begin, _ in zip(batches, range(steps), strict=False):
            opened[0].rows(np.arange(begin, begin + ROWS))

    read(WARM)
    return opening, seconds(lambda: read(BATCHES)) / BATCHES / ROWS


def write_arrow(folder: Path, count: int) -> None:
    import datasets

    datasets.disable_progress_bars()
    draw = np.random.default_rng(0)
    for number in range(count):
        ids = draw.integers(5, VOCABULARY, (DOCUMENTS // count * TOKENS // LENGTH, LENGTH)).astype(np.int32)
        datasets.Dataset.from_dict({"input_ids": ids}).save_to_disk(folder / f"{number}/arrow")


def interleaved(folder: Path, count: int, kind: str) -> tuple[float, float]:
    """`open_and_read` by `datasets`."""
    import datasets

    datasets.disable_progress_bars()
    opened: list[Any] = []

    def open_all() -> None:
        parts = [datasets.load_from_disk(folder / f"{number}/arrow") for number in range(count)]
        whole = datasets.interleave_datasets(parts, [1 / count] * count, 0) if count > 1 else parts[0]
        opened.append(whole.with_format("numpy"))

    opening = seconds(open_all)

    def read(first: int, last: int) -> None:
        for begin in range(ROWS * first, ROWS * last, ROWS):
            opened[0][begin : begin + ROWS]["input_ids"]

    read(0, WARM)
    return opening, seconds(lambda: read(WARM, WARM + BATCHES)) / BATCHES / ROWS


@one_line()
def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--folder", type=Path)
    arguments.add_argument("--corpora", nargs="+", type=int, default=[1, 22, 500])
    arguments.add_argument("--kinds", nargs="+", default=["rows", "packed"])
    options = arguments.parse_args()
    heading("kind", "corpora", "opening, ms each", "MB", "a row, us", "times that of one")
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        for count in options.corpora:
            write_corpora(Path(name) / str(count), count)
            if find_spec("datasets"):
                write_arrow(Path(name) / str(count), count)
        for kind in [*options.kinds, *["datasets"] * bool(find_spec("datasets"))]:
            alone, openings = 0.0, []
            for count in options.corpora:
                cost = measured(
                    interleaved if kind == "datasets" else open_and_read, Path(name) / str(count), count, kind
                )
                opening, a_row = cost.result
                alone = alone or a_row
                openings.append(opening)
                cells = f"{1e3 * opening / count:.1f}", f"{cost.anonymous_megabytes:.0f}", f"{1e6 * a_row:.0f}"
                row(kind, count, *cells, f"{a_row / alone:.1f}")
            row(kind, "exponent", exponent(options.corpora, openings, 0.01), "", "", "")


if __name__ == "__main__":
    main()
