"""Processes that open one corpus: who checks it, and that all end with one line where it is damaged or differs."""

import os
import shutil
from pathlib import Path

import pytest

from reread.preprocessing.corpus import shards
from reread.preprocessing.errors import UserError
from reread.training.config import TrainSettings
from reread.training.parallel.rendezvous import init_mesh
from reread.training.run.data import open_together
from tests.conftest import train_values
from tests.corpora import make_corpus


def _open(folders: list[Path], run: Path, sequence_length: int) -> tuple[int, str, list[str]]:
    """The shards that this process looked at, the fingerprint of its rows or the error, and what is kept."""
    mesh = init_mesh()
    looked = 0
    size_on_disk = shards.ShardFiles._size_on_disk

    def watched(self: shards.ShardFiles, name: str) -> int | None:
        nonlocal looked
        looked += 1
        return size_on_disk(self, name)

    shards.ShardFiles._size_on_disk = watched  # type: ignore[method-assign]
    values = train_values(folders[mesh.rank])
    values["data"] |= {"sequence_length": sequence_length, "masking": {"strategy": "token"}}
    try:
        found = open_together(TrainSettings.parse(values, "test"), run, mesh).train.fingerprint
    except UserError as error:
        found = str(error)
    return looked, found, sorted(os.listdir(run / "counts")) if (run / "counts").exists() else []


@pytest.fixture
def corpora(tmp_path: Path) -> list[Path]:
    """The same corpus on a shared file system for processes 0 and 2, and a copy of its own for process 1."""
    folder = make_corpus(tmp_path / "corpus", [300] * 40).folder
    return [folder, shutil.copytree(folder, tmp_path / "copy"), folder]


def test_the_first_process_that_sees_a_corpus_checks_it(ranks, corpora, tmp_path) -> None:
    (tmp_path / "run").mkdir()
    looked, fingerprints, kept = zip(*ranks(3, _open, corpora, tmp_path / "run", 70), strict=True)
    assert looked == (2, 2, 0) and len(set(fingerprints)) == 1
    assert kept[0] == kept[2] and [name.rpartition("-")[2] for name in kept[2]] == ["67.npy", "67.npy"]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_shard_that_is_cut_short_ends_all_with_the_line_of_who_checks(ranks, corpora, tmp_path, rank) -> None:
    os.truncate(corpora[rank] / "train-00001.tar", 5000)
    _, lines, _ = zip(*ranks(3, _open, corpora, tmp_path, 128), strict=True)
    assert lines[rank].startswith(f"{corpora[rank]}/train-00001.tar: 5000 bytes long, ")
    assert all(lines[other] == f"process {rank} failed" for other in range(3) if other != rank)


def test_another_corpus_on_one_machine_is_one_line(ranks, corpora, tmp_path) -> None:
    corpora[1] = make_corpus(tmp_path / "other", [299] * 40).folder
    _, lines, _ = zip(*ranks(3, _open, corpora, tmp_path, 128), strict=True)
    assert all(
        "process 1 finds another corpus there than process 0; give all machines the same" in one for one in lines
    )
