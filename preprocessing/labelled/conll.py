"""`conll`: a word or character and its tag a line, a blank line after each sentence."""

import logging
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace

from preprocessing.labelled.examples import TagExample
from preprocessing.labelled.source import Source

log = logging.getLogger("reread")
_IDEOGRAPH = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")


def read_conll(source: Source) -> Iterator[TagExample]:
    """The sentences; a line without a tag means that the file is unlabelled, and then no line has one."""
    examples = list(_sentences(source))
    joiner = joiner_of(source, (example.tokens for example in examples))
    yield from examples if joiner == "" else (replace(example, joiner=joiner) for example in examples)


def _sentences(source: Source) -> Iterator[TagExample]:
    sentence: list[bytes] = []
    number = 0
    for number, line in source.lines():
        if line.strip():
            sentence.append(line)
        elif sentence:
            yield from _sentence(source, sentence, number - len(sentence))
            sentence = []
    if sentence:
        yield from _sentence(source, sentence, number - len(sentence) + 1)


def _sentence(source: Source, lines: list[bytes], first: int) -> Iterator[TagExample]:
    place = source.place(first)
    text = source.decode(b"\n".join(lines), place)
    if text is None:
        return
    separator = "\t" if "\t" in text else " "
    rows = [line.split(separator) for line in text.split("\n")]
    width = len(rows[0])
    for number, row in enumerate(rows, first):
        if len(row) != width or width > 2 or not all(row):
            found = f"{len(row)} columns" if all(row) else "an empty column"
            wanted = "a line is a word, a tab or a blank, and a tag; where the file is unlabelled, no line has a tag"
            source.mistake(source.place(number), f"{found}; {wanted}")
            return
    tags = tuple(row[1] for row in rows) if width == 2 else None
    yield TagExample(str(first), place, tuple(row[0] for row in rows), tags)


def joiner_of(source: Source, sentences: Iterable[tuple[str, ...]]) -> str:
    """What joins the tokens to a text: nothing if most tokens with letters are Chinese or Japanese, else a blank."""
    chinese = others = 0
    for token, count in Counter(token for tokens in sentences for token in tokens).items():
        if _IDEOGRAPH.search(token):
            chinese += count
        elif any(map(str.isalpha, token)):
            others += count
    if not chinese and not others:
        return ""
    joiner, name = ("", "nothing") if chinese > others else (" ", "a blank")
    reason = f"{chinese:,} tokens have Chinese or Japanese characters, {others:,} other letters"
    log.info(f"{source.path}: {name} between tokens ({reason})")
    return joiner
