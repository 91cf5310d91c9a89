"""Tokenised examples: one of them (`TaskDocument`), and those of a file in flat arrays (`Documents`)."""

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from reread.training.data.tasks.windows import window_count
from reread.training.scoring.spans import max_context

Tokens = NDArray[np.int32]
_TOGETHER = 1 << 16
"""Tokens of a long text that are handed on together."""


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


def write_documents(documents: Iterable[TaskDocument], append: Callable[[str, NDArray[Any]], object]) -> None:
    """Append the values of documents, as they come, to the arrays that `Documents` reads."""
    begins = {name: array("q", [0]) for name in ("ids", "offsets", "others")}
    of_options, of_documents, numbers = array("q", [0]), array("q", [0]), array("q")

    def add(name: str, values: Tokens) -> None:
        for begin in range(0, len(values), _TOGETHER):
            append(name, values[begin : begin + _TOGETHER].reshape(-1))
        begins[name].append(begins[name][-1] + values.size)

    for name in begins:
        append(name, np.empty(0, np.int32))
    for one in documents:
        add("ids", one.ids)
        add("offsets", one.offsets)
        for option in one.options:
            for part in option:
                add("others", part)
            of_options.append(of_options[-1] + len(option))
        of_documents.append(of_documents[-1] + len(one.options))
        numbers.extend((one.room, one.step, one.unread))
    for name, values in begins.items():
        append(f"{name} begin", np.frombuffer(values, np.int64))
    for name, values in {"option parts": of_options, "document options": of_documents, "numbers": numbers}.items():
        append(name, np.frombuffer(values, np.int64))


class Documents(Sequence[TaskDocument]):
    """Tokenised examples, which take 4 bytes a token, and 12 with offsets, and are made when they are asked for."""

    def __init__(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """`arrays` are those of `write_documents`."""
        self._ids, self._offsets, self._others = (arrays[name] for name in ("ids", "offsets", "others"))
        self._begins, self._offset_begins, self._part_begins = (
            arrays[f"{name} begin"] for name in ("ids", "offsets", "others")
        )
        self._option_parts, self._document_options = arrays["option parts"], arrays["document options"]
        self._room, self._step, self._unread = arrays["numbers"].reshape(-1, 3).T

    @classmethod
    def of(cls, documents: Iterable[TaskDocument]) -> "Documents":
        """The documents in arrays of this process."""
        found: dict[str, array[int]] = {}
        write_documents(
            documents, lambda name, values: found.setdefault(name, array(values.dtype.char)).frombytes(values.tobytes())
        )
        return cls({name: np.frombuffer(values, values.typecode) for name, values in found.items()})

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
    def counts(self) -> NDArray[np.int64]:
        """The number of options of each document."""
        return np.diff(self._document_options)

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
        options, parts = self.counts, np.diff(self._option_parts)
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
