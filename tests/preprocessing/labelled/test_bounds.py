"""A small labelled file that stands for gigabytes, or one that never ends, is one line."""

import bz2
import gzip
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from reread.preprocessing.errors import UserError
from reread.preprocessing.labelled import file
from reread.preprocessing.labelled.read import read_examples
from tests.conftest import ROOT

MEGABYTE = 1 << 20
_READ = """
import sys
from pathlib import Path
from reread.preprocessing.errors import UserError
from reread.preprocessing.labelled import file as source
from reread.preprocessing.labelled.read import read_examples
source._ROOM = int(sys.argv[1])
for argument in sys.argv[2:]:
    path, task, format = argument.rsplit(":", 2)
    try:
        print(len(read_examples(Path(path), task, format, wrong="skip").examples))
    except UserError as error:
        print(error)
with open("/proc/self/status") as file:
    print(1024 * next(int(line.split()[1]) for line in file if line.startswith("VmHWM:")))
"""


def zstd(unit: bytes, count: int) -> bytes:
    packer = zstandard.ZstdCompressor().compressobj()
    return b"".join([*(packer.compress(unit * 1000) for _ in range(count // 1000)), packer.flush()])


def test_a_file_of_mistakes_alone_ends_at_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file, "_MOST_MISTAKES", 3)
    path = tmp_path / "a.jsonl"
    for line in ("[]\n", '{"text": 1}\n'):
        path.write_text(10 * line)
        with pytest.raises(UserError, match=rf"{path}:1: .*the first of more than 3 mistakes"):
            read_examples(path, "classify", "jsonl", wrong="skip")


@pytest.mark.slow
def test_small_files_fill_neither_memory_nor_time(tmp_path: Path) -> None:
    many = 4 * 10**6
    bombs = {
        "a.tsv.zst:classify:tsv": zstd(b"\0" * 40, many),
        "b.txt.zst:classify:document-per-line": zstd(b"x\n", many),
        "c.txt.gz:tag:conll": gzip.compress(b"x O\n" * many, 1),
        "d.txt.zst:tag:conll": zstd(b"x O\n\n", many),
        "e.txt.zst:tag:conll": zstd(b"x O O\n\n", many),
        "f.jsonl.zst:classify:jsonl": zstd(b"\n", many * 3),
        "g.json.zst:answer:squad": zstd(b"[],", many),
        "h.json.bz2:choose:c3": bz2.compress(b"[" + b"{}," * many),
        "i.json:choose:c3": b"[" + b"{}," * (many // 3) + b"{}]",
        "j.jsonl.zst:tag:jsonl": b"".join((zstd(b'{"tokens": [', 1000), zstd(b'"x",', many), zstd(b'"x"]}\n', 1000))),
    }
    for name, data in bombs.items():
        (tmp_path / name.split(":")[0]).write_bytes(data)
    found = subprocess.run(
        [sys.executable, "-c", _READ, str(8 * MEGABYTE), *(str(tmp_path / name) for name in bombs)],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        check=True,
    )
    *lines, memory = found.stdout.decode().splitlines()
    assert len(lines) == len(bombs)
    for name, line in zip(bombs, lines, strict=True):
        assert line.startswith(f"{tmp_path / name.split(':')[0]}"), line
    assert int(memory) < 256 * MEGABYTE


def test_prose_of_many_commas_compressed_is_read(tmp_path: Path) -> None:
    """What is bounded is what no text does: this expands to a hundred times its size."""
    text = "".join(f'{{"text": "so, he, said, {number}", "label": "a"}}\n' for number in range(9_000))
    (tmp_path / "a.jsonl.zst").write_bytes(zstandard.compress(text.encode(), 19))
    assert len(read_examples(tmp_path / "a.jsonl.zst", "classify").examples) == 9_000


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("make", "kind"),
    [(os.mkfifo, "a named pipe"), (lambda path: path.symlink_to("/dev/zero"), "a device")],
    ids=["fifo", "device"],
)
def test_what_never_ends_is_no_file(tmp_path: Path, make: Callable[[Path], None], kind: str) -> None:
    path = tmp_path / "a.tsv"
    make(path)
    with pytest.raises(UserError, match=f"is {kind}"):
        read_examples(path, "classify", "tsv")
    (tmp_path / "c").mkdir()
    path.rename(tmp_path / "c" / "x.txt")
    with pytest.raises(UserError, match=f"is {kind}"):
        read_examples(tmp_path, "classify", "folders")
