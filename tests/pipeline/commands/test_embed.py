"""`reread embed`: the vectors of a file's documents."""

import json
import resource
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

import reread
from reread.pipeline.commands import embed as command
from reread.pipeline.commands.embed import embed
from reread.pipeline.library.reader import Reader
from reread.preprocessing.errors import UserError
from tests.pipeline.library.test_reader import first  # noqa: F401  a fixture: a run and its export

LINES = [{"id": "x", "text": "渡口旅店。"}, {"id": "ä 2", "text": "口。" * 60}, {"id": "z", "text": "口"}]
TEXTS = [line["text"] for line in LINES]


@pytest.fixture
def lines(first: Path) -> Path:  # noqa: F811
    path = Path("texts.jsonl")
    path.write_text("".join(f"{json.dumps(line)}\n" for line in LINES), encoding="utf-8")
    return path


def test_files_hold_the_vectors_of_the_library_and_the_ids(lines: Path) -> None:
    expected = reread.load("opinion", device="cpu").embed(TEXTS)
    embed(Path("runs/opinion"), lines, [], Path("v.npy"))
    assert np.array_equal(np.load("v.npy"), expected)
    assert Path("v.ids.txt").read_text(encoding="utf-8").splitlines() == ["x", "ä 2", "z"]
    embed(Path("opinion-export"), lines, [], Path("v.parquet"), normalize=True)
    table = pq.read_table("v.parquet").to_pydict()
    assert table["id"] == ["x", "ä 2", "z"]
    unit = expected / np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(np.array(table["vector"], np.float32), unit, atol=2e-6)
    assert sorted(path.name for path in Path().glob("v.*")) == ["v.ids.txt", "v.npy", "v.parquet"]
    assert not list(Path().glob(".v.*"))


def test_windows_and_columns_are_settings_of_the_task(lines: Path) -> None:
    Path("t.csv").write_text("body,n\n" + "".join(f"{text},1\n" for text in TEXTS), encoding="utf-8")
    settings = ["task.format=csv", "task.columns.text=body", "task.sequence_length=16"]
    embed(Path("opinion-export"), Path("t.csv"), settings, Path("v.npy"))
    assert np.array_equal(np.load("v.npy"), reread.load("opinion-export", device="cpu").embed(TEXTS, length=16))


def test_a_command_that_is_repeated_goes_on_after_whole_parts(lines: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut after the second part of one document each, the last of which is written but not marked."""
    monkeypatch.setattr(command, "PART", 1)
    embed(Path("opinion-export"), lines, [], Path("whole.npy"))
    computed: list[str] = []
    plain = Reader.vectors

    def cut(self, data, examples, batch_size=32, begin=0, part=None):
        for number, found in enumerate(plain(self, data, examples, batch_size, begin, part), begin):
            if len(computed) == 2:
                raise KeyboardInterrupt
            computed.append(examples[number].id)
            yield found

    monkeypatch.setattr(Reader, "vectors", cut)
    with pytest.raises(KeyboardInterrupt):
        embed(Path("opinion-export"), lines, [], Path("v.npy"))
    assert not Path("v.npy").exists() and not Path("v.ids.txt").exists()
    computed.clear()
    embed(Path("opinion-export"), lines, [], Path("v.npy"))
    assert computed == ["z"]
    assert Path("v.npy").read_bytes() == Path("whole.npy").read_bytes()


def test_vectors_of_another_text_are_not_continued_and_unknown_words_are_told(
    lines: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(command, "PART", 1)
    Path(".v.00000000000000000000000000000000.npy.reread-tmp").write_bytes(b"another command's")
    Path(".v.ids.txt.00000000000000000000000000000000.reread-tmp").write_text("x\n")
    lines.write_text(json.dumps({"id": "z", "text": "口"}) + json.dumps({"id": "u", "text": "渡"}).join("\n\n"))
    embed(Path("opinion-export"), lines, [], Path("v.npy"))
    known, unknown = np.load("v.npy")
    assert np.array_equal(known, reread.load("opinion-export", device="cpu").embed("口"))
    assert not unknown.any() and "1 of 2 documents have no token but [UNK]" in caplog.text
    assert not list(Path().glob(".v.*"))


def test_a_full_disk_is_one_line_and_the_command_goes_on_with_more_room(
    lines: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "PART", 1)
    embed(Path("opinion-export"), lines, [], Path("whole.npy"))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (Path("whole.npy").stat().st_size - 1, hard))
    try:
        with pytest.raises(UserError, match=r"v\.ids\.txt: File too large; make room"):
            embed(Path("opinion-export"), lines, [], Path("v.npy"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not Path("v.npy").exists()
    embed(Path("opinion-export"), lines, [], Path("v.npy"))
    assert Path("v.npy").read_bytes() == Path("whole.npy").read_bytes()


@pytest.mark.parametrize(
    ("settings", "output", "line"),
    [
        ([], "v.txt", r"NAME\.npy or NAME\.parquet"),
        (["steps=3"], "v.npy", r"only task\.KEY=VALUE"),
        (["task.sequenc_length=16"], "v.npy", "did you mean `.*sequence_length`"),
    ],
)
def test_a_mistake_is_one_line(lines: Path, settings: list[str], output: str, line: str) -> None:
    with pytest.raises(UserError, match=line):
        embed(Path("opinion-export"), lines, settings, Path(output))
