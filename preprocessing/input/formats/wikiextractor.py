"""Reads the output of WikiExtractor: `<doc id=... title="...">`, the title again, the text, `</doc>`."""

import re
from collections.abc import Callable, Iterator
from typing import BinaryIO

from reread.preprocessing.input.formats.wikitext import unescaped
from reread.preprocessing.input.streams import lines

_OPEN, _CLOSE = b"<doc ", b"</doc>"
_TITLE = 'title="'
_BLANK_LINES = re.compile(r"\A(?:[ \t]*\r?\n)+")


def pages(stream: BinaryIO, limit: int, problem: Callable[[int, str | None], None]) -> Iterator[tuple[int, bytes]]:
    """(line number, bytes) of each `<doc ...> ... </doc>`.

    `problem` is called with a line number and a reason for text outside of pages and for truncated pages; the reason is
    None for a page of more than `limit` bytes.
    """
    parts: list[bytes] = []
    first = number = room = 0
    found = stray = False
    for number, (line, size) in enumerate(lines(stream, limit), 1):
        if line.startswith(_OPEN):
            if parts:
                problem(first, "<doc> without </doc>")
            parts, first, room, found = [line], number, limit - size, True
        elif parts and size == len(line) and line.rstrip().endswith(_CLOSE):
            parts.append(line.rstrip()[: -len(_CLOSE)])
            yield first, b"".join(parts)
            parts = []
        elif parts:
            room -= size
            parts.append(line)
        elif line.strip() and not stray and room >= 0:
            problem(number, "text outside <doc>" if found else "no <doc>; is it WikiExtractor output?")
            stray = True
        if parts and room < 0:  # the rest of this page is not reported again as text outside
            problem(first, None)
            parts = []
    if parts:
        problem(first, "<doc> without </doc>; the file is cut short")


def body(page: str) -> str:
    """The text of a page, without the tag and the title repeated below it."""
    tag, _, text = page.partition("\n")
    # The title is the last attribute and may contain quotation marks, so it ends at the last one.
    begin, end = tag.find(_TITLE) + len(_TITLE), tag.rfind('"')
    if begin < len(_TITLE) or end < begin or not tag.rstrip(" \t\r").endswith(">"):
        return text
    title = unescaped(tag[begin:end])
    text = _BLANK_LINES.sub("", text, count=1)
    first, _, rest = text.partition("\n")
    repeated = unescaped(first).strip() == title.strip()
    return unescaped(rest.lstrip("\r\n") if repeated else text)
