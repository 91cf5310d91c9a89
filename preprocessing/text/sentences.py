"""Finds the ends of sentences and paragraphs in Chinese, English and mixtures of both."""

import re
import string

import numpy as np
from numpy.typing import NDArray

from reread.preprocessing.text.characters import codes_of

_CHINESE_STOPS = frozenset("。！？；．…")
_FULL_STOPS = frozenset("。！？；")
_COMMAS = frozenset("，、：；,;:")
_QUOTES = frozenset("“‘「『《（")
_CLOSERS = "”’」』）》〉】〕])\"'"
_OPENERS = " “‘「『（《〈【〔\\[(\"'"
# The expression begins with one character class, for which `re` scans fast. Titles and remarks in brackets are skipped.
_BRACKETED = re.compile("《[^《》\n]{0,80}》|（[^（）\n]{0,60}）")
_CANDIDATE = re.compile(
    "[《（。！？；．…!?.](?:"
    "(?<=《)[^《》\n]{0,80}》"
    "|(?<=（)[^（）\n]{0,60}）"
    f"|(?<![《（])([。！？；．…!?.]*)([{re.escape(_CLOSERS)}]*)"
    ")?"
)
_NEXT_WORD = re.compile(f"[{_OPENERS}]*(\\w*)")
_BEFORE_LAST_WORD = re.compile(r".*[\s“‘(\[\"'，。、_—-]", re.DOTALL)
_LONGEST_WORD = 24
_SHORT_WORD = 15
"""Words before a stop that are longer than this are rare, and are handled one by one."""

# Abbreviations before a name or the rest of a phrase, those before a number, and words that may begin a sentence after
# an abbreviation.
_NAME_FOLLOWS = """
    mr mrs ms dr prof rev fr st ste gen col capt cpt cmdr maj lt sgt cpl adm hon gov sen rep pres messrs mme mlle drs
    profs supt det insp vs viz cf e.g i.e eg ie ca approx esq
"""
_NUMBER_FOLLOWS = """
    no nos vol vols p pp fig figs ch chap sec art eq jan feb mar apr jun jul aug sep sept oct nov dec
"""
_STARTERS = """
    A An The This That These Those He She It We They You His Her Its Our Their My Your In On At As By For From To With
    But And Or So If When While After Before Since Although However There Then What Who Why How No Not
"""
_NAMES, _NUMBERED, _FIRST = (frozenset(words.split()) for words in (_NAME_FOLLOWS, _NUMBER_FOLLOWS, _STARTERS))
_ABBREVIATIONS = np.array(
    sorted(int.from_bytes(word.encode(), "big") for word in _NAMES | _NUMBERED if word.isalpha()), np.uint64
)
"""The abbreviations as numbers, with the last letter of a word in the lowest byte."""


# [65536]: the kinds of each character, as bits.
_STOP, _DOT, _OTHER, _OPEN, _CLOSER, _STRAIGHT, _COMMA = (1 << bit for bit in range(7))
_QUOTE, _LINE, _POINT, _ASCII, _LETTER, _BEFORE_WORD, _OPENER = (1 << bit for bit in range(7, 14))
_KINDS = np.zeros(1 << 16, np.uint16)
for _kind, _characters in (
    (_STOP, [*_FULL_STOPS, "．"]),
    (_DOT, "．"),
    (_OTHER, "…!?."),
    (_OPEN, "《（"),
    (_CLOSER, _CLOSERS),
    (_STRAIGHT, "\"'"),
    (_COMMA, _COMMAS),
    (_QUOTE, _QUOTES),
    (_LINE, "\n"),
    (_POINT, ".!?"),
    (_ASCII, "".join(map(chr, range(33, 127)))),
    (_LETTER, string.ascii_letters),
    (_BEFORE_WORD, " \n“‘([\"'，。、_—-"),
    (_OPENER, _OPENERS.replace("\\", "")),
):
    _KINDS[[ord(character) for character in _characters]] |= _kind


def sentence_ends(text: str) -> NDArray[np.int64]:
    """[n]: the exclusive ends of the sentences of a cleaned text, in characters and in increasing order.

    The end of every paragraph, which is a line end or the end of the text, is among them. Closing quotes and brackets
    belong to the sentence that they close, the space between two sentences belongs to the second.
    """
    codes = codes_of(f"\n{text}\n\n")
    kinds = _KINDS.take(codes, mode="clip")
    marks = _marks(text, kinds)
    before, mark, after = kinds[marks - 1], kinds[marks], kinds[marks + 1]
    is_line, is_stop = mark & _LINE != 0, mark & _STOP != 0
    # Nearly every Chinese sentence ends with a single stop, followed by at most one closing mark. This case is decided
    # here, unless the paragraph has other marks. A `．` after ASCII is a numbering: １．甲
    is_closed = is_stop & (after & (_CLOSER | _STRAIGHT) == _CLOSER)
    follower = np.where(is_closed, kinds[marks + 2], after)
    is_single = is_stop & (before & (_QUOTE | _LINE) == 0) & (follower & _COMMA == 0)
    is_single &= (mark & _DOT == 0) | (codes[marks - 1] > 127)
    is_other = (mark & _OPEN != 0) | is_stop & (follower & (_STOP | _OTHER | _CLOSER) != 0)
    marks -= 1
    lines = marks[is_line]
    line_of = np.cumsum(is_line) - is_line
    # A single English stop is decided here, too: before a letter it ends no sentence, and before a blank, perhaps
    # after one closing mark, `_western_ends` decides.
    is_point = (mark & _POINT != 0) & ~_is_digit(codes[marks])
    is_point &= (before & (_ASCII | _STOP | _OTHER | _QUOTE) == _ASCII) | (codes[marks] == ord(" "))
    is_open = (after & (_STOP | _OTHER | _CLOSER) == 0) & (after & (_ASCII | _LINE) != 0)
    closes = is_point & (after & (_STOP | _OTHER | _CLOSER) == _CLOSER)
    behind = marks + 2 + closes
    is_point &= (is_open & ~closes) | (codes[behind] == ord(" ")) | (closes & (kinds[behind] & _LINE != 0))
    is_other |= (mark & _OTHER != 0) & ~is_point
    # Paragraphs with other marks, or with stops of both kinds, are handled one by one
    has_stops, has_points = np.zeros((2, len(lines) + 1), bool)
    has_stops[line_of[is_stop]] = True
    has_points[line_of[is_point]] = True
    is_plain = ~(has_stops & has_points)
    is_plain[line_of[is_other]] = False
    begins, ends = np.append(0, lines + 1), np.append(lines, len(text))
    within: list[int] = []
    for begin, end in zip(begins[~is_plain].tolist(), ends[~is_plain].tolist(), strict=True):
        _find_ends(text, begin, end, within)
    # The ends of all other paragraphs at once
    in_plain = is_plain[line_of]
    is_point &= in_plain & (codes[behind] == ord(" ")) & ~_is_lower(codes[behind + 1])
    western = _western_ends(text, codes, kinds, marks[is_point], behind[is_point] - 1)
    is_end = np.zeros(len(text) + 1, bool)
    is_end[ends[begins < ends]] = True
    is_single &= in_plain
    is_end[marks[is_single] + 1 + is_closed[is_single]] = True
    is_end[within] = is_end[western] = True
    return np.flatnonzero(is_end)


def _marks(text: str, kinds: NDArray[np.uint16]) -> NDArray[np.int64]:
    """[m]: indices into `kinds` [len(text) + 3] of line ends, of stops outside of titles and remarks in brackets, and
    of remarks that may be a sentence.
    """
    marks = np.flatnonzero(kinds & (_STOP | _OTHER | _OPEN | _LINE) != 0)[1:-2]
    is_open = kinds[marks] & _OPEN != 0
    if not is_open.any():
        return marks
    spans, done = [(0, 0)], 0
    for opener in (marks[is_open] - 1).tolist():
        if opener >= done and (match := _BRACKETED.match(text, opener)):
            spans.append(match.span())
            done = match.end()
    bounds = np.array(spans) + 1
    begins, ends = bounds.T
    is_inside = np.searchsorted(bounds.ravel(), marks, "right") % 2 == 1
    may_end = (kinds[ends - 2] & (_STOP | _OTHER) != 0) & (kinds[begins - 1] & (_STOP | _OTHER | _CLOSER | _LINE) != 0)
    return np.sort(np.concatenate((marks[~is_open & ~is_inside], begins[may_end])), kind="stable")  # fast for two runs


def _western_ends(
    text: str,
    codes: NDArray[np.uint32],
    kinds: NDArray[np.uint16],
    points: NDArray[np.int64],
    ends: NDArray[np.int64],
) -> NDArray[np.int64]:
    """The `ends` that are ends of sentences, for single stops at `points` that are closed at `ends` before a blank.

    `codes` and `kinds` begin one character before the text. Before a capital letter, "!", "?", and stops after a blank
    or after a short word of letters that is no abbreviation always end a sentence; `_is_western_end` decides about the
    others.
    """
    if len(points) == 0:
        return ends
    positions = np.maximum(points[:, None] - np.arange(_SHORT_WORD + 1), 0)  # of the characters before, the last first
    letters = kinds[positions] & _LETTER != 0
    length = np.argmin(letters, axis=1)  # of the word; 0 if all are letters
    row = np.arange(len(points))
    is_word = (length > 1) & (kinds[positions[row, length]] & _BEFORE_WORD != 0)
    lower = np.where(np.arange(8) < length[:, None], codes[positions[:, :8]] | 0x20, 0).astype(np.uint8)
    words = lower.view(np.uint64).ravel()
    is_word &= (length > 8) | (_ABBREVIATIONS.take(np.searchsorted(_ABBREVIATIONS, words), mode="clip") != words)
    is_word |= (codes[points] == ord(" ")) | (codes[points + 1] != ord("."))
    next_ = codes[ends + 2 + (kinds[ends + 2] & _OPENER != 0)]
    is_sure = is_word & (next_ >= ord("A")) & (next_ <= ord("Z"))
    unsure = zip(points[~is_sure].tolist(), ends[~is_sure].tolist(), strict=True)
    decided = [end for point, end in unsure if _is_western_end(text, point, point + 1, end, 0)]
    return np.concatenate((ends[is_sure], np.array(decided, np.int64)))


def _is_digit(codes: NDArray[np.uint32]) -> NDArray[np.bool_]:
    return (codes >= ord("0")) & (codes <= ord("9"))


def _is_lower(codes: NDArray[np.uint32]) -> NDArray[np.bool_]:
    return (codes >= ord("a")) & (codes <= ord("z"))


def _find_ends(text: str, first: int, last: int, ends: list[int]) -> None:
    """Append the ends of the sentences of the paragraph text[first:last] to `ends`."""
    quotes = _StraightQuotes(text, first)
    for match in _CANDIDATE.finditer(text, first, last):
        start, end = match.span()
        if end == start + 1 and text[start] in _FULL_STOPS:
            if start > first and text[start - 1] not in _QUOTES and text[end : end + 1] not in _COMMAS:
                ends.append(end)
                first = end
            continue
        if match[1] is None:  # a remark in brackets is a sentence if it begins and ends like one
            is_end = start == first and match[0][0] == "（" and match[0][-2:-1] in _CHINESE_STOPS
        elif start == first or text[start - 1] in _QUOTES:  # the sentence has only begun: “……好
            continue
        else:
            stop = match.end(1)
            if match[2]:
                end = _closed(text, stop, end, quotes)
            is_end = text[end : end + 1] not in _COMMAS and _is_end(text, start, stop, end, first)
        if is_end:
            ends.append(end)
            first = end


class _StraightQuotes:
    """Counts the straight quotes of a paragraph; positions must be queried in increasing order."""

    def __init__(self, text: str, begin: int) -> None:
        self.text, self.done, self.is_open = text, begin, {'"': False, "'": False}

    def is_open_at(self, position: int) -> bool:
        """Whether an odd number of quotes of the same kind precede the quote at `position` in its paragraph."""
        for quote in self.is_open:
            self.is_open[quote] ^= self.text.count(quote, self.done, position) % 2 == 1
        self.done = position
        return self.is_open[self.text[position]]


def _closed(text: str, position: int, end: int, quotes: _StraightQuotes) -> int:
    """The end of the closing marks in text[position:end]; a straight quote may also be an opening one."""
    while position < end:
        if text[position] in "\"'":
            follower = text[position + 1 : position + 2]
            if follower and not follower.isspace() and not quotes.is_open_at(position):
                break
        position += 1
    return position


def _is_end(text: str, start: int, stop: int, end: int, first: int) -> bool:
    """Whether the stops text[start:stop], with closing marks up to `end`, end the sentence that began at `first`."""
    if _CHINESE_STOPS.isdisjoint(text[start:stop]):
        return _is_western_end(text, start, stop, end, first)
    if text[start] == "．":  # a stop in some novels, but also used in numberings: １．甲
        return not text[start - 1].isascii()
    return text[stop - 1] != "…" or not _next_word(text, end)[:1].islower()


def _is_western_end(text: str, start: int, stop: int, end: int, first: int) -> bool:
    is_point = "!" not in text[start:stop] and "?" not in text[start:stop]
    follower = text[end : end + 1]
    if follower and not follower.isspace():  # without a space: Chinese with ASCII stops, or a number or a name
        return not follower.isascii() and not (is_point and text[start - 1].isascii())
    if not "A" <= text[end + 1 : end + 2] <= "Z" and _next_word(text, end)[:1].islower():
        return False
    if not is_point or stop - start > 1:
        return True
    begin = max(first, start - _LONGEST_WORD)
    before = _BEFORE_LAST_WORD.match(text, begin, start)
    token = text[before.end() if before else begin : start]
    if token.lower() in _NAMES or (token.lower() in _NUMBERED and _next_word(text, end)[:1].isdigit()):
        return False
    if token.isdigit() and not text[first : start - len(token)].strip():  # a numbered item
        return False
    is_abbreviation = "." in token or (len(token) == 1 and token.isupper() and token != "I")  # U.S., J. R. R. Tolkien
    return not is_abbreviation or _next_word(text, end) in _FIRST


def _next_word(text: str, position: int) -> str:
    match = _NEXT_WORD.match(text, position)
    return match[1] if match else ""
