"""Word vectors in text form: those of GloVe, fastText (.vec) and word2vec.

A line is a word, a blank, and the numbers of its vector, with blanks between them. The first line may be a header, the
number of words and of numbers. A word may hold blanks itself (`. . .` in GloVe's 840B). Of a word that comes twice the
first is taken. A file is read as a stream, and of lines whose word nobody wants only the blanks are counted.
"""

import logging
from collections import Counter
from collections.abc import Collection, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from reread.preprocessing.errors import UserError
from reread.preprocessing.files import open_file
from reread.preprocessing.input.streams import split_name

logger = logging.getLogger("reread")

Vectors = dict[str, NDArray[np.float32]]
_LONGEST = 1 << 20
"""Bytes of a line."""
_FIRST = 10
"""Lines from which the number of numbers is taken: that of most of them, since a word may hold blanks."""
_WRONG_WORDS = 0.01
"""The share of words that are not UTF-8 from which on the file is in another encoding."""


def read_vectors(path: Path, width: int, wanted: Collection[str], first: int) -> Vectors:
    """The vectors [width] of the `wanted` words and of the `first` words of a file, in its order.

    Raises `UserError` for a file that is not there, is compressed, binary, cut off or in another encoding than UTF-8,
    whose vectors have another width, or that has a broken line where one is wanted.
    """
    if path.suffix.lower() == ".zip" or split_name(path.name)[1]:
        raise UserError(f"{path}: is compressed; unpack it, since it is read as text")
    try:
        with open_file(path) as file:
            return _read(path, file, width, set(wanted), first)
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); it should hold word vectors as text") from None


def _read(path: Path, file: BinaryIO, width: int, wanted: set[str], first: int) -> Vectors:
    numbered = enumerate(_lines(path, file), 1)
    head = list(islice(numbered, _FIRST))
    header = _header(head[0][1]) if head else None
    head = head[header is not None :]
    if not head:
        raise UserError(f"{path}: holds no word vectors")
    found = header[1] if header else Counter(line.count(b" ") for _, line in head).most_common(1)[0][0]
    if found != width:
        raise UserError(
            f"{path}: its vectors have {found} numbers, but the model's words {width}: set model.hidden_size to "
            f"{found}, and more by model.character_filters"
        )
    vectors: Vectors = {}
    count = twice = wrong = 0
    for number, line in chain(head, numbered):
        count += 1
        if line.count(b" ") < width:
            raise UserError(f"{path}: line {number} has {line.count(b' ')} numbers, not {width}; was it cut off?")
        word, *values = line.rsplit(b" ", width) if count <= first else [line[: line.index(b" ")]]
        try:
            name = word.decode()
        except UnicodeDecodeError:
            wrong += 1
            continue
        if count > first:
            if name not in wanted:
                continue
            word, *values = line.rsplit(b" ", width)
            if word.decode(errors="replace") != name:  # the line's word goes on after its first blank
                continue
        twice += name in vectors
        if name not in vectors:
            vectors[name] = _vector(path, number, name, values)
    if header and count != header[0]:
        raise UserError(f"{path}: its first line says {header[0]:,} words, but it holds {count:,}; was it cut off?")
    if wrong > _WRONG_WORDS * count:
        raise UserError(f"{path}: {wrong:,} of {count:,} words are not UTF-8; save the file as UTF-8")
    if twice or wrong:
        logger.info("%s: %s words that come again and %s that are not UTF-8 are left out", path, twice, wrong)
    return vectors


def _lines(path: Path, file: BinaryIO) -> Iterator[bytes]:
    """The lines that hold anything, without the blanks around them, and with blanks for tabs."""
    for number in range(1, 1 << 62):
        line = file.readline(_LONGEST)
        if not line:
            return
        if b"\0" in line or (len(line) == _LONGEST and line[-1:] != b"\n"):
            raise UserError(
                f"{path}: line {number} is not text; give the vectors in text form (fastText's .vec, word2vec's "
                "without `binary`)"
            )
        if line := line.removeprefix(b"\xef\xbb\xbf" if number == 1 else b"").rstrip().replace(b"\t", b" "):
            yield line


def _header(line: bytes) -> tuple[int, int] | None:
    """The number of words and of numbers, if the first line says them."""
    parts = line.split()
    return (int(parts[0]), int(parts[1])) if len(parts) == 2 and all(map(bytes.isdigit, parts)) else None


def _vector(path: Path, number: int, word: str, values: list[bytes]) -> NDArray[np.float32]:
    try:
        vector = np.array([float(value) for value in values], np.float32)
    except ValueError as error:
        raise UserError(f"{path}: line {number}, `{word}`: {error}") from None
    if not np.isfinite(vector).all():
        raise UserError(f"{path}: line {number}, `{word}`: a number that is not finite; leave the line out")
    return vector
