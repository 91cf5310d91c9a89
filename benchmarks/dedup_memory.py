"""Deduplication past memory: bytes of memory a document and keys a second, beside a set of digests in memory.

    python benchmarks/dedup_memory.py --folder /somewhere/with/3/GB

The keys are those of synthetic documents, in files as `reread preprocess` leaves them, 20 bytes each; about an eighth
are duplicates. Each side runs in a process of its own, whose peak memory is taken less what it had before; ours may use
no more than `--limit` MB of address space on top of what it began with. Then what many files cost, and that tasks on
several workers leave the same as on one.
"""

import os
import resource
import shutil
import time
from concurrent.futures import ProcessPoolExecutor
from hashlib import md5
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, NamedTuple

import numpy as np
import typer
from numpy.typing import NDArray

from preprocessing.text.dedup import RANGES_PER_TASK, dropped_places, later_occurrences, sort_keys, task_count

KEYS_PER_PART = 100_000
SET_LIMIT = 16_000_000
"""Digests that a set may be asked to hold: about 2 GB."""


class Cost(NamedTuple):
    seconds: float
    """Of CPU time."""
    bytes: int
    """Peak memory on top of what the process had before."""
    duplicates: int


def mixed(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """A bijection that looks like chance: the finaliser of splitmix64."""
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
    """The key files of a corpus; returns how many documents stood before in their own part."""
    repeated = 0
    for part in range(parts):
        keys, again = sort_keys(digests_of(part, keys_per_part, parts * keys_per_part))
        np.save(folder / f"{part:05d}.keys.npy", keys)
        repeated += len(again)
    return repeated


def files_of(folder: Path, parts: int) -> list[Path]:
    return [folder / f"{part:05d}.keys.npy" for part in range(parts)]


def find(folder: Path, parts: int, tasks: int, number: int) -> str:
    """One task, as `reread preprocess` does it; returns the MD5 of what it leaves."""
    found = later_occurrences(files_of(folder, parts), number, tasks, folder)
    np.save(folder / f"found-{number:05d}.npy", found)
    return md5(found.tobytes()).hexdigest()


def ours(folder: Path, parts: int, tasks: int, limit: int) -> Cost:
    grown = limit_memory(limit)
    begin = time.process_time()
    duplicates = 0
    for number in range(tasks):
        find(folder, parts, tasks, number)
        duplicates += len(np.load(folder / f"found-{number:05d}.npy", mmap_mode="r"))
    return Cost(time.process_time() - begin, grown(), duplicates)


def with_a_set(parts: int, limit: int) -> Cost:
    grown = limit_memory(limit)
    total = parts * KEYS_PER_PART
    seen: set[bytes] = set()
    duplicates, seconds = 0, 0.0
    for part in range(parts):
        digests = digests_of(part, KEYS_PER_PART, total)
        begin = time.process_time()
        for place in range(0, len(digests), 16):
            digest = digests[place : place + 16]
            if digest in seen:
                duplicates += 1
            else:
                seen.add(digest)
        seconds += time.process_time() - begin
    return Cost(seconds, grown(), duplicates)


def limit_memory(megabytes: int) -> Any:
    """Bound the address space to `megabytes` more than now (0: no bound); returns what tells the growth of the peak."""
    before = status()
    if megabytes:
        bound = before["VmSize"] + megabytes * 1_000_000
        resource.setrlimit(resource.RLIMIT_AS, (bound, bound))
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins from here
    return lambda: status()["VmHWM"] - before["VmRSS"]


def status() -> dict[str, int]:
    """Sizes of this process in bytes."""
    lines = [line.split() for line in Path("/proc/self/status").read_text().splitlines()]
    return {line[0].rstrip(":"): int(line[1]) * 1024 for line in lines if line[-1] == "kB"}


def in_a_process(function: Any, *arguments: Any) -> Any:
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def row(*cells: str) -> None:
    print("| " + " | ".join(cells) + " |", flush=True)


def memory(folder: Path, millions: list[int], limit: int) -> None:
    both = ("MB", "bytes a key", "M keys/s")
    row("million keys", "parts", "tasks x ranges", *both, *(f"a set: {figure}" for figure in both))
    row("---:", *["---:"] * 8)
    for million in millions:
        parts = million * 1_000_000 // KEYS_PER_PART
        tasks = task_count(parts * KEYS_PER_PART)
        repeated = write_keys(folder, parts, KEYS_PER_PART)
        cost = in_a_process(ours, folder, parts, tasks, limit)
        cells = [str(million), str(parts), f"{tasks} x {RANGES_PER_TASK}", *described(cost, million)]
        if million * 1_000_000 <= SET_LIMIT:
            rival = in_a_process(with_a_set, parts, 0)
            assert rival.duplicates == cost.duplicates + repeated
            cells += described(rival, million)
        else:
            cells += ["not run"] * 3
        row(*cells)
        empty(folder)


def described(cost: Cost, million: int) -> tuple[str, str, str]:
    return f"{cost.bytes / 1e6:.0f}", f"{cost.bytes / (million * 1e6):.1f}", f"{million / cost.seconds:.2f}"


def many_files(folder: Path, parts: int, keys_per_part: int) -> None:
    """What 10,000 parts cost, where a thousand million keys are 60 tasks: opening, and looking up what to drop."""
    write_keys(folder, parts, keys_per_part)
    keys = parts * keys_per_part
    row("of 10,000 parts", "opened by a task", "CPU seconds")
    row("---", "---:", "---:")
    for tasks, keys_of_a_task in ((keys, 0), (task_count(keys), keys // task_count(keys))):
        begin = time.process_time()
        find(folder, parts, tasks, 0)
        seconds = time.process_time() - begin
        row(f"a task of {keys_of_a_task / 1e6:.1f} M keys", f"{parts:,}", f"{seconds:.2f}")
    found = [folder / f"found-{number:05d}.npy" for number in range(60)]
    for path in found[1:]:
        shutil.copy(found[0], path)
    begin = time.process_time()
    dropped_places(found, parts // 2, keys_per_part)
    row("what one part must drop", f"{len(found)}", f"{time.process_time() - begin:.3f}")
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


def main(
    folder: Annotated[Path, typer.Option(help="Where 2 GB of keys may lie for a while.")] = Path("."),
    millions: Annotated[list[int], typer.Option(help="Millions of keys.")] = [1, 4, 16, 64],  # noqa: B006
    limit: Annotated[int, typer.Option(help="MB of address space that ours may grow by; 0: any.")] = 512,
) -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    with TemporaryDirectory(dir=folder) as name:
        memory(Path(name), millions, limit)
        print()
        many_files(Path(name), 10_000, 10_000)
        print()
        workers(Path(name), 40, 4)


if __name__ == "__main__":
    typer.run(main)
