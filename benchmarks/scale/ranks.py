"""The start and the heartbeat of a job of many ranks: what each does to a shared file system.

    python benchmarks/scale/ranks.py --folder /somewhere/with/5/GB

The corpus is as large as its manifest and index say (10,000 shards are 0.87 TB), but its shards are sparse files. The
first rank of a job checks it, each other rank relies on that; both open it as a run does, the first in the order of the
rows. Each cell is a process of its own: stats and opens of files in the corpus, bytes read by `read` calls, CPU seconds
with imports, and the peak of its anonymous memory (pages that are no file's). Those of a job of N ranks are counted
once for the first and N - 1 times for another. A length of 300 is not in the index, so the first rank counts chunks; of
the next start it finds the counts in the run folder.

The heartbeat is counted from the watchdogs of all ranks, woken as often as in four minutes. A resume is that of a state
which all ranks hold, in real processes over gloo: bytes that each reads of it, and files that it opens.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from typing import Any, NamedTuple

from benchmarks.harness import exponent, heading, measured, parser, row
from benchmarks.scale.sparse_corpus import sparse_corpus
from reread.preprocessing.errors import one_line

MINUTES = 4
"""Of the heartbeat."""


class Calls(NamedTuple):
    stats: int
    opens: int
    bytes: int
    maps: int


@contextmanager
def calls_in(folder: Path) -> Iterator[Callable[[], Calls]]:
    """Yields a function that returns the calls of this process so far."""
    counts: Counter[str] = Counter()
    stat: Callable[..., os.stat_result] = os.stat

    def watched(path: Any, *arguments: Any, **options: Any) -> os.stat_result:
        counts["stat"] += str(path).startswith(str(folder))
        return stat(path, *arguments, **options)

    def opened(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            counts["open"] += str(arguments[0]).startswith(str(folder))

    def read() -> int:
        return int(Path("/proc/self/io").read_text().split()[1])

    sys.addaudithook(opened)
    begin = read()
    os.stat = watched  # type: ignore[assignment]

    def so_far() -> Calls:
        maps = Path("/proc/self/maps").read_text().count(f"{folder}/train")
        return Calls(counts["stat"], counts["open"], read() - begin, maps)

    try:
        yield so_far
    finally:
        os.stat = stat


def start(folder: Path, length: int, kept: Path, trusting: bool) -> Calls:
    """Open both splits, as the first rank or another does."""
    from reread.preprocessing.corpus.job import opening
    from reread.training.data.kinds import open_dataset
    from reread.training.data.rows.samples import RowSettings

    settings = RowSettings(corpus=folder, sequence_length=length)
    with calls_in(folder) as so_far, opening(kept, trusting=trusting):
        data = [open_dataset(settings, 0, split) for split in ("train", "validation")]
        data[0].card(), data[0].facts()
        return so_far()


def compare_starts(folder: Path, sizes: list[int], worlds: list[int]) -> None:
    heading("shards", "length", "rank", "stats", "opens", "MB read", "maps", "CPU s", "MB anonymous")
    calls: dict[tuple[int, int, bool], Calls] = {}
    costs: dict[tuple[int, str], list[tuple[float, float]]] = {}
    for shards in sizes:
        corpus = sparse_corpus(folder / f"corpus-{shards}", shards)
        for length in (128, 300):
            for who, trusting in (("first", False), ("another", True), ("first of the next start", False)):
                cost = measured(start, corpus, length, folder / f"counts-{shards}", trusting)
                one = cost.result
                calls.setdefault((shards, length, trusting), one)
                cells = [f"{one.stats:,}", f"{one.opens:,}", f"{one.bytes / 1e6:.1f}", f"{one.maps:,}"]
                row(f"{shards:,}", length, who, *cells, f"{cost.cpu_seconds:.1f}", f"{cost.anonymous_megabytes:.0f}")
                costs.setdefault((length, who), []).append((cost.cpu_seconds, cost.anonymous_megabytes))
    for (length, who), found in costs.items():
        cpu, memory = zip(*found, strict=True)
        row("exponent", length, who, "", "", "", "", exponent(sizes, cpu), exponent(sizes, memory, 3))
    print()
    heading("shards", "length", *(f"stats of {world:,} ranks" for world in worlds), f"GB read of {worlds[-1]:,}")
    for shards in sizes:
        for length in (128, 300):
            first, other = (calls[shards, length, trusting] for trusting in (False, True))
            stats = (f"{first.stats + (world - 1) * other.stats:,}" for world in worlds)
            read = first.bytes + (worlds[-1] - 1) * other.bytes
            row(f"{shards:,}", length, *stats, f"{read / 1e9:.1f}")


class Wakes:
    """In place of the event that ends a watchdog: it wakes it as often as in `MINUTES`, without waiting."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def is_set(self) -> bool:
        return False

    def wait(self, seconds: float) -> bool:
        self.seconds += seconds
        return self.seconds > 60 * MINUTES


def beats(run: Path, rank: int, world: int) -> int:
    """Files that a rank creates in `MINUTES`."""
    from reread.training.run.watchdog import Progress, Watchdog

    watchdog: Any = Watchdog(run, Progress(), rank, world, 1800.0, 1)
    written: list[str] = []
    watchdog._over, watchdog._write = Wakes(), written.append
    watchdog._watch()
    return len(written)


def compare_beats(run: Path, worlds: list[int]) -> None:
    heading("ranks", "files created a second", "of process 0")
    for world in worlds:
        counts = [beats(run, rank, world) for rank in range(world)]
        row(f"{world:,}", *(f"{count / (60 * MINUTES):.1f}" for count in (sum(counts), counts[0])))


def state(mesh: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """48 tensors of 1 MB that all ranks hold."""
    import torch

    from reread.training.parallel.layout import Slice

    tensors = {f"model.{number}": torch.full((512, 512), float(number)) for number in range(48)}
    return tensors, {name: Slice(tuple(tensor.shape)) for name, tensor in tensors.items()}


def resume(folder: Path, world: int, rank: int, port: int, results: Any) -> None:
    """Save the state and load it; puts the bytes that this rank read of the files, and how many it opened."""
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(rank)} if world > 1 else {}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    from reread.training.checkpoint import files, store
    from reread.training.parallel.rendezvous import close_mesh, init_mesh

    mesh = init_mesh()
    checkpoints, (tensors, layout) = store.CheckpointStore(folder, 1, mesh), state(None)
    checkpoints.save(1, tensors, layout, {})
    checkpoints.wait()
    filled, opened, fill = [0], set(), files.TensorFiles.fill

    def watched(self: files.TensorFiles, name: str, entry: Any, tensor: Any, part: Any) -> None:
        filled[0] += tensor.nbytes
        fill(self, name, entry, tensor, part)
        opened.update(self._open)

    files.TensorFiles.fill = watched  # type: ignore[method-assign]
    loaded, _ = state(None)
    for tensor in loaded.values():
        tensor.zero_()
    checkpoints.load(1, loaded, layout)
    assert all(tensor.equal(loaded[name]) for name, tensor in tensors.items())
    results.put((filled[0], len(opened)))
    close_mesh()


def compare_resumes(folder: Path, worlds: list[int]) -> None:
    from benchmarks.network import free_port

    heading("ranks", "MB of the state", "MB read by all", "most by a rank", "files opened by all")
    for world in worlds:
        context, port = get_context("spawn"), free_port()
        results = context.Queue()
        arguments = [(folder / f"checkpoints-{world}", world, rank, port, results) for rank in range(world)]
        ranks = [context.Process(target=resume, args=one) for one in arguments]
        for rank in ranks:
            rank.start()
        found = [results.get() for _ in ranks]
        for rank in ranks:
            rank.join()
        read = [size / 2**20 for size, _ in found]
        row(world, 48, f"{sum(read):.0f}", f"{max(read):.0f}", sum(opened for _, opened in found))


@one_line()
def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--folder", type=Path, help="where 0.5 MB a shard find room for a while")
    arguments.add_argument("--shards", nargs="+", type=int, default=[100, 1000, 10_000])
    arguments.add_argument("--ranks", nargs="+", type=int, default=[1, 8, 64, 1024])
    arguments.add_argument("--processes", nargs="+", type=int, default=[1, 2, 4], help="real ones, for the resume")
    options = arguments.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        compare_starts(folder, options.shards, options.ranks)
        print()
        compare_beats(folder, options.ranks)
        print()
        compare_resumes(folder, options.processes)


if __name__ == "__main__":
    main()
