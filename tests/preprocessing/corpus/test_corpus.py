import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import webdataset

from reread.preprocessing.corpus import FORMAT_VERSION, Corpus, Manifest, ShardWriter
from reread.preprocessing.errors import UserError
from tests.corpora import make_corpus

TOKENIZER = {
    "fingerprint": "f",
    "type": "wordpiece",
    "vocab_size": 300,
    "pad": 0,
    "unk": 1,
    "cls": 2,
    "sep": 3,
    "mask": 4,
}


def documents(seed: int, count: int, dtype: str) -> list[tuple[np.ndarray, np.ndarray]]:
    generator = np.random.default_rng(seed)
    sizes = generator.integers(1, 60, count)
    largest = np.iinfo(dtype).max
    return [
        (generator.integers(0, largest, n, dtype, endpoint=True), generator.integers(0, 8, n, np.uint8)) for n in sizes
    ]


def write_corpus(folder: Path, dtype: str = "uint16", shards: int = 2) -> list[tuple[np.ndarray, np.ndarray]]:
    folder.mkdir(exist_ok=True)
    written, described = [], []
    for number in range(shards):
        writer = ShardWriter(folder / f"train-{number:05d}.tar", "train", dtype, block_tokens=500)
        for ids, flags in documents(number, 100, dtype):
            writer.add(ids, flags)
            written.append((ids, flags))
        described.append(writer.close())
    Manifest.of(TOKENIZER, dtype, described).write(folder)
    return written


@pytest.mark.parametrize("dtype", ["uint16", "uint32"])
def test_documents_come_back_as_written_and_in_order(tmp_path: Path, dtype: str) -> None:
    written = write_corpus(tmp_path, dtype)
    corpus = Corpus(tmp_path)
    assert len(corpus.block_documents) > 4
    assert (corpus.documents, corpus.tokens) == (len(written), sum(len(ids) for ids, _ in written))
    for index in np.random.default_rng(1).permutation(len(written)).tolist():
        ids, flags = corpus.document(index)
        assert ids.dtype == dtype
        assert np.array_equal(ids, written[index][0])
        assert np.array_equal(flags, written[index][1])


def test_webdataset_reads_the_shards_as_they_are(tmp_path: Path) -> None:
    written = write_corpus(tmp_path)
    urls = [str(path) for path in sorted(tmp_path.glob("*.tar"))]
    read = []
    for sample in webdataset.WebDataset(urls, shardshuffle=False).decode():
        offsets = sample["offsets.npy"]
        for begin, end in pairwise(offsets):
            read.append((sample["ids.npy"][begin:end], sample["flags.npy"][begin:end]))
    assert len(read) == len(written)
    for mine, theirs in zip(written, read, strict=True):
        assert np.array_equal(mine[0], theirs[0])
        assert np.array_equal(mine[1], theirs[1])


def test_equal_documents_make_equal_bytes_and_fingerprints(tmp_path: Path) -> None:
    write_corpus(tmp_path / "a")
    write_corpus(tmp_path / "b")
    names = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert names == ["index.npz", "manifest.json", "train-00000.tar", "train-00001.tar"]
    for name in names:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    write_corpus(tmp_path / "c", shards=1)
    assert (
        Corpus(tmp_path / "a").fingerprint == Corpus(tmp_path / "b").fingerprint != Corpus(tmp_path / "c").fingerprint
    )


@pytest.mark.parametrize("kept", [0, 1, 700, -1])
def test_a_truncated_shard_is_named(tmp_path: Path, kept: int) -> None:
    write_corpus(tmp_path)
    shard = tmp_path / "train-00001.tar"
    shard.write_bytes(shard.read_bytes()[:kept])
    with pytest.raises(UserError, match=r"train-00001\.tar: \d+ bytes long, \d+ were written; .*again"):
        Corpus(tmp_path)


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    write_corpus(tmp_path)
    (tmp_path / "train-00000.tar").unlink()
    with pytest.raises(UserError, match=r"train-00000\.tar: missing; .*again"):
        Corpus(tmp_path)


def test_an_edited_manifest_is_refused(tmp_path: Path) -> None:
    write_corpus(tmp_path)
    path = tmp_path / "manifest.json"
    values = json.loads(path.read_text())
    values["shards"][0]["documents"] += 1
    path.write_text(json.dumps(values))
    with pytest.raises(UserError, match=r"manifest\.json: its checksum does not match"):
        Corpus(tmp_path)


def test_the_fingerprint_says_which_ids_are_special(tmp_path: Path) -> None:
    """The masks and frames of every row come of them, and a run must not go on with others."""
    write_corpus(tmp_path)
    manifest = Manifest.read(tmp_path)
    for name in ("pad", "unk", "cls", "sep", "mask"):
        assert replace(manifest, tokenizer={**TOKENIZER, name: 7}).fingerprint != manifest.fingerprint
    assert replace(manifest, sources=[{"path": "elsewhere"}]).fingerprint == manifest.fingerprint


def test_a_corpus_of_another_format_is_refused_with_the_way_out(tmp_path: Path) -> None:
    write_corpus(tmp_path)
    path = tmp_path / "manifest.json"
    path.write_text(path.read_text().replace(f'"version": {FORMAT_VERSION}', '"version": 1'))
    with pytest.raises(UserError, match=r"corpus format 1, this program reads 3 and 4; make the corpus again with"):
        Corpus(tmp_path)


def test_a_folder_without_manifest_is_no_corpus(tmp_path: Path) -> None:
    write_corpus(tmp_path)
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(UserError, match=r"manifest\.json: not readable as JSON"):
        Corpus(tmp_path)
    (tmp_path / "manifest.json").unlink()
    with pytest.raises(UserError, match=r"is .* a corpus made by `reread preprocess`"):
        Corpus(tmp_path)


def test_a_shard_appears_only_when_it_is_whole(tmp_path: Path) -> None:
    writer = ShardWriter(tmp_path / "train-00000.tar", "train", "uint16")
    writer.add(np.arange(10, dtype=np.uint32), np.zeros(10, np.uint8))
    assert not (tmp_path / "train-00000.tar").exists()
    writer.close()
    assert [path.name for path in tmp_path.iterdir()] == ["train-00000.tar"]


def test_an_empty_document_is_a_mistake_of_the_caller(tmp_path: Path) -> None:
    writer = ShardWriter(tmp_path / "train-00000.tar", "train", "uint16")
    with pytest.raises(ValueError, match="0 ids"):
        writer.add(np.empty(0, np.uint16), np.empty(0, np.uint8))


@pytest.mark.parametrize("section", ["", "shards.0", "tokenizer"])
def test_a_manifest_that_lacks_a_field_is_one_line(section: str, tmp_path: Path) -> None:
    whole = json.loads((make_corpus(tmp_path, [40] * 3).folder / "manifest.json").read_text())

    def inside(values: Any) -> Any:
        for part in filter(None, section.split(".")):
            values = values[int(part) if part.isdecimal() else part]
        return values

    optional = {"": ("sources", "dropped", "statistics"), "tokenizer": TOKENIZER.keys() - {"fingerprint"}}
    for key in inside(whole).keys() - set(optional.get(section, ())):
        values = json.loads(json.dumps(whole))
        del inside(values)[key]
        (tmp_path / "manifest.json").write_text(json.dumps(values))
        with pytest.raises(UserError, match=r"manifest\.json: ") as raised:
            Manifest.read(tmp_path)
        assert "\n" not in str(raised.value)
    for text in ("[]", "null", "5", '{"version": 1, "fingerprint": "", "shards": 5}'):
        (tmp_path / "manifest.json").write_text(text)
        with pytest.raises(UserError, match=r"manifest\.json: "):
            Manifest.read(tmp_path)
