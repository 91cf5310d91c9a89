"""Arrays that are written once and mapped: by one of many processes, whole or not at all, and again if damaged."""

import errno
import logging
import multiprocessing
import os
import resource
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reread.preprocessing import arrays
from reread.preprocessing.arrays import ArrayWriter, made_once, spilled
from reread.preprocessing.errors import UserError

VALUES = {
    "numbers": np.arange(200_000, dtype=np.int64),
    "few": np.array([3, 1, 2], np.int32),
    "none": np.empty(0, np.uint8),
}


def write(writer: ArrayWriter) -> dict[str, Any]:
    """Each array by pieces, some of them empty."""
    for name, values in VALUES.items():
        for piece in np.array_split(values, 7):
            writer.append(name, piece)
    return {"made by": "x"}


def refuse(writer: ArrayWriter) -> dict[str, Any]:
    raise AssertionError("it is there already")


def check(folder: Path, make: Any = refuse) -> None:
    found = made_once(folder, make)
    assert dict(found.facts) == {"made by": "x"} and found.arrays.keys() == VALUES.keys()
    for name, values in VALUES.items():
        assert found.arrays[name].dtype == values.dtype and found.arrays[name].tolist() == values.tolist()


def test_arrays_are_made_once_and_then_mapped(tmp_path: Path) -> None:
    check(tmp_path / "new" / "made", write)
    check(tmp_path / "new" / "made")
    with pytest.raises(ValueError, match="read-only"):
        made_once(tmp_path / "new" / "made", refuse).arrays["few"][0] = 1


def _truncate(folder: Path) -> None:
    os.truncate(folder / "numbers", 8_000)


def _flip(folder: Path) -> None:
    data = bytearray((folder / "numbers").read_bytes())
    data[1_000_001] ^= 1
    (folder / "numbers").write_bytes(data)


def _remove(folder: Path) -> None:
    (folder / "few").unlink()


def _no_index(folder: Path) -> None:
    (folder / "index.json").unlink()


def _cut_index(folder: Path) -> None:
    os.truncate(folder / "index.json", 40)


def _other_index(folder: Path) -> None:
    (folder / "index.json").write_text('{"index": 3}')


def _other_facts(folder: Path) -> None:
    index = folder / "index.json"
    index.write_text(index.read_text().replace('"made by": "x"', '"made by": "y"'))


@pytest.mark.parametrize("damage", [_truncate, _flip, _remove, _no_index, _cut_index, _other_index, _other_facts])
def test_damaged_arrays_are_noticed_and_made_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: Any
) -> None:
    made_once(tmp_path / "made", write)
    damage(tmp_path / "made")
    check(tmp_path / "made", write)
    (line,) = [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]
    assert line.startswith(f"{tmp_path / 'made'}: damaged (") and line.endswith("; it is made again")
    check(tmp_path / "made")


def killed_in_the_middle(folder: Path) -> None:
    def make(writer: ArrayWriter) -> dict[str, Any]:
        writer.append("numbers", VALUES["numbers"])
        os.kill(os.getpid(), signal.SIGKILL)
        return {}

    made_once(folder, make)


def test_what_a_killed_process_has_written_is_never_read(tmp_path: Path) -> None:
    process = multiprocessing.get_context("fork").Process(target=killed_in_the_middle, args=(tmp_path / "made",))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert sorted(one.name for one in tmp_path.iterdir()) == [".made.reread-tmp", "made.lock"]
    check(tmp_path / "made", write)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["made", "made.lock"]


def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, limits[1]))
    try:
        with pytest.raises(UserError, match=r"File too large; make room, then run the same command again") as raised:
            made_once(tmp_path / "made", write)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert str(raised.value).startswith(f"{tmp_path / 'made'}: ")
    assert [one.name for one in tmp_path.iterdir()] == ["made.lock"]
    check(tmp_path / "made", write)


def test_parts_are_mapped_from_a_file_without_a_name(tmp_path: Path) -> None:
    parts = np.array_split(np.arange(600_000, dtype=np.int32).reshape(-1, 3), 7)
    found = spilled(iter(parts), tmp_path)
    assert found.dtype == np.int32 and np.array_equal(found, np.concatenate(parts)) and not any(tmp_path.iterdir())
    assert spilled(iter([np.empty((0, 3), np.int32)]), tmp_path).shape == (0, 3)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, limits[1]))
    try:
        with pytest.raises(UserError, match=r"File too large; make room, then run the same command again"):
            spilled(iter(parts), tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_an_error_of_what_is_written_leaves_nothing(tmp_path: Path) -> None:
    def make(writer: ArrayWriter) -> dict[str, Any]:
        write(writer)
        raise UserError("no good")

    with pytest.raises(UserError, match=r"^no good$"):
        made_once(tmp_path / "made", make)
    assert [one.name for one in tmp_path.iterdir()] == ["made.lock"]


def make_and_count(folder: Path, start: Any) -> None:
    def make(writer: ArrayWriter) -> dict[str, Any]:
        with (folder.parent / "count").open("a") as file:
            file.write("made\n")
        return write(writer)

    start.wait()
    check(folder, make)


@pytest.mark.parametrize("locks", [True, False])
def test_processes_that_start_together_map_the_same_arrays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, locks: bool
) -> None:
    """One makes them, and the others wait; on a file system without locks several may, and the first ones stay."""
    if not locks:

        def refused(*_: Any) -> None:
            raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

        monkeypatch.setattr(arrays.fcntl, "flock", refused)
    context = multiprocessing.get_context("fork")
    start = context.Barrier(4)
    processes = [context.Process(target=make_and_count, args=(tmp_path / "made", start)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 4
    made = len((tmp_path / "count").read_text().splitlines())
    assert made == 1 if locks else 1 <= made <= 4
    assert sorted(one.name for one in tmp_path.iterdir()) == ["count", "made", "made.lock"]
