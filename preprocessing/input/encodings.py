"""Guesses the encoding of Chinese and Western text."""

import codecs
import re
from collections import Counter
from collections.abc import Sequence

_ORDINARY = re.compile(r"[，。、：；！？“”‘’《》〈〉「」『』—…·（）\u3000\s]")
_FREQUENT = frozenset(
    "的一是不了在人有我他这个们中来上大为和国地到以说时要就出会可也你对生能而子那得于着下自之年过发后作里用道行所然家种事成方多经么"
    "去法学如都同现当没动面起看定天分还进好小部其些主样理心她本前开但因只从想实日军者意无力它与长把机十民第公此已工使情明性知全三"
    "又关点正业外将两高间由问很最重并物手应战向头文体政美相见被利什二等产或新己制身果加西月话合回特代内信表化老给世位次度门任常先"
    "海通教儿原东声提立及比员解水名真论处走义各入几口认条平系气题活别打女变四神总何数安少报才结反受目太量再感务做接必場件山王五非"
    "這個們來國說時會對於著後裡麼學現當動還進樣開從實軍無與長機業將兩間問並應戰頭體見產話門兒東聲員論處義幾條係氣題別變總數報結"
    "過發為種經沒點關曰乃矣焉乎吾汝爾遂既皆亦若故未死書馬官夫今復元百千九六八七君父母百姓縣府"
)
"""The most frequent characters of Chinese prose of any time, in simplified and traditional form."""
_FEWEST, _LEAST_FREQUENT = 100, 0.25
"""In a text of at least 100 Han characters, this share must be frequent. Korean or Japanese, decoded as Chinese, has
0.15."""
_MOST_INVALID = 0.01
"""The share of characters that may be damaged; they make their line or document bad input, not the whole file."""
_LEAST_ORDINARY, _LEAD = 0.6, 0.05
"""The least share of ordinary characters, and how much it must exceed the share with any other encoding."""
SAMPLE = 1 << 14
"""The bytes of a file from which an encoding is suggested."""


def is_plain(data: bytes | bytearray) -> bool:
    """Whether `data` is ASCII, which is the same in nearly all encodings."""
    return data.isascii() and b"\0" not in data


def encoding_of(sample: bytes | bytearray, candidates: Sequence[str]) -> str | None:
    """The encoding in which `sample`, the beginning of a text, is written; None if no candidate clearly fits.

    UTF-8 is recognised by its structure. Another multi-byte encoding is chosen if clearly more of the characters are
    ordinary Chinese than with any other candidate. A single-byte encoding, with which any bytes can be decoded, is
    chosen only if no other one fits and nearly all characters are ASCII or letters.
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
        if not _has_one_byte(name) and _reads_as_chinese(foreign):
            shares[name] = sum(count for one, count in foreign.items() if _is_common(one)) / max(1, total)
    fitting = sorted(shares, key=lambda name: -shares[name])
    if fitting and shares[fitting[0]] > _LEAST_ORDINARY:
        others = [shares[name] for name in fitting[1:]]
        return fitting[0] if not others or shares[fitting[0]] > others[0] + _LEAD else None
    return next((name for name in candidates if _has_one_byte(name) and _reads_as_letters(sample, name)), None)


def encoding_that_fits(data: bytes | bytearray) -> str | None:
    """The encoding that a message may suggest for `data`."""
    sample = data[:SAMPLE]
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


def _reads_as_chinese(counts: dict[str, int]) -> bool:
    han = sum(count for one, count in counts.items() if "\u4e00" <= one <= "\u9fff")
    frequent = sum(counts.get(one, 0) for one in _FREQUENT)
    return han < _FEWEST or frequent > _LEAST_FREQUENT * han


def _is_common(character: str) -> bool:
    """Whether a character is ordinary: in the first level of GB 2312 or of Big5, or Chinese punctuation."""
    gb, big5 = character.encode("gb2312", "ignore"), character.encode("big5", "ignore")
    first_level = b"\xb0" <= gb[:1] <= b"\xd7" or b"\xa4\x40" <= big5 <= b"\xc6\x7e"
    return first_level or _ORDINARY.match(character) is not None
