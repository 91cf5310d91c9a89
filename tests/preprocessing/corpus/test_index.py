"""Opening a corpus reads its index and no shard, and a document is read and verified in pages."""

import logging
import os
import shutil
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reread.preprocessing import arrays
from reread.preprocessing.corpus import FORMAT_VERSION, INDEX, PAGE, Corpus, Manifest, ShardWriter, reader
from reread.preprocessing.corpus import shards as shards_module
from reread.preprocessing.corpus.index import CHUNK_LENGTHS, chunk_counts
from reread.preprocessing.corpus.job import opening
from reread.preprocessing.errors import UserError
from reread.training.data.kinds import KINDS
from tests.corpora import SPECIAL, make_corpus

TOKENIZER = {"fingerprint": "f", "type": "wordpiece", "vocab_size": 70_000, "eos": 5, **SPECIAL}
LENGTH, BLOCK = 1000, 100_000
"""Tokens in each document and block of `large`; a block has 15 pages."""


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("index")
    generator, shards = np.random.default_rng(0), []
    for number in range(2):
        writer = ShardWriter(folder / f"train-{number:05d}.tar", "train", "uint32", block_tokens=BLOCK)
        for _ in range(300):
            writer.add(generator.integers(5, 70_000, LENGTH), np.zeros(LENGTH, np.uint8))
        shards.append(writer.close())
    Manifest.of(TOKENIZER, "uint32", shards, statistics={"han_tokens": 0}).write(folder)
    return folder


def flip(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        value = os.pread(file.fileno(), 1, at)[0]
        os.pwrite(file.fileno(), bytes([value ^ 1]), at)


def pages_of(corpus: Corpus, document: int) -> set[int]:
    """Pages of its shard that hold the ids, the flags and the block's offsets of a document."""
    number, within = divmod(document, BLOCK // LENGTH)
    stretches = [
        (int(corpus.ids_at[number]) + 4 * LENGTH * within, 4 * LENGTH),
        (int(corpus.flags_at[number]) + LENGTH * within, LENGTH),
        (int(corpus.manifest.index.blocks[number]["offsets_at"]), 8 * (BLOCK // LENGTH + 1)),
    ]
    return {byte // PAGE for at, size in stretches for byte in (*range(at, at + size, 1000), at + size - 1)}


@pytest.mark.parametrize("kind", ["rows", "packed", "segments", "stream"])
def test_opening_reads_the_index_and_maps_no_shard(large: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mapped: list[Path] = []
    map_file = shards_module.map_file
    monkeypatch.setattr(shards_module, "map_file", lambda path: mapped.append(path) or map_file(path))
    row = KINDS[kind]
    values = {"kind": kind, "corpus": str(large)} | ({"sequence_length": 128} if kind == "rows" else {})
    assert len(row.open(row.settings.parse(values, "data"), 0, "train")) > 0
    assert mapped == []
    Corpus(large).document(599)
    assert [path.name for path in mapped] == ["train-00001.tar"]


def test_the_index_grows_by_140_bytes_a_block_of_the_usual_size(tmp_path: Path) -> None:
    sizes = []
    for blocks in (2, 12):
        writer = ShardWriter(tmp_path / "train-00000.tar", "train", "uint16")
        for _ in range(blocks * 256):
            writer.add(np.full(1024, 5), np.zeros(1024, np.uint8))
        Manifest.of(TOKENIZER, "uint16", [writer.close()]).write(tmp_path)
        assert len(Manifest.read(tmp_path).index.blocks) == blocks
        sizes.append((tmp_path / INDEX).stat().st_size)
        manifest = (tmp_path / "manifest.json").stat().st_size
    assert (sizes[1] - sizes[0]) / 10 <= 140 and manifest < 2000


@pytest.mark.parametrize("document", [0, 99, 131, 300, 599])
def test_a_document_is_verified_in_its_own_pages_and_each_once(
    large: Path, document: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, int]] = []
    read_ahead, corpus = shards_module.read_ahead, Corpus(large)

    def watched(mapped: object, start: int, stop: int) -> None:
        name = next(name for name, one in corpus._files._maps.items() if one is mapped)
        asked.extend((name, page) for page in range(start // PAGE, -(-stop // PAGE)))
        assert start % PAGE == 0
        read_ahead(mapped, start, stop)  # type: ignore[arg-type]

    monkeypatch.setattr(shards_module, "read_ahead", watched)
    corpus.document(document)
    corpus.document(document)
    assert sorted(asked) == [(f"train-0000{document // 300}.tar", page) for page in sorted(pages_of(corpus, document))]


def test_neighbouring_pages_are_read_at_once_while_those_before_are_verified(
    large: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, int]] = []
    pages_when_verified: list[int] = []
    crc32 = shards_module.crc32

    def checked(page: memoryview) -> int:
        pages_when_verified.append(sum(-(-(stop - start) // PAGE) for start, stop in asked))
        return crc32(page)

    monkeypatch.setattr(shards_module, "_PAGES_AT_ONCE", 4)
    monkeypatch.setattr(shards_module, "read_ahead", lambda _, start, stop: asked.append((start, stop)))
    monkeypatch.setattr(shards_module, "crc32", checked)
    corpus = Corpus(large)
    corpus.verify()
    sizes = [shard.bytes for shard in corpus.manifest.shards]
    pages = sum(-(-size // PAGE) for size in sizes)
    assert sum(stop - start for start, stop in asked) == sum(sizes)
    assert len(asked) <= -(-pages // 4) + 1  # a shard ends within a group
    assert pages_when_verified == [min(pages, 4 * (number // 4 + 2)) for number in range(pages)]


def test_offsets_of_many_blocks_are_verified_at_once(large: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(large, tmp_path / "corpus")
    corpus = Corpus(folder)
    corpus.check_offsets(np.arange(corpus.blocks))
    at = int(corpus.manifest.index.blocks[4]["offsets_at"])
    flip(folder / "train-00001.tar", at + 8)
    assert [len(corpus.block_offsets(number)) for number in range(corpus.blocks)] == [101] * 6  # read and not again
    with pytest.raises(UserError, match=rf"train-00001\.tar: altered .* at byte {at - at % PAGE}\)"):
        Corpus(folder).check_offsets(np.array([0, 4, 4, 1]))


@pytest.mark.parametrize("where", ["ids_at", "flags_at", "offsets_at"])
def test_a_flipped_byte_is_found_by_those_who_read_its_page_and_by_no_other(
    large: Path, tmp_path: Path, where: str
) -> None:
    folder = shutil.copytree(large, tmp_path / "corpus")
    at = int(Manifest.read(folder).index.blocks[4][where]) + 70_000 * (where != "offsets_at")
    flip(folder / "train-00001.tar", at)
    corpus, found = Corpus(folder), set()
    for document in np.random.default_rng(0).permutation(600).tolist():
        try:
            ids, flags = corpus.document(document)
            assert len(ids) == len(flags) == LENGTH
        except UserError as error:
            found.add(document)
            line = f"altered since it was written (checksum of the page at byte {at - at % PAGE}); copy the shard again"
            assert str(error).startswith(f"{folder}/train-00001.tar: {line}")
    expected = {document for document in range(300, 600) if at // PAGE in pages_of(corpus, document)}
    assert found == expected and 0 < len(found) < 300
    with pytest.raises(UserError, match=rf"train-00001\.tar: altered .* at byte {at - at % PAGE}\)"):
        corpus.verify()
    flip(folder / "train-00001.tar", at)
    Corpus(folder).verify()


@given(data=st.data())
def test_no_flipped_byte_of_a_shard_passes_verification(large: Path, data: st.DataObject) -> None:
    """Wherever it is: tar headers and padding too."""
    path = large / "train-00000.tar"
    at = data.draw(st.integers(0, path.stat().st_size - 1))
    flip(path, at)
    try:
        with pytest.raises(UserError, match="altered"):
            Corpus(large).verify()
    finally:
        flip(path, at)


@pytest.mark.parametrize("kept", [0, 100, -1])
def test_a_truncated_index_is_one_line(large: Path, tmp_path: Path, kept: int) -> None:
    folder = shutil.copytree(large, tmp_path / "corpus")
    (folder / INDEX).write_bytes((folder / INDEX).read_bytes()[:kept])
    with pytest.raises(UserError, match=r"index\.npz: does not match its checksum .*; copy it again, or run"):
        Corpus(folder)


def test_the_index_of_another_corpus_and_a_missing_one_are_one_line(large: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(large, tmp_path / "corpus")
    shutil.copy(make_corpus(tmp_path / "other", [40] * 9).folder / INDEX, folder / INDEX)
    with pytest.raises(UserError, match=r"index\.npz: does not match its checksum in manifest\.json; copy"):
        Corpus(folder)
    (folder / INDEX).unlink()
    with pytest.raises(UserError, match=r"index\.npz: missing; copy it again, or run `reread preprocess` again"):
        Corpus(folder)


def test_an_index_that_does_not_fit_its_shards_is_one_line(large: Path, tmp_path: Path) -> None:
    manifest = Manifest.read(large)
    index = manifest.index
    far = index.blocks.copy()
    far["flags_at"][3] = 1 << 40
    long = index.blocks.copy()
    long["tokens"][3] += 1
    for broken, line in (
        (index._replace(blocks=far), r"train-00001\.tar: a block ends after its shard"),
        (index._replace(blocks=long), r"train-00001\.tar: tokens are not the sum of its blocks"),
        (index._replace(pages=index.pages[1:]), r"index\.npz belongs to other shards"),
        (index._replace(chunks=index.chunks[1:]), r"index\.npz belongs to other shards"),
    ):
        folder = shutil.copytree(large, tmp_path / f"{len(list(tmp_path.iterdir()))}")
        replace(manifest, index=broken).write(folder)
        with pytest.raises(UserError, match=rf"manifest\.json: {line}; run `reread preprocess` again"):
            Corpus(folder)


@pytest.mark.parametrize("longest", [5, 125, 126, 509, 700, 1024])
def test_the_chunks_of_each_block_are_known_without_reading_it(
    tmp_path: Path, longest: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths = np.random.default_rng(1).integers(1, 4000, 60).tolist()
    corpus = make_corpus(tmp_path / "corpus", lengths)
    monkeypatch.setattr(reader, "_MANY_BLOCKS", 1)
    with caplog.at_level(logging.INFO):
        counts = corpus.chunk_counts(longest)
    assert bool(caplog.records) == (longest not in CHUNK_LENGTHS)
    stride = longest - max(1, longest // 8)
    borders = pairwise(corpus.block_documents.tolist())
    assert counts.tolist() == [sum(1 + max(0, -((longest - n) // stride)) for n in lengths[a:b]) for a, b in borders]
    assert chunk_counts(np.array(lengths), longest).sum() == counts.sum()


@pytest.mark.parametrize(("at_once", "computed"), [(1, 2), (301, 1)])
def test_the_chunks_of_several_shards_are_counted_together(
    large: Path, at_once: int, computed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is opened once, of which the offsets are read, and mapped by nobody."""
    calls, read = [], []
    count, read_parts = reader.chunk_counts, shards_module.read_parts
    monkeypatch.setattr(reader, "_DOCUMENTS_AT_ONCE", at_once)
    monkeypatch.setattr(reader, "chunk_counts", lambda *given: calls.append(given) or count(*given))
    monkeypatch.setattr(shards_module, "read_parts", lambda *given: read.append(given) or read_parts(*given))
    monkeypatch.setattr(shards_module, "map_file", None)
    corpus = Corpus(large)
    assert corpus.chunk_counts(300).tolist() == [100 * (1 + -(-700 // 263))] * 6
    assert len(calls) == computed
    at = corpus.manifest.index.blocks["offsets_at"].tolist()
    expected = [(f"{large}/train-0000{shard}.tar", at[3 * shard :][:3], [8 * 101] * 3) for shard in range(2)]
    assert read == expected


@pytest.mark.parametrize(
    ("kept", "state"), [(None, "missing"), (5000, "5000 bytes long"), (-100, "long"), ("x", "cannot be read")]
)
def test_a_shard_that_is_not_as_it_was_written_is_one_line_when_chunks_are_counted(
    large: Path, tmp_path: Path, kept: int | str | None, state: str
) -> None:
    """Also of a process that relies on another's look at its size."""
    folder = shutil.copytree(large, tmp_path / "corpus")
    with opening(tmp_path, trusting=True):
        corpus = Corpus(folder)
    path = folder / "train-00001.tar"
    content = path.read_bytes()
    path.unlink()
    if kept == "x":
        path.symlink_to(path)
    elif kept is not None:
        path.write_bytes(content[:kept])
    with pytest.raises(UserError, match=rf"train-00001\.tar: .*{state}"):
        corpus.chunk_counts(300)


def test_the_header_of_an_array_is_parsed_once_for_all_corpora(large: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed = []
    parse = np.lib.format.read_array_header_1_0
    monkeypatch.setattr(np.lib.format, "read_array_header_1_0", lambda file: parsed.append(file) or parse(file))
    arrays._npy_header.cache_clear()
    read = [Corpus(large).block_documents.tolist() for _ in range(3)]
    assert read[0] == read[1] == read[2] == list(range(0, 601, 100))
    assert len(parsed) == 3  # blocks, chunks and pages


def test_lengths_that_cannot_be_are_refused_before_they_are_used(tmp_path: Path) -> None:
    folder = make_corpus(tmp_path / "corpus", [300] * 20).folder
    at = int(Manifest.read(folder).index.blocks[2]["offsets_at"])
    flip(folder / "train-00000.tar", at + 8 * int(Manifest.read(folder).index.blocks[2]["documents"]))
    with pytest.raises(UserError, match=rf"train-00000\.tar: altered since .* of the page at byte {at - at % PAGE}"):
        Corpus(folder).chunk_counts(70)


def test_a_corpus_of_the_format_before_is_refused_with_the_way_out(large: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(large, tmp_path / "corpus")
    (folder / INDEX).unlink()  # which it did not have
    path = folder / "manifest.json"
    path.write_text(path.read_text().replace(f'"version": {FORMAT_VERSION}', '"version": 2'))
    with pytest.raises(UserError, match=r"corpus format 2, this program reads 3 and 4; make the corpus again with"):
        Corpus(folder)
