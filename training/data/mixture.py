"""Mixtures of corpora. Arithmetic decides which corpus each row, document or lane reads.

Every `PERIOD` positions of a mixture hold each corpus in proportion to its weight, in an order keyed by the seed and
the number of the period. A corpus' positions are numbered within it, so its n-th row in the mixture is row n of the
corpus alone, in the order of that corpus. Nothing is counted from the beginning, so a run resumes at any position, and
the mixture does not depend on how rows are split over processes.
"""

from functools import cached_property, lru_cache
from hashlib import md5
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from reread.preprocessing.errors import UserError
from reread.training.data.batch import Rows
from reread.training.data.dataset import CHECKED_ROWS, AnyCorpus, Dataset, Shares, check_masked
from reread.training.data.order import random
from reread.training.data.order.order import permute
from reread.training.data.order.random import Purpose
from reread.training.data.rows.cut_documents import CutDocument, SegmentSettings
from reread.training.data.rows.joined import JoinedPacked, JoinedSamples, joined_rows
from reread.training.data.rows.samples import AnyMasked, RowDataset
from reread.training.data.rows.segments import SegmentDataset
from reread.training.data.rows.stream import StreamDataset, StreamSettings

PERIOD = 1 << 16
_KEPT_PERIODS = 128
"""50 MB. Lanes of documents drift apart: 2,048 of them are in 24 periods after 10 million documents."""


def apportion(weights: list[float], slots: int) -> NDArray[np.int64]:
    """`slots` shared out in proportion to `weights` by largest remainders."""
    exact = np.array(weights) / sum(weights) * slots
    counts = np.floor(exact).astype(np.int64)
    counts[np.argsort(counts - exact, kind="stable")[: slots - int(counts.sum())]] += 1
    return counts


def part_seed(seed: int, number: int) -> int:
    """The seed of corpus `number` of a mixture: each has an order and masks of its own, the first those of `seed`."""
    return seed if number == 0 else int(random.key(seed, number)) >> 1


class _Period(NamedTuple):
    corpora: NDArray[np.uint16]
    """[PERIOD]: the corpus of each slot."""
    before: NDArray[np.int32]
    """[PERIOD]: the number of earlier slots of the same corpus."""


class Interleaving:
    """The endless stream of positions of a mixture, `counts` [corpora] of each `PERIOD` for each corpus."""

    def __init__(self, counts: NDArray[np.int64], seed: int) -> None:
        self.counts, self.seed = counts, seed
        self._period = lru_cache(_KEPT_PERIODS)(self._draw_period)

    def locate(self, positions: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(corpus, position in the stream of that corpus) of each position [B]."""
        periods, slots = np.divmod(positions, PERIOD)
        corpora, own = np.empty((2, len(positions)), np.int64)
        for number in np.unique(periods).tolist():
            here = periods == number
            period = self._period(number)
            corpora[here] = period.corpora[slots[here]]
            own[here] = period.before[slots[here]] + number * self.counts[corpora[here]]
        return corpora, own

    def _draw_period(self, number: int) -> _Period:
        slots = permute(np.arange(PERIOD), PERIOD, random.key(self.seed, number), Purpose.MIXTURE)
        corpora = np.searchsorted(np.cumsum(self.counts), slots, side="right").astype(np.uint16)
        order = np.argsort(corpora, kind="stable")
        before = np.empty(PERIOD, np.int32)
        before[order] = np.arange(PERIOD) - (np.cumsum(self.counts) - self.counts)[corpora[order]]
        return _Period(corpora, before)


class Mixture(Dataset[AnyCorpus]):
    """A split of several corpora. `len()` is the sum of their lengths; numbers go on from one corpus to the next."""

    unit: str
    """The unit of the shares, for messages."""

    def __init__(self, parts: list[Any], settings: AnyCorpus, seed: int, split: str) -> None:
        """Raises `UserError` for corpora with different tokenizers, and for a corpus without text or share."""
        first = parts[0]
        self.settings, self.seed = settings, seed
        self.titles = [one.title for one in settings.corpora]
        self.parts: list[Any] = parts
        self.vocab_size, self.special, self.tokenizer_folder = first.vocab_size, first.special, first.tokenizer_folder
        self.new_rows = first.new_rows
        self.corpus_fingerprint = md5("\n".join(part.corpus_fingerprint for part in parts).encode()).hexdigest()
        tokenizers = [part.facts()["tokenizer"] for part in parts]
        for one, tokenizer in zip(settings.corpora, tokenizers, strict=True):
            if tokenizer != tokenizers[0]:
                raise UserError(
                    f"data.corpora: {one.path} was made with another tokenizer than {settings.corpora[0].path}; "
                    f"preprocess it with tokenizer.path={first.tokenizer_folder}"
                )
        self._before = np.cumsum([0, *map(len, parts)])
        self.counts = np.zeros(len(parts), np.int64)
        if split == "train":  # held-out text is read corpus by corpus
            self.counts = self._counts()
            self.interleaving = Interleaving(self.counts, seed)

    def _counts(self) -> NDArray[np.int64]:
        for one, part in zip(self.settings.corpora, self.parts, strict=True):
            if not len(part):
                raise UserError(f"{one.path}: no documents in the train split; look at the corpus' report.md")
        counts = apportion(self.weights(), PERIOD)
        rare = int(counts.argmin())
        if not counts[rare]:
            raise UserError(
                f"data.corpora: {self.titles[rare]} has less than 1 in {PERIOD:,} of the {self.unit}; raise its "
                "weight, or leave it out"
            )
        return counts

    def weights(self) -> list[float]:
        """The share of each corpus in the positions of the stream, relative to the others."""
        corpora = self.settings.corpora
        return [
            one.weight * self._positions_a_unit(part) if one.weight else (one.epochs or 1.0) * len(part)
            for one, part in zip(corpora, self.parts, strict=True)
        ]

    def _positions_a_unit(self, part: Any) -> float:
        """Positions of the stream per unit of the weights."""
        return 1.0

    @property
    def mixed(self) -> dict[str, Dataset[Any]]:
        return dict(zip(self.titles, self.parts, strict=True))

    def __len__(self) -> int:
        return int(self._before[-1])

    @property
    def fingerprint(self) -> str:
        counts = " ".join(map(str, self.counts.tolist()))
        return md5("\n".join([counts, str(self.seed), *(part.fingerprint for part in self.parts)]).encode()).hexdigest()

    @property
    def drawn_by(self) -> dict[str, Any]:
        parts = [part.drawn_by for part in self.parts]
        of_pools = next((one for one in parts if one["data"].get("pool_tokens")), parts[0])
        data = {**of_pools["data"], "corpora": self.counts.tolist()}  # positions of each in a period
        return {**of_pools, "seed": self.seed, "data": data}

    def facts(self) -> dict[str, Any]:
        return self._joined([part.facts() for part in self.parts])

    def card(self) -> dict[str, Any]:
        cards = [part.card() for part in self.parts]
        reasons = dict.fromkeys(reason for card in cards for reason in card["dropped"])
        return {
            **self._joined(cards),
            "dropped": {reason: sum(card["dropped"].get(reason, 0) for card in cards) for reason in reasons},
            "cleaning": cards[0]["cleaning"],
            "sources": [source for card in cards for source in card["sources"]],
        }

    def _joined(self, facts: list[dict[str, Any]]) -> dict[str, Any]:
        sums = {
            name: sum(one[name] for one in facts) for name in ("documents", "tokens") if all(name in f for f in facts)
        }
        return {"fingerprint": self.corpus_fingerprint, "tokenizer": facts[0]["tokenizer"], **sums}

    def verify(self) -> None:
        for part in self.parts:
            part.verify()

    def check(self, settings: AnyCorpus, seed: int) -> None:
        for part, own in zip(self.parts, settings.parts, strict=True):
            part.check_part(own, seed)

    def statistics(self, batches: list[Rows]) -> list[tuple[str, str]]:
        return [*self.shares(), *super().statistics(batches)]

    def shares(self) -> list[tuple[str, str]]:
        """The share of each corpus, for `reread inspect`."""
        weights = np.array(self.weights()) / [self._positions_a_unit(part) for part in self.parts]
        return [
            (f"corpus {title}", f"{100 * weight / weights.sum():.2f} % of {self.unit}, {self._epoch(part, count)}")
            for title, part, weight, count in zip(self.titles, self.parts, weights, self.counts.tolist(), strict=True)
        ]

    def _epoch(self, part: Any, count: int) -> str:
        return f"an epoch of {len(part):,} in {round(len(part) * PERIOD / count):,} positions"

    def locate(self, positions: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(copy, number over all corpora) at positions [B]."""
        corpora, own = self.interleaving.locate(positions)
        copies, numbers = np.empty((2, len(positions)), np.int64)
        for corpus in np.unique(corpora).tolist():
            here = corpora == corpus
            copies[here], numbers[here] = self.parts[corpus].locate(own[here])
        return copies, numbers + self._before[corpora]

    def _by_corpus(self, numbers: NDArray[np.int64]) -> list[tuple[int, NDArray[np.int64], NDArray[np.int64]]]:
        """(corpus, indices of those of `numbers` [B] that are in it, their numbers in it), for each corpus with any."""
        corpora = np.searchsorted(self._before, numbers, side="right") - 1
        found = [(corpus, np.flatnonzero(corpora == corpus)) for corpus in np.unique(corpora).tolist()]
        return [(corpus, here, numbers[here] - self._before[corpus]) for corpus, here in found]


class MixedRows(Mixture[AnyMasked], RowDataset[AnyMasked]):
    """Independent rows of several corpora."""

    unit = "rows"

    def check(self, settings: AnyMasked, seed: int) -> None:
        super().check(settings, seed)
        check_spread(self)

    @property
    def joins_documents(self) -> bool:  # type: ignore[override]
        return bool(self.parts[0].joins_documents)

    @cached_property
    def _together(self) -> JoinedSamples | JoinedPacked | None:
        return joined_rows(self.parts)

    def locate(self, positions: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        if self._together is None:
            return super().locate(positions)
        corpora, own = self.interleaving.locate(positions)
        for corpus in np.unique(corpora[self._pooled[corpora]]).tolist():
            self.parts[corpus].follow(int(own[corpora == corpus].max()))
        return self._together.order.locate_in(corpora, own)

    @cached_property
    def _pooled(self) -> NDArray[np.bool_]:
        """[corpora]: whether a corpus is read pool by pool."""
        return np.array([part.order.pools > 1 for part in self.parts])

    def at(self, copies: NDArray[np.int64], indices: NDArray[np.int64], shares: Shares = None) -> Rows:
        if self._together is not None:
            return self._together.at(copies, indices, shares)
        drawn = [
            (here, self.parts[corpus].at(copies[here], own, None if shares is None else shares[here]))
            for corpus, here, own in self._by_corpus(indices)
        ]
        return gathered(drawn, len(indices))


class MixedSegments(Mixture[SegmentSettings], SegmentDataset):
    """Documents of several corpora. A weight is a share of the tokens: a corpus of long documents has fewer of them."""

    unit = "tokens"

    def check(self, settings: SegmentSettings, seed: int) -> None:
        super().check(settings, seed)
        check_spread(self)

    def at(self, copies: NDArray[np.int64], documents: NDArray[np.int64]) -> Rows:
        """The first segments of documents [B] in copies [B], as rows that learn."""
        return self.rows(self.read(copies, documents), [0] * len(documents), np.ones(len(documents), bool))

    def _positions_a_unit(self, part: Any) -> float:
        return float(part.corpus.documents / part.corpus.tokens)

    def read(
        self, copies: NDArray[np.int64], documents: NDArray[np.int64], *, longest: int | None = None
    ) -> list[CutDocument]:
        by_row: dict[int, CutDocument] = {}
        for corpus, here, own in self._by_corpus(documents):
            found = self.parts[corpus].read(copies[here], own, longest=longest)
            by_row |= {
                row: one._replace(number=number)
                for row, one, number in zip(here.tolist(), found, documents[here].tolist(), strict=True)
            }
        return [by_row[row] for row in range(len(documents))]

    def rows(self, documents: list[CutDocument], segments: list[int], learns: NDArray[np.bool_]) -> Rows:
        found = self._by_corpus(np.array([document.number for document in documents], np.int64))
        drawn = [
            (
                here,
                self.parts[corpus].rows(
                    [documents[row]._replace(number=number) for row, number in zip(here, own.tolist(), strict=True)],
                    [segments[row] for row in here],
                    learns[here],
                ),
            )
            for corpus, here, own in found
        ]
        return gathered(drawn, len(documents))


class MixedStream(Mixture[StreamSettings], StreamDataset):
    """Lanes of several corpora. Each lane reads one of them, since its memory goes on from step to step."""

    unit = "lanes"

    def start(self, lane: Any, lanes: int, step: Any, length: int) -> Any:
        counts = apportion(self.weights(), lanes)
        if not counts.all():
            raise UserError(
                f"data.corpora: {lanes} lanes (train.global_batch) are too few to give {self.titles[counts.argmin()]} "
                "one of its own; raise train.global_batch, or its weight"
            )
        first = np.cumsum(counts) - counts
        corpus = np.searchsorted(first, lane, side="right") - 1
        sizes = np.diff(self._before)[corpus]
        own = ((lane - first[corpus]) * sizes // counts[corpus] + step * length) % sizes
        return self._before[corpus] + own

    def rows(self, starts: NDArray[np.int64], length: int) -> Rows:
        drawn = [(here, self.parts[corpus].rows(own, length)) for corpus, here, own in self._by_corpus(starts)]
        return gathered(drawn, len(starts))


def check_spread(mixture: MixedRows[Any] | MixedSegments) -> None:
    """Raises `UserError` if no token is masked in rows from all over the mixture."""
    count = min(len(mixture), CHECKED_ROWS)
    numbers = np.arange(count) * len(mixture) // max(1, count)
    if count:
        check_masked(mixture.at(np.zeros(count, np.int64), numbers), mixture.settings.location)


def gathered(parts: list[tuple[NDArray[np.int64], Rows]], count: int) -> Rows:
    """`count` rows assembled from parts: (their indices, their rows)."""
    rows: Rows = {}
    for here, part in parts:
        for name, values in part.items():
            rows.setdefault(name, np.empty((count, *values.shape[1:]), values.dtype))[here] = values
    return rows
