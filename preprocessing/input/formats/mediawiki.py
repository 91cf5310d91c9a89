"""Reads the wikitext of articles in MediaWiki's `pages-articles` XML dumps, a page at a time."""

import re
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple
from xml.parsers import expat

from reread.preprocessing.input.formats.wikitext import FILE_NAMESPACES

_REDIRECT = re.compile(r"\s*#\s*(redirect|重定向|重新導向|重新导向|転送)", re.IGNORECASE)
_FIELDS = ("title", "ns", "model", "text")
_CHUNK = 1 << 16
# Limits that no dump reaches, since expat holds tags and names in memory.
_LONGEST_TAG, _DEEPEST, _NAMES = 1 << 20, 100, 1000


class Page(NamedTuple):
    title: str
    wikitext: str | None
    """None for a redirect, a page outside the main namespace, or a page that is too long."""
    is_too_long: bool
    dropped_namespaces: frozenset[str]
    """Names of the media, file and category namespaces."""


def pages(stream: BinaryIO, limit: int) -> Iterator[Page]:
    """The pages of a dump; a page with a field of more than `limit` bytes is too long.

    Raises xml.parsers.expat.ExpatError if the dump is truncated, is not XML, or has something that no dump has: entity
    declarations, which can expand to any amount of text, an encoding that expat does not know, or a tag of megabytes.
    """
    reader, names = _Reader(limit), dict[str, str]()
    parser = expat.ParserCreate(namespace_separator="}", intern=names)
    parser.buffer_text = True
    parser.StartElementHandler, parser.EndElementHandler = reader.start, reader.end
    parser.CharacterDataHandler, parser.EntityDeclHandler = reader.characters, reader.entity
    fed, is_last = 0, False
    while not is_last:
        data = stream.read(_CHUNK)
        fed, is_last = fed + len(data), not data
        try:
            parser.Parse(data, is_last)
            if not is_last and fed - parser.CurrentByteIndex > _LONGEST_TAG + _CHUNK:
                raise expat.ExpatError(f"a tag or comment of more than {_LONGEST_TAG:,} bytes")
            if len(names) > _NAMES:
                raise expat.ExpatError(f"more than {_NAMES:,} names of elements")
        except (LookupError, ValueError):
            yield from reader.take()
            raise expat.ExpatError(
                "its first line states an encoding that cannot be read; convert it to UTF-8"
            ) from None
        except expat.ExpatError:
            yield from reader.take()
            raise
        yield from reader.take()


class _Reader:
    """The handlers for expat; `take` returns the pages that were completed since its last call."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        # The names in a dump may be those of another wiki, so the usual names are dropped, too.
        self.dropped = FILE_NAMESPACES
        self.done: list[Page] = []
        self.depth = self.page_depth = 0
        self.page: dict[str, str] = {}
        self.field, self.parts, self.size = "", list[str](), 0

    def take(self) -> list[Page]:
        done, self.done = self.done, []
        return done

    def start(self, name: str, attributes: dict[str, str]) -> None:
        self.finish_field()
        self.depth += 1
        if self.depth > _DEEPEST:
            raise expat.ExpatError(f"elements more than {_DEEPEST} deep")
        tag = name.rpartition("}")[2]
        if not self.page_depth:
            if tag == "page":
                self.page, self.page_depth = {}, self.depth
            elif tag == "namespace" and attributes.get("key") in ("-2", "6", "14"):
                self.field = tag
        elif tag in _FIELDS and tag not in self.page:
            self.field = tag
        elif tag == "redirect" and self.depth == self.page_depth + 1:
            self.page[tag] = ""

    def end(self, name: str) -> None:
        self.finish_field()
        if self.depth == self.page_depth:
            self.finish_page()
        self.depth -= 1

    def characters(self, data: str) -> None:
        if self.field:
            self.size += len(data.encode())
            if self.size <= self.limit:
                self.parts.append(data)

    def entity(self, *_: object) -> None:
        raise expat.ExpatError("a document type with entities, which no dump has")

    def finish_field(self) -> None:
        text = "".join(self.parts)
        if self.field == "namespace":
            self.dropped |= {text.lower()}
        elif self.field:
            self.page[self.field] = text
            if self.size > self.limit:
                self.page["too long"] = ""
        self.field, self.parts, self.size = "", [], 0

    def finish_page(self) -> None:
        title, text = self.page.get("title", ""), self.page.get("text", "")
        is_article = self.page.get("ns") in ("0", "", None) and self.page.get("model") in ("wikitext", "", None)
        is_redirect = "redirect" in self.page or _REDIRECT.match(text)
        is_read = is_article and not is_redirect
        is_too_long = is_read and "too long" in self.page
        self.done.append(Page(title[:255], text if is_read and not is_too_long else None, is_too_long, self.dropped))
        self.page_depth = 0
