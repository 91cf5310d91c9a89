"""`conll-2012` for `coreference`: the brackets in the last column of the files of CoNLL's shared task of 2012."""

import logging
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

from reread.preprocessing.errors import UserError
from reread.preprocessing.labelled.file import LabelledFile
from reread.preprocessing.labelled.tasks.coreference import CoreferenceExample, Span, of_tokens

log = logging.getLogger("reread")
_BEGIN = re.compile(r"#begin document\s*(.*?)\s*")
_END = "#end document"
_NAMED = re.compile(r"\((.*)\)\s*;?\s*(?:part\s+(\S+))?")
_WORD, _COLUMNS = 3, 5
"""The column of the word, and how many columns there are at least, the last of which is that of coreference."""
_BRACKET = re.compile(r"(\()?(\d+)(\))?")
_TOKEN = 100
"""Bytes of memory that a token takes."""


def read_mentions(source: LabelledFile) -> Iterator[CoreferenceExample]:
    """The documents, each part of one by itself. If no bracket is in the file, it is unlabelled.

    Raises `UserError` for a file that does not begin with a document.
    """
    examples = list(_documents(source))
    if examples and not source.mistakes and not any(one.clusters for one in examples):
        log.warning("%s: no mention in the last column, so its documents are unlabelled", source.name)
        examples = [replace(one, clusters=None) for one in examples]
    yield from examples


def _documents(source: LabelledFile) -> Iterator[CoreferenceExample]:
    document: _Document | None = None
    for number, line in source.lines():
        text = source.decode(line, source.location(number))
        if text is None:
            document = document and document.spoilt()
        elif text.startswith(_END):
            if document is not None:
                yield from document.examples(source)
            document = None
        elif found := _BEGIN.fullmatch(text):
            if document is not None:
                source.mistake(document.location, f"no `{_END}` before the document of line {number}")
            document = _Document(_name(found[1]) or str(number), source.location(number))
        elif text.startswith("#"):
            continue
        elif document is not None:
            document.add(source, number, text.split())
        elif text.strip():
            raise UserError(
                f"{source.location(number)}: a line outside of a document; one is between `#begin document (NAME); "
                f"part 000` and `{_END}`"
            )
    if document is not None:
        source.mistake(document.location, f"no `{_END}` follows; the file is cut short")


def _name(given: str) -> str:
    """`(NAME); part 012` as `NAME part 012`."""
    found = _NAMED.fullmatch(given)
    if found is None:
        return given
    return f"{found[1]} part {found[2]}" if found[2] else found[1]


class _Document:
    """The part of a file between `#begin document` and `#end document`."""

    def __init__(self, name: str, location: str) -> None:
        self.name, self.location = name, location
        self.sentences: list[list[str]] = [[]]
        self.open: dict[str, list[tuple[int, str]]] = defaultdict(list)
        """Of each cluster its mentions that have no end yet: the first word, and the line's location."""
        self.clusters: dict[str, list[Span]] = defaultdict(list)
        self.words, self.is_whole = 0, True

    def spoilt(self) -> "_Document":
        self.is_whole = False
        return self

    def add(self, source: LabelledFile, number: int, columns: list[str]) -> None:
        """A line of the document. After a mistake its others are not read."""
        if not self.is_whole:
            return
        if not columns:
            if self.sentences[-1]:
                self.sentences.append([])
            return
        location = source.location(number)
        try:
            if len(columns) < _COLUMNS:
                raise ValueError(f"{len(columns)} columns, not {_COLUMNS} or more, the last that of coreference")
            self._mentions(columns[-1], location)
        except ValueError as error:
            source.mistake(location, str(error))
            self.is_whole = False
            return
        source.spend(_TOKEN)
        self.sentences[-1].append(columns[_WORD])
        self.words += 1

    def _mentions(self, column: str, location: str) -> None:
        """The mentions that begin or end at the next word. Raises ValueError for brackets that do not fit."""
        for part in () if column in ("-", "_") else column.split("|"):
            found = _BRACKET.fullmatch(part)
            if found is None or not (found[1] or found[3]):
                raise ValueError(
                    f"`{column}` in the last column is not coreference, which is `-`, `(7`, `7)`, `(7)` or several of "
                    "them between `|`"
                )
            opens, cluster, closes = found.groups()
            if opens:
                self.open[cluster].append((self.words, location))
            if closes:
                if not self.open[cluster]:
                    raise ValueError(f"`{cluster})` ends a mention that has not begun")
                self.clusters[cluster].append((self.open[cluster].pop()[0], self.words + 1))

    def examples(self, source: LabelledFile) -> Iterator[CoreferenceExample]:
        """The example, unless there is a mistake in it."""
        if not self.is_whole:
            return
        for cluster, mentions in self.open.items():
            if mentions:
                source.mistake(mentions[-1][1], f"the mention `({cluster}` does not end in its document")
                return
        sentences = [one for one in self.sentences if one]
        try:
            yield of_tokens(self.name, self.location, sentences, self.clusters.values())
        except ValueError as error:
            source.mistake(self.location, str(error))
