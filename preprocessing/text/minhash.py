"""Near-duplicates by MinHash with bands (Broder 1997; Leskovec, Rajaraman, Ullman, "Mining of Massive Datasets", 3.4).

A signature holds, for each of some hash functions, the least value over the n-grams of a document. Two signatures agree
at a position with a probability equal to the Jaccard similarity of the documents' sets of n-grams. Documents whose
signatures agree in all rows of a band are a candidate pair. They are near-duplicates if the signatures agree at a large
enough share of all positions, of which the lowest eight bits are compared (Li, Koenig 2010, "b-Bit Minwise Hashing").
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reread.preprocessing.text.dedup import Load
from reread.preprocessing.text.ngrams import mix, ngrams, pieces, stream, units_of

HASHES = 128
"""The maximum number of hash functions. An estimated similarity of 0.8 then has a standard error of 0.036."""
FOUND = 0.98
"""The least probability that a pair of exactly the required similarity becomes a candidate."""
NEIGHBOURS = 32
"""The number of preceding documents with the same band that a document is compared with, besides the first of all."""
_AT_ONCE = 1 << 16

BAND_KEY = np.dtype([("high", "<u8"), ("index", "<u4")])
"""The hash of a band, whose upper bits are the number of the band, and the index of its document in its part."""
EDGE = np.dtype([("first", "<u8"), ("later", "<u8"), ("matches", "u1")])
"""Two near-duplicates (`number_of`) in source order, and the number of positions at which their signatures agree."""


@dataclass(frozen=True)
class Signatures:
    """The signatures of those documents of a batch that have an n-gram."""

    documents: NDArray[np.int64]
    """[d]: the indices of the documents in the batch."""
    bands: NDArray[np.uint64]
    """[d, bands]: a hash of each band."""
    bytes: NDArray[np.uint8]
    """[d, bands * rows]: the lowest eight bits of the least value of each hash function."""


class MinHash:
    """The hash functions, divided into `bands` of `rows` each.

    There are as many rows in a band as `FOUND` permits, so that few pairs of lower similarity become candidates.
    """

    def __init__(self, similarity: float, ngram: int) -> None:
        self.ngram = ngram
        rows = range(HASHES, 0, -1)
        self.rows = next((r for r in rows if 1 - (1 - similarity**r) ** (HASHES // r) >= FOUND), 1)
        self.bands = HASHES // self.rows
        self.hashes = self.rows * self.bands
        seeds = stream(2 * self.hashes)
        self._multipliers = (seeds[::2] | np.uint64(1)).astype(np.uint32)
        self._offsets = seeds[1::2].astype(np.uint32)
        # The lowest eight bits of two different values are equal once in 256 times.
        probability = similarity + (1 - similarity) / 256
        self.least_matches = int(np.ceil(self.hashes * probability - 1e-9))

    def similarity(self, matches: int) -> float:
        """The estimated similarity of two documents whose signatures agree at `matches` positions."""
        return max(0.0, (256 * matches / self.hashes - 1) / 255)

    def signatures(self, texts: Sequence[str]) -> Signatures:
        """The signatures of a batch of cleaned texts."""
        least = np.full((self.hashes, len(texts)), 0xFFFFFFFF, np.uint32)
        found = np.zeros(len(texts), bool)
        for numbers, batch in pieces(texts):
            units = units_of(batch)
            grams, firsts = ngrams(units, self.ngram)
            if not len(grams):
                continue
            of_text = np.array(numbers)[units.text[firsts]]
            # `hashed` is reduced by document; a long document continues in the next batch of pieces
            starts = np.flatnonzero(np.concatenate(([True], of_text[1:] != of_text[:-1])))
            documents = of_text[starts]
            found[documents] = True
            values = (grams >> np.uint64(32)).astype(np.uint32)
            hashed = np.empty_like(values)
            # Each function is a bijection of 32 bits, which suffices since the values are hashes already.
            for row, multiplier, offset in zip(least, self._multipliers, self._offsets, strict=True):
                np.bitwise_xor(values, offset, out=hashed)
                np.multiply(hashed, multiplier, out=hashed)
                row[documents] = np.minimum(row[documents], np.minimum.reduceat(hashed, starts))
        documents = np.flatnonzero(found)
        signature = np.ascontiguousarray(least.T[documents])
        return Signatures(documents, self._bands(signature), signature.astype(np.uint8))

    def _bands(self, signature: NDArray[np.uint32]) -> NDArray[np.uint64]:
        values = signature.reshape(-1, self.bands, self.rows).astype(np.uint64)
        hashes = np.zeros(values.shape[:2], np.uint64)
        for row in range(self.rows):
            hashes = mix(hashes + values[:, :, row] + np.uint64(row + 1 << 32))
        width = 2**64 // self.bands  # each band has its own section of the key space
        return hashes // np.uint64(self.bands) + np.arange(self.bands, dtype=np.uint64) * np.uint64(width)


def agreeing(signatures: NDArray[np.uint8], first: NDArray[np.int64], later: NDArray[np.int64]) -> NDArray[np.uint8]:
    """[p]: the number of positions, below 256, at which the signatures first[p] and later[p] agree."""
    matches = np.empty(len(first), np.uint8)
    for begin in range(0, len(first), _AT_ONCE):
        some = slice(begin, begin + _AT_ONCE)
        matches[some] = np.count_nonzero(signatures[first[some]] == signatures[later[some]], axis=1)
    return matches


def candidates(high: NDArray[np.uint64]) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Pairs (first [p], later [p]) of positions in sorted keys `high` [n] that have equal keys.

    Each position is paired with the `NEIGHBOURS` positions before it and with the first one of its key.
    """
    later = np.flatnonzero(high[1:] == high[:-1]) + 1
    for distance in range(1, NEIGHBOURS + 1):
        if not len(later):
            return
        yield later - distance, later
        later = later[later > distance]
        later = later[high[later - distance - 1] == high[later]]
    if len(later):
        yield np.searchsorted(high, high[later]), later


class BandsOfPart:
    """The bands and signatures of a part's documents: finds pairs within the part, and the keys to find other pairs."""

    def __init__(self, minhash: MinHash, documents: int) -> None:
        self.minhash = minhash
        self.signatures = np.zeros((documents, minhash.hashes), np.uint8)
        """[documents, hashes]: the signature of each document; zeros for a document without an n-gram."""
        self._indices: list[NDArray[np.int64]] = []
        self._bands: list[NDArray[np.uint64]] = []

    def add(self, indices: Sequence[int], texts: Sequence[str]) -> None:
        """Add the `texts` of documents, whose `indices` in the part increase from call to call."""
        found = self.minhash.signatures(texts)
        own = np.array(indices, np.int64)[found.documents]
        self.signatures[own] = found.bytes
        self._indices.append(own)
        self._bands.append(found.bands)

    def keys_and_edges(self, part: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """BAND_KEY [k], sorted, and EDGE [e] of the pairs within the part, each pair once.

        Of the documents that share a band, only the first `NEIGHBOURS` are left for comparison with other parts, so
        that a text which stands on every page of a site does not fill the range of its key.
        """
        indices = np.concatenate([*self._indices, np.empty(0, np.int64)])
        bands = np.concatenate([*self._bands, np.empty((0, self.minhash.bands), np.uint64)])
        keys: list[NDArray[Any]] = [np.empty(0, BAND_KEY)]
        edges, documents = np.empty(0, EDGE), number_of(part, np.arange(len(self.signatures)))
        for band in range(self.minhash.bands):
            order = np.argsort(bands[:, band], kind="stable")
            high, sorted_indices = bands[order, band], indices[order]
            found = [
                _near(self.minhash, self.signatures, (sorted_indices[first], sorted_indices[later]), documents)
                for first, later in candidates(high)
            ]
            edges = joined([edges, *found])
            left = np.ones(len(high), bool)
            left[NEIGHBOURS:] = high[NEIGHBOURS:] != high[:-NEIGHBOURS]
            own = np.empty(np.count_nonzero(left), BAND_KEY)
            own["high"], own["index"] = high[left], sorted_indices[left]
            keys.append(own)
        return np.concatenate(keys), edges


def number_of(part: Any, index: Any) -> NDArray[np.uint64]:
    """Documents as numbers of 64 bits, which increase in source order: part and index in the part."""
    return np.asarray(part, np.uint64) << np.uint64(32) | np.asarray(index, np.uint64)


def part_and_index(documents: NDArray[np.uint64]) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """The part, and the index in the part, of documents as `number_of` numbers them."""
    return documents >> np.uint64(32), documents & np.uint64(0xFFFFFFFF)


def joined(edges: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """All `edges` as EDGE [e], sorted, each pair once."""
    found = np.concatenate([np.empty(0, EDGE), *edges])
    found = found[np.lexsort((found["later"], found["first"]))]
    is_new = np.ones(len(found), bool)
    is_new[1:] = (found["first"][1:] != found["first"][:-1]) | (found["later"][1:] != found["later"][:-1])
    return found[is_new]


def _near(
    minhash: MinHash,
    signatures: NDArray[np.uint8],
    rows: tuple[NDArray[np.int64], NDArray[np.int64]],
    documents: NDArray[np.uint64],
) -> NDArray[Any]:
    """EDGE [e] of the candidate pairs whose signatures agree at enough positions.

    `rows` are two arrays [p], the first and later document of each pair as rows of `signatures` and `documents`.
    """
    matches = agreeing(signatures, *rows)
    is_near = matches >= minhash.least_matches
    edges = np.empty(np.count_nonzero(is_near), EDGE)
    edges["first"], edges["later"] = (documents[row[is_near]] for row in rows)
    edges["matches"] = matches[is_near]
    return edges


def edges_between_parts(
    minhash: MinHash, keys: NDArray[Any], counts: NDArray[np.int64], files: Sequence[Load]
) -> NDArray[Any]:
    """EDGE [e] of the near-duplicates of different parts that share a band.

    `keys` BAND_KEY [k] are the keys of a range in source order, `counts` [parts] their number in each part, and `files`
    [parts] the signatures of each part's documents.
    """
    # Keys that occur more than once, and the documents that have them
    order = np.argsort(keys["high"], kind="stable")
    high = keys["high"][order]
    is_shared = np.zeros(len(high) + 1, bool)
    is_shared[1:-1] = high[1:] == high[:-1]
    order = order[is_shared[1:] | is_shared[:-1]]
    high = keys["high"][order]
    part = np.searchsorted(np.cumsum(counts), order, side="right")
    documents, row = np.unique(number_of(part, keys["index"][order]), return_inverse=True)
    signatures = np.empty((len(documents), minhash.hashes), np.uint8)
    parts, indices = part_and_index(documents)
    for number in np.unique(parts).tolist():
        own = slice(*np.searchsorted(parts, [number, number + 1]))
        signatures[own] = files[number]()[indices[own]]
    # Compare the documents of each candidate pair
    edges = []
    for first, later in candidates(high):
        apart = part[first] != part[later]  # pairs within a part are found by `BandsOfPart`
        edges.append(_near(minhash, signatures, (row[first[apart]], row[later[apart]]), documents))
    return joined(edges)
