"""What the processes of a job do when they open the same corpus, in calls: one checks it, the others rely on that."""

import logging
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from benchmarks.scale.sparse_corpus import sparse_corpus
from reread.preprocessing.corpus import Corpus, Manifest, index
from reread.preprocessing.corpus import shards as shards_module
from reread.preprocessing.corpus.job import kept, opening, trusting
from reread.preprocessing.errors import UserError
from reread.training.data.dataset import Dataset
from reread.training.data.kinds import KINDS, open_dataset
from reread.training.data.rows.samples import RowSettings

_OPENED: list[list[str]] = []
sys.addaudithook(lambda event, args: _OPENED[-1].append(str(args[0])) if event == "open" and _OPENED else None)


@contextmanager
def counted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """Counts stats of shards, and opens by the name of the file, in `folder`."""
    counts: Counter[str] = Counter()
    stat: Callable[..., os.stat_result] = os.stat

    def watched(path: str, *args: object, **options: object) -> os.stat_result:
        counts["stat"] += str(path).startswith(str(folder)) and str(path).endswith(".tar")
        return stat(path, *args, **options)

    _OPENED.append([])
    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", watched)
        patch.setattr(Path, "stat", watched)  # Python 3.10's keeps its own
        yield counts
    counts.update(Path(name).name for name in _OPENED.pop() if name.startswith(str(folder)))


def opened(folder: Path, length: int) -> tuple[Dataset[object], Dataset[object]]:
    settings = RowSettings(corpus=folder, sequence_length=length)
    train, held_out = (open_dataset(settings, 0, split) for split in ("train", "validation"))
    train.card()
    return train, held_out


@pytest.mark.parametrize("length", [128, 99])
def test_a_process_that_relies_on_another_looks_at_no_shard(
    tmp_path: Path, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does what it reads or opens grow with the shards."""
    for shards in (3, 30):
        folder, keep = sparse_corpus(tmp_path / f"{shards}", shards, blocks=2), tmp_path / f"kept-{shards}"
        with counted(folder, monkeypatch) as first, opening(keep, trusting=False):
            checked = opened(folder, length)
        assert first["stat"] == shards + 1 and first["manifest.json"] == 1
        with counted(folder, monkeypatch) as other, opening(keep, trusting=True):
            relied = opened(folder, length)
        assert +other == {"manifest.json": 1, "index.npz": 1}
        for one, same in zip(checked, relied, strict=True):
            assert one.fingerprint == same.fingerprint and one.facts() == same.facts()
            rows, as_before = (dataset.rows(np.arange(40)) for dataset in (one, same))  # type: ignore[attr-defined]
            assert all(np.array_equal(rows[name], as_before[name]) for name in rows)


def test_outside_of_a_job_each_opening_checks_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = sparse_corpus(tmp_path / "corpus", 3, blocks=2)
    with opening(tmp_path, trusting=True):
        pass
    assert not trusting()
    (folder / "train-00001.tar").unlink()
    for _ in range(2):
        with pytest.raises(UserError, match=r"train-00001\.tar: missing; copy the shard again"):
            Corpus(folder)
    with opening(tmp_path, trusting=True):
        corpus = Corpus(folder)
    with pytest.raises(UserError, match=r"train-00001\.tar: missing; copy the shard again"):
        corpus.document(9)


def test_the_index_is_a_view_of_its_file(tmp_path: Path) -> None:
    """So that all processes of a machine share it, in both splits."""
    folder = sparse_corpus(tmp_path / "corpus", 4, blocks=3)
    manifest = Manifest.read(folder)
    with np.load(folder / "index.npz") as arrays:
        for name, values in manifest.index._asdict().items():
            assert np.array_equal(values, arrays[name]) and not values.flags.owndata
    for split in ("train", "validation"):
        own = manifest.split_index(split)
        assert all(np.shares_memory(*pair) for pair in zip(own, manifest.index, strict=True))
        assert len(own.blocks) == {"train": 12, "validation": 3}[split]


def test_a_compressed_index_is_refused(tmp_path: Path) -> None:
    """It could not be mapped; no version has written one."""
    folder = sparse_corpus(tmp_path / "corpus", 1, blocks=1)
    with np.load(folder / "index.npz") as arrays:
        values = dict(arrays)
    np.savez_compressed(folder / "index.npz", **values)
    with opening(tmp_path, trusting=True), pytest.raises(UserError, match=r"index\.npz: not readable \(blocks.* compr"):
        index.CorpusIndex.read(folder, "")


def test_counts_are_kept_and_computed_again_where_they_cannot_be_right(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    values, path = np.arange(5, dtype=np.uint32), tmp_path / "kept" / "name.npy"
    calls: list[int] = []

    def compute() -> np.ndarray:
        calls.append(1)
        return values

    def read(size: int = 5) -> np.ndarray:
        with opening(tmp_path / "kept", trusting=False):
            return kept("name", size, compute)

    assert kept("name", 5, compute) is values and not path.exists()  # of no job
    for expected in (2, 2):
        assert np.array_equal(read(), values) and len(calls) == expected
    good = path.read_bytes()
    for damaged in (good[:-5] + b"?" + good[-4:], good[:40], b""):
        path.write_bytes(damaged)
        before = len(calls)
        assert np.array_equal(read(), values) and len(calls) == before + 1 and path.read_bytes() == good
    read(4)
    reasons = [record.getMessage().partition(": ")[2].split()[0] for record in caplog.records]
    assert reasons == ["altered", "not", "not", "altered"]  # readable


def test_without_room_each_process_counts(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    (tmp_path / "kept").write_text("a file, so nothing can be written into it")
    values = np.arange(5, dtype=np.uint32)
    with opening(tmp_path / "kept", trusting=True):
        assert kept("name", 5, lambda: values) is values
    assert "name.npy: " in caplog.text


def test_shards_are_mapped_when_rows_need_them_and_closed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = sparse_corpus(tmp_path / "corpus", 12, blocks=2)
    settings = RowSettings(corpus=folder, sequence_length=99, next_sentence=False)
    reference = open_dataset(settings, 0, "train").rows(np.arange(60))  # type: ignore[attr-defined]
    monkeypatch.setattr(shards_module, "_most_maps", lambda: 4)
    monkeypatch.setattr(shards_module, "_MAPPING", set())
    dataset = KINDS["rows"].open(settings, 0, "train")
    files = dataset.corpus._files  # type: ignore[attr-defined]
    assert not files._maps  # the lengths of all documents were read
    rows = dataset.rows(np.arange(60))  # type: ignore[attr-defined]
    assert 0 < len(files._maps) <= 4
    assert all(np.array_equal(rows[name], reference[name]) for name in rows)
