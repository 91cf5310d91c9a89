"""The corpus format: documents as token ids and flags, stored in blocks in WebDataset tar shards.

A corpus is a folder: `manifest.json`, `index.npz`, `lengths.npy`, `tokenizer/` (loadable by transformers) and
`<split>-*.tar`. A tar sample is a block of documents with three `.npy` members (`webdataset` decodes them as they are):

    ids      [tokens]         uint16, or uint32 when the vocabulary needs it
    flags    [tokens]         uint8: CONTINUES_WORD, SENTENCE_END, PARAGRAPH_END
    offsets  [documents + 1]  int64, where each document begins in `ids`

`index.npz` holds the byte offset of each member, so that a document is read through a memory map without scanning the
tar, and a CRC-32 of each page of the shards, which is checked when the page is first read. The manifest, the index and
the tokenizer are checked when the corpus is opened (`reread.preprocessing.corpus.checksums`), and the lengths of all
documents when they are read, for rows of a length that the index lacks.
"""

from reread.preprocessing.corpus.index import INDEX, PAGE
from reread.preprocessing.corpus.lengths import LENGTHS, write_lengths
from reread.preprocessing.corpus.manifest import (
    FORMAT_VERSION,
    Count,
    Manifest,
    Shard,
    WrittenShard,
    format_version,
    tokenizer_fault,
)
from reread.preprocessing.corpus.reader import Corpus
from reread.preprocessing.corpus.shards import ShardFiles
from reread.preprocessing.corpus.writer import (
    CONTINUES_WORD,
    PARAGRAPH_END,
    SENTENCE_END,
    ShardWriter,
    TarWriter,
    checksum,
)

__all__ = [
    "CONTINUES_WORD",
    "FORMAT_VERSION",
    "INDEX",
    "LENGTHS",
    "PAGE",
    "PARAGRAPH_END",
    "SENTENCE_END",
    "Corpus",
    "Count",
    "Manifest",
    "Shard",
    "ShardFiles",
    "ShardWriter",
    "TarWriter",
    "WrittenShard",
    "checksum",
    "format_version",
    "tokenizer_fault",
    "write_lengths",
]
