"""A corpus with the manifest and the index of one of terabytes, which takes half a megabyte a shard on disk: its shards
are sparse files, in which only the offsets of documents are written, and all ids are 0.

The arrays of a block lie one after the other, as `reread preprocess` writes them, so each block's offsets have a page
of their own on disk.
"""

from pathlib import Path
from tarfile import BLOCKSIZE

import numpy as np
from isal.isal_zlib import crc32
from numpy.typing import NDArray

from benchmarks.random_corpus import SPECIAL
from reread.preprocessing.corpus import PAGE, Manifest, Shard, WrittenShard, write_lengths
from reread.preprocessing.corpus.index import BLOCK, CHUNK_LENGTHS, CorpusIndex, chunk_counts, page_count

BLOCK_TOKENS = 1 << 18
DOCUMENTS = 4
"""In a block, of lengths drawn at random."""
HEADERS = 640
"""Bytes before an array in a tar."""


def sparse_corpus(folder: Path, shards: int, blocks: int = 111) -> Path:
    """`shards` shards of `blocks` blocks for training (87 MB of 111 blocks), and one a hundred that is held out."""
    folder.mkdir(parents=True)
    held_out = max(1, shards // 100)
    numbers = [("train", number) for number in range(shards)] + [("validation", number) for number in range(held_out)]
    written, lengths = zip(*(_shard(folder, split, number, blocks) for split, number in numbers), strict=True)
    tokenizer = {"fingerprint": folder.name, "type": "wordpiece", "vocab_size": 1000}
    tokenizer |= {name: number + 1 for name, number in SPECIAL.items()}  # 0 is a token of text
    statistics = {"han_tokens": 0, "han_tokens_in_multi_token_words": 0}
    checksum = write_lengths(folder, lengths, sum(map(len, lengths)))
    Manifest.of(tokenizer, "uint16", written, statistics=statistics, lengths=checksum).write(folder)
    return folder


def _shard(folder: Path, split: str, number: int, blocks: int) -> tuple[WrittenShard, NDArray[np.uint32]]:
    """The shard, and the tokens of each of its documents."""
    rng = np.random.default_rng(number)
    cuts = np.sort(rng.integers(1, BLOCK_TOKENS, (blocks, DOCUMENTS - 1)), axis=1)
    cuts += np.arange(DOCUMENTS - 1)  # no document is empty
    offsets = np.zeros((blocks, DOCUMENTS + 1), np.int64)
    offsets[:, 1:-1], offsets[:, -1] = cuts, BLOCK_TOKENS + DOCUMENTS
    tokens = BLOCK_TOKENS + DOCUMENTS
    rows = np.zeros(blocks, BLOCK)
    rows["documents"], rows["tokens"] = DOCUMENTS, tokens
    block = 0
    for name, taken in (("ids_at", 2 * tokens), ("flags_at", tokens), ("offsets_at", offsets[0].nbytes)):
        rows[name] = block + HEADERS
        block += -(-(HEADERS + taken) // BLOCKSIZE) * BLOCKSIZE
    for name in ("ids_at", "flags_at", "offsets_at"):
        rows[name] += block * np.arange(blocks)
    size = blocks * block + 2 * BLOCKSIZE
    pages = np.full(page_count(size), crc32(bytes(PAGE)), np.uint32)
    path = folder / f"{split}-{number:05d}.tar"
    with path.open("wb") as file:
        for own, at in zip(offsets, rows["offsets_at"].tolist(), strict=True):  # within one page, as one sector is
            file.seek(at)
            file.write(own.tobytes())
            page = bytearray(min(PAGE, size - at // PAGE * PAGE))
            page[at % PAGE : at % PAGE + own.nbytes] = own.tobytes()
            pages[at // PAGE] = crc32(page)
        file.truncate(size)
    lengths = np.diff(offsets, axis=1)
    chunks = np.stack([chunk_counts(lengths, longest).sum(axis=1) for longest in CHUNK_LENGTHS], axis=1)
    shard = Shard(path.name, split, size, blocks * DOCUMENTS, blocks * tokens, f"{number:032x}", blocks)
    return WrittenShard(shard, CorpusIndex(rows, chunks.astype(np.uint32), pages)), lengths.ravel().astype(np.uint32)
