"""A corpus read from a cold disk: what opening it, the first steps and a pass read, by the process' own I/O counters.

    python benchmarks/data/cold_corpus.py --folder FOLDER [--gigabytes 3] [--steps 1000] [--blocks 1000 10000]

FOLDER must be on a disk (tmpfs counts nothing) with room for the corpus: random ids in documents of 700 tokens on
average, the same text cut into ever more blocks. Rows are sentence pairs of 128 tokens, 256 a step. Each figure has a
process of its own, and every file is dropped from the file system's cache before it. A share of 8 processes is the rows
of one of eight. Pools have a sixteenth of the text. The last table reads a whole pass, with the memory for two pools:
what was read earlier is dropped from the cache.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import mmap
import shutil
from itertools import islice
from typing import Any

import numpy as np

from benchmarks.data.disk import Read, drop_cache, drop_range, reading
from benchmarks.harness import heading, in_process, parser, row
from benchmarks.random_corpus import random_corpus
from reread.preprocessing.corpus import Corpus
from reread.preprocessing.corpus.maps import _LIBC
from reread.preprocessing.errors import one_line
from reread.training.data.kinds import open_dataset
from reread.training.data.loader import rows_by_step
from reread.training.data.order.order import cut_extents
from reread.training.data.rows.samples import RowSettings, Samples

BATCH = 256
ORDERS = ("whole", "pools")


def opened(folder: Path, pool_tokens: int | None) -> Samples:
    """As the trainer opens it, which draws some rows to see that tokens are masked."""
    dataset = open_dataset(RowSettings(corpus=folder, pool_tokens=pool_tokens), 0, "train")
    assert isinstance(dataset, Samples)
    return dataset


def first_steps(folder: Path, pool_tokens: int | None, processes: int, steps: int) -> tuple[Read, Read, Read]:
    """Opening, the first batch, and so many steps from the first on."""
    drop_cache(folder)
    opening = reading(lambda: opened(folder, pool_tokens))
    batches = rows_by_step(opening.result, BATCH, range(BATCH // processes), 0)
    first = reading(lambda: next(batches))
    rest = reading(lambda: sum(1 for _ in islice(batches, steps - 1)))
    total = Read(first.seconds + rest.seconds, first.bytes + rest.bytes, None)
    return opening._replace(result=None), first._replace(result=None), total


def a_pass(folder: Path, pool_tokens: int, processes: int) -> tuple[int, int]:
    """Bytes read over a pass by a share of the rows in pools, and bytes of the text."""
    drop_cache(folder)
    dataset = opened(folder, pool_tokens)
    corpus, order = dataset.corpus, dataset.order
    batches = rows_by_step(dataset, BATCH, range(BATCH // processes), 0)
    dropped, first = 0, cut_extents(np.diff(corpus.block_tokens), pool_tokens)
    extents = len(first) - 1

    def read() -> None:
        nonlocal dropped
        for step in range(len(dataset) // BATCH):
            next(batches)
            pool = extents // order.pools
            before = order.coming(step * BATCH).start - pool - 1  # extents before this pool, or one less
            for number in range(dropped, before):
                extent = order.extent(number)
                for block in range(*first[extent : extent + 2].tolist()):
                    forget(corpus, block)
            dropped = max(dropped, before)

    return reading(read).bytes, 3 * corpus.tokens


def forget(corpus: Corpus, number: int) -> None:
    """Unmap and drop a block."""
    import ctypes

    at, count = int(corpus.ids_at[number]), int(np.diff(corpus.block_tokens[number : number + 2])[0])
    at, size = at - at % mmap.PAGESIZE, 3 * count
    mapped: Any = corpus.map(number)
    _LIBC.madvise(ctypes.addressof(mapped) + at, size, mmap.MADV_DONTNEED)
    drop_range(corpus.folder / corpus._names[corpus._shard_of[number]], at, size)


@one_line()
def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--folder", type=Path, required=True)
    arguments.add_argument("--gigabytes", type=float, default=3)
    arguments.add_argument("--steps", type=int, default=1000)
    arguments.add_argument("--blocks", type=int, nargs="+", default=[1000, 10_000, 100_000])
    options = arguments.parse_args()
    tokens = int(options.gigabytes * 1e9 / 3)
    lengths = np.random.default_rng(0).geometric(1 / 700, tokens // 700)
    folder, pool_tokens = options.folder / "cold", tokens // 16
    heading("blocks", "share", "order", "open: s, MB", "first batch: s, MB", f"{options.steps} steps: s, kB a row")
    passes = []
    for blocks in options.blocks:
        shards = {"block_tokens": int(lengths.sum()) // blocks, "shard_tokens": 1 << 26}
        try:
            random_corpus(folder, 30_000, lengths.tolist(), **shards)
            for processes in (1, 8, 64):
                for name in ORDERS:
                    pool = pool_tokens if name == "pools" else None
                    found = in_process(first_steps, folder, pool, processes, options.steps)
                    cells = [f"{cost.seconds:.2f}, {cost.bytes / 1e6:.1f}" for cost in found[:2]]
                    a_row = found[2].bytes / (BATCH // processes * options.steps) / 1e3
                    row(f"{blocks:,}", f"1/{processes}", name, *cells, f"{found[2].seconds:.1f}, {a_row:.2f}")
            passes.append((blocks, *in_process(a_pass, folder, pool_tokens, 16)))
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    print()
    heading("blocks", "GB of text", "GB read in a pass, pools, 1/16", "ratio")
    for blocks, read, text in passes:
        row(f"{blocks:,}", f"{text / 1e9:.2f}", f"{read / 1e9:.2f}", f"{read / text:.3f}")


if __name__ == "__main__":
    main()
