"""`conll`: a word or character and its tag a line, perhaps other columns between them, and a blank line after each
sentence (CoNLL's shared tasks of 2002 and 2003)."""

import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from reread.preprocessing.errors import UserError
from reread.preprocessing.labelled.file import LabelledFile
from reread.preprocessing.labelled.tasks.tag import IDEOGRAPH, TagExample, joiner_of

log = logging.getLogger("reread")
_TAG = re.compile(r"O|[BIESMLU]-[^ \t]+")
_TAGGED = re.compile(rb"[^ \t]+[ \t](.+[ \t])?(O|[BIESMLU]-[^ \t]+)")
_DOCUMENT = "-DOCSTART-"
"""The first word of a line that separates documents (CoNLL-2003)."""
_CHINESE, _OTHER = 2.5, 20
"""Mean length of distinct tokens, in characters, above which they are lines of text: Chinese words have 2, others 7."""

_LONG = 8
"""Characters of the longest Chinese token or tag that is surely no text."""
_SHOWN = 30
"""Characters of a text that its line shows."""
_LONGEST = 1 << 18
"""Lines of a sentence or document."""
_TOKEN = 100
"""Bytes of memory that a token and its tag take."""


def read_conll(source: LabelledFile) -> Iterator[TagExample]:
    """The sentences. If a line has no tag, the file is unlabelled and no line may have one. Tags of the form IOB1, in
    which B- stands only between two entities of a type, become BIO's.

    Raises `UserError` for lines that are texts, each of which would be a token, or a label and a text.
    """
    examples = list(_sentences(source))
    if _is_iob1(one.tags for one in examples if one.tags):
        log.info("%s: its tags are IOB1, in which an entity begins with I-; they are read as BIO", source.name)
        examples = [replace(one, tags=_as_bio(one.tags or ())) for one in examples]
    _check_tagged(source, [example for example in examples if example.tags is not None])
    if location := _texts(source, examples):
        raise UserError(f"{location}: lines of text, where each line should be a word or a character")
    joiner = joiner_of(source, (example.tokens for example in examples))
    yield from examples if joiner == "" else (replace(example, joiner=joiner) for example in examples)


def is_conll(head: bytes) -> bool:
    """Whether a file begins with lines of a word and a tag of an entity or O, at least one of them an O."""
    lines = [line for line in head.replace(b"\r", b"").split(b"\n")[:-1] if line.strip()]
    tags = [found[2] for line in lines if (found := _TAGGED.fullmatch(line))]
    return b"O" in tags and len(tags) > 0.8 * len(lines)


def _sentences(source: LabelledFile) -> Iterator[TagExample]:
    sentence: list[bytes] = []
    number, most = 0, 0
    for number, line in source.lines():
        if line.strip():
            most = most or len(line.split(b"\t" if b"\t" in line else b" "))
            sentence.append(line)
            if len(sentence) > _LONGEST:
                raise UserError(f"{source.location(number)}: no blank line for {_LONGEST:,} lines; is it CoNLL's form?")
        elif sentence:
            yield from _sentence(source, sentence, number - len(sentence), most)
            sentence = []
    if sentence:
        yield from _sentence(source, sentence, number - len(sentence) + 1, most)


def _sentence(source: LabelledFile, lines: list[bytes], first: int, most: int) -> Iterator[TagExample]:
    """A sentence; only where the file's first line has `most` columns, more than two, others may have as many."""
    location = source.location(first)
    text = source.decode(b"\n".join(lines), location)
    if text is None:
        return
    tabs = [line.count("\t") for line in text.split("\n")]
    is_mixed = any(tabs) and not all(tabs)
    rows = [_columns(line, "\t" if any(tabs) else " ", is_mixed) for line in text.split("\n")]
    width = len(rows[0])
    if rows[0][0] == _DOCUMENT:
        return
    for number, row in enumerate(rows, first):
        is_other = len(row) != width or (width > 2 and width != most)
        if is_other or not all(row) or ((width > 2 or is_mixed) and not _TAG.fullmatch(row[-1])):
            found = f"{len(row)} columns" if all(row) else "an empty column"
            wanted = (
                "a line is a word, a tab or a blank, and a tag, perhaps columns between them; where the file is "
                "unlabelled, no line has a tag"
            )
            source.mistake(source.location(number), f"{found}; {wanted}")
            return
    source.spend(_TOKEN * len(rows))
    tags = tuple(row[-1] for row in rows) if width > 1 else None
    yield TagExample(str(first), location, tuple(row[0] for row in rows), tags)


def _columns(line: str, separator: str, is_mixed: bool) -> list[str]:
    """The columns of a line, without the blanks beside tabs; of a sentence where some lines have blanks for tabs, they
    end at either."""
    if is_mixed:
        return re.split("[ \t]+", line.strip(" \t"))
    return [column.strip(" ") or column for column in line.split(separator)]


def _is_iob1(sentences: Iterable[Sequence[str]]) -> bool:
    """Whether entities begin with I-, and with B- only behind another one of their type."""
    begins_inside = False
    for tags in sentences:
        for before, tag in zip(("O", *tags), tags, strict=False):
            if tag[:2] not in ("B-", "I-") and tag != "O":
                return False
            follows = before[1:] == tag[1:]
            if tag[:2] == "B-" and not follows:
                return False
            begins_inside |= tag[:2] == "I-" and not follows
    return begins_inside


def _as_bio(tags: Sequence[str]) -> tuple[str, ...]:
    """Tags of IOB1 as those of BIO."""
    pairs = zip(("O", *tags), tags, strict=False)
    return tuple(f"B{tag[1:]}" if tag[:1] == "I" and before[1:] != tag[1:] else tag for before, tag in pairs)


def _check_tagged(source: LabelledFile, examples: Sequence[TagExample]) -> None:
    """Raise `UserError` if the tokens or the tags are texts, as in a table of labels and texts.

    They are if more than half of the lines have one of their own, and more than half of those have a blank or are long
    in Chinese. So tokens of a corpus may have blanks, such as numbers of telephones, and tags may be long.
    """
    for name in ("tokens", "tags"):
        column = [(int(one.id) + place, value) for one in examples for place, value in enumerate(getattr(one, name))]
        values = {value for _, value in column}
        texts = {value for value in values if " " in value or (len(value) > _LONG and IDEOGRAPH.search(value))}
        if 2 * len(values) > len(column) and 2 * len(texts) > len(values):
            number, first = next((number, value) for number, value in column if value in texts)
            shown = first if len(first) <= _SHOWN else f"{first[:_SHOWN]}..."
            raise UserError(
                f"{source.location(number)}: `{shown}` is a text, as are most {name} here, but a line should be a word "
                "or a character, a tab or a blank, and its tag; tables of labels and texts are read by the recipe "
                "`classify`"
            )


def _texts(source: LabelledFile, examples: Sequence[TagExample]) -> str | None:
    """The location of the first unlabelled sentence if the tokens are too long to be words; None otherwise.

    Of a model whose `task.split` is known, no token has several ideographs.
    """
    tokens = {token: bool(IDEOGRAPH.search(token)) for one in examples if one.tags is None for token in one.tokens}
    chinese, others = ([len(token) for token in tokens if tokens[token] is kind] for kind in (True, False))
    most = _CHINESE if source.given.split is None else 1.5
    too_long = sum(chinese) > most * len(chinese) or sum(others) > _OTHER * len(others)
    return examples[0].location if too_long else None
