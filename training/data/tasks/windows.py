"""Cuts a document into windows, and puts special tokens around a window."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from reread.training.data.batch import Rows


def window_count(tokens: int, room: int, step: int) -> int:
    """The number of windows of `room` tokens, `step` apart, that cover `tokens` tokens."""
    return 1 if tokens <= room else 1 + -(-(tokens - room) // step)


def room_beside(text: int, room: int) -> int:
    """The tokens of a row's `room` that are left for other parts beside a text of `text` tokens: at least half, since
    further windows read the rest of the text."""
    return max(room // 2, room - max(text, 1))


def longest_of(lengths: Sequence[int], room: int) -> int:
    """The length to which parts of `lengths` are cut to fit into `room` together. Only the longest parts are shortened,
    all to the same length."""
    rest = room
    for number, length in enumerate(sorted(lengths)):
        equal = rest // (len(lengths) - number)
        if length > equal:
            return equal
        rest -= length
    return max(lengths, default=0)


class Row(NamedTuple):
    """A window with special tokens."""

    ids: list[int]
    types: list[int]
    content: int
    """Position of the document's first token."""


class Framing(NamedTuple):
    """Special tokens around the parts of a row (`ModelSpec.frame`)."""

    frame: str
    cls: int
    sep: int
    pair: int
    """[SEP] between two parts: RoBERTa has two."""

    def special(self, others: int) -> int:
        """Number of special tokens around a text and `others` other parts."""
        if self.frame == "bare":
            return others
        return 2 + others * (1 if self.frame == "segments" else self.pair)

    def row(self, window: Sequence[int], others: Sequence[Sequence[int]], is_question: bool = False) -> Row:
        """A window and other parts, such as a second text.

        BERT and NEZHA: [CLS] window [SEP] other [SEP], RoBERTa with two [SEP] between them; ERNIE-Doc: window [SEP]
        other [SEP] [CLS]; RAN: other [SEP] window. A question stands before the window, but for ERNIE-Doc, where it
        follows with type 0.
        """
        is_first = self.frame == "bare" or (is_question and self.frame == "")
        parts = [*others, window] if is_first else [window, *others]
        between = [self.sep] * (self.pair if self.frame == "" else 1)
        end = [] if self.frame == "bare" else [self.sep]
        ids = [self.cls] if self.frame == "" else []
        types, content = [0] * len(ids), 0
        for number, part in enumerate(parts):
            if number == (len(others) if is_first else 0):
                content = len(ids)
            after = between if number < len(parts) - 1 else end
            ids += [*part, *after]
            types += [int(number > 0 and (is_first or not is_question))] * (len(part) + len(after))
        if self.frame == "segments":
            ids, types = [*ids, self.cls], [*types, 0]
        return Row(ids, types, content)


def padded(rows: Sequence[Row], pad: int, frame: str) -> Rows:
    """input_ids, attention_mask, token_type_ids int32 [B, L], as long as the longest row and at least one token. A
    segment's [CLS] is in the last position."""
    lengths = [len(row.ids) for row in rows]
    shape = (len(rows), max(1, *lengths))
    ids, mask, types = np.full(shape, pad, np.int32), np.zeros(shape, np.int32), np.zeros(shape, np.int32)
    for number, (row, length) in enumerate(zip(rows, lengths, strict=True)):
        ids[number, :length], mask[number, :length], types[number, :length] = row.ids, 1, row.types
        if frame == "segments" and length < shape[1]:
            ids[number, [length - 1, -1]] = pad, row.ids[-1]
            mask[number, [length - 1, -1]] = 0, 1
            types[number, [length - 1, -1]] = 0, row.types[-1]
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}
