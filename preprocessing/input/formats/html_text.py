"""Extracts the text of web pages and EPUB books, by resiliparse (`pip install 'reread[html]'`).

resiliparse was chosen because it finds the main text as well as larger libraries, is maintained, and has few
dependencies.
"""

import posixpath
import re
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from typing import BinaryIO
from urllib.parse import unquote
from xml.etree import ElementTree

from reread.preprocessing.errors import UserError
from reread.preprocessing.input.archives import open_zip, zip_member
from reread.preprocessing.input.confined import ConfinedError, confined
from reread.preprocessing.input.encodings import encoding_of
from reread.preprocessing.input.formats import page_text
from reread.preprocessing.input.piece import DAMAGE, Document, PieceReader
from reread.preprocessing.input.streams import BOMS, is_wide, metered, read_at_most

_STATED = re.compile(rb"""<(?:meta\s[^>]*?charset|\?xml\s[^>]*?encoding)\s*=\s*["']?([\w.:-]+)""", re.IGNORECASE)
_STATED_WITHIN = 4096
_TAG = re.compile(r"<(/?)([a-zA-Z][\w:-]*)")
_WITHOUT_CONTENT = "area|base|br|col|embed|hr|img|input|link|meta|source|track|wbr"
_ENDED_BY_THE_NEXT = "p|li|dt|dd|tr|td|th|thead|tbody|tfoot|option"
_NOT_NESTED = frozenset(f"{_WITHOUT_CONTENT}|{_ENDED_BY_THE_NEXT}".split("|"))
_EMPTY = re.compile(rf"<(?!(?:{_WITHOUT_CONTENT})\b)([a-zA-Z][\w:-]*)((?:\s[^<>]*)?)/>")
"""An empty element of XHTML, which an HTML parser would not close."""
_DEEPEST = 1000
"""The greatest depth of elements, since extraction takes time quadratic in the depth; browsers stop at 512."""
_LARGEST_INDEX = 1 << 24
_FONTS = ("http://www.idpf.org/2008/embedding", "http://ns.adobe.com/pdf/enc#RC")
"""Encryption methods for fonts alone; books that use them have no copy protection."""


def read_html(reader: PieceReader, stream: BinaryIO) -> Iterator[Document]:
    """The main text of a page, without navigation, header and footer."""
    data = read_at_most(stream, reader.limit)
    if len(data) > reader.limit:
        reader.too_long("whole file")
        return
    page = _decoded(reader, data, "whole file")
    text = None if page is None else _text_of(reader, page, "whole file", main=True)
    if text:
        yield reader.document(text, "whole file")
    elif text is not None:
        reader.problem("whole file", "no main text in this page")


def read_epub(reader: PieceReader, file: BinaryIO) -> Iterator[Document]:
    """A book is one document: its chapters in the order of the spine."""
    try:
        with open_zip(file) as book:
            reason, chapters = _chapters(reader, book)
            if reason:
                reader.problem("whole file", reason)
                return
            parts, room = list[str](), reader.limit
            for name in chapters:
                data = _member(reader, book, name, room)
                room -= len(data)
                if room < 0:
                    reader.too_long("whole file")
                    return
                page = _EMPTY.sub(r"<\1\2></\1>", _decoded(reader, data, name) or "")
                parts.append(_text_of(reader, page, name, main=False) or "")
    except (ElementTree.ParseError, *DAMAGE) as error:
        reader.damaged(error)
        return
    yield reader.document("\n".join(filter(None, parts)), "whole file")


def _member(reader: PieceReader, book: zipfile.ZipFile, name: str, limit: int) -> bytearray:
    return read_at_most(metered(zip_member(book, name), reader.spend), limit)


def _chapters(reader: PieceReader, book: zipfile.ZipFile) -> tuple[str | None, list[str]]:
    """The reason why the book cannot be read, or None, and the names of its chapters in order."""
    names = set(book.namelist())
    rights = next((name for name in ("META-INF/rights.xml", "META-INF/license.lcpl") if name in names), None)
    if rights or "META-INF/encryption.xml" in names:
        used = [] if rights else _xml(reader, book, "META-INF/encryption.xml").iterfind(".//{*}EncryptionMethod")
        if rights or any(method.get("Algorithm") not in _FONTS for method in used):
            return "a book with copy protection (DRM), which is not read; take it out of `paths`", []
    if "META-INF/container.xml" not in names:
        return "no META-INF/container.xml; is it an EPUB?", []
    root = _xml(reader, book, "META-INF/container.xml").find(".//{*}rootfile")
    package = "" if root is None else root.get("full-path", "")
    if package not in names:
        return f"no package file `{package}`", []
    index = _xml(reader, book, package)
    hrefs = {item.get("id"): item.get("href", "") for item in index.iterfind(".//{*}manifest/{*}item")}
    order = [hrefs.get(item.get("idref")) for item in index.iterfind(".//{*}spine/{*}itemref")]
    folder = posixpath.dirname(package)
    chapters = [posixpath.normpath(posixpath.join(folder, unquote(href))) for href in order if href]
    return (None, chapters) if chapters else ("no chapter in its spine", [])


def _xml(reader: PieceReader, book: zipfile.ZipFile, name: str) -> ElementTree.Element:
    data = _member(reader, book, name, _LARGEST_INDEX)
    if len(data) > _LARGEST_INDEX or b"<!ENTITY" in data:
        raise ElementTree.ParseError(f"{name} is of {_LARGEST_INDEX:,} bytes or more, or defines entities")
    try:
        return ElementTree.fromstring(bytes(data))
    except (LookupError, ValueError):
        raise ElementTree.ParseError(f"{name} states an encoding that cannot be read") from None


def _decoded(reader: PieceReader, data: bytes | bytearray, position: str) -> str | None:
    """A page as text; None if it cannot be decoded, which is reported.

    The encoding is that of the byte order mark, UTF-8 if the page is valid UTF-8, the one that the page states, or that
    of the settings. Many pages state a wrong encoding.
    """
    marked = next((name for mark, name in BOMS if data.startswith(mark)), "utf-8")
    found = _STATED.search(data, 0, _STATED_WITHIN)
    stated = found[1].decode().lower() if found else "utf-8"
    stated = "gb18030" if stated in ("gb2312", "gbk") else stated  # such pages use characters of the larger one
    for own in (marked, stated):
        with suppress(LookupError, ValueError):
            if not is_wide(own) or own == marked:
                return data.decode(own).removeprefix("\ufeff")
    if reader.settings.encoding == "auto":
        reader.encoding = reader.stated = encoding_of(data, reader.settings.encodings) or reader.settings.encodings[0]
    return reader.decode(data, position)


def _text_of(reader: PieceReader, page: str, position: str, main: bool) -> str | None:
    """The text of a page; None if it cannot be extracted, which is reported."""
    if _depth(page) > _DEEPEST:
        reader.problem(position, f"elements more than {_DEEPEST:,} deep")
        return None
    try:
        [text] = confined(page_text.__name__, "extracted", reader.limit, page, main)
    except ImportError:
        raise UserError(f"{reader.piece.path}: reading HTML and EPUB needs: pip install 'reread[html]'") from None
    except ConfinedError as error:
        reader.problem(position, str(error))
        return None
    return str(text)


def _depth(page: str) -> int:
    """The greatest depth of nested elements."""
    depth = most = 0
    for tag in _TAG.finditer(page):
        if tag[2].lower() not in _NOT_NESTED:
            depth = max(0, depth - 1) if tag[1] else depth + 1
            most = max(most, depth)
    return most
