"""Corpus -> unbroken text for language models: what a lane reads in a step is found by arithmetic.

A split is one ring of tokens: its documents in source order, end to end, nothing between them, the first again after
the last. Lane b of G begins at b * tokens // G and reads on for ever, across the borders of documents, as
Transformer-XL does; so the step is the whole state of the loader.
"""

from bisect import bisect_right
from hashlib import md5
from typing import Any

import numpy as np
from numpy.typing import NDArray

from preprocessing.corpus import CONTINUES_WORD, PARAGRAPH_END, SENTENCE_END, Corpus
from training.config import StreamSettings
from training.data.masking import IGNORED
from training.data.samples import Rows


class Stream:
    """The tokens of one split as a ring; `len()` is their number. A corpus of any tokenizer will do.

    Raises `UserError` for an altered block when it is first read.
    """

    def __init__(self, corpus: Corpus, settings: StreamSettings) -> None:
        self.corpus, self.settings = corpus, settings
        tokenizer = corpus.manifest.tokenizer
        self.vocab_size: int = tokenizer["vocab_size"]
        self.special: dict[str, int] = {name: tokenizer[name] for name in ("eos",) if name in tokenizer}
        self.corpus_fingerprint = corpus.fingerprint
        self.tokenizer_folder = corpus.folder / "tokenizer"
        self._before_block: list[int] = corpus.block_tokens.tolist()
        self._dtype = np.dtype(corpus.manifest.dtype)

    def __len__(self) -> int:
        return self.corpus.tokens

    @property
    def fingerprint(self) -> str:
        """Equal fingerprints mean equal rows at every step."""
        values = [self.corpus_fingerprint, self.corpus.split, str(self.settings.sequence_length)]
        return md5("\n".join(values).encode()).hexdigest()

    def start(self, lane: Any, lanes: int, step: Any, length: int) -> Any:
        """Where in the ring lane `lane` of `lanes` begins at `step`, `length` tokens a step; ints or int64 arrays."""
        return (lane * len(self) // lanes + step * length) % len(self)

    def rows(self, starts: NDArray[np.int64], length: int) -> Rows:
        """`length` (L) tokens from each place of the ring [B] on:

        input_ids, labels (the token after each), int32 [B, L]; sentence_ends, paragraph_ends, bool [B, L]: whether the
        input token ends one; begins_word, bool [B, L]: whether the label does not continue a word, so that their sum is
        the number of words predicted.
        """
        ids, flags = self._read(starts, length + 1)
        return {
            "input_ids": ids[:, :-1].copy(),
            "labels": ids[:, 1:].copy(),
            "sentence_ends": flags[:, :-1] & SENTENCE_END != 0,
            "paragraph_ends": flags[:, :-1] & PARAGRAPH_END != 0,
            "begins_word": flags[:, 1:] & CONTINUES_WORD == 0,
        }

    def evaluation_steps(self, lanes: int, length: int) -> int:
        """Steps until `lanes` lanes that read `length` tokens a step have read the split once."""
        share = -(-len(self) // lanes)
        return -(-share // length)

    def evaluation_rows(self, lane: NDArray[np.int64], lanes: int, step: int, length: int) -> Rows:
        """The rows of lanes [B] at `step` when the split is read once, each lane its share of it, as `rows` gives them.

        Every token but the split's first is a label exactly once. Past the end of a lane's share, and for the ring's
        last token, which nothing follows, labels are -100 and begins_word is False. A lane starts without memory, so
        fewer lanes give a slightly lower perplexity; one lane is what papers report.
        """
        begin, end = (share * len(self) // lanes for share in (lane, lane + 1))
        starts = begin + step * length
        rows = self.rows(starts, length)
        past = starts[:, None] + np.arange(length) >= np.minimum(end, len(self) - 1)[:, None]
        rows["labels"][past] = IGNORED
        rows["begins_word"][past] = False
        return rows

    def verify(self) -> None:
        """Read the corpus once; raises `UserError` for the first block that differs from what was written."""
        self.corpus.verify()

    def _read(self, starts: NDArray[np.int64], length: int) -> tuple[NDArray[np.int32], NDArray[np.uint8]]:
        """Ids and flags [B, length] from each place on."""
        ids = np.empty((len(starts), length), np.int32)
        flags = np.empty(ids.shape, np.uint8)
        for row, start in enumerate((starts % len(self)).tolist()):
            place, done = start, 0
            while done < length:
                number = bisect_right(self._before_block, place) - 1
                shard, block = self.corpus.block(number)
                within = place - self._before_block[number]
                count = min(length - done, block.tokens - within)
                ids_at = block.ids_at + within * self._dtype.itemsize
                ids[row, done : done + count] = np.frombuffer(shard, self._dtype, count, ids_at)
                flags[row, done : done + count] = np.frombuffer(shard, np.uint8, count, block.flags_at + within)
                done += count
                place = (place + count) % len(self)
        return ids, flags
