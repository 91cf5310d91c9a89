"""The table of a run's files: docs/run-folder.md, real runs, and the scripts that cannot import it."""

import re
from pathlib import Path

import pytest

from reread.preprocessing.files import write_atomically
from reread.training.config import TrainSettings
from reread.training.run.files import RunFile, as_markdown, read_json, read_mapping
from reread.training.trainer import train
from tests.conftest import ROOT, train_values
from tests.pipeline.slurm.test_slurm_scripts import supervisor


def unlisted(run: Path) -> list[str]:
    """The files of a run that docs/run-folder.md does not list."""
    page = (ROOT / "docs" / "run-folder.md").read_text(encoding="utf-8")
    listed = [re.escape(name).replace("N", r"\d+") for name in re.findall(r"^\| `(.*?)` \|", page, re.MULTILINE)]
    found = [path.relative_to(run).as_posix() for path in run.rglob("*") if path.is_file()]
    assert found and listed
    patterns = [f"{name}.+" if name.endswith("/") else name for name in listed]
    return [name for name in found if not any(re.fullmatch(pattern, name) for pattern in patterns)]


def test_the_page_of_the_run_folder_is_up_to_date() -> None:
    page = (ROOT / "docs" / "run-folder.md").read_text(encoding="utf-8")
    assert page == as_markdown(), "python -m reread.training.run.files > docs/run-folder.md"


@pytest.mark.parametrize("name", ["small", "opinion"])
def test_every_file_of_an_earlier_versions_run_is_listed(name: str) -> None:
    assert unlisted(ROOT / "tests" / "fixtures" / "first" / "runs" / name) == []


def test_every_file_of_a_new_run_is_listed_and_another_is_found(sample_corpus: Path, tmp_path: Path) -> None:
    values = train_values(sample_corpus, steps=2, writers=["tensorboard"])
    train(TrainSettings.parse(values, "test"), tmp_path)
    assert unlisted(tmp_path) == []
    (tmp_path / "notes.json").touch()
    assert unlisted(tmp_path) == ["notes.json"]


def test_the_supervisor_names_the_same_files(tmp_path: Path) -> None:
    module = supervisor()
    assert tmp_path / module.HISTORY == RunFile.HISTORY.of(tmp_path)
    assert tmp_path / module.EARLIER_HISTORY == RunFile.ATTEMPTS.of(tmp_path)
    RunFile.PROGRESS.of(tmp_path, 3).parent.mkdir()
    RunFile.PROGRESS.of(tmp_path, 3).write_text('{"step": 12}')
    (RunFile.CHECKPOINTS.of(tmp_path) / "step-00000010").mkdir(parents=True)
    assert (module.last_step(tmp_path), module.last_checkpoint(tmp_path)) == (12, 10)


@pytest.mark.parametrize("content", [None, b"", b'{"a": 1', b"\xff\xfe", b"[" * 100_000])
def test_a_missing_or_damaged_file_holds_nothing(content: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    if content is not None:
        path.write_bytes(content)
    assert (read_json(path), read_mapping(path)) == (None, {})


def test_a_file_that_cannot_be_read_now_is_missing_only_where_that_does_no_harm(tmp_path: Path) -> None:
    (tmp_path / "a.json").mkdir()
    assert read_mapping(tmp_path / "a.json") == {}
    with pytest.raises(IsADirectoryError):
        read_mapping(tmp_path / "a.json", missing=FileNotFoundError)
    write_atomically(tmp_path / "b.json", b"[1]")
    assert (read_json(tmp_path / "b.json"), read_mapping(tmp_path / "b.json")) == ([1], {})
