from functools import partial
from hashlib import md5
from pathlib import Path

import numpy as np
import pytest

from reread.preprocessing.text import dedup
from reread.preprocessing.text.dedup import Load, later_occurrences, listed_in, sort_keys, task_count


def write_parts(folder: Path, parts: list[list[bytes]]) -> tuple[list[Path], set[tuple[int, int]]]:
    """The files of keys, and (part, index) of what stood before in its own part."""
    files, repeated = [], set()
    for number, digests in enumerate(parts):
        files.append(folder / f"{number}.npy")
        keys, again = sort_keys(b"".join(digests))
        assert len(keys) + len(again) == len(digests)
        assert keys["high"].tolist() == sorted(keys["high"].tolist())
        np.save(files[-1], keys)
        repeated |= {(number, index) for index in again.tolist()}
    return files, repeated


def opened(files: list[Path]) -> list[Load]:
    return [partial(np.load, file, mmap_mode="r") for file in files]


def later(files: list[Path], tasks: int) -> set[tuple[int, int]]:
    """(part, index) of what stood before in another part."""
    found = [later_occurrences(opened(files), number, tasks, files[0].parent) for number in range(tasks)]
    for duplicates in found:
        assert duplicates["part"].tolist() == sorted(duplicates["part"].tolist())
    return {(part, index) for duplicates in found for index, part in duplicates.tolist()}


def dropped_of(folder: Path, parts: list[list[bytes]], tasks: int) -> set[tuple[int, int]]:
    files, repeated = write_parts(folder, parts)
    return repeated | later(files, tasks)


@pytest.fixture
def parts() -> list[list[bytes]]:
    generator = np.random.default_rng(0)
    return [[md5(b"%d" % n).digest() for n in generator.integers(0, 200, size)] for size in (100, 0, 150, 1, 80)]


@pytest.mark.parametrize(("tasks", "ranges"), [(1, 1), (1, 16), (2, 3), (7, 1), (64, 5)])
def test_the_first_in_source_order_stays_whatever_the_number_of_tasks_and_ranges(
    tmp_path: Path, parts: list[list[bytes]], tasks: int, ranges: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dedup, "RANGES_PER_TASK", ranges)
    seen: set[bytes] = set()
    expected = set()
    for part, digests in enumerate(parts):
        for index, digest in enumerate(digests):
            if digest in seen:
                expected.add((part, index))
            seen.add(digest)
    assert dropped_of(tmp_path, parts, tasks) == expected


def test_only_whole_digests_are_compared(tmp_path: Path) -> None:
    upper, lower = b"a" * 8, b"b" * 8
    parts = [[upper + lower, upper + upper], [lower + lower, upper + lower]]
    assert dropped_of(tmp_path, parts, 3) == {(1, 1)}


def test_the_ends_of_the_key_space_belong_to_a_range(tmp_path: Path) -> None:
    ends = [b"\0" * 16, b"\xff" * 16]
    assert dropped_of(tmp_path, [ends, ends], 5) == {(1, 0), (1, 1)}


def test_a_part_finds_what_it_must_drop_in_the_files_of_all_ranges(tmp_path: Path, parts: list[list[bytes]]) -> None:
    files, _ = write_parts(tmp_path, parts)
    dropped = []
    for number in range(4):
        dropped.append(tmp_path / f"dropped-{number}.npy")
        np.save(dropped[-1], later_occurrences(opened(files), number, 4, tmp_path))
    for part, digests in enumerate(parts):
        mask = listed_in(opened(dropped), part, len(digests))
        assert {(part, place) for place in np.flatnonzero(mask).tolist()} == {
            p for p in later(files, 1) if p[0] == part
        }


def test_a_text_that_comes_again_and_again_moves_once_a_part(tmp_path: Path) -> None:
    """Or the range of a notice that stands in every other document would not fit in memory."""
    files, repeated = write_parts(tmp_path, [[b"n" * 16] * 1000] * 3)
    assert [len(np.load(file)) for file in files] == [1, 1, 1]
    assert len(repeated) == 3 * 999
    assert later(files, 2) == {(1, 0), (2, 0)}


def test_tasks_keep_to_their_size() -> None:
    size = dedup.KEYS_PER_RANGE * dedup.RANGES_PER_TASK
    assert [task_count(keys) for keys in (0, size, 10 * size + 1)] == [1, 1, 11]
