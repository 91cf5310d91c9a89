"""Removes markup and boilerplate from text: Project Gutenberg's licence, HTML tags, wiki markup (section `clean`)."""

import html
import re

_START = re.compile(
    r"\*\*\* ?START OF (?:THE|THIS) PROJECT GUTENBERG E(?:BOOK|TEXT)[^*]{0,300}\*\*\*"
    r"|\*END\*? ?THE SMALL PRINT!? FOR PUBLIC DOMAIN[^\n]*",
    re.IGNORECASE,
)
_END = re.compile(
    r"(?:^End of (?:the |this )?Project Gutenberg[^\n]*(?:\n\s*)?)?"
    r"\*\*\* ?END OF (?:THE|THIS) PROJECT GUTENBERG E(?:BOOK|TEXT)",
    re.IGNORECASE | re.MULTILINE,
)
_CREDITS = re.compile(
    r"\s*(?:Produced by|E-?text prepared by|Transcribed from|This e-?(?:book|text) was (?:produced|prepared) by)\b"
    r"[^\n]*(?:\n[^\n]*\S[^\n]*)*",
    re.IGNORECASE,
)
_BLOCKS = "address|article|aside|blockquote|br|center|dd|div|dl|dt|h[1-6]|hr|li|ol|p|pre|section|table|td|th|tr|ul"
_INLINE = (
    "a|abbr|acronym|b|big|cite|code|del|em|font|i|img|ins|kbd|mark|q|s|samp|small|span|strike|strong|sub|sup|tt|u|var"
)
_ATTRIBUTES = r"(?:\s[^<>\n]{0,1000})?/?"
_BLOCK_TAG = re.compile(rf"</?(?:{_BLOCKS}){_ATTRIBUTES}>", re.IGNORECASE)
_INLINE_TAG = re.compile(rf"</?(?:{_INLINE}){_ATTRIBUTES}>", re.IGNORECASE)
_LONG_NUMBER = re.compile(r"&#[0-9]{100,};?")
_REFERENCE = re.compile(r"<ref\b[^<>]*(?:/>|>[^<]*</ref\s*>)", re.IGNORECASE)
_WIKI_BREAK = re.compile(r"</?(?:br|p|div)\b[^<>\n]{0,1000}>", re.IGNORECASE)
_WIKI_TAG = re.compile(
    r"</?(?:ref|references|nowiki|noinclude|onlyinclude|includeonly|gallery|mark|small|big|sub|sup|span|center)\b"
    r"[^<>\n]{0,1000}>",
    re.IGNORECASE,
)
_LAYOUT = (
    r"(?:left|right|center|none|upright(?:=[0-9.]+)?|frame|frameless|border|[0-9]+(?:x[0-9]+)?px|alt=[^|\n]{0,200})"
)
_PICTURE = re.compile(rf"\b(?:thumb|thumbnail)\|(?:{_LAYOUT}\|)*|\b(?:{_LAYOUT}\|){{2,}}", re.IGNORECASE)


def without_gutenberg(text: str) -> str:
    """The text of a book between Project Gutenberg's marks of its start and its end, without the credits."""
    if "***" not in text and "*END*" not in text:
        return text
    if (end := _END.search(text)) is not None:
        text = text[: end.start()]
    if (start := _START.search(text)) is not None:
        text = text[start.end() :]
        credits = _CREDITS.match(text)
        text = text[credits.end() :] if credits else text
    return text


def without_html(text: str) -> str:
    """`text` without HTML tags; tags of blocks and `<br>` become line ends, character references become characters."""
    if "<" in text:
        text = _INLINE_TAG.sub("", _BLOCK_TAG.sub("\n", _without_comments(text)))
    return html.unescape(_LONG_NUMBER.sub("\ufffd", text)) if "&" in text else text


def without_wiki_markup(text: str) -> str:
    """`text` without references, stray tags, and the layout options of pictures (`thumb|left|300px|`)."""
    if "<" in text:
        text = _WIKI_TAG.sub("", _WIKI_BREAK.sub("\n", _REFERENCE.sub("", text)))
    return _PICTURE.sub("", text) if "|" in text else text


def _without_comments(text: str) -> str:
    parts, done = [], 0
    while (begin := text.find("<!--", done)) >= 0 and (end := text.find("-->", begin)) >= 0:
        parts.append(text[done:begin])
        done = end + 3
    return "".join([*parts, text[done:]])
