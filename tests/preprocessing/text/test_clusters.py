"""Clusters of near-duplicates beside a search through the graph."""

from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis.strategies import integers, lists, tuples

from reread.preprocessing.text.clusters import clusters_of, duplicates_of, unite
from reread.preprocessing.text.dedup import Load
from reread.preprocessing.text.minhash import EDGE, number_of
from tests.preprocessing.text.test_dedup import opened


def reached(first: int, pairs: list[tuple[int, int]]) -> set[int]:
    found, left = {first}, [first]
    while left:
        node = left.pop()
        for a, b in pairs:
            for other in (b,) if a == node else (a,) if b == node else ():
                if other not in found:
                    found.add(other)
                    left.append(other)
    return found


@given(lists(tuples(integers(0, 30), integers(0, 30)), max_size=40))
def test_the_least_member_of_a_set_is_its_root(pairs: list[tuple[int, int]]) -> None:
    parents = np.arange(31)
    unite(parents, np.array([a for a, _ in pairs], int), np.array([b for _, b in pairs], int))
    for node in range(31):
        root = node
        while parents[root] != root:
            root = int(parents[root])
        assert root == min(reached(node, pairs))


def test_a_chain_of_any_length_is_one_set_in_a_few_rounds() -> None:
    parents = np.arange(200_000)
    order = np.random.default_rng(0).permutation(199_999)
    unite(parents, order, order + 1)
    unite(parents, np.array([0]), np.array([199_999]))
    while (parents != parents[parents]).any():
        parents = parents[parents]
    assert not parents.any()


def write_edges(folder: Path, edges: list[list[tuple[int, int, int, int, int]]]) -> list[Load]:
    files = []
    for number, some in enumerate(edges):
        files.append(folder / f"{number}.npy")
        np.save(files[-1], np.array([(a << 32 | b, c << 32 | d, matches) for a, b, c, d, matches in some], EDGE))
    return opened(files)


def test_the_first_of_a_cluster_stays_over_files_and_parts(tmp_path: Path) -> None:
    files = write_edges(tmp_path, [[(2, 5, 2, 9, 120)], [], [(0, 7, 2, 9, 120), (1, 1, 1, 2, 126)]])
    clusters = clusters_of(files)
    dropped = duplicates_of(clusters.dropped)
    assert [(int(part), int(index)) for index, part in dropped.tolist()] == [(1, 2), (2, 5), (2, 9)]
    assert clusters.sizes() == {2: 2}
    assert clusters_of(files[::-1]).dropped.tolist() == clusters.dropped.tolist()
    assert not len(clusters_of(files[1:2]).dropped)


def test_of_a_chain_of_near_duplicates_one_document_stays(tmp_path: Path) -> None:
    files = write_edges(tmp_path, [[(0, 0, 0, 1, 120), (0, 1, 3, 0, 120), (3, 0, 3, 1, 120), (0, 4, 0, 5, 120)]])
    clusters = clusters_of(files)
    assert clusters.dropped.tolist() == number_of([0, 0, 3, 3], [1, 5, 0, 1]).tolist()
    assert clusters.sizes() == {4: 1, 2: 1}
