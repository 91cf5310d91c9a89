"""BERT's recipe as its published script carries it out, the rival of `preprocess.py` and `loader.py`.

Pure Python, one sequence at a time (Devlin et al. 2019, appendix A.2, and the passes that Google's
`create_pretraining_data` makes over the text). A token is a string or anything else that can be looked up. TensorFlow's
records, which the script wrote, are dicts here.
"""

import random
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")


def python_wordpiece(text: str, ids: dict[str, int]) -> list[str]:
    """Clean, put spaces around Han characters, split at spaces, strip accents, split at punctuation, match greedily."""
    cleaned = []
    for character in text:
        if ord(character) in (0, 0xFFFD) or is_control(character):
            continue
        cleaned.append(" " if is_space(character) else character)
    parted = []
    for character in "".join(cleaned):
        if is_chinese(ord(character)):
            parted += [" ", character, " "]
        else:
            parted.append(character)
    pieces = []
    for word in "".join(parted).strip().split():
        pieces += split_at_punctuation(without_accents(word.lower()))
    tokens = []
    for piece in " ".join(pieces).split():
        tokens += greedy_match(piece, ids)
    return tokens


def is_space(character: str) -> bool:
    return character in " \t\n\r" or unicodedata.category(character) == "Zs"


def is_control(character: str) -> bool:
    return character not in "\t\n\r" and unicodedata.category(character) in ("Cc", "Cf")


def is_chinese(code: int) -> bool:
    return any(low <= code <= high for low, high in HAN)


def is_punctuation(character: str) -> bool:
    code = ord(character)
    if 33 <= code <= 47 or 58 <= code <= 64 or 91 <= code <= 96 or 123 <= code <= 126:
        return True
    return unicodedata.category(character).startswith("P")


HAN = ((0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F), (0x2B740, 0x2B81F), (0xF900, 0xFAFF))


def without_accents(word: str) -> str:
    kept = []
    for character in unicodedata.normalize("NFD", word):
        if unicodedata.category(character) != "Mn":
            kept.append(character)
    return "".join(kept)


def split_at_punctuation(word: str) -> list[str]:
    pieces: list[list[str]] = []
    opens_piece = True
    for character in word:
        if is_punctuation(character):
            pieces.append([character])
            opens_piece = True
        else:
            if opens_piece:
                pieces.append([])
            pieces[-1].append(character)
            opens_piece = False
    return ["".join(piece) for piece in pieces]


def greedy_match(word: str, ids: dict[str, int]) -> list[str]:
    letters, pieces, start = list(word), [], 0
    while start < len(letters):
        end = len(letters)
        while end > start:
            piece = ("##" if start else "") + "".join(letters[start:end])
            if piece in ids:
                break
            end -= 1
        if end == start:
            return ["[UNK]"]
        pieces.append(piece)
        start = end
    return pieces


class Vocabulary(NamedTuple):
    """Special tokens, ids, and which tokens continue a word."""

    cls: Any
    sep: Any
    mask: Any
    ids: Callable[[Any], int]
    replacements: Sequence[Any]
    continues_word: Callable[[Any], bool] | None = None
    """Without it each token is a word: whole words are an option of the script."""


def sentence_pairs(
    documents: list[list[list[T]]], number: int, longest: int, generator: random.Random
) -> Iterator[tuple[list[T], list[T], bool]]:
    """First part, second part and whether that is random, of at most `longest` tokens together."""
    document = documents[number]
    target = generator.randint(2, longest) if generator.random() < 0.1 else longest
    chunk: list[list[T]] = []
    size = place = 0
    while place < len(document):
        chunk.append(document[place])
        size += len(document[place])
        if place == len(document) - 1 or size >= target:
            cut = generator.randint(1, len(chunk) - 1) if len(chunk) >= 2 else 1
            first = list(chain.from_iterable(chunk[:cut]))
            is_random = len(chunk) == 1 or generator.random() < 0.5
            if is_random:
                other = number
                for _ in range(10):
                    other = generator.randint(0, len(documents) - 1)
                    if other != number:
                        break
                begin = generator.randint(0, len(documents[other]) - 1)
                second: list[T] = []
                for sentence in documents[other][begin:]:
                    second += sentence
                    if len(second) >= target - len(first):
                        break
                place -= len(chunk) - cut  # unused sentences are put back
            else:
                second = list(chain.from_iterable(chunk[cut:]))
            while len(first) + len(second) > longest:
                longer = first if len(first) > len(second) else second
                longer.pop(0 if generator.random() < 0.5 else -1)
            if first and second:
                yield first, second, is_random
            chunk, size = [], 0
        place += 1


def masked_pair(
    first: list[T], second: list[T], vocabulary: Vocabulary, most: int, generator: random.Random
) -> tuple[list[T], list[int], list[int], list[T]]:
    """Masked tokens, their segments, and positions and labels of at most `most` predictions."""
    cls, sep, mask, _, replacements, continues = vocabulary
    tokens, segments, words = [cls], [0], []
    for segment, part in enumerate((first, second)):
        for token in part:
            if continues and words and continues(token):
                words[-1].append(len(tokens))
            else:
                words.append([len(tokens)])
            tokens.append(token)
            segments.append(segment)
        tokens.append(sep)
        segments.append(segment)
    generator.shuffle(words)
    wanted = min(most, max(1, round(0.15 * len(tokens))))
    masked, covered = list(tokens), set()
    chosen: list[tuple[int, T]] = []
    for places in words:
        if len(chosen) >= wanted:
            break
        if len(chosen) + len(places) > wanted or any(place in covered for place in places):
            continue
        for place in places:
            covered.add(place)
            if generator.random() < 0.8:
                masked[place] = mask
            elif generator.random() >= 0.5:
                masked[place] = replacements[generator.randint(0, len(replacements) - 1)]
            chosen.append((place, tokens[place]))
    chosen.sort()
    return masked, segments, [place for place, _ in chosen], [token for _, token in chosen]


def samples(
    documents: list[list[list[T]]], vocabulary: Vocabulary, length: int, most: int, generator: random.Random
) -> Iterator[tuple[list[T], list[int], list[int], list[T], bool]]:
    """Masked pairs of one copy of the documents, which are sentences of tokens."""
    for number in range(len(documents)):
        for first, second, is_random in sentence_pairs(documents, number, length - 3, generator):
            yield (*masked_pair(first, second, vocabulary, most, generator), is_random)


def features(
    sample: tuple[list[T], list[int], list[int], list[T], bool], vocabulary: Vocabulary, length: int, most: int
) -> dict[str, list[int]]:
    """A record as the script writes it: `length` tokens and `most` predictions, padded."""
    tokens, segments, positions, labels, is_random = sample
    ids = vocabulary.ids
    rows = {
        "input_ids": [ids(token) for token in tokens],
        "input_mask": [1] * len(tokens),
        "segment_ids": list(segments),
    }
    predictions = {
        "masked_lm_positions": list(positions),
        "masked_lm_ids": [ids(label) for label in labels],
        "masked_lm_weights": [1] * len(labels),
    }
    for columns, size in ((rows, length), (predictions, most)):
        for column in columns.values():
            while len(column) < size:
                column.append(0)
    return rows | predictions | {"next_sentence_labels": [int(is_random)]}
