"""How many forward passes a micro-batch is cut into by the lengths of its rows, and what a step takes, by its rows.

    python benchmarks/scale/trimming.py

A NEZHA of 2 layers x 32, so small that a pass costs much beside its tokens, trains on a CPU core on rows of up to 128
random tokens; a step is one micro-batch. The sides take turns: rows untrimmed; cut where that pays if a pass counts as
1/32 of a full one; and by the cost that a run chooses at its start and keeps (`pipeline/estimate/passes.py`). CPU
milliseconds of a step are medians, and `faster` is beside untrimmed rows. `benchmarks/data/padding.py` has larger
models and text.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import tempfile

import numpy as np

from benchmarks.data.padding import time_steps
from benchmarks.harness import heading, parser
from benchmarks.random_corpus import random_corpus
from reread.preprocessing.errors import one_line
from reread.training.data.rows.trimming import PASS_SHARE

LENGTH = 128


@one_line()
def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--rows", nargs="+", type=int, default=[8, 32, 128], help="of a micro-batch")
    arguments.add_argument("--rounds", type=int, default=15)
    options = arguments.parse_args()
    heading("corpus", "length", "model, rows", "side", "cost of a pass", "passes", "ms a step", "faster")
    with tempfile.TemporaryDirectory() as folder:
        lengths = np.random.default_rng(0).integers(10, 2 * LENGTH, 4000).tolist()
        corpus = random_corpus(Path(folder) / "random", 1000, lengths)
        for rows in options.rows:
            time_steps(corpus, LENGTH, (2, 32, rows, rows), options.rounds, "cpu", [PASS_SHARE])


if __name__ == "__main__":
    main()
