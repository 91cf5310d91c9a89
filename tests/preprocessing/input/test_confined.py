"""A small file that a library would make gigabytes of is bad input, read in a child of bounded memory and time."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow
import pyarrow.ipc
import pyarrow.parquet
import pytest

from reread.preprocessing.errors import UserError
from reread.preprocessing.input import confined
from reread.preprocessing.input.confined import ConfinedError
from tests.conftest import ROOT
from tests.preprocessing.input import child_work
from tests.preprocessing.input.test_hostile_input import MEGABYTE, read_all

pytestmark = pytest.mark.slow
ROOM = 96 * MEGABYTE
LIST = 16 * MEGABYTE
LIMIT = 8 * MEGABYTE


@pytest.fixture(autouse=True)
def own_children() -> Iterator[None]:
    confined.end_all()
    yield
    confined.end_all()


def write_list(path: Path) -> None:
    """One row: a list of nulls, which the file counts and does not hold."""
    nulls = pyarrow.LargeListArray.from_arrays(pyarrow.array([0, LIST]), pyarrow.nulls(LIST, pyarrow.int8()))
    pyarrow.parquet.write_table(pyarrow.table({"text": nulls}), path, data_page_size=1 << 40, compression="zstd")


def write_dictionary(path: Path) -> None:
    pyarrow.parquet.write_table(pyarrow.table({"text": ["x" * ROOM]}), path, compression="zstd")


def write_page(path: Path) -> None:
    pyarrow.parquet.write_table(
        pyarrow.table({"text": ["x" * ROOM]}), path, compression="zstd", use_dictionary=False, write_statistics=False
    )


def write_buffer(path: Path) -> None:
    batch = pyarrow.record_batch([pyarrow.array(["x" * ROOM])], ["text"])
    options = pyarrow.ipc.IpcWriteOptions(compression="zstd")
    with path.open("wb") as file, pyarrow.ipc.new_file(file, batch.schema, options=options) as writer:
        writer.write_batch(batch)


def write_html(path: Path) -> None:
    """Each paragraph opens anew all that the first one left open."""
    path.write_text("<p>" + "".join(f"<b c={number}>" for number in range(900)) + "<p>x" * 8000)


_READ = """
import resource, sys
from reread.preprocessing.input import confined
from tests.preprocessing.input.test_hostile_input import read_all
confined._LEAST_ROOM = int(sys.argv.pop())
for path in sys.argv[2:]:
    documents, [problem] = read_all(path, maximum_document_bytes=int(sys.argv[1]))
    print(len(documents), problem.reason)
confined.end_all()
with open("/proc/self/status") as file:
    own = next(int(line.split()[1]) for line in file if line.startswith("VmHWM:"))
print(1024 * own, 1024 * resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


def test_a_small_file_that_takes_gigabytes_is_bad_input(tmp_path: Path) -> None:
    pytest.importorskip("resiliparse")
    writers = {
        "list.parquet": write_list,
        "dictionary.parquet": write_dictionary,
        "page.parquet": write_page,
        "buffer.arrow": write_buffer,
        "page.html": write_html,
    }
    for name, write in writers.items():
        write(tmp_path / name)
        assert (tmp_path / name).stat().st_size < 60_000
    found = subprocess.run(
        [sys.executable, "-c", _READ, str(LIMIT), *(str(tmp_path / name) for name in writers), str(ROOM)],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        check=True,
    )
    *problems, memory = found.stdout.decode().splitlines()
    assert len(problems) == len(writers)
    for problem in problems:
        assert problem.startswith("0 "), problem
        assert any(reason in problem for reason in ("bytes of memory", "cannot be parsed", "crash")), problem
    own, children = map(int, memory.split())
    assert own < 200 * MEGABYTE and children < ROOM + 150 * MEGABYTE  # with its libraries


def test_libraries_take_none_of_the_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """pyarrow alone takes 200 MB of address space."""
    monkeypatch.setattr(confined, "_LEAST_ROOM", 32 * MEGABYTE)
    table = pyarrow.table({"text": ["a text"]})
    pyarrow.parquet.write_table(table, tmp_path / "small.parquet")
    with pyarrow.ipc.new_file(tmp_path / "small.arrow", table.schema) as writer:
        writer.write_table(table)
    for name in ("small.parquet", "small.arrow"):
        documents, problems = read_all(tmp_path / name, maximum_document_bytes=MEGABYTE)
        assert documents == ["a text"] and problems == []


def here(name: str, *arguments: object) -> list[int]:
    return list(confined.confined(child_work.__name__, name, LIMIT, *arguments))


def test_a_child_does_one_work_after_the_other_until_one_ends_it() -> None:
    assert here("counted", 3) == [0, 1, 2]
    [child] = confined._idle
    assert here("counted", 2) == [0, 1]
    with pytest.raises(FileNotFoundError, match="no such file"):
        here("failed")
    assert here("counted", 2) == [0, 1] and confined._idle == [child]
    assert next(confined.confined(child_work.__name__, "counted", LIMIT, 9)) == 0  # left before its end
    assert confined._idle == []


def test_memory_time_and_crashes_end_the_work_alone() -> None:
    assert here("grown", 4) == [0, 1, 2, 3]
    with pytest.raises(ConfinedError, match="more than 268,435,456 bytes of memory"):
        here("grown", 100)
    with pytest.raises(ConfinedError, match="60 s of CPU time"):
        here("endless")
    with pytest.raises(ConfinedError, match="crash"):
        here("ended", signal.SIGSEGV)
    assert here("counted", 2) == [0, 1]


def test_who_ends_a_child_does_not_make_its_file_bad_input() -> None:
    with pytest.raises(UserError, match="was killed") as raised:
        here("ended", signal.SIGKILL)
    assert raised.value.status == 1
    assert here("ended", signal.SIGTERM) == [0, 1]  # Slurm sends it to all processes of a job


def test_what_a_child_did_before_makes_no_difference() -> None:
    assert here("grown", 8) == [*range(8)]
    assert here("kept") == [0]
    assert here("grown", 8) == [*range(8)]  # by a new child, from where the used one came to its end


def test_where_memory_cannot_be_bounded_one_line_says_what_to_convert(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confined, "_SIZES", "/none")
    with pytest.raises(UserError, match=r"on Linux alone.*convert the files"):
        list(confined.confined(child_work.__name__, "numbers", MEGABYTE))
