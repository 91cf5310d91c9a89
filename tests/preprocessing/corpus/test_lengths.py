"""lengths.npy: by it chunks of any length are counted as by the offsets in the shards, if it is as it was written."""

import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reread.preprocessing.corpus import LENGTHS, Corpus, Manifest, ShardWriter, reader, write_lengths
from reread.preprocessing.corpus import shards as shards_module
from reread.preprocessing.corpus.index import CHUNK_LENGTHS
from reread.preprocessing.corpus.lengths import lengths_bytes
from reread.preprocessing.errors import UserError
from reread.training.data.order.chunks import CorpusChunks
from tests.corpora import SPECIAL

TOKENIZER = {"fingerprint": "f", "type": "wordpiece", "vocab_size": 1000, **SPECIAL}
SPLITS = ("train", "validation", "train", "other", "validation")
"""Of each shard; `reread preprocess` would put those of a split together."""


def documents_of(number: int) -> list[int]:
    """Tokens of the documents of a shard, some of them in a block of their own."""
    generator = np.random.default_rng(number)
    return [*generator.integers(1, 300, 40).tolist(), 70_000, *generator.integers(1, 3000, 20).tolist(), 1, 9000]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, shards, lengths = tmp_path_factory.mktemp("lengths") / "corpus", [], []
    folder.mkdir()
    for number, split in enumerate(SPLITS):
        writer = ShardWriter(folder / f"{split}-{number:05d}.tar", split, "uint16", block_tokens=3000)
        for length in documents_of(number):
            writer.add(np.full(length, 7), np.zeros(length, np.uint8))
        shards.append(writer.close())
        lengths.append(writer.lengths)
    checksum = write_lengths(folder, lengths, sum(map(len, lengths)))
    Manifest.of(TOKENIZER, "uint16", shards, statistics={"han_tokens": 0}, lengths=checksum).write(folder)
    return folder


def without_lengths(folder: Path, to: Path) -> Path:
    """The corpus as an earlier version made it."""
    shutil.copytree(folder, to)
    (to / LENGTHS).unlink()
    replace(Manifest.read(to), lengths=None).write(to)
    return to


def chunks_of(length: int, longest: int) -> int:
    """Cut one after the other: each begins at most a stride after the one before it."""
    count, end = 1, longest
    while end < length:
        count, end = count + 1, end + longest - max(1, longest // 8)
    return count


@pytest.mark.parametrize("at_once", [1, 50, 1 << 17])
def test_chunks_are_counted_as_by_the_offsets_in_the_shards(
    folder: Path, tmp_path: Path, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "_DOCUMENTS_AT_ONCE", at_once)
    before = without_lengths(folder, tmp_path / "before")
    for split in dict.fromkeys(SPLITS):
        lengths = [n for number, own in enumerate(SPLITS) if own == split for n in documents_of(number)]
        corpus, as_before = Corpus(folder, split), Corpus(before, split)
        assert corpus.fingerprint == as_before.fingerprint
        borders = corpus.block_documents.tolist()
        for longest in (2, 5, 99, 126, 197, 700, 4093, 100_000):
            counts = corpus.chunk_counts(longest)
            assert counts.dtype == np.int64 and np.array_equal(counts, as_before.chunk_counts(longest))
            expected = [chunks_of(length, longest) for length in lengths]
            assert counts.tolist() == [sum(expected[a:b]) for a, b in pairwise(borders)]
        for longest in CHUNK_LENGTHS:
            assert np.array_equal(corpus._count_chunks(longest), corpus.chunk_counts(longest))


def test_it_is_an_array_of_numpy_in_the_order_of_the_shards(folder: Path) -> None:
    lengths = np.load(folder / LENGTHS)
    assert lengths.dtype == np.uint32
    assert lengths.tolist() == [length for number in range(len(SPLITS)) for length in documents_of(number)]
    assert (folder / LENGTHS).stat().st_size == lengths_bytes(len(lengths)) == 128 + 4 * len(lengths)


def test_no_shard_is_read_and_the_file_only_for_other_lengths(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    open_as_before = os.open

    def watched(path: str, *given: int) -> int:
        opened.append(Path(path).name)
        return open_as_before(path, *given)

    monkeypatch.setattr(shards_module, "map_file", None)
    monkeypatch.setattr(shards_module, "read_parts", None)
    monkeypatch.setattr(os, "open", watched)
    corpus = Corpus(folder)
    for longest in CHUNK_LENGTHS:
        corpus.chunk_counts(longest)
    assert LENGTHS not in opened
    corpus.chunk_counts(197)
    assert opened.count(LENGTHS) == 1


@pytest.mark.parametrize("kept", [0, 100, 128, -1])
def test_lengths_cut_short_are_one_line(folder: Path, tmp_path: Path, kept: int) -> None:
    copy = shutil.copytree(folder, tmp_path / "corpus")
    (copy / LENGTHS).write_bytes((copy / LENGTHS).read_bytes()[:kept])
    line = (
        r"lengths\.npy: does not match its checksum in manifest\.json; copy it again, or run `reread preprocess` again"
    )
    for read in (lambda: Corpus(copy).chunk_counts(197), lambda: Corpus(copy).verify()):
        with pytest.raises(UserError, match=line):
            read()
    assert Corpus(copy).chunk_counts(126).sum()  # which the index has


def test_no_altered_byte_of_the_lengths_passes_unnoticed(folder: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(folder, tmp_path / "corpus")
    whole = (copy / LENGTHS).read_bytes()
    for at in range(0, len(whole), 31):
        (copy / LENGTHS).write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        with pytest.raises(UserError, match=r"lengths\.npy: does not match its checksum"):
            Corpus(copy)._count_chunks(197)


@pytest.mark.parametrize(
    ("how", "line"),
    [
        ("missing", r"lengths\.npy: missing; copy it again, or run `reread preprocess` again"),
        ("loop", r"lengths\.npy: cannot be read \(Too many levels of symbolic links\)"),
        ("pipe", r"lengths\.npy: is a named pipe"),
        ("folder", r"lengths\.npy: cannot be read \(Is a directory\)"),
    ],
)
def test_lengths_that_cannot_be_read_are_one_line(folder: Path, tmp_path: Path, how: str, line: str) -> None:
    copy = shutil.copytree(folder, tmp_path / "corpus")
    path = copy / LENGTHS
    path.unlink()
    if how == "loop":
        path.symlink_to(path)
    elif how == "pipe":
        os.mkfifo(path)
    elif how == "folder":
        path.mkdir()
    with pytest.raises(UserError, match=line):
        Corpus(copy).chunk_counts(197)


def test_lengths_of_other_documents_are_refused_though_their_checksum_is_right(folder: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(folder, tmp_path / "corpus")
    lengths = np.load(copy / LENGTHS)
    lengths[50] += 1
    replace(Manifest.read(copy), lengths=write_lengths(copy, [lengths], len(lengths))).write(copy)
    with pytest.raises(UserError, match=r"corpus: lengths\.npy belongs to other shards; run `reread preprocess` again"):
        Corpus(copy).chunk_counts(197)


def test_after_an_error_nothing_is_left_of_a_new_file(folder: Path, tmp_path: Path) -> None:
    """And the old one stays."""
    copy = shutil.copytree(folder, tmp_path / "corpus")
    before = {path.name: path.read_bytes() for path in copy.iterdir()}

    def parts() -> Iterator[Any]:
        yield np.ones(9, np.uint32)
        raise OSError("no room")

    with pytest.raises(OSError, match="no room"):
        write_lengths(copy, parts(), 99)
    assert {path.name: path.read_bytes() for path in copy.iterdir()} == before


def test_chunks_of_lengths_that_their_documents_do_not_have_are_one_line(folder: Path, tmp_path: Path) -> None:
    """As an attacker would write them: the checksum and the tokens of each block are right, the chunks are not."""
    copy = shutil.copytree(folder, tmp_path / "corpus")
    lengths = np.load(copy / LENGTHS)
    lengths[:2] = sum(documents_of(0)[:2]) - 1, 1
    replace(Manifest.read(copy), lengths=write_lengths(copy, [lengths], len(lengths))).write(copy)
    chunks = CorpusChunks(Corpus(copy), max(documents_of(0)[:2]))
    with pytest.raises(UserError, match=r"corpus: block 0 has other chunks than .*; run `reread preprocess` again"):
        chunks.locate(np.arange(len(chunks)))
