"""Unbroken text for language models, in lanes whose tokens in a step are found by arithmetic.

A split is a ring of tokens: its documents in corpus order, concatenated without separators, the first again after the
last. Lane b of G begins at b * tokens // G and reads on without end, across document borders, as Transformer-XL does;
so the step is the whole state of the loader.
"""

from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Iterator
from hashlib import md5
from itertools import count
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from reread.preprocessing.corpus import CONTINUES_WORD, PARAGRAPH_END, SENTENCE_END, Corpus
from reread.training.data.batch import IGNORED, Rows
from reread.training.data.dataset import CorpusDataset, Dataset, new_rows
from reread.training.data.settings import LONGEST, CorpusSettings


class StreamSettings(CorpusSettings):
    """Settings of lanes of unbroken text, for language models with memory (Transformer-XL)."""

    may_change = CorpusSettings.may_change | {
        "evaluation_length",
        "evaluation_memory",
        "evaluation_context",
        "evaluation_lanes",
    }

    text_only_values = (True,)

    kind: Literal["stream"]
    sequence_length: int = Field(default=150, ge=2, le=LONGEST)
    """Tokens that a lane reads in a step."""
    evaluation_length: int = Field(default=64, ge=1, le=LONGEST)
    """Tokens that a lane reads in a step of held-out text."""
    evaluation_memory: int = Field(default=640, ge=0, le=LONGEST)
    """Tokens of memory for held-out text (Transformer-XL); training and other models use the model's own length."""
    evaluation_context: int = Field(default=0, ge=0, le=LONGEST)
    """Tokens before these that are read with them, without being counted again, in place of a memory: sequences that
    overlap, such as 31,744 and 512 for Longformer's character models (Beltagy et al. 2020, section 4.2). They are
    independent, so all processes read some, and `evaluation_lanes` does not matter. 0: memory."""
    evaluation_lanes: int = Field(default=1, ge=1, le=1_000_000)
    """Number of stretches into which `reread evaluate` cuts the held-out text, to read them in parallel. Each begins
    without memory, so more lanes give a slightly higher perplexity; papers use one. One lane takes a sequential forward
    pass of a single row for every `evaluation_length` tokens."""

    @property
    def text_only(self) -> bool:
        return True

    def blank(self, rows: int) -> Rows:
        shape = (rows, self.sequence_length)
        ids, ends = np.zeros(shape, np.int32), np.zeros(shape, bool)
        return {"input_ids": ids, "labels": ids, "sentence_ends": ends, "paragraph_ends": ends, "begins_word": ends}


class StreamDataset(Dataset[StreamSettings]):
    """Text in lanes; `len()` is the number of its tokens. Corpora may have any tokenizer."""

    @abstractmethod
    def start(self, lane: Any, lanes: int, step: Any, length: int) -> Any:
        """Position of lane `lane` of `lanes` at `step`, with `length` tokens a step; ints or int64 arrays."""

    @abstractmethod
    def rows(self, starts: NDArray[np.int64], length: int) -> Rows:
        """`length` (L) tokens from each position `starts` [B] of the ring on:

        input_ids, labels (the token after each), int32 [B, L]; sentence_ends, paragraph_ends, bool [B, L]: whether the
        input token ends one; begins_word, bool [B, L]: whether the label begins a word, so that the sum is the number
        of words predicted.
        """


class Stream(CorpusDataset[StreamSettings], StreamDataset):
    """The tokens of one split as a ring.

    Raises `UserError` for an altered block when it is first read.
    """

    def __init__(self, corpus: Corpus, settings: StreamSettings, seed: int = 0) -> None:
        self.corpus, self.settings, self.seed = corpus, settings, seed
        tokenizer = corpus.manifest.tokenizer
        self.vocab_size, self.new_rows = tokenizer["vocab_size"], new_rows(tokenizer)
        self.special = {name: tokenizer[name] for name in ("eos",) if name in tokenizer}
        self.is_bytes = bool(tokenizer.get("bytes"))
        self.corpus_fingerprint = corpus.fingerprint
        self.tokenizer_folder = corpus.folder / "tokenizer"
        self._before_block = corpus.block_tokens.data
        corpus.use([(0, corpus.blocks)])

    def __len__(self) -> int:
        return self.corpus.tokens

    @property
    def fingerprint(self) -> str:
        values = [self.corpus_fingerprint, self.corpus.split, str(self.settings.sequence_length)]
        return md5("\n".join(values).encode()).hexdigest()

    @property
    def drawn_by(self) -> dict[str, Any]:
        return {"data": super().drawn_by["data"]}  # nothing is drawn

    def start(self, lane: Any, lanes: int, step: Any, length: int) -> Any:
        return (lane * len(self) // lanes + step * length) % len(self)

    def rows(self, starts: NDArray[np.int64], length: int) -> Rows:
        ids, flags = self._read(starts, length + 1)
        return {
            "input_ids": ids[:, :-1].copy(),
            "labels": ids[:, 1:].copy(),
            "sentence_ends": flags[:, :-1] & SENTENCE_END != 0,
            "paragraph_ends": flags[:, :-1] & PARAGRAPH_END != 0,
            "begins_word": flags[:, 1:] & CONTINUES_WORD == 0,
        }

    def evaluation_steps(self, lanes: int, length: int) -> int:
        """Steps in which `lanes` lanes with `length` tokens a step read the split once."""
        share = -(-len(self) // lanes)
        return -(-share // length)

    def evaluation_rows(self, lane: NDArray[np.int64], lanes: int, step: int, length: int) -> Rows:
        """The rows of lanes [B] at `step` in the format of `rows`, when each lane reads its share of the split once.

        Every token but the split's first is a label exactly once. Past the end of a lane's share, and at the last token
        of the ring, labels are -100 and begins_word is False. A lane starts without memory, so
        fewer lanes give a slightly lower perplexity; papers report one lane.
        """
        begin, end = (share * len(self) // lanes for share in (lane, lane + 1))
        starts = begin + step * length
        rows = self.rows(starts, length)
        past = starts[:, None] + np.arange(length) >= np.minimum(end, len(self) - 1)[:, None]
        rows["labels"][past] = IGNORED
        rows["begins_word"][past] = False
        return rows

    def overlapping_rows(self, numbers: NDArray[np.int64], length: int, context: int) -> Rows:
        """Rows in the format of `rows` that count `length` tokens each, from number * length on, for numbers [B].

        Every token but the split's first is a label in one row, after at least `context` tokens as far as the text has
        them; of the other tokens labels are -100 and begins_word is False.
        """
        first = numbers * length
        starts = np.maximum(first - context, 0)
        rows = self.rows(starts, context + length)
        places = starts[:, None] + np.arange(context + length)
        others = (places < first[:, None]) | (places >= np.minimum(first + length, len(self) - 1)[:, None])
        rows["labels"][others] = IGNORED
        rows["begins_word"][others] = False
        return rows

    def preview(self) -> Iterator[tuple[str, Rows]]:
        """The rows of a single lane, step by step; every token is predicted from those before it."""
        length = self.settings.sequence_length
        for step in count():
            start = self.start(0, 1, step, length)
            ids, flags = self._read(np.array([start]), length)
            row = {"input_ids": ids, "labels": np.full_like(ids, IGNORED), "attention_mask": np.ones_like(ids)}
            yield f"tokens from {start:,} on", {**row, "continues_word": flags & CONTINUES_WORD != 0}

    def statistics(self, batches: list[Rows]) -> list[tuple[str, str]]:
        return [("documents", f"{self.corpus.documents:,}"), ("tokens, each predicted once an epoch", f"{len(self):,}")]

    def _read(self, starts: NDArray[np.int64], length: int) -> tuple[NDArray[np.int32], NDArray[np.uint8]]:
        """Ids and flags [B, length] from each position on."""
        ids = np.empty((len(starts), length), np.int32)
        flags = np.empty(ids.shape, np.uint8)
        for row, start in enumerate((starts % len(self)).tolist()):
            position, done = start, 0
            while done < length:
                number = bisect_right(self._before_block, position) - 1
                within = position - self._before_block[number]
                count = min(length - done, self._before_block[number + 1] - position)
                text = self.corpus.text(number, within, within + count)
                ids[row, done : done + count], flags[row, done : done + count] = text
                done += count
                position = (position + count) % len(self)
        return ids, flags
