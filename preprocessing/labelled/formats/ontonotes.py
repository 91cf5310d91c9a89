"""`conll-2012`: the files of OntoNotes, as CoNLL's shared task of 2012 has them."""

import re
from collections.abc import Iterator

from reread.preprocessing.errors import UserError
from reread.preprocessing.labelled.file import LabelledFile
from reread.preprocessing.labelled.tasks.tag import TagExample, joiner_of

BEGIN = b"#begin document"
_WORD, _ENTITY, _COLUMNS = 3, 10, 12
"""The columns of the word and of the entity that it is in, and how many there are at least."""
_BRACKETS = re.compile(r"(?:\(([^()*]+))?\*?(\))?")
_TOKEN = 100
"""Bytes of memory that a token and its tag take."""


def read_ontonotes(source: LabelledFile) -> Iterator[TagExample]:
    """The sentences, whose entities stand in brackets in the eleventh column: `(PERSON*`, `*`, `*)`, `(GPE)`.

    Raises `UserError` for a file without entities.
    """
    examples = list(_sentences(source))
    if not source.mistakes and not any(tag != "O" for one in examples for tag in one.tags or ()):
        raise UserError(f"{source.path}: no entity in its eleventh column, so nothing can be learned from it")
    joiner = joiner_of(source, (one.tokens for one in examples))
    yield from (TagExample(one.id, one.location, one.tokens, one.tags, joiner) for one in examples)


def _sentences(source: LabelledFile) -> Iterator[TagExample]:
    rows: list[tuple[int, list[str]]] = []
    for number, line in source.lines():
        if line.strip() and not line.startswith(b"#"):
            text = source.decode(line, source.location(number))
            rows.append((number, [] if text is None else text.split()))
        elif rows:
            yield from _sentence(source, rows)
            rows = []
    if rows:
        yield from _sentence(source, rows)


def _sentence(source: LabelledFile, rows: list[tuple[int, list[str]]]) -> Iterator[TagExample]:
    tags: list[str] = []
    inside = ""
    for number, columns in rows:
        try:
            tag, inside = _tag(columns, inside)
        except ValueError as error:
            source.mistake(source.location(number), f"{error}; an entity is `(NAME*`, `*`, `*)` or `(NAME)`")
            return
        tags.append(tag)
    first = rows[0][0]
    if inside:
        source.mistake(source.location(first), f"the entity {inside} does not end in its sentence")
        return
    source.spend(_TOKEN * len(rows))
    yield TagExample(str(first), source.location(first), tuple(row[_WORD] for _, row in rows), tuple(tags))


def _tag(columns: list[str], inside: str) -> tuple[str, str]:
    """The tag of a word, and the entity that is open behind it; `inside` is the one that is open before it.

    Raises ValueError for a row that cannot follow."""
    if len(columns) < _COLUMNS:
        raise ValueError(f"{len(columns)} columns, not {_COLUMNS} or more")
    entity = "*" if columns[_ENTITY] in ("-", "_") else columns[_ENTITY]
    found = _BRACKETS.fullmatch(entity)
    name, closes = (found[1], bool(found[2])) if found and entity else ("", True)
    if (name is not None and (inside or not name)) or (closes and not (name or inside)):
        raise ValueError(f"`{entity}` in its eleventh column does not fit what stands before it")
    if name:
        return f"B-{name}", "" if closes else name
    return (f"I-{inside}" if inside else "O"), "" if closes else inside
