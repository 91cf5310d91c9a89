"""Normalising text and filtering documents.

A cleaned text has one paragraph a line: no blank lines, no space at the ends of a line, no two spaces together, no
invisible characters. HTML entities are left as they are. Cleaning a cleaned text changes nothing.
"""

import re
import unicodedata
from functools import cache

from preprocessing.config import CleanSettings
from preprocessing.simplify import simplify

_LINE_ENDS = re.compile("\r\n?|[\v\f\x85\u2028\u2029]")
_DROPPED = re.compile(
    "["
    "\0-\x08\x0e-\x1f\x7f-\x84\x86-\x9f"  # controls
    "\xad\u034f\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f"
    "\ufe00-\ufe0f\ufeff\ufff0-\ufffb\U000e0000-\U000e0fff"  # format characters and variation selectors
    "\ud800-\udfff\ue000-\uf8ff\U000f0000-\U0010ffff"  # surrogates, private use
    "\ufffc-\uffff\ufdd0-\ufdef]+"  # replacement, noncharacters
)
_SPACES = re.compile("[ \t\xa0\u1680\u2000-\u200a\u202f\u205f\u3000]{2,}|[\t\xa0\u1680\u2000-\u200a\u202f\u205f\u3000]")
_BREAKS = re.compile(" ?\n[ \n]*")
KEPT_PUNCTUATION = "，。！？：；（）～…．"
"""Full-width punctuation that NFKC would make ASCII (the stop `．` too, which some novels use for `。`)."""
_POINT = re.compile("(?<=[0-9A-Za-z])．(?=[0-9A-Za-z])")  # ３．５ is a number
_LETTERS = re.compile(r"[^\W\d_]+")
_HAN = re.compile("[\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]+")


class Cleaner:
    def __init__(self, settings: CleanSettings) -> None:
        self.settings = settings

    def clean(self, text: str) -> str:
        """Normalised text; empty where nothing visible is left."""
        text = _LINE_ENDS.sub("\n", text)
        text = _DROPPED.sub("", text)
        if self.settings.nfkc and not text.isascii():
            text = _POINT.sub(".", _nfkc(text))
        text = _SPACES.sub(" ", text)
        text = _BREAKS.sub("\n", text).strip(" \n")
        return simplify(text) if self.settings.simplify else text

    def reason_to_drop(self, text: str) -> str | None:
        """The filter that a cleaned text fails, or None."""
        settings = self.settings
        if not text:
            return "empty"
        if len(text) < settings.minimum_characters:
            return "too short"
        if settings.maximum_characters is not None and len(text) > settings.maximum_characters:
            return "too long"
        visible = len(text) - text.count(" ") - text.count("\n")
        if _count(_LETTERS, text, settings.minimum_letter_share) < settings.minimum_letter_share * visible:
            return "few letters"
        if _count(_HAN, text, settings.minimum_han_share) < settings.minimum_han_share * visible:
            return "few Han characters"
        return None


def _count(pattern: re.Pattern[str], text: str, share: float) -> int:
    return len("".join(pattern.findall(text))) if share else 0


def _nfkc(text: str) -> str:
    """NFKC of what lies between `KEPT_PUNCTUATION`."""
    parts, done = [], 0
    for match in _changeable().finditer(text):
        start = match.start()
        # The character before may compose with the run; whatever comes after it can not.
        if start > done and text[start - 1] not in KEPT_PUNCTUATION:
            start -= 1
        parts += (text[done:start], unicodedata.normalize("NFKC", text[start : match.end()]))
        done = match.end()
    return "".join([*parts, text[done:]]) if parts else text


@cache
def _changeable() -> re.Pattern[str]:
    """Runs of characters that NFKC changes, reorders or composes with the one before (UAX #15, quick check not Yes)."""
    # Han and Hangul syllables never change; beyond the BMP one coarse range is faster than many exact ones.
    scanned = [*range(0x80, 0x3400), *range(0xA000, 0xAC00), *range(0xD7B0, 0xD800), *range(0xF900, 0x10000)]
    changed, seconds = set(), set()
    for code in (*scanned, *range(0x10000, 0x20000)):
        character = chr(code)
        if code < 0x10000 and (unicodedata.combining(character) or not unicodedata.is_normalized("NFKC", character)):
            changed.add(code)
        parts = unicodedata.decomposition(character).split()
        if len(parts) == 2 and parts[0][0] != "<":
            seconds.add(int(parts[1], 16))
    jamo = {*range(0x1161, 0x1176), *range(0x11A8, 0x11C3)}
    codes = sorted((changed | seconds | jamo) - set(map(ord, KEPT_PUNCTUATION)))
    members = "".join(re.escape(chr(code)) for code in codes if code < 0x10000)
    return re.compile(f"[{members}\U00010000-\U0001ffff\U0002f800-\U0002fa1f]+")
