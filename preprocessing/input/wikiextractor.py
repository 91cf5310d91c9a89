"""WikiExtractor's output: `<doc id=... title="...">`, the title again, the text, `</doc>`."""

import re
from collections.abc import Callable, Iterator
from typing import BinaryIO

from preprocessing.input.streams import lines
from preprocessing.input.wikitext import unescaped

_OPEN, _CLOSE = b"<doc ", b"</doc>"
_TITLE = 'title="'
_BLANK_LINES = re.compile(r"\A(?:[ \t]*\r?\n)+")


def pages(stream: BinaryIO, limit: int, problem: Callable[[int, str | None], None]) -> Iterator[tuple[int, bytes]]:
    """Line number and bytes of each `<doc ...> ... </doc>`.

    `problem` is called with a line number and a reason for text outside and for truncated pages, and with None for a
    page of more than `limit` bytes.
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
        if parts and room < 0:  # the rest of it is outside, which is not reported again
            problem(first, None)
            parts = []
    if parts:
        problem(first, "<doc> without </doc>; the file is cut short")


def body(page: str) -> str:
    """The text of a page, without the tag and the title that is repeated below it."""
    tag, _, text = page.partition("\n")
    # The value of the last attribute ends at the last quotation mark, since a title may contain some.
    begin, end = tag.find(_TITLE) + len(_TITLE), tag.rfind('"')
    if begin < len(_TITLE) or end < begin or not tag.rstrip(" \t\r").endswith(">"):
        return text
    title = unescaped(tag[begin:end])
    text = _BLANK_LINES.sub("", text, count=1)
    first, _, rest = text.partition("\n")
    repeated = unescaped(first).strip() == title.strip()
    return unescaped(rest.lstrip("\r\n") if repeated else text)
