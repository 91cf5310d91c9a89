"""WikiExtractor's output: `<doc id=... title="...">`, the title again, the text, `</doc>`."""

import html
import re
from collections.abc import Callable, Iterator
from typing import BinaryIO

_OPEN, _CLOSE = b"<doc ", b"</doc>"
_HEAD = re.compile(r'<doc .*?title="(.*?)"[^"\n]*>[ \t\r]*\n(?:[ \t]*\r?\n)*')


def pages(stream: BinaryIO, problem: Callable[[int, str], None]) -> Iterator[tuple[int, bytes]]:
    """Line number and bytes of each `<doc ...> ... </doc>`; what stands outside or is cut short goes to `problem`."""
    parts: list[bytes] = []
    first = number = 0
    found = stray = False
    for number, line in enumerate(stream, 1):
        if line.startswith(_OPEN):
            if parts:
                problem(first, "<doc> without </doc>")
            parts, first, found = [line], number, True
        elif parts and line.rstrip().endswith(_CLOSE):
            parts.append(line.rstrip()[: -len(_CLOSE)])
            yield first, b"".join(parts)
            parts = []
        elif parts:
            parts.append(line)
        elif line.strip() and not stray:
            problem(number, "text outside <doc>" if found else "no <doc>; is it WikiExtractor output?")
            stray = True
    if parts:
        problem(first, "<doc> without </doc>; the file is cut short")


def body(page: str) -> str:
    """The text of a page, without the tag and the title that is repeated below it."""
    head = _HEAD.match(page)
    if head is None:
        return page.partition("\n")[2]
    text, title = page[head.end() :], html.unescape(head[1])
    first, _, rest = text.partition("\n")
    repeated = html.unescape(first).strip() == title.strip()
    return html.unescape(rest.lstrip("\r\n") if repeated else text)
