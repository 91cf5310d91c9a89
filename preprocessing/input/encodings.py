"""Finding the encoding of Chinese and Western text."""

import codecs
import re
from collections import Counter
from collections.abc import Sequence

_ORDINARY = re.compile(r"[，。、：；！？“”‘’《》〈〉「」『』—…·（）\u3000\s]")
_MOST_INVALID = 0.01
"""Share of the characters that may be damaged: they cost their line or document, not the file."""
_LEAST_ORDINARY, _LEAD = 0.6, 0.05
"""The least share of ordinary characters, and by how much it has to be greater than that of any other encoding."""


def is_plain(data: bytes | bytearray) -> bool:
    """Whether `data` is ASCII, the same in nearly all encodings."""
    return data.isascii() and b"\0" not in data


def encoding_of(sample: bytes | bytearray, candidates: Sequence[str]) -> str | None:
    """The candidate that `sample`, the begin of a text, is written in; None where it is none or not clear.

    UTF-8 is recognised by its form. Of other encodings of several bytes the one is taken in which clearly more of the
    characters are ordinary Chinese; an encoding of one byte, in which anything can be read, only if no other fits and
    nearly all is ASCII or letters.
    """
    shares: dict[str, float] = {}
    for name in candidates:
        counts = Counter(codecs.getincrementaldecoder(name)("replace").decode(sample))
        foreign = {character: count for character, count in counts.items() if not character.isascii()}
        total = sum(foreign.values()) + counts["\0"]
        invalid = foreign.get("\ufffd", 0) + counts["\0"]
        if invalid > _MOST_INVALID * total:
            continue
        if codecs.lookup(name).name == "utf-8":
            return name
        if not _has_one_byte(name):
            shares[name] = sum(count for one, count in foreign.items() if _is_common(one)) / max(1, total)
    fitting = sorted(shares, key=lambda name: -shares[name])
    if fitting and shares[fitting[0]] > _LEAST_ORDINARY:
        others = [shares[name] for name in fitting[1:]]
        return fitting[0] if not others or shares[fitting[0]] > others[0] + _LEAD else None
    return next((name for name in candidates if _has_one_byte(name) and _reads_as_letters(sample, name)), None)


def encoding_that_fits(data: bytes | bytearray) -> str | None:
    """The encoding that a message may suggest for `data`."""
    sample = data[: 1 << 14]
    wide = ("utf-16-le", "utf-16-be") if b"\0" in sample else ()
    return encoding_of(sample, ("utf-8", "gb18030", "big5", *wide, "cp1252"))


def _has_one_byte(name: str) -> bool:
    return all(len(bytes([byte]).decode(name, "replace")) == 1 for byte in (0x81, 0xE9, 0xFF)) and (
        len(b"\xe9\xe9".decode(name, "replace")) == 2  # not one character of two bytes
        and not codecs.lookup(name).name.startswith("utf")
    )


def _reads_as_letters(sample: bytes | bytearray, name: str) -> bool:
    text = sample.decode(name, "replace")
    foreign = [character for character in text if not character.isascii()]
    letters = sum(character.isalpha() or _ORDINARY.match(character) is not None for character in foreign)
    return ("\0" not in text and letters >= 0.9 * len(foreign)) or len(foreign) < 0.15 * len(text)


def _is_common(character: str) -> bool:
    """Whether a character is frequent: both national standards have such characters in their first level."""
    gb, big5 = character.encode("gb2312", "ignore"), character.encode("big5", "ignore")
    first_level = b"\xb0" <= gb[:1] <= b"\xd7" or b"\xa4" <= big5[:1] <= b"\xc6"
    return first_level or _ORDINARY.match(character) is not None
