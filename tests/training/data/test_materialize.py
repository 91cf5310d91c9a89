import errno
import multiprocessing
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import webdataset

from reread.preprocessing.corpus import Corpus, TarWriter
from reread.preprocessing.errors import UserError
from reread.training.data.kinds import open_dataset
from reread.training.data.materialize import MaterializedSamples, is_materialized, materialize
from reread.training.data.rows.samples import RowSettings, Samples
from reread.training.data.settings import MaskingSettings
from tests.corpora import make_corpus

LENGTHS = np.random.default_rng(2).integers(1, 700, 60).tolist()
OPTIONS: dict[str, Any] = {"copies": 2, "sequence_length": 64}


def write(corpus: Corpus, out: Path, settings: RowSettings, seed: int = 0, workers: int = 1) -> None:
    materialize(corpus.folder, out, settings, seed, workers, block_rows=4)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    corpus = make_corpus(tmp_path_factory.mktemp("materialize") / "corpus", LENGTHS)
    (corpus.folder / "tokenizer").mkdir()
    (corpus.folder / "tokenizer" / "tokenizer.json").write_text("{}")
    statistics = {"han_tokens": 0, "han_tokens_in_multi_token_words": 0}
    replace(corpus.manifest, statistics=statistics).write(corpus.folder)
    return Corpus(corpus.folder)


def settings_of(corpus: Corpus, **settings: Any) -> RowSettings:
    return RowSettings(**{"corpus": corpus.folder, **OPTIONS, **settings})


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"pool_tokens": 4000},
        {"next_sentence": False, "masking": MaskingSettings(strategy="span")},
        {"next_sentence": False, "special_tokens": False},
    ],
)
def test_written_samples_equal_drawn_ones(corpus: Corpus, tmp_path: Path, options: dict[str, Any]) -> None:
    settings = settings_of(corpus, **options)
    write(corpus, tmp_path / "out", settings, 3)
    drawn = Samples(corpus, settings, 3)
    written = open_dataset(settings.model_copy(update={"corpus": tmp_path / "out"}), 3, "train")
    assert isinstance(written, MaterializedSamples)
    assert len(written) == len(drawn) and written.fingerprint == drawn.fingerprint
    assert (written.vocab_size, written.corpus_fingerprint) == (drawn.vocab_size, drawn.corpus_fingerprint)
    positions = np.arange(3 * len(drawn)) + 10**9
    copies, indices = np.divmod(np.arange(2 * len(drawn)), len(drawn))
    for a, b in (
        (drawn.rows(positions), written.rows(positions)),
        (drawn.at(copies, indices), written.at(copies, indices)),
    ):
        assert a.keys() == b.keys()
        for name in a:
            assert a[name].dtype == b[name].dtype and np.array_equal(a[name], b[name]), name


@pytest.mark.slow
def test_workers_change_nothing(corpus: Corpus, tmp_path: Path) -> None:
    for workers in (1, 2):
        write(corpus, tmp_path / str(workers), settings_of(corpus), workers=workers)
    assert content(tmp_path / "1") == content(tmp_path / "2")


@pytest.mark.slow
def test_webdataset_reads_the_shards_as_they_are(corpus: Corpus, tmp_path: Path) -> None:
    write(corpus, tmp_path / "out", settings_of(corpus))
    shards = sorted(str(path) for path in (tmp_path / "out").glob("*.tar"))
    assert len(shards) > 2
    rows = [sample["rows.npy"] for sample in webdataset.WebDataset(shards, shardshuffle=False).decode()]
    assert sum(map(len, rows)) == 2 * len(Samples(corpus, settings_of(corpus), 0))


@pytest.mark.slow
def test_a_killed_run_goes_on_where_it_stopped(corpus: Corpus, tmp_path: Path) -> None:
    whole, out = tmp_path / "whole", tmp_path / "out"
    write(corpus, whole, settings_of(corpus))
    process = multiprocessing.get_context("fork").Process(target=write, args=(corpus, out, settings_of(corpus)))
    process.start()
    while len(list(out.glob("*.json"))) < 2 and process.is_alive():
        time.sleep(0.001)
    process.kill()
    process.join()
    assert not is_materialized(out)
    first = (out / "train-00000.tar").stat().st_mtime_ns
    write(corpus, out, settings_of(corpus))
    assert (out / "train-00000.tar").stat().st_mtime_ns == first
    assert content(out) == content(whole)


@pytest.mark.slow
def test_a_full_disk_is_one_line_and_leaves_nothing_that_looks_whole(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    whole, out = tmp_path / "whole", tmp_path / "out"
    write(corpus, whole, settings_of(corpus))
    with monkeypatch.context() as patch:
        patch.setattr(TarWriter, "close", full)
        with pytest.raises(UserError, match=f"{out}: No space left on device"):
            write(corpus, out, settings_of(corpus))
    assert not is_materialized(out)
    write(corpus, out, settings_of(corpus))
    assert content(out) == content(whole)


@pytest.mark.slow
def test_other_settings_are_refused_and_named(corpus: Corpus, tmp_path: Path) -> None:
    out = tmp_path / "out"
    write(corpus, out, settings_of(corpus))
    with pytest.raises(UserError, match=r"seed 0 \(now 1\), data\.masking\.strategy whole-word \(now token\)"):
        open_dataset(RowSettings(**{**OPTIONS, "masking": {"strategy": "token"}}, corpus=out), 1, "train")
    with pytest.raises(UserError, match=r"data\.copies 2 \(now 3\).*empty folder"):
        write(corpus, out, settings_of(corpus, copies=3))
    with pytest.raises(UserError, match="not a corpus"):
        Corpus(out)
    before = content(out)
    write(corpus, out, settings_of(corpus))
    assert content(out) == before


@pytest.mark.slow
def test_truncated_and_altered_shards_are_named(corpus: Corpus, tmp_path: Path) -> None:
    out = tmp_path / "out"
    write(corpus, out, settings_of(corpus))
    path = out / "train-00001.tar"
    data = path.read_bytes()
    path.write_bytes(data[:-600])
    with pytest.raises(UserError, match=r"train-00001\.tar: .* bytes long"):
        MaterializedSamples(out, "train")
    path.write_bytes(data[:700] + b"\xff" * 8 + data[708:])
    with pytest.raises(UserError, match=r"train-00001\.tar: altered"):
        MaterializedSamples(out, "train").verify()
    samples = MaterializedSamples(out, "train")
    with pytest.raises(UserError, match=r"train-00001\.tar: altered"):
        samples.rows(np.arange(len(samples)))


@pytest.mark.slow
def test_altered_samples_are_not_taken_for_done(corpus: Corpus, tmp_path: Path) -> None:
    write(corpus, tmp_path / "out", settings_of(corpus))
    path = tmp_path / "out" / "manifest.json"
    text = path.read_text()
    path.write_text(text.replace('"split": "train"', '"split": "trains"', 1))
    assert path.read_text() != text
    with pytest.raises(UserError, match="its checksum does not match its contents"):
        write(corpus, tmp_path / "out", settings_of(corpus))
