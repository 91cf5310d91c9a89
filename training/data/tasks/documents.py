"""Tokenised examples: one of them (`TaskDocument`), and those of a file in flat arrays (`Documents`)."""

from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from reread.training.data.tasks.windows import window_count
from reread.training.scoring.spans import max_context

Tokens = NDArray[np.int32]


@dataclass(frozen=True)
class TaskDocument:
    """A tokenised example."""

    ids: Tokens
    """The text [n] that is cut into windows."""
    offsets: NDArray[np.int32]
    """[n, 2]: the characters of the text, or the word, that each token comes from; [0, 2] for tasks that need none."""
    options: list[list[Tokens]]
    """The other parts of the rows of each option; a task without options has one, without parts."""
    room: int
    """Tokens of the text in a window."""
    step: int
    unread: int
    """Tokens that no window shows."""

    @property
    def windows(self) -> int:
        return window_count(len(self.ids), self.room, self.step)

    def window(self, number: int) -> slice:
        begin = number * self.step
        return slice(begin, min(begin + self.room, len(self.ids)))

    @cached_property
    def owners(self) -> NDArray[np.int64]:
        """The window [n] in which each token has most context, and from which it is predicted."""
        windows = [self.window(number) for number in range(self.windows)]
        return max_context([one.start for one in windows], [one.stop - one.start for one in windows])


class _Parts:
    """Values of many things in one array, and where those of each begin."""

    def __init__(self) -> None:
        self._values, self._begins = array("i"), array("q", [0])

    def add(self, values: Tokens) -> None:
        self._values.frombytes(values.tobytes())
        self._begins.append(len(self._values))

    def done(self) -> tuple[Tokens, NDArray[np.int64]]:
        return np.frombuffer(self._values, np.int32), np.frombuffer(self._begins, np.int64)


class Documents(Sequence[TaskDocument]):
    """Tokenised examples, which take 4 bytes a token, and 12 with offsets, and are made when they are asked for."""

    def __init__(self, documents: Iterable[TaskDocument]) -> None:
        texts, offsets, parts = _Parts(), _Parts(), _Parts()
        of_options, of_documents, numbers = array("q", [0]), array("q", [0]), array("q")
        for one in documents:
            texts.add(one.ids)
            offsets.add(one.offsets)
            for option in one.options:
                for part in option:
                    parts.add(part)
                of_options.append(of_options[-1] + len(option))
            of_documents.append(of_documents[-1] + len(one.options))
            numbers.extend((one.room, one.step, one.unread))
        self._ids, self._begins = texts.done()
        self._offsets, self._offset_begins = offsets.done()
        self._others, self._part_begins = parts.done()
        self._option_parts, self._document_options = (
            np.frombuffer(one, np.int64) for one in (of_options, of_documents)
        )
        self._room, self._step, self._unread = np.frombuffer(numbers, np.int64).reshape(-1, 3).T

    def __len__(self) -> int:
        return len(self._room)

    @overload
    def __getitem__(self, index: int) -> TaskDocument: ...

    @overload
    def __getitem__(self, index: slice) -> "list[TaskDocument]": ...

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        number = range(len(self))[index]
        first, last = self._document_options[number : number + 2].tolist()
        options = [
            [self._others[slice(*self._part_begins[part : part + 2])] for part in range(*bounds)]
            for bounds in pairwise(self._option_parts[first : last + 1].tolist())
        ]
        return TaskDocument(
            self._ids[slice(*self._begins[number : number + 2])],
            self._offsets[slice(*self._offset_begins[number : number + 2])].reshape(-1, 2),
            options,
            *(int(values[number]) for values in (self._room, self._step, self._unread)),
        )

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each text."""
        return np.diff(self._begins)

    @property
    def longest_others(self) -> NDArray[np.int64]:
        """Tokens beside the text of each document in the option that has most."""
        return np.maximum.reduceat(self._option_tokens, self._document_options[:-1])  # type: ignore[no-any-return]

    @property
    def _option_tokens(self) -> NDArray[np.int64]:
        return np.diff(self._part_begins[self._option_parts])

    @property
    def windows(self) -> NDArray[np.int64]:
        """The number of windows of each document."""
        more = -(-(self.lengths - self._room) // self._step)
        return 1 + np.maximum(more, 0)  # type: ignore[no-any-return]

    @property
    def shown(self) -> NDArray[np.int64]:
        """Tokens of each text in its windows, where one may stand twice."""
        further = self.windows - 1  # all windows but the last are full
        return further * self._room + self.lengths - further * self._step

    def row_tokens(self, special: Callable[[Any], Any]) -> NDArray[np.int64]:
        """Tokens of all rows of each document, with `special` of the number of parts beside the text."""
        options, parts = np.diff(self._document_options), np.diff(self._option_parts)
        beside = np.add.reduceat(self._option_tokens + special(parts), self._document_options[:-1])
        return options * self.shown + self.windows * beside  # type: ignore[no-any-return]

    @property
    def others(self) -> int:
        """Tokens beside the texts."""
        return len(self._others)

    @property
    def unread(self) -> NDArray[np.int64]:
        """Tokens of each document that no window shows."""
        return self._unread
