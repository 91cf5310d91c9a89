"""What fine-tuning and continuing a published encoder gives, by `reread` and by transformers: a BERT such as
all-MiniLM-L6-v2 on long articles, on reviews, and on books.

    python benchmarks/minilm/run.py DATA --prepare RAW --encoder FOLDER    # once, makes DATA
    python benchmarks/minilm/run.py DATA --out OUT [--minutes 3] [--only 'books-*'] [--toy]

RAW has the folders en_hyperpartisan, en_imdb and en_books, with files as published, or packed by xz. DATA is small, and
all that a machine without a network needs.

- **articles** (Hyperpartisan, in folds): the encoder itself on the first 512 tokens, by ours and by transformers'
  Trainer; as Longformer (`reread convert`) and as ERNIE-Doc on the first 2,048; bags of words.
- **reviews** (IMDB, a file held out, three seeds): the first 256 tokens, by ours and by the Trainer; bags of words.
- **books**: the encoder goes on with masked words, by the recipe `continue-encoder` and by a plain loop over
  transformers' model, on the same rows with the same masks, and with masks of single tokens, as the collator of
  run_mlm.py draws them. All begin with the same head, and are scored by transformers' model on held-out words.

Both sides have the same texts, epochs, batch, optimiser (AdamW, linear schedule with warm-up, clipping at 1) and, on a
GPU, bfloat16. No side chooses a checkpoint: the last one counts. Each side is a process, or several, and all run at the
same time, so seconds compare nothing. A line is appended to OUT/results.jsonl as a fold or seed ends, what a side
printed is in OUT/*.log, and the table is printed at the end; `--minutes` ends what is not done by then.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import argparse
import logging
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing import get_context
from typing import NamedTuple

from benchmarks.harness import add_result, matching, parser
from benchmarks.minilm import books, classified
from benchmarks.minilm.data import prepare, unpack
from benchmarks.minilm.job import TOY, Found, Job, Sizes
from benchmarks.minilm.table import table
from reread.preprocessing.errors import UserError, one_line

RESULTS = "results.jsonl"


class Side(NamedTuple):
    name: str
    """PART-WHO."""
    run: Callable[[Job], Found]
    repeats: str | None = None
    """Field of `Sizes`; None: one."""
    processes: int = 1
    """Which share its repeats."""


SIDES = (
    Side("articles-longformer", classified.articles_by_longformer, "folds", 2),
    Side("articles-ernie-doc", classified.articles_by_ernie_doc, "folds", 2),
    Side("articles-ours", classified.articles_by_ours, "folds"),
    Side("articles-trainer", classified.articles_by_trainer, "folds"),
    Side("books-ours", books.by_ours),
    Side("books-loop", books.by_loop),
    Side("books-tokens", partial(books.by_loop, tokens=True)),
    Side("reviews-ours", classified.reviews_by_ours, "seeds"),
    Side("reviews-trainer", classified.reviews_by_trainer, "seeds"),
    Side("articles-words", classified.articles_by_words, "folds"),
    Side("reviews-words", classified.reviews_by_words),
)


def run(options: argparse.Namespace) -> None:
    """Run the sides, each in its processes, until all are done or the minutes are over."""
    ends = time.monotonic() + 60 * options.minutes
    sizes = TOY if options.toy else Sizes()
    names = matching([side.name for side in SIDES], options.only)
    out = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    shares: dict[str, tuple[Side, Sequence[int]]] = {}
    for side in SIDES:
        repeats: Sequence[int] = range(getattr(sizes, side.repeats) if side.repeats else 1)
        for part in range(side.processes if side.name in names else 0):
            shares[f"{side.name}-{part}" if side.processes > 1 else side.name] = side, repeats[part :: side.processes]
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // len(shares))))
    os.environ |= {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
    with tempfile.TemporaryDirectory(dir=options.work) as made:
        unpack(options.data, Path(made))
        processes = {}
        for name, (side, repeats) in shares.items():
            folder = Path(made) / name
            folder.mkdir()
            job = Job(options.data.resolve(), Path(made), sizes, options.kernels, repeats)
            given = side, job, folder, out / f"{name}.log", out / RESULTS
            processes[name] = get_context("spawn").Process(target=_work, args=given)
            processes[name].start()
        for process in processes.values():
            process.join(max(0.0, ends - time.monotonic()))
        for name, process in processes.items():
            if process.exitcode != 0:
                print(f"{name}: {'not done in time' if process.exitcode is None else 'failed'}, see {out / name}.log")
            process.kill()
            process.join()
    table(out / RESULTS)


def _work(side: Side, job: Job, folder: Path, log: Path, results: Path) -> None:
    """A process: run the side in a folder and append what it finds."""
    with log.open("a") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.chdir(folder)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    part, _, who = side.name.partition("-")
    began = time.perf_counter()
    for what, repeat, figures in side.run(job):
        figures |= {"seconds": time.perf_counter() - began}
        kept = {name: round(value, 4) for name, value in figures.items()}
        add_result(results, {"part": part, "side": f"{who}, {what}" if what else who, "repeat": repeat, **kept})
        print(f"{what} {repeat}: {figures}", flush=True)
        began = time.perf_counter()


@one_line()
def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("data", type=Path, metavar="DATA")
    arguments.add_argument("--prepare", type=Path, metavar="RAW", help="make DATA from the folders in RAW")
    arguments.add_argument("--encoder", type=Path, help="the folder of a BERT, for --prepare")
    arguments.add_argument("--out", type=Path, default=Path("runs/minilm"))
    arguments.add_argument("--work", type=Path, help="where runs are written and removed; default: temporary files")
    arguments.add_argument("--minutes", type=float, default=60.0)
    arguments.add_argument("--only", nargs="+", default=["*"], metavar="SIDE", help="sides, as 'books-*'")
    arguments.add_argument("--kernels", choices=("auto", "plain"), default="", help="`train.kernels` of our sides")
    arguments.add_argument("--toy", action="store_true", help="a few steps: figures without a meaning")
    options = arguments.parse_args()
    if options.prepare:
        if options.encoder is None:
            raise UserError("--prepare: give the folder of a BERT by --encoder, too")
        prepare(options.data.resolve(), options.prepare.resolve(), options.encoder.resolve())
    else:
        run(options)


if __name__ == "__main__":
    main()
