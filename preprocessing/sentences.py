"""Where sentences and paragraphs end, for Chinese, English and their mixture."""

import re

import numpy as np
from numpy.typing import NDArray

_CHINESE_STOPS = frozenset("。！？；．…")
_CLOSERS = "”’」』）》〉】〕\\])\"'"
_OPENERS = " “‘「『（《〈【〔\\[(\"'"
# One character class comes first, so the scan runs at its speed. Bracketed titles and asides are passed over whole.
_CANDIDATE = re.compile(
    "[《（。！？；．…!?.](?:"
    "(?<=《)[^《》\n]{0,80}》"
    "|(?<=（)[^（）\n]{0,60}）"
    f"|(?<![《（])([。！？；．…!?.]*)([{_CLOSERS}]*)"
    ")?"
)
_NEXT_WORD = re.compile(f"[{_OPENERS}]*(\\w*)")
_LAST_WORD = re.compile(r"[^\s“‘(\[\"'，。、—-]*\Z")
_LONGEST_WORD = 24

_NAME_FOLLOWS = frozenset(
    "mr mrs ms dr prof rev fr st ste gen col capt cpt cmdr maj lt sgt cpl adm hon gov sen rep pres messrs mme mlle vs viz cf "
    "e.g i.e eg ie ca approx esq profs drs supt det insp".split()
)
_NUMBER_FOLLOWS = frozenset(
    "no nos vol vols p pp fig figs ch chap sec art eq jan feb mar apr jun jul aug sep sept oct nov dec".split()
)
_STARTERS = frozenset(
    "A An The This That These Those He She It We They You His Her Its Our Their My Your In On At As By For From To With But "
    "And Or So If When While After Before Since Although However There Then What Who Why How No Not".split()
)


def paragraph_ends(text: str) -> NDArray[np.int64]:
    """Exclusive character ends [n] of the paragraphs of a cleaned text, increasing; the last is its length."""
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    ends = np.flatnonzero(codes == ord("\n")).astype(np.int64)
    return np.append(ends, len(text)) if text else ends


def sentence_ends(text: str) -> NDArray[np.int64]:
    """Exclusive character ends [n] of the sentences of a cleaned text, increasing; every paragraph end is among them.

    Closing quotes and brackets belong to the sentence they close, the space between two sentences to the second.
    """
    ends = [0]
    for match in _CANDIDATE.finditer(text):
        start, end = match.span()
        if match[1] is None:
            # An aside that is a sentence of its own ends where it closes.
            if start == ends[-1] and text[start] == "（" and text[end - 2] in _CHINESE_STOPS:
                ends.append(end)
            continue
        stop = match.end(1)
        if match[2]:
            end = _closed(text, stop, end)
        follower = text[end : end + 1]
        if follower and follower in "，、：；,;:":
            continue
        if _CHINESE_STOPS.isdisjoint(text[start:stop]):
            is_end = _western_end(text, start, stop, end, ends[-1])
        elif text[start] == "．":  # a stop in some novels, and a numbering: １．甲
            is_end = not text[start - 1 : start].isascii()
        else:
            is_end = text[stop - 1] != "…" or not _next_word(text, end)[:1].islower()
        if is_end:
            ends.append(end)
    return np.union1d(np.array(ends[1:], np.int64), paragraph_ends(text))


def _closed(text: str, position: int, end: int) -> int:
    """The end of the closing marks in text[position:end]: a straight quote may as well open what follows."""
    while position < end:
        if text[position] in "\"'":
            follower = text[position + 1 : position + 2]
            paragraph = text.rfind("\n", 0, position) + 1
            closes = not follower or follower.isspace() or text.count(text[position], paragraph, position) % 2
            if not closes:
                break
        position += 1
    return position


def _western_end(text: str, start: int, stop: int, end: int, last: int) -> bool:
    """Whether the ASCII stops text[start:stop], closed at `end`, end the sentence that began at `last`."""
    is_point = not ("!" in text[start:stop] or "?" in text[start:stop])
    follower = text[end : end + 1]
    if follower and not follower.isspace():  # no space between sentences: Chinese with ASCII stops, or a number, a name
        return not follower.isascii() and not (is_point and text[start - 1 : start].isascii())
    word = _next_word(text, end)
    if word[:1].islower():
        return False
    if not is_point or stop - start > 1:
        return True
    before = _LAST_WORD.search(text, max(last, start - _LONGEST_WORD), start)
    token = before[0] if before else ""
    if token.lower() in _NAME_FOLLOWS:
        return False
    if word[:1].isdigit() and token.lower() in _NUMBER_FOLLOWS:
        return False
    if token.isdigit() and not text[last : start - len(token)].strip():  # a numbered item
        return False
    if "." in token or (len(token) == 1 and token.isupper() and token != "I"):  # U.S., J. R. R. Tolkien
        return word in _STARTERS
    return True


def _next_word(text: str, position: int) -> str:
    match = _NEXT_WORD.match(text, position)
    return match[1] if match else ""
