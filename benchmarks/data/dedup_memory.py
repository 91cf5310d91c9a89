"""Deduplication past memory: bytes of memory a document and keys a second, beside a set of digests in memory.

    python benchmarks/data/dedup_memory.py --folder /somewhere/with/3/GB

The keys are those of synthetic documents, in files as `reread preprocess` leaves them, 20 bytes each; about an eighth
are duplicates. Each side runs in a process of its own, and memory is its peak above what the process began with; the
address space of ours may grow by no more than `--limit` MB. Then the cost of many files, and a check that tasks on
several workers leave the same as on one.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import resource
import shutil
import tempfile
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from hashlib import md5
from multiprocessing import get_context

import numpy as np
from numpy.typing import NDArray

from benchmarks.harness import heading, measured, parser, row, seconds
from reread.preprocessing.errors import one_line
from reread.preprocessing.text.dedup import RANGES_PER_TASK, Load, later_occurrences, listed_in, sort_keys, task_count

KEYS_PER_PART = 100_000
SET_LIMIT = 16_000_000
"""Digests that a set may be asked to hold: about 2 GB."""


def mixed(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """A bijection whose results look random: the finaliser of splitmix64."""
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))


def digests_of(part: int, keys: int, total: int) -> bytes:
    """`keys` digests of part `part`, of documents drawn from 4 * total different ones."""
    documents = np.random.default_rng(part).integers(1, 4 * total, keys, dtype=np.uint64)
    digests = np.empty((keys, 2), ">u8")
    digests[:, 0] = mixed(documents)
    digests[:, 1] = mixed(~documents)
    return digests.tobytes()


def write_keys(folder: Path, parts: int, keys_per_part: int) -> int:
    """The key files of a corpus; returns how many documents repeat one of their own part."""
    repeated = 0
    for part in range(parts):
        keys, again = sort_keys(digests_of(part, keys_per_part, parts * keys_per_part))
        np.save(folder / f"{part:05d}.keys.npy", keys)
        repeated += len(again)
    return repeated


def files_of(folder: Path, parts: int) -> list[Load]:
    return [partial(np.load, folder / f"{part:05d}.keys.npy", mmap_mode="r") for part in range(parts)]


def find(folder: Path, parts: int, tasks: int, number: int) -> str:
    """One task, as `reread preprocess` does it; returns the MD5 of what it leaves."""
    found = later_occurrences(files_of(folder, parts), number, tasks, folder)
    np.save(folder / f"found-{number:05d}.npy", found)
    return md5(found.tobytes()).hexdigest()


def ours(folder: Path, parts: int, tasks: int, limit: int) -> int:
    """Number of duplicates between parts."""
    limit_address_space(limit)
    duplicates = 0
    for number in range(tasks):
        find(folder, parts, tasks, number)
        duplicates += len(np.load(folder / f"found-{number:05d}.npy", mmap_mode="r"))
    return duplicates


def with_a_set(parts: int) -> tuple[int, float]:
    """Number of duplicates, and CPU seconds without drawing the digests."""
    total = parts * KEYS_PER_PART
    seen: set[bytes] = set()
    duplicates, taken = 0, 0.0

    def look_up(digests: bytes) -> None:
        nonlocal duplicates
        for place in range(0, len(digests), 16):
            digest = digests[place : place + 16]
            if digest in seen:
                duplicates += 1
            else:
                seen.add(digest)

    for part in range(parts):
        taken += seconds(partial(look_up, digests_of(part, KEYS_PER_PART, total)))
    return duplicates, taken


def limit_address_space(megabytes: int) -> None:
    """To so many more than now; 0 sets no limit."""
    if megabytes:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + megabytes * 1_000_000
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def memory(folder: Path, millions: list[int], limit: int) -> None:
    figures = ("MB", "bytes a key", "M keys/s")
    heading("million keys", "parts", "tasks x ranges", *figures, *(f"a set: {figure}" for figure in figures))
    for million in millions:
        parts = million * 1_000_000 // KEYS_PER_PART
        tasks = task_count(parts * KEYS_PER_PART)
        repeated = write_keys(folder, parts, KEYS_PER_PART)
        cost = measured(ours, folder, parts, tasks, limit)
        cells = [*described(cost.grown_megabytes, cost.cpu_seconds, million)]
        if million * 1_000_000 <= SET_LIMIT:
            rival = measured(with_a_set, parts)
            duplicates, taken = rival.result
            assert duplicates == cost.result + repeated
            cells += described(rival.grown_megabytes, taken, million)
        else:
            cells += ["not run"] * 3
        row(million, parts, f"{tasks} x {RANGES_PER_TASK}", *cells)
        empty(folder)


def described(megabytes: float, cpu_seconds: float, million: int) -> tuple[str, str, str]:
    size = megabytes * 2**20
    return f"{size / 1e6:.0f}", f"{size / (million * 1e6):.1f}", f"{million / cpu_seconds:.2f}"


def many_files(folder: Path, parts: int, keys_per_part: int) -> None:
    """The cost of 10,000 parts, where a thousand million keys are 60 tasks: opening, and looking up what to drop."""
    write_keys(folder, parts, keys_per_part)
    keys = parts * keys_per_part
    heading(f"{parts:,} parts", "files opened", "CPU seconds")
    for tasks, keys_of_a_task in ((keys, 0), (task_count(keys), keys // task_count(keys))):
        taken = seconds(partial(find, folder, parts, tasks, 0))
        row(f"a task of {keys_of_a_task / 1e6:.1f} M keys", f"{parts:,}", f"{taken:.2f}")
    found = [folder / f"found-{number:05d}.npy" for number in range(60)]
    for path in found[1:]:
        shutil.copy(found[0], path)
    opened = [partial(np.load, path, mmap_mode="r") for path in found]
    taken = seconds(partial(listed_in, opened, parts // 2, keys_per_part))
    row("what one part must drop", len(found), f"{taken:.3f}")
    empty(folder)


def workers(folder: Path, parts: int, count: int) -> None:
    """Tasks shared out over workers leave the bytes of one."""
    write_keys(folder, parts, KEYS_PER_PART)
    tasks = 16
    alone = [find(folder, parts, tasks, number) for number in range(tasks)]
    with ProcessPoolExecutor(count, get_context("spawn")) as pool:
        arguments = [folder] * tasks, [parts] * tasks, [tasks] * tasks, range(tasks)
        assert list(pool.map(find, *arguments)) == alone
    print(f"{tasks} tasks over {parts} parts: {count} workers leave the same bytes as one")
    empty(folder)


def empty(folder: Path) -> None:
    for path in folder.glob("*.npy"):
        path.unlink()


@one_line()
def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--folder", type=Path, default=Path("."), help="where 2 GB of keys find room for a while")
    arguments.add_argument("--millions", type=int, nargs="*", default=[1, 4, 16, 64], help="millions of keys")
    arguments.add_argument(
        "--limit", type=int, default=512, help="MB by which the address space of ours may grow; 0: any"
    )
    arguments.add_argument("--parts", type=int, default=10_000, help="of the run with many files")
    options = arguments.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        memory(Path(name), options.millions, options.limit)
        print()
        many_files(Path(name), options.parts, 10_000)
        print()
        workers(Path(name), 40, 4)


if __name__ == "__main__":
    main()
