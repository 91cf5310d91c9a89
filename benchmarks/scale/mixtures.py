"""A mixture of corpora: what a process pays to open it, and for a row, by the number of corpora.

    python benchmarks/scale/mixtures.py --folder /somewhere/with/1/GB

All mixtures hold the same documents, of 400 random tokens, dealt to more and more corpora of equal weight, so a batch
of 64 rows reads as many corpora. Each cell is a process of its own. Opening: CPU milliseconds a corpus, and the
anonymous memory of the process (pages that are no file's). A row: CPU microseconds, over batches after those that warm
the caches up, and how many times that of a single corpus.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import tempfile
from typing import Any

import numpy as np

from benchmarks.harness import heading, measured, parser, row, seconds
from benchmarks.random_corpus import random_corpus
from reread.preprocessing.errors import one_line

DOCUMENTS, TOKENS, VOCABULARY = 40_000, 400, 8000
ROWS, WARM, BATCHES = 64, 30, 60


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


@one_line()
def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--folder", type=Path)
    arguments.add_argument("--corpora", nargs="+", type=int, default=[1, 50, 500])
    arguments.add_argument("--kinds", nargs="+", default=["rows", "packed"])
    options = arguments.parse_args()
    heading("kind", "corpora", "opening, ms each", "MB", "a row, us", "times that of one")
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        for count in options.corpora:
            write_corpora(Path(name) / str(count), count)
        for kind in options.kinds:
            alone = 0.0
            for count in options.corpora:
                cost = measured(open_and_read, Path(name) / str(count), count, kind)
                opening, a_row = cost.result
                alone = alone or a_row
                cells = f"{1e3 * opening / count:.1f}", f"{cost.anonymous_megabytes:.0f}", f"{1e6 * a_row:.0f}"
                row(kind, count, *cells, f"{a_row / alone:.1f}")


if __name__ == "__main__":
    main()
