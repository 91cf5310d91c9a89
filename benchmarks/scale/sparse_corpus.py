"""A corpus with the manifest and the index of one of terabytes, which takes some megabytes on disk: its shards are
sparse files, in which only the offsets of documents are written, and all ids are 0."""

from pathlib import Path

import numpy as np
from isal.isal_zlib import crc32

from benchmarks.random_corpus import SPECIAL
from reread.preprocessing.corpus import PAGE, Manifest, Shard, WrittenShard
from reread.preprocessing.corpus.index import BLOCK, CHUNK_LENGTHS, CorpusIndex, chunk_counts, page_count

BLOCK_TOKENS = 1 << 18
DOCUMENTS = 4
"""In a block, of lengths drawn at random."""


def sparse_corpus(folder: Path, shards: int, blocks: int = 111) -> Path:
    """`shards` shards of `blocks` blocks for training (87 MB of 111 blocks), and one a hundred that is held out."""
    folder.mkdir(parents=True)
    held_out = max(1, shards // 100)
    written = [_shard(folder, "train", number, blocks) for number in range(shards)]
    written += [_shard(folder, "validation", number, blocks) for number in range(held_out)]
    tokenizer = {"fingerprint": folder.name, "type": "wordpiece", "vocab_size": 1000}
    tokenizer |= {name: number + 1 for name, number in SPECIAL.items()}  # 0 is a token of text
    statistics = {"han_tokens": 0, "han_tokens_in_multi_token_words": 0}
    Manifest.of(tokenizer, "uint16", written, statistics=statistics).write(folder)
    return folder


def _shard(folder: Path, split: str, number: int, blocks: int) -> WrittenShard:
    rng = np.random.default_rng(number)
    cuts = np.sort(rng.integers(1, BLOCK_TOKENS, (blocks, DOCUMENTS - 1)), axis=1)
    cuts += np.arange(DOCUMENTS - 1)  # no document is empty
    offsets = np.zeros((blocks, DOCUMENTS + 1), np.int64)
    offsets[:, 1:-1], offsets[:, -1] = cuts, BLOCK_TOKENS + DOCUMENTS
    tokens = BLOCK_TOKENS + DOCUMENTS
    head = offsets.tobytes()
    rows = np.zeros(blocks, BLOCK)
    begin = PAGE * page_count(len(head))
    rows["documents"], rows["tokens"] = DOCUMENTS, tokens
    rows["offsets_at"] = np.arange(blocks) * 8 * (DOCUMENTS + 1)
    rows["ids_at"] = begin + np.arange(blocks) * 3 * tokens
    rows["flags_at"] = rows["ids_at"] + 2 * tokens
    size = begin + blocks * 3 * tokens
    path = folder / f"{split}-{number:05d}.tar"
    with path.open("wb") as file:
        file.write(head)
        file.truncate(size)
    pages = np.full(page_count(size), crc32(bytes(PAGE)), np.uint32)
    for page in range(begin // PAGE):
        pages[page] = crc32(head[page * PAGE : (page + 1) * PAGE].ljust(PAGE, b"\0"))
    pages[-1] = crc32(bytes(size - PAGE * (len(pages) - 1)))
    lengths = np.diff(offsets, axis=1)
    chunks = np.stack([chunk_counts(lengths, longest).sum(axis=1) for longest in CHUNK_LENGTHS], axis=1)
    shard = Shard(path.name, split, size, blocks * DOCUMENTS, blocks * tokens, f"{number:032x}", blocks)
    return WrittenShard(shard, CorpusIndex(rows, chunks.astype(np.uint32), pages))
