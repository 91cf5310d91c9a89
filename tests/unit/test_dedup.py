from hashlib import md5
from pathlib import Path

import numpy as np
import pytest

from preprocessing import dedup
from preprocessing.dedup import dropped_places, later_occurrences, range_count, sort_keys


def write_parts(folder: Path, parts: list[list[bytes]]) -> list[Path]:
    files = []
    for number, digests in enumerate(parts):
        files.append(folder / f"{number}.npy")
        np.save(files[-1], sort_keys(b"".join(digests)))
    return files


def later(files: list[Path], ranges: int) -> set[tuple[int, int]]:
    found = [later_occurrences(files, number, ranges).tolist() for number in range(ranges)]
    return {place for places in found for place in places}


@pytest.fixture
def parts() -> list[list[bytes]]:
    generator = np.random.default_rng(0)
    return [[md5(b"%d" % n).digest() for n in generator.integers(0, 200, size)] for size in (100, 0, 150, 1, 80)]


@pytest.mark.parametrize("ranges", [1, 2, 7, 64])
def test_the_first_in_source_order_stays_whatever_the_number_of_ranges(
    tmp_path: Path, parts: list[list[bytes]], ranges: int
) -> None:
    seen: set[bytes] = set()
    expected = set()
    for part, digests in enumerate(parts):
        for place, digest in enumerate(digests):
            if digest in seen:
                expected.add((part, place))
            seen.add(digest)
    assert later(write_parts(tmp_path, parts), ranges) == expected


def test_only_whole_digests_are_compared(tmp_path: Path) -> None:
    upper, lower = b"a" * 8, b"b" * 8
    parts = [[upper + lower, upper + upper], [lower + lower, upper + lower]]
    assert later(write_parts(tmp_path, parts), 3) == {(1, 1)}


def test_the_ends_of_the_key_space_belong_to_a_range(tmp_path: Path) -> None:
    ends = [b"\0" * 16, b"\xff" * 16]
    assert later(write_parts(tmp_path, [ends, ends]), 5) == {(1, 0), (1, 1)}


def test_a_part_finds_what_it_must_drop_in_the_files_of_all_ranges(tmp_path: Path, parts: list[list[bytes]]) -> None:
    files = write_parts(tmp_path, parts)
    dropped = []
    for number in range(4):
        dropped.append(tmp_path / f"dropped-{number}.npy")
        np.save(dropped[-1], later_occurrences(files, number, 4))
    for part, digests in enumerate(parts):
        mask = dropped_places(dropped, part, len(digests))
        assert {(part, place) for place in np.flatnonzero(mask).tolist()} == {
            p for p in later(files, 1) if p[0] == part
        }


def test_ranges_keep_to_their_size() -> None:
    assert range_count(0) == 1
    assert range_count(dedup.KEYS_PER_RANGE) == 1
    assert range_count(10 * dedup.KEYS_PER_RANGE + 1) == 11
