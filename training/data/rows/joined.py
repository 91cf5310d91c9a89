"""The corpora of a mixture as one, so that a batch is drawn at once, however many of them its rows are from.

Samples, documents, blocks and pages are numbered on from one corpus to the next. What is drawn for a row depends on its
own corpus alone: on the seed of that corpus, and on numbers that begin at 0 in it (`Part`).
"""

from collections.abc import Iterable, Sequence
from mmap import mmap
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reread.preprocessing.corpus import Corpus
from reread.preprocessing.corpus.index import PAGE
from reread.training.data.batch import Rows
from reread.training.data.dataset import Shares
from reread.training.data.order import random
from reread.training.data.order.chunks import Bounds, CorpusChunks
from reread.training.data.order.order import Order, permute
from reread.training.data.rows.packed import Packed
from reread.training.data.rows.pairs import Part
from reread.training.data.rows.samples import Samples

_KEPT_LAYOUTS = 16
"""Copies whose layouts are kept. Small corpora go through them fast, so the rows of a batch are from many copies."""


class JoinedCorpus(Corpus):
    """The blocks of several corpora in folders, whose ids have the same type."""

    def __init__(self, parts: Sequence[Corpus]) -> None:
        self.parts, self.dtype = parts, parts[0].dtype
        self._blocks_before = _before(part.blocks for part in parts)
        self._pages_before = _before(int(part._pages.first[-1]) for part in parts)
        self._seen = np.zeros(self._pages_before[-1], bool)
        """[pages]: whether a page was verified for this object."""
        self.ids_at = np.concatenate([part.ids_at for part in parts])
        self.flags_at = np.concatenate([part.flags_at for part in parts])
        self._offsets_at = np.concatenate([part._offsets_at for part in parts])
        self._first_page = np.concatenate([part.first_page(np.arange(part.blocks)) for part in parts])
        self._first_page += np.repeat(self._pages_before[:-1], np.diff(self._blocks_before))
        self.block_documents = _before(np.concatenate([np.diff(part.block_documents) for part in parts]))
        self.block_tokens = _before(np.concatenate([np.diff(part.block_tokens) for part in parts]))
        self.documents, self.tokens = int(self.block_documents[-1]), int(self.block_tokens[-1])

    @property
    def blocks(self) -> int:
        return int(self._blocks_before[-1])

    def first_page(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        return self._first_page[numbers]

    def map(self, number: int) -> mmap:
        part, own = self._own(number)
        return part.map(own)

    def block_offsets(self, number: int) -> NDArray[np.int64]:
        part, own = self._own(number)
        return part.block_offsets(own)

    def chunk_counts(self, longest: int) -> NDArray[np.int64]:
        return np.concatenate([part.chunk_counts(longest) for part in self.parts])

    def check(self, first_page: NDArray[np.int64], start: NDArray[np.int64], stop: NDArray[np.int64]) -> None:
        first, last = first_page + start // PAGE, first_page + (stop - 1) // PAGE
        if self._seen[first].all() and self._seen[last].all() and (last - first < 2).all():
            return
        for number in np.unique(np.searchsorted(self._pages_before, first_page, side="right") - 1).tolist():
            before, after = self._pages_before[number : number + 2].tolist()
            here = np.flatnonzero((before <= first_page) & (first_page < after))
            self.parts[number].check(first_page[here] - before, start[here], stop[here])
        for begin, end in zip(first.tolist(), last.tolist(), strict=True):
            self._seen[begin : end + 1] = True

    def _own(self, number: int) -> tuple[Corpus, int]:
        """The corpus of block `number`, and the number of that block in it."""
        part = int(np.searchsorted(self._blocks_before, number, side="right")) - 1
        return self.parts[part], number - int(self._blocks_before[part])


class JoinedOrder(Order):
    """The orders of several corpora, each with epochs and pools of its own; all have equally many copies."""

    def __init__(self, parts: Sequence[Order]) -> None:
        before_extent = _before(np.concatenate([np.diff(one.before_extent) for one in parts]))
        super().__init__(before_extent, sum(one.pools for one in parts), parts[0].copies, 0, _KEPT_LAYOUTS)
        self.parts, self._seeds = parts, seeds_of(parts)
        self._before = _before(one.samples for one in parts)
        self._pools_before = _before(one.pools for one in parts)
        self._extents_before = _before(one.extents for one in parts)
        slots = [one.slots[:-1] + before for one, before in zip(parts, self._extents_before.tolist(), strict=False)]
        self.slots = np.append(np.concatenate(slots), self._extents_before[-1])

    def locate_in(self, corpora: Bounds, positions: Bounds) -> tuple[Bounds, Bounds]:
        """(copy, sample) of each position [B] of the stream of its corpus [B]."""
        epochs, ranks = np.divmod(positions, np.diff(self._before)[corpora])
        copies, ranks = epochs % self.copies, ranks + self._before[corpora]
        pools, begin, end = np.empty((3, len(ranks)), np.int64)
        for layout, here in self._layouts(copies):
            pools[here] = layout.pool_of(ranks[here])
            begin[here], end[here] = layout.pools[pools[here]], layout.pools[pools[here] + 1]
        seeds = self._seeds[corpora]
        of_pool = random.key(seeds, epochs, pools - self._pools_before[corpora])
        keys = np.where(np.diff(self._pools_before)[corpora] > 1, of_pool, random.key(seeds, epochs))
        return copies, self.at_rank(copies, begin + permute(ranks - begin, end - begin, keys))

    def _draw_extents(self, copy: int) -> NDArray[np.int64]:
        extents = np.arange(self.extents)
        for part, before in zip(self.parts, self._extents_before.tolist(), strict=False):
            if part.extents > 1:
                extents[before : before + part.extents] = before + part._draw_extents(copy)
        return extents


class JoinedSamples(Samples):
    """The samples of several corpora; `locate_in` finds those of a position, `at` draws them."""

    order: JoinedOrder

    def __init__(self, parts: Sequence[Samples]) -> None:
        first = parts[0]
        self.settings, self.special, self._replacements = first.settings, first.special, first._replacements
        corpora = [one.corpus for one in parts]
        self.corpus, self.order = JoinedCorpus(corpora), JoinedOrder([one.order for one in parts])
        self._chunks = CorpusChunks(self.corpus, first._chunks.longest)
        self._seeds, self._before = seeds_of(parts), _before(len(one) for one in parts)
        self._documents = np.array([corpus.documents for corpus in corpora])
        self._documents_before = _before(self._documents)
        self._pairs = self._drawn_pairs()

    def part(self, indices: Bounds) -> Part:
        corpora = np.searchsorted(self._before, indices, side="right") - 1
        return Part(
            self._seeds[corpora], self._before[corpora], self._documents_before[corpora], self._documents[corpora]
        )


class JoinedPacked(Packed):
    """The full rows of several corpora, each a ring of its own, which are framed and masked together."""

    order: JoinedOrder

    def __init__(self, parts: Sequence[Packed]) -> None:
        first = parts[0]
        self.parts, self.size = parts, first.size
        self.settings, self.special, self._replacements = first.settings, first.special, first._replacements
        self.order = JoinedOrder([one.order for one in parts])
        self._seeds, self._before = seeds_of(parts), _before(len(one) for one in parts)

    def at(self, copies: Bounds, indices: Bounds, shares: Shares = None) -> Rows:
        corpora = np.searchsorted(self._before, indices, side="right") - 1
        own = indices - self._before[corpora]
        stretches = (
            stretch
            for row, corpus in enumerate(corpora.tolist())
            for stretch in self.parts[corpus].stretches(copies[row : row + 1], own[row : row + 1], [row])
        )
        return self._rows(stretches, random.key(self._seeds[corpora], copies, own), shares)


def joined_rows(parts: Sequence[Any]) -> JoinedSamples | JoinedPacked | None:
    """The samples of all `parts`; None if they are drawn corpus by corpus: finished rows, corpora at an address, ids of
    several types, and a corpus that is too short for a full row."""
    kind = type(parts[0])
    if kind not in (Samples, Packed) or any(
        type(part) is not kind or type(part.corpus) is not Corpus for part in parts
    ):
        return None
    if kind is Samples:
        return JoinedSamples(parts) if len({part.corpus.dtype for part in parts}) == 1 else None
    return JoinedPacked(parts) if len({part.size for part in parts}) == 1 else None


def seeds_of(parts: Iterable[Any]) -> NDArray[np.uint64]:
    return np.array([part.seed % 2**64 for part in parts], np.uint64)


def _before(counts: Iterable[int]) -> NDArray[np.int64]:
    """[parts + 1]: the sum of the counts before each part."""
    return np.append(0, np.cumsum(np.fromiter(counts, np.int64)))
