"""Converts wikitext to plain text.

This module knows the structure of wikitext (https://www.mediawiki.org/wiki/Help:Formatting), but not its templates:
templates that contain running text are listed below, all others are removed. Each rule is applied in one pass, so the
time is linear. Each expression begins with a rare character, to which `re` skips fast; blanks before a match are found
afterwards.
"""

import html
import re
from collections.abc import Iterable, Iterator

_FILE_NAMES = (
    "file image media category 文件 檔案 档案 圖像 图像 圖片 图片 媒體 媒体 分類 分类 ファイル 画像 メディア カテゴリ"
)
FILE_NAMESPACES = frozenset(_FILE_NAMES.split())
"""The names of the file and category namespaces in English, Chinese and Japanese wikis."""

_COMMENT = re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)
_DROPPED_TAGS = (
    "ref|references|math|chem|gallery|timeline|imagemap|score|syntaxhighlight|source|hiero|graph|templatestyles|mapframe|"
    "maplink|categorytree|inputbox|indicator|style|script"
)
# An unclosed tag ends before the next tag of the same name, so that the text between them is kept.
_EXTENSION = re.compile(rf"<({_DROPPED_TAGS})\b[^<>]*?(?:/>|>[^<]*(?:<(?!/?\1\b)[^<]*)*</\1\s*>)", re.IGNORECASE)
_NOWIKI = re.compile(r"<nowiki>([^<]*)</nowiki>", re.IGNORECASE)
_BREAK = re.compile(r"</?(?:br|p|div|blockquote|li|ul|ol|dl|dt|dd|tr|table|center|poem|h\d)\b[^<>]*>", re.IGNORECASE)
_TAG = re.compile(r"</?[a-zA-Z][^<>]*>")
_VARIANT = re.compile(r"-\{([^{}]*)\}-")
_SIMPLIFIED = re.compile(r"(?:^|;)\s*zh-(?:hans|cn)\s*:\s*([^;]*)")
_ANY_VARIANT = re.compile(r"(?:^|;)\s*zh(?:-\w+)?\s*:\s*([^;]*)")
_TEMPLATE = re.compile(r"\{\{([^{}|]+)\|([^{}]*)\}\}")
_BRACES = re.compile(r"\{[{|]|\}\}|\|\}(?!\})")
_LINK = re.compile(r"\[\[([^\[\]]*(?:(?:\[(?!\[)[^\[\]]*\]|\](?!\]))[^\[\]]*)*)\]\]")
_URL = re.compile(r"\[(?:https?:|ftps?:|mailto:)?//[^\s\[\]]+(?:\s([^\[\]]*))?\]", re.IGNORECASE)
_INTERLANGUAGE = re.compile(r"[a-z]{2,3}(?:-[a-z-]+)?|simple|wikt|commons|species")
_QUOTES = re.compile(r"''+")
_MAGIC = re.compile(r"__[A-Z]+__|__[^\W\d_a-zA-Z]+__")
_MARKUP_LINE = re.compile(r"^(?:[ \t]*(?:\{\||\|\}|\||!(?=[^\n]*(?:\|\||!!)))[^\n]*|-{4,})$", re.MULTILINE)
_BULLET = re.compile(r"^[ \t]*[*#:;]+[ \t]*", re.MULTILINE)
_EMPTY_BRACKETS = re.compile(r"\([\s,;:，；：、/]*\)|（[\s,;:，；：、/]*）")
_BRACKET_START = re.compile(r"([(（])[\s,;，；、]+")
_COMMA_AFTER_BLANK = re.compile(r"[,;，。；、](?<=[ \t].)")  # where a template stood before a comma
_BAR_OR_BRACKET = re.compile(r"[|\[\]]")
_LONG_NUMBER = re.compile(r"&#[0-9]{100,};?")
_BACK_MATTER_TITLES = """
references|notes|footnotes|citations|sources|bibliography|further reading|external links|see also|notes and references
参考文献|參考文獻|参考资料|參考資料|参考|參考|参见|參見|参看|參看|相关条目|相關條目|外部链接|外部連結|外部連接|外部链結|延伸阅读
延伸閱讀|扩展阅读|注释|註釋|注釋|注解|註解|脚注|腳註|备注|備註|来源|來源|引用
"""
_BACK_MATTER = frozenset(_BACK_MATTER_TITLES.strip().replace("\n", "|").split("|"))
# Templates that show a positional parameter in running text: the first, the second, or the third one.
_SHOWN_FIRST = (
    "nowrap|small|big|nobold|abbr|le|ill|illm|ilh|internal link helper|ruby|quote|cquote|"
    "link-en|link-de|link-fr|link-ja|lang-de|lang-en|lang-fr|lang-la|lang-ja|lang-ru|lang-es|lang-it|lang-el|lang-zh"
)
_SHOWN_SECOND = "lang|transl|color|font color|fontcolor"
_SHOWN = {**dict.fromkeys(_SHOWN_FIRST.split("|"), 0), **dict.fromkeys(_SHOWN_SECOND.split("|"), 1), "tsl": 2}


def plain_text(wikitext: str, dropped_namespaces: frozenset[str] = FILE_NAMESPACES) -> str:
    """Running text, headings and list items, with one paragraph per line.

    Templates, tables, references, files, categories and the back matter (references, external links) are removed. Links
    are replaced by their labels, and `-{zh-hans:..;zh-hant:..}-` by the simplified form.
    """
    # Comments, and elements without text; the literal text of <nowiki> is escaped
    text = _COMMENT.sub("", wikitext)
    text = _EXTENSION.sub("", text)
    text = _NOWIKI.sub(lambda match: re.sub(r"[\[\]{}|'=*#:;]", lambda c: f"&#{ord(c[0])};", match[1]), text)
    # Variants, templates and tables, links from the inside out
    text = _VARIANT.sub(_chosen_variant, text)
    text = _TEMPLATE.sub(_shown_parameter, text)
    text = _without_braces(text)
    for _ in range(6):  # captions and labels may contain links
        text, urls = _URL.subn(lambda match: (match[1] or "").lstrip(), text)
        text, links = _LINK.subn(lambda match: _label(match[1], dropped_namespaces), text)
        if not urls and not links:
            break
    # Tags, marks at the beginnings of lines, and the gaps that removed templates leave
    text = _BREAK.sub("\n", text)
    text = _TAG.sub("", text)
    text = _MAGIC.sub("", _QUOTES.sub("", text))
    text = _MARKUP_LINE.sub("", text)
    text = _BULLET.sub("", text)
    text = _BRACKET_START.sub(r"\1", _without_empty_brackets(text))
    text = _without_blanks_before_commas(text)
    return unescaped("\n".join(_sections(text)))


def unescaped(text: str) -> str:
    """`text` with HTML's character references replaced by the characters."""
    return html.unescape(_LONG_NUMBER.sub("\ufffd", text))  # Python cannot parse numbers of thousands of digits


def _chosen_variant(match: re.Match[str]) -> str:
    flags, bar, body = match[1].rpartition("|")
    if bar and set(flags.strip()) & set("THDN-"):  # a title, a hidden rule, ...: nothing shown here
        return ""
    chosen = _SIMPLIFIED.search(body) or _ANY_VARIANT.search(body)
    return chosen[1].strip() if chosen else body


def _shown_parameter(match: re.Match[str]) -> str:
    name = match[1].strip().lower().replace("_", " ")
    values = [value.strip() for value in _parameters(match[2]) if "=" not in value]
    if name in ("convert", "cvt"):  # 5|km|mi, 5|-|9|km|mi
        return " ".join(values[: 4 if values[1:2] in (["-"], ["–"], ["to"], ["and"], ["by"]) else 2])
    if name not in _SHOWN:
        return match[0]
    return values[_SHOWN[name]] if _SHOWN[name] < len(values) else ""


def _parameters(body: str) -> list[str]:
    """`body` split at the bars outside of links; a bar is inside a link if the next bracket after it is `]]`."""
    parts, end, is_inside = [], len(body), False
    for match in reversed(list(_BAR_OR_BRACKET.finditer(body))):
        if match[0] != "|":
            is_inside = body.startswith("]]", match.start())
        elif not is_inside:
            parts.append(body[match.end() : end])
            end = match.start()
    return [body[:end], *reversed(parts)]


def _without_braces(text: str) -> str:
    """Cut every closed {{...}} and {|...|}; an opening mark that is never closed is left as text."""
    spans: list[tuple[int, int]] = []
    templates: list[int] = []  # the beginnings of open templates
    tables: list[int] = []
    for match in _BRACES.finditer(text):
        token, begin = match[0], match.start()
        own, other = (templates, tables) if token in ("{{", "}}") else (tables, templates)
        if own is tables:  # a mark of a table stands at the beginning of a line
            begin = _skip_back(text, begin, " \t:*#" if token == "{|" else " \t")
            if begin and text[begin - 1] != "\n":
                continue
        if token in ("{{", "{|"):
            own.append(begin)
        elif own:
            start = own.pop()
            while other and other[-1] > start:
                other.pop()
            while spans and spans[-1][0] > start:
                spans.pop()
            spans.append((start, match.end()))
    return _cut(text, spans)


def _without_empty_brackets(text: str) -> str:
    """Cut empty brackets, each with a blank before it if there is one."""
    spans = (match.span() for match in _EMPTY_BRACKETS.finditer(text))
    return _cut(text, ((begin - (text[begin - 1 : begin] in (" ", "\t")), end) for begin, end in spans))


def _without_blanks_before_commas(text: str) -> str:
    commas = (match.start() for match in _COMMA_AFTER_BLANK.finditer(text))
    return _cut(text, ((_skip_back(text, comma, " \t"), comma) for comma in commas))


def _skip_back(text: str, end: int, characters: str) -> int:
    """The begin of the run of `characters` that ends at `end`."""
    while end and text[end - 1] in characters:
        end -= 1
    return end


def _cut(text: str, spans: Iterable[tuple[int, int]]) -> str:
    """`text` without `spans`, which are in increasing order."""
    kept, position = [], 0
    for begin, end in spans:
        kept.append(text[position:begin])
        position = end
    return "".join([*kept, text[position:]])


def _label(link: str, dropped_namespaces: frozenset[str]) -> str:
    target, bar, label = link.partition("|")
    prefix, colon, _ = target.partition(":")
    prefix = prefix.strip().lower()
    if colon and (prefix in dropped_namespaces or (not bar and _INTERLANGUAGE.fullmatch(prefix))):
        return ""
    return label if label else target.lstrip(" :").replace("_", " ")


def _sections(text: str) -> Iterator[str]:
    """The non-empty lines, without the back matter and without headings that no text follows."""
    pending: list[tuple[int, str]] = []
    skipped_level = 7
    for line in text.split("\n"):
        heading = _heading(line)
        if heading:
            level, name = heading
            if level <= skipped_level:
                skipped_level = level if name.lower() in _BACK_MATTER else 7
            pending = [(above, title) for above, title in pending if above < level] + [(level, name)]
        elif skipped_level == 7 and line.strip():
            yield from (title for _, title in pending)
            pending = []
            yield line.strip()


def _heading(line: str) -> tuple[int, str] | None:
    """Level and name of `== name ==`; extra signs on one side belong to the name."""
    line = line.strip(" \t")
    if not line.startswith("="):
        return None
    levels = (level for level in range(min(6, len(line) // 2), 0, -1) if line.startswith("=" * level))
    level = next((level for level in levels if line.endswith("=" * level)), None)
    return (level, line[level:-level].strip()) if level else None
