"""Further merges of a BPE, on tokens that its merges so far have made of words: none of those changes."""

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from heapq import heapify, heappop, heappush
from itertools import pairwise

Merge = tuple[str, str]
Word = tuple[str, ...]
"""The tokens of a word."""


def merged(word: Sequence[str], merge: Merge) -> Word:
    """The word with each occurrence of the pair, from the left, as one token."""
    tokens: list[str] = []
    at = 0
    while at < len(word):
        here = tuple(word[at : at + 2]) == merge
        tokens.append(word[at] + word[at + 1] if here else word[at])
        at += 2 if here else 1
    return tuple(tokens)


def merges_of_words(words: Sequence[Word]) -> list[Merge]:
    """The merges, in order, that make each of `words` one token."""
    ranks: dict[Merge, int] = {}
    for word in words:
        tokens = word
        while len(tokens) > 1:
            known = [pair for pair in pairwise(tokens) if pair in ranks]
            merge = min(known, key=ranks.__getitem__) if known else (tokens[0], tokens[1])
            ranks.setdefault(merge, len(ranks))
            tokens = merged(tokens, merge)
    return list(ranks)


def learned_merges(words: Mapping[Word, int], count: int, known: Collection[str]) -> list[tuple[Merge, int]]:
    """The next `count` merges that training a BPE on `words`, with how often each comes, would make, and how many
    tokens each saves; fewer if no pair comes twice.

    Each is of the pair that comes most often, the first in order of letters if several do (Sennrich et al. 2016). A
    pair whose token is in `known` is not merged.
    """
    parts, times = [*words], [*words.values()]
    found: Counter[Merge] = Counter()
    holders: defaultdict[Merge, set[int]] = defaultdict(set)
    for number, word in enumerate(parts):
        for pair in pairwise(word):
            found[pair] += times[number]
            holders[pair].add(number)
    heap = [(-often, pair) for pair, often in found.items()]
    heapify(heap)
    merges: list[tuple[Merge, int]] = []
    while heap and len(merges) < count:
        often, pair = heappop(heap)
        if found[pair] != -often:  # it has become rarer since
            if found[pair] > 0:
                heappush(heap, (-found[pair], pair))
            continue
        if -often < 2:
            break
        if pair[0] + pair[1] in known:
            continue
        merges.append((pair, -often))
        changed: set[Merge] = set()
        for number in holders.pop(pair):
            before, after = parts[number], merged(parts[number], pair)
            for one in pairwise(before):
                found[one] -= times[number]
            for one in pairwise(after):
                found[one] += times[number]
                holders[one].add(number)
                changed.add(one)
            parts[number] = after
        for one in changed:
            heappush(heap, (-found[one], one))
    return merges
