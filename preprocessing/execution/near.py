"""The stages that find near-duplicates: signatures of documents, pairs of documents, and clusters of pairs."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from reread.preprocessing.execution.progress import advance
from reread.preprocessing.execution.task_file import TaskWriter
from reread.preprocessing.execution.work import Work
from reread.preprocessing.text.clusters import Clusters, clusters_of, duplicates_of
from reread.preprocessing.text.dedup import Load, ranges, task_count
from reread.preprocessing.text.minhash import BAND_KEY, BandsOfPart, edges_between_parts, joined, part_and_index
from reread.preprocessing.tokens.encode import batches

EXAMPLES = 10
_BEFORE, _EXCERPT = 30, 120
"""Characters of an example before the first difference, and in all."""


def find_signatures(work: Work, number: int, writer: TaskWriter) -> dict[str, Any]:
    """Save the signatures and band keys of the documents of part `number`, and the near-duplicates within the part."""
    count = len(work.documents(number))
    bands = BandsOfPart(work.minhash, count)
    for batch in batches(work.texts(number, work.duplicates(number, count))):
        texts = [text for _, text in batch]
        bands.add([index for index, _ in batch], texts)
        advance(sum(len(text.encode()) for text in texts))
    keys, edges = bands.keys_and_edges(number)
    for name, values in (("keys", keys), ("edges", edges), ("signatures", bands.signatures)):
        writer.save(name, values)
    return {"keys": len(keys), "edges": len(edges)}


def find_pairs(work: Work, number: int, writer: TaskWriter) -> dict[str, Any]:
    """Save the near-duplicates of different parts, for the ranges of band keys of task `number`."""
    keys, signatures = (work.arrays("signatures", work.parts, name) for name in ("keys", "signatures"))
    tasks = task_count(work.key_count("signatures"))
    found = [
        edges_between_parts(work.minhash, some, counts, signatures)
        for some, counts in ranges(keys, BAND_KEY, number, tasks, writer.folder)
    ]
    edges = joined(found)
    writer.save("edges", edges)
    return {"edges": len(edges), "tasks": tasks}


def find_clusters(work: Work, number: int, writer: TaskWriter) -> dict[str, Any]:
    """Save which documents are dropped as near-duplicates; returns their number and some examples."""
    tasks = work.result("near-duplicates", 0)["tasks"]
    found = work.arrays("signatures", work.parts, "edges") + work.arrays("near-duplicates", tasks, "edges")
    clusters = clusters_of(found)
    dropped = clusters.dropped
    writer.save("found", duplicates_of(dropped))
    held_out = _held_out(work, clusters.documents)
    kept_held_out = held_out[np.searchsorted(clusters.documents, clusters.kept)]
    return {
        "dropped": len(dropped),
        "dropped_near_held_out": int(np.count_nonzero(kept_held_out & ~held_out)),
        "sizes": dict(sorted(clusters.sizes().items())),
        "examples": [_example(work, *pair) for pair in _example_pairs(clusters, found)],
    }


def _held_out(work: Work, documents: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """bool [n]: which of `documents` [n], in increasing order, belong to the validation split."""
    found = np.zeros(len(documents), bool)
    parts, indices = part_and_index(documents)
    for part in np.unique(parts).tolist():
        own = slice(*np.searchsorted(parts, [part, part + 1]))
        found[own] = work.held_out(work.documents(part))[indices[own]]
    return found


def _example_pairs(clusters: Clusters, found: list[Load]) -> list[tuple[int, int, int]]:
    """(positions at which the signatures agree, kept document, dropped document), the least similar pair first."""
    rows = np.empty((0, 3), np.uint64)
    for load in found:
        edges = load()
        first, later = edges["first"], edges["later"]
        kept = clusters.kept[np.searchsorted(clusters.documents, first)]
        dropped = np.where(kept == first, later, first)
        own = np.stack((edges["matches"].astype(np.uint64), kept, dropped), axis=1)[(kept == first) | (kept == later)]
        rows = np.unique(np.concatenate((rows, own)), axis=0)
        rows = rows[np.unique(rows[:, 0], return_index=True)[1]]  # one pair for each similarity
    if len(rows) > EXAMPLES:
        rows = rows[np.linspace(0, len(rows) - 1, EXAMPLES).round().astype(int)]
    return [(matches, kept, dropped) for matches, kept, dropped in rows.tolist()]


def _example(work: Work, matches: int, kept: int, dropped: int) -> dict[str, Any]:
    texts = [_text(work, document) for document in (kept, dropped)]
    different = next((position for position, (a, b) in enumerate(zip(*texts, strict=False)) if a != b), 0)
    begin = max(0, different - _BEFORE)
    excerpts = [text[begin : begin + _EXCERPT].replace("\n", " ") for text in texts]
    return {"similarity": round(work.minhash.similarity(matches), 3), "kept": excerpts[0], "dropped": excerpts[1]}


def _text(work: Work, document: int) -> str:
    part, index = part_and_index(np.array(document, np.uint64))
    return next(text for number, text in work.texts(int(part)) if number == index)
