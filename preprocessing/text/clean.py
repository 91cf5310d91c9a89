"""Normalises text and filters documents.

A cleaned text has one paragraph per line: no blank lines, no space at the ends of a line, no successive spaces, and no
invisible characters. HTML entities are left as they are, unless `clean.html` is set. Cleaning a cleaned text changes
nothing, unless `clean.join_wrapped_lines` is set, which would join its paragraphs as if they were lines.
"""

import re
import sys
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping
from functools import cache
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from reread.preprocessing.config import CleanSettings
from reread.preprocessing.text.characters import codes_of
from reread.preprocessing.text.markup import without_gutenberg, without_html, without_wiki_markup
from reread.preprocessing.text.simplify import simplify

KEPT_PUNCTUATION = "，。！？：；（）～…．"
"""Full-width punctuation that NFKC would turn into ASCII, and the stop `．`, which some novels use for `。`."""
_LINE_ENDS = ("\r\n", "\r", "\v", "\f", "\x85", "\u2028", "\u2029")
_SPACES = "\t\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f\u3000"
BLANKS = "".join(dict.fromkeys(_SPACES + "".join(_LINE_ENDS)))
"""Characters that cleaning turns into a space or a line end."""
_CONTROLS = "0-8 e-1f 7f-84 86-9f"
_FORMAT = (
    "ad-ad 34f-34f 600-605 61c-61c 6dd-6dd 70f-70f 890-891 8e2-8e2 180b-180f 200b-200f 202a-202e 2060-206f fe00-fe0f "
    "feff-feff 110bd-110bd 110cd-110cd 13430-1343f 1bca0-1bca3 1d173-1d17a"
)
_NO_CHARACTERS = "d800-f8ff fdd0-fdef fff0-ffff 1fffe-1ffff 2fffe-2ffff 3fffe-10ffff"  # surrogates, private use, U+FFFD
_DROPPED = [
    (int(first, 16), int(last, 16))
    for first, _, last in (span.partition("-") for span in f"{_CONTROLS} {_FORMAT} {_NO_CHARACTERS}".split())
]
_DROPPED_RUN = re.compile(f"[{''.join(f'{chr(first)}-{chr(last)}' for first, last in _DROPPED)}]+")
_MOST_MARKS = 128
_TOUCHED, _BLANK, _OTHER_BLANK, _FULL_STOP = (np.uint8(1 << bit) for bit in range(4))  # kinds of characters
_POINT = re.compile("．(?<=[0-9A-Za-z]．)(?=[0-9A-Za-z])")
_LETTERS = re.compile(r"[^\W\d_]+")
_HAN = re.compile("[\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]+")
_WRAP = re.compile("(?<!\n)\n(?!\n)")
_CHINESE = "\u3000-\u303f\u3400-\u9fff\uf900-\ufaff\uff00-\uff60\U00020000-\U0003ffff"
_SHARED = "“”‘’…—"  # used in Chinese and in English: they count as Chinese beside a Chinese character
_WRAP_IN_CHINESE = re.compile(f"(?<=[{_CHINESE}])\n(?=[{_CHINESE}{_SHARED}])|(?<=[{_SHARED}])\n(?=[{_CHINESE}])")


class Cleaner:
    """Cleans documents according to the settings, and counts the changes by option.

    `marks` are the punctuation marks that `clean.map_punctuation` replaces, with their replacements.
    """

    def __init__(self, settings: CleanSettings, marks: Mapping[str, str] = {}) -> None:
        self.settings = settings
        options: dict[str, Callable[[str], str]] = {
            "gutenberg": without_gutenberg,
            "html": without_html,
            "wiki_remains": without_wiki_markup,
        }
        self._options = [(name, change) for name, change in options.items() if getattr(settings, name)]
        self._marks = str.maketrans(dict(marks)) if settings.map_punctuation else {}
        self._mark = re.compile(f"[{''.join(map(re.escape, marks))}]") if self._marks else None
        self.changed: dict[str, Counter[str]] = {}
        """For each option the `documents` that it changed, and the `characters` that it removed or replaced."""

    def clean(self, text: str) -> str:
        """The cleaned text; empty if no visible character is left. With `clean.as_is` the text itself."""
        if self.settings.as_is:
            return text
        for name, change in self._options:
            before, text = len(text), change(text)
            self._count(name, before - len(text))
        text = self._in_normal_form(text)
        if self._mark is not None and (found := len(self._mark.findall(text))):
            self._count("map_punctuation", found)
            text = text.translate(self._marks)
        return text

    def _count(self, option: str, characters: int) -> None:
        if characters:
            self.changed.setdefault(option, Counter()).update(documents=1, characters=characters)

    def _in_normal_form(self, text: str) -> str:
        settings = self.settings
        kinds = _kinds_of(text, settings.nfkc)
        if _is_normal(kinds) and not (settings.simplify or settings.join_wrapped_lines):
            return text
        if (kinds & _OTHER_BLANK).any():
            for mark in _LINE_ENDS:
                text = text.replace(mark, "\n")
            for space in _SPACES:
                text = text.replace(space, " ")
            kinds = _kinds_of(text, settings.nfkc)
        text = _without_unwanted(text, kinds, settings.nfkc)
        if settings.nfkc and "．" in text:
            text = _POINT.sub(".", text)  # ３．５ is a number
        if settings.simplify:
            text = simplify(text)
        text = re.sub("  +", " ", text).replace(" \n", "\n").replace("\n ", "\n")
        if settings.join_wrapped_lines:
            text = _WRAP.sub(" ", _WRAP_IN_CHINESE.sub("", text))
        return re.sub("\n\n+", "\n", text).strip(" \n")

    def reason_to_drop(self, text: str) -> str | None:
        """The name, in the report, of the filter that drops a cleaned text; None if none does."""
        settings = self.settings
        if not text:
            return "empty"
        if len(text) < settings.minimum_characters:
            return "too short"
        if settings.maximum_characters is not None and len(text) > settings.maximum_characters:
            return "too long"
        if _too_few(_LETTERS, text, settings.minimum_letter_share):
            return "few letters"
        if _too_few(_HAN, text, settings.minimum_han_share):
            return "few Han characters"
        return None


def _too_few(pattern: re.Pattern[str], text: str, share: float) -> bool:
    """Whether the characters that match are less than `share` of all visible characters."""
    if not share:
        return False
    visible = len(text) - text.count(" ") - text.count("\n")
    return len("".join(pattern.findall(text))) < share * visible


def _kinds_of(text: str, nfkc: bool) -> NDArray[np.uint8]:
    """[len(text)]: the kind of each character, as `_kinds` has it."""
    return _kinds(nfkc).take(codes_of(text), mode="clip")


def _is_normal(kinds: NDArray[np.uint8]) -> bool:
    """Whether a text needs no change: no character to replace, and no blank at an end or beside another blank."""
    is_blank = kinds == _BLANK
    return not (
        (kinds & ~_BLANK).any() or is_blank[:1].any() or is_blank[-1:].any() or (is_blank[1:] & is_blank[:-1]).any()
    )


def _without_unwanted(text: str, kinds: NDArray[np.uint8], nfkc: bool) -> str:
    """`text` without invisible characters, and in NFKC except for `KEPT_PUNCTUATION`."""
    found = np.flatnonzero(kinds & _TOUCHED != 0)
    if not len(found):
        return text
    gaps = np.flatnonzero(np.diff(found) > 1)
    starts = found[np.concatenate(([0], gaps + 1))].tolist()
    ends = (found[np.concatenate((gaps, [-1]))] + 1).tolist()
    parts, done = [""], 0
    for start, end in zip(starts, ends, strict=True):
        # The character before a run may compose with the run; the one after it cannot.
        begin = start - (start > done and text[start - 1] not in KEPT_PUNCTUATION)
        run = _DROPPED_RUN.sub("", text[begin:end])
        parts += (text[done:begin], _normalised(run) if nfkc else run)
        done = end
    return "".join([*parts, text[done:]])


def _normalised(run: str) -> str:
    if len(run) <= _MOST_MARKS:
        return unicodedata.normalize("NFKC", run)
    # Sorting the combining marks of a character takes time quadratic in their number, and some decompose into two.
    return _marks().sub(r"\1", unicodedata.normalize("NFKC", _marks().sub(r"\1", run)))


@cache
def _marks() -> re.Pattern[str]:
    """Matches more than `_MOST_MARKS` successive combining marks; the first `_MOST_MARKS` are group 1."""
    combining = [
        character
        for character in map(chr, range(0x300, 0x1F000))
        if all(map(unicodedata.combining, unicodedata.normalize("NFKD", character)))
    ]
    marks = f"[{''.join(combining)}]"
    return re.compile(f"(?<!{marks})({marks}{{{_MOST_MARKS}}}){marks}+")


@cache
def _kinds(nfkc: bool) -> NDArray[np.uint8]:
    """[code points]: the kind of each character: whether cleaning may change it, and whether it is a blank."""
    kinds = _touched(nfkc) * _TOUCHED
    kinds[list(map(ord, " \n"))] = _BLANK
    kinds[[ord(blank) for blank in BLANKS if blank != "\n"]] |= _OTHER_BLANK
    kinds[ord("．")] |= _FULL_STOP
    return kinds


def _touched(nfkc: bool) -> NDArray[np.bool_]:
    """[code points]: the characters that are dropped, or that NFKC changes, reorders or composes with the one before.

    Runs of the latter can be normalised separately (UAX #15, section 9: characters whose quick check is not Yes).
    """
    touched = np.zeros(sys.maxunicode + 1, bool)
    if nfkc:
        # Han and Hangul syllables never change, and nothing does from plane 3 on.
        scanned = (range(0x80, 0x3400), range(0xA000, 0xAC00), range(0xD7B0, 0x20000), range(0x2F800, 0x2FA20))
        characters = list(map(chr, chain.from_iterable(scanned)))
        found = [c for c in characters if unicodedata.combining(c) or not unicodedata.is_normalized("NFKC", c)]
        touched[list(map(ord, found))] = True
        for parts in map(str.split, filter(None, map(unicodedata.decomposition, characters))):
            if len(parts) == 2 and parts[0][0] != "<":
                touched[int(parts[1], 16)] = True
        touched[0x1161:0x1176] = touched[0x11A8:0x11C3] = True  # Hangul vowels and finals
        touched[[ord(character) for character in KEPT_PUNCTUATION]] = False
    for first, last in _DROPPED:
        touched[first : last + 1] = True
    return touched
