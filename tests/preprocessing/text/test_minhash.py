"""MinHash: its estimates, which pairs it finds, and that parts and ranges make no difference."""

import random
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from reread.preprocessing.text import dedup, minhash
from reread.preprocessing.text.dedup import ranges
from reread.preprocessing.text.minhash import BAND_KEY, BandsOfPart, MinHash, agreeing, candidates, edges_between_parts
from tests.preprocessing.text.test_dedup import opened
from tests.preprocessing.text.test_ngrams import reference_ngrams

Document = tuple[int, int]


def jaccard(a: str, b: str, ngram: int) -> float:
    first, second = set(reference_ngrams(a, ngram)), set(reference_ngrams(b, ngram))
    return len(first & second) / len(first | second)


def words(generator: random.Random, count: int) -> list[str]:
    return [f"{generator.randrange(10**6)}" for _ in range(count)]


def edited(generator: random.Random, text: list[str], changes: int) -> list[str]:
    changed = list(text)
    for place in generator.sample(range(len(text)), changes):
        changed[place] = f"{generator.randrange(10**6)}"
    return changed


def estimates(pairs: list[tuple[str, str]], hashing: MinHash) -> list[float]:
    found = hashing.signatures([text for pair in pairs for text in pair])
    even = np.arange(0, 2 * len(pairs), 2)
    return [hashing.similarity(matches) for matches in agreeing(found.bytes, even, even + 1).tolist()]


@pytest.mark.parametrize("size", [30, 400])
def test_estimates_have_the_mean_and_the_spread_of_independent_hash_functions(size: int) -> None:
    generator, hashing, pairs = random.Random(0), MinHash(0.8, 3), []
    for _ in range(300):
        text = words(generator, size)
        pairs.append((" ".join(text), " ".join(edited(generator, text, size // 30))))
    exact = np.array([jaccard(*pair, 3) for pair in pairs])
    errors = np.array(estimates(pairs, hashing)) - exact
    spread = np.sqrt((exact * (1 - exact)).mean() / hashing.hashes)
    assert abs(errors.mean()) < 4 * spread / np.sqrt(len(pairs))
    assert 0.8 * spread < errors.std() < 1.25 * spread


def test_bands_are_as_narrow_as_finding_pairs_of_the_similarity_allows() -> None:
    for similarity, rows in ((0.5, 3), (0.8, 7), (0.9, 11)):
        hashing = MinHash(similarity, 5)
        assert hashing.rows == rows and hashing.rows * hashing.bands == hashing.hashes <= minhash.HASHES
        assert 1 - (1 - similarity**rows) ** hashing.bands >= minhash.FOUND
        assert hashing.similarity(hashing.least_matches) >= similarity
        assert hashing.similarity(hashing.least_matches - 1) < similarity


def families(generator: random.Random, count: int) -> list[str]:
    """Texts of which some are others with single words changed, shuffled."""
    texts = []
    for family in range(count):
        text = words(generator, 60)
        texts += [" ".join(edited(generator, text, generator.choice((0, 1, 2, 6)))) for _ in range(1 + family % 4)]
    generator.shuffle(texts)
    return texts


def edges_of(folder: Path, parts: list[list[str]], hashing: MinHash, tasks: int) -> set[tuple[Document, Document]]:
    """Pairs (part, index) of all stages."""
    keys, signatures, found = [], [], []
    for number, texts in enumerate(parts):
        bands = BandsOfPart(hashing, len(texts))
        for begin in range(0, len(texts), 7):
            batch = texts[begin : begin + 7]
            bands.add(range(begin, begin + len(batch)), batch)
        own, edges = bands.keys_and_edges(number)
        assert own["high"].tolist() == sorted(own["high"].tolist())
        keys.append(folder / f"{number}.keys.npy")
        signatures.append(folder / f"{number}.npy")
        np.save(keys[-1], own)
        np.save(signatures[-1], bands.signatures)
        found.append(edges)
    for task in range(tasks):
        for some, counts in ranges(opened(keys), BAND_KEY, task, tasks, folder):
            found.append(edges_between_parts(hashing, some, counts, opened(signatures)))
    edges = np.concatenate(found)
    assert (edges["matches"] >= hashing.least_matches).all()
    return {(divmod(first, 2**32), divmod(later, 2**32)) for first, later, _ in edges.tolist()}


@pytest.mark.parametrize(("parts", "tasks", "ranges"), [(1, 1, 16), (5, 1, 1), (7, 3, 2), (40, 2, 16)])
def test_the_division_into_parts_and_ranges_changes_no_pair(
    tmp_path: Path, parts: int, tasks: int, ranges: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the pairs are those that all signatures show, compared one with another, of those that share a band."""
    monkeypatch.setattr(dedup, "RANGES_PER_TASK", ranges)
    texts, hashing = families(random.Random(1), 40), MinHash(0.7, 2)
    found = hashing.signatures(texts)
    expected = {
        (a, b)
        for b in range(len(texts))
        for a in range(b)
        if (found.bytes[a] == found.bytes[b]).sum() >= hashing.least_matches
        and (found.bands[a] == found.bands[b]).any()
    }
    assert len(expected) > 25
    cuts = [len(texts) * part // parts for part in range(parts + 1)]
    divided = [texts[a:b] for a, b in pairwise(cuts)]
    edges = edges_of(tmp_path, divided, hashing, tasks)
    assert {(cuts[p] + a, cuts[q] + b) for (p, a), (q, b) in edges} == expected


def test_near_duplicates_are_found_and_other_texts_are_not(tmp_path: Path) -> None:
    generator, hashing = random.Random(2), MinHash(0.8, 5)
    texts, near = [], set()
    for number in range(60):
        text = words(generator, 300)
        texts += [" ".join(text), " ".join(edited(generator, text, 2)), " ".join(edited(generator, text, 40))]
        near.add(((0, 3 * number), (0, 3 * number + 1)))
    assert jaccard(texts[0], texts[1], 5) > 0.9 and jaccard(texts[0], texts[2], 5) < 0.5
    assert edges_of(tmp_path, [texts], hashing, 1) == near


def test_a_text_without_an_ngram_has_no_near_duplicate(tmp_path: Path) -> None:
    assert edges_of(tmp_path, [["a b c d", "a b c d", "", "天气很好", "天气很好"]], MinHash(0.8, 5), 1) == set()


def test_a_text_under_every_page_leaves_few_keys_and_stays_one_cluster(tmp_path: Path) -> None:
    hashing, text = MinHash(0.8, 2), " ".join(words(random.Random(3), 30))
    bands = BandsOfPart(hashing, 500)
    bands.add(range(500), [text] * 500)
    keys, edges = bands.keys_and_edges(0)
    assert len(keys) == minhash.NEIGHBOURS * hashing.bands
    assert len(edges) < 500 * (minhash.NEIGHBOURS + 1)
    assert set(edges["later"].tolist()) == set(range(1, 500))
    assert len(edges_of(tmp_path, [[text] * 100, [text]], hashing, 1) & {((0, 0), (1, 0))}) == 1


def test_each_is_compared_with_its_neighbours_and_the_first_of_its_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(minhash, "NEIGHBOURS", 2)
    high = np.array([1, 3, 3, 3, 3, 3, 7, 7], np.uint64)
    pairs = [pair for first, later in candidates(high) for pair in zip(first.tolist(), later.tolist(), strict=True)]
    assert sorted(pairs) == [(1, 2), (1, 3), (1, 4), (1, 5), (2, 3), (2, 4), (3, 4), (3, 5), (4, 5), (6, 7)]
