"""Word boundaries as jieba 0.42.1 finds them (default dictionary, HMM on), computed by rjieba where both agree.

rjieba is jieba in Rust. Three differences are known, and are corrected here:

- Han characters that jieba does not know (Extension A, U+9FD6 to U+9FFF, compatibility ideographs, the supplementary
  planes): jieba makes each a word, rjieba passes them to its HMM. They are replaced by a full stop for rjieba, which
  both make a word.
- Words of ASCII letters, digits and `+#&._%-`: rjieba's expression has an unescaped dot (`3-5.2` stays whole). Such
  runs are split again by jieba's own expression, `finalseg.re_skip`.
- Near ties in the HMM: rjieba's emission probabilities are rounded to six decimals, which turns "two single characters"
  into "one word" or back for 36 pairs of characters (常在 before a single character). A block that holds such a pair is
  cut by rjieba without its HMM; then jieba's own HMM cuts the runs of single characters.

A tie over three or more characters (过会会会作和) is not corrected; 46 million words of real text have none.
"""

import logging
import re
import string
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property, lru_cache
from hashlib import md5
from importlib.metadata import version
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reread.preprocessing.config import WordSettings
from reread.preprocessing.errors import UserError
from reread.preprocessing.text.characters import codes_of

logger = logging.getLogger("reread")

PIECE_CHARACTERS = 1 << 13
"""The approximate length of the pieces that the engine gets, which bounds the list of words in memory."""

Cut = Callable[[str], list[str]]

_UNKNOWN_HAN = re.compile("[\u3400-\u4dbf\u9fd6-\u9fff\uf900-\ufaff\ud800-\udfff\U00020000-\U0003ffff]")
_JOINED = "\u4e00-\u9fd5a-zA-Z0-9+#&._%\\-"  # `jieba.re_han_default`: only these characters ever share a word
_PIECE_END = re.compile(f"[^{_JOINED}\r]")
_NEVER_JOINED = re.compile(f"[^{_JOINED}]")
_ENTRY = re.compile("(.+?)( [0-9]+)?( [a-z]+)?$")  # `jieba.re_userdict`: word, frequency and tag
_ASCII_RUN = re.compile(r"[a-zA-Z0-9+#&._%\-]+")
_TIE = re.compile(  # pairs for which the six decimals decide; a test derives them again
    "佛执|吊芍|婉[絹绢]|审[怛榫溆玎畬肟鞒]|審[怛榫溆玎畬肟鞒]|常在|应脊|心咸|應脊|摒彭|末置|枇使|知[鴨鸭]|移懂|紕[銖铢]|纰[銖铢]|脯土|賜鼠|赐鼠|鹤榻"
)
_ASCII_WORD = re.compile(r"(AT&T|[cC]\+\+|[cC]#)")  # the dictionary's words of ASCII alone
_ASCII_PART = re.compile(r"([a-zA-Z0-9]+(?:\.\d+)?%?)")  # `jieba.finalseg.re_skip`

_DECIMAL = re.compile(r"\.[0-9]")
_MIXED = re.compile(r"\.[0-9]|[%+#&]")
"""Matches in every run in which a word has both letters or digits and signs."""

# [65537]: the kinds of each character; the last entry is for all characters beyond the Basic Multilingual Plane.
_LETTER, _SIGN, _HAN, _UNKNOWN, _TIE_FIRST, _TIE_SECOND = (1 << bit for bit in range(6))
_SIGNS = np.zeros((1 << 16) + 1, np.uint8)
_SIGNS[[ord(c) for c in string.ascii_letters + string.digits]] = _LETTER
_SIGNS[[ord(c) for c in "+#&._%-"]] = _SIGN
_SIGNS[0x4E00:0x9FD6] = _HAN
_SIGNS[0x3400:0x4DC0] = _SIGNS[0x9FD6:0xA000] = _SIGNS[0xF900:0xFB00] = _SIGNS[0xD800:0xE000] = _UNKNOWN
_SIGNS[1 << 16] = _UNKNOWN
for _pair in _TIE.pattern.split("|"):
    _SIGNS[ord(_pair[0])] |= _TIE_FIRST
    _SIGNS[[ord(c) for c in _pair[1:] if c not in "[]"]] |= _TIE_SECOND

# [65537]: letters of alphabets, and accents that combine with them.
_ALPHABETIC = np.zeros((1 << 16) + 1, np.bool_)
_ALPHABETIC[[code for code in (*range(0x590), *range(0x1E00, 0x2000)) if chr(code).isalpha()]] = True
_ALPHABETIC[0x300:0x370] = True

# Words, separated by blanks, that rjieba with the corrections above must find; checked when it is loaded.
_PROBE = "他 来到 了 网易 杭研 大厦 。 Pro - BTC 约 3 - 5.2% 的 AT&T 用 C++ 11 写 㐀 㐁 鿖 鿗 hizhu . com2"


class WordSegmenter:
    """Finds the word boundaries of a text; `description` identifies the engine and its dictionaries.

    Raises `UserError` for a user dictionary that is missing or not UTF-8, or that is given for rjieba. rjieba is loaded
    for the first text with Han characters, since loading its dictionary takes longer than a small English corpus.
    """

    def __init__(self, settings: WordSettings) -> None:
        dictionaries = settings.user_dictionaries
        if dictionaries and settings.engine == "rjieba":
            raise UserError("words.engine: rjieba takes no user dictionaries; write `auto` or `jieba`")
        self.description = f"jieba {version('jieba')}, HMM"
        if dictionaries:
            contents = [md5(_read_dictionary(path)).hexdigest() for path in dictionaries]
            self.description += f", user dictionaries {' '.join(contents)}"
        self._dictionaries = dictionaries
        is_there = find_spec("rjieba") is not None
        self._prefers_rjieba = settings.engine != "jieba" and not dictionaries and is_there
        if self._prefers_rjieba:
            logger.info("words: rjieba %s (the boundaries of jieba, about 15 times faster)", version("rjieba"))
        elif dictionaries:
            logger.info("words: jieba itself, since only it takes user dictionaries")
        else:
            logger.info("words: jieba itself%s", "" if is_there else ", since rjieba is not installed")
        is_loaded_now = dictionaries or settings.engine != "auto"  # so that a mistake shows before hours of work
        if is_loaded_now and self.engine == "jieba" and settings.engine == "rjieba":
            raise UserError("words.engine: rjieba cannot be used (see the line above); write `auto` or `jieba`")

    @property
    def engine(self) -> str:
        """The engine for Chinese, `jieba` or `rjieba`."""
        return self._engine[0]

    @cached_property
    def _engine(self) -> tuple[str, Cut]:
        if self._prefers_rjieba and (cut := _load_rjieba()) is not None:
            return "rjieba", cut
        return "jieba", _load_jieba(self._dictionaries)

    def starts(self, text: str) -> NDArray[np.bool_]:
        """bool [len(text)]: true at the first character of each word; every character belongs to a word."""
        starts = np.empty(len(text), np.bool_)
        begin = 0
        for piece in _pieces(text):
            starts[begin : begin + len(piece)] = self._starts(piece)
            begin += len(piece)
        return starts

    def _starts(self, text: str) -> NDArray[np.bool_]:
        codes = codes_of(text)
        signs = _SIGNS.take(codes, mode="clip")
        has_han = bool(np.bitwise_or.reduce(signs) & (_HAN | _UNKNOWN))
        if not self._prefers_rjieba or (has_han and self.engine == "jieba"):
            return _cut_starts(self._engine[1], text)
        return _chinese_starts(self._engine[1], text, signs) if has_han else _western_starts(text, codes, signs)

    def joined_starts(self, text: str) -> NDArray[np.bool_]:
        """`starts`, bool [len(text)], in which letters with accents, and Greek and Cyrillic ones, belong to the letters
        beside them: jieba makes each a word (na-ï-ve)."""
        starts = self.starts(text)
        if text.isascii():
            return starts
        codes = codes_of(text)
        letters = _ALPHABETIC.take(codes, mode="clip")
        joined = letters[1:] & letters[:-1] & (np.maximum(codes[1:], codes[:-1]) > 127)
        return np.append(starts[:1], starts[1:] & ~joined)


def _cut_starts(cut: Cut, text: str) -> NDArray[np.bool_]:
    # Words joined by NUL are found in one pass; a NUL in the text becomes \1, which is never joined either.
    words = "\0".join(cut(text.replace("\0", "\1")))
    ends = np.flatnonzero(codes_of(words) == 0)
    starts = np.zeros(len(text), np.bool_)
    starts[:1] = True
    starts[ends - np.arange(len(ends))] = True
    return starts


def _chinese_starts(rjieba_cut: Cut, text: str, signs: NDArray[np.uint8]) -> NDArray[np.bool_]:
    known = _UNKNOWN_HAN.sub("。", text) if (signs & _UNKNOWN).any() else text
    starts = _cut_starts(rjieba_cut, known)
    if ((signs[:-1] & _TIE_FIRST != 0) & (signs[1:] & _TIE_SECOND != 0)).any():
        _correct_ties(starts, known)
    return _with_ascii_words(starts, text, signs, np.flatnonzero(signs & _SIGN != 0).tolist())


def _western_starts(text: str, codes: NDArray[np.uint32], signs: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """`WordSegmenter.starts` of a text without Han characters, for which no dictionary is needed.

    Words are runs of letters and digits, runs of `+#&._%-`, and single other characters.
    """
    starts = signs == 0
    starts[0] = True
    starts[1:] |= signs[1:] != signs[:-1]
    starts[1:] &= (codes[1:] != ord("\n")) | (codes[:-1] != ord("\r"))
    mixed = _MIXED if any(sign in text for sign in "%+#&") else _DECIMAL
    return _with_ascii_words(starts, text, signs, [match.start() for match in mixed.finditer(text)])


def _with_ascii_words(
    starts: NDArray[np.bool_], text: str, signs: NDArray[np.uint8], found: list[int]
) -> NDArray[np.bool_]:
    """`starts`, in which the ASCII runs that contain the characters `found` are cut by jieba's own expression."""
    if not found:
        return starts
    flags = bytearray(starts.tobytes() + b"\1")
    for begin, end in _ascii_runs(signs, found):
        if not flags[begin]:  # the end of a dictionary word that mixes Han and ASCII, such as 卡拉OK
            begin = flags.find(1, begin)  # noqa: PLW2901
        if not flags[end]:  # the beginning of one, such as T恤
            end = flags.rfind(1, 0, end)  # noqa: PLW2901
        if begin < end:
            flags[begin:end] = _ascii_starts(text[begin:end])
    return np.frombuffer(flags, np.bool_)[:-1]


def _ascii_runs(signs: NDArray[np.uint8], found: list[int]) -> Iterable[tuple[int, int]]:
    """(begin, end) of the runs of ASCII letters, digits and signs that contain the characters `found`."""
    bounds = np.concatenate(([-1], np.flatnonzero(signs & (_LETTER | _SIGN) == 0), [len(signs)]))
    after = np.array([*dict.fromkeys(np.searchsorted(bounds, found).tolist())])  # np.unique would import numpy.ma
    return zip((bounds[after - 1] + 1).tolist(), bounds[after].tolist(), strict=True)


def _correct_ties(starts: NDArray[np.bool_], text: str) -> None:
    """Correct `starts` in the blocks that contain a near tie: there jieba's own HMM decides."""
    done = 0
    for tie in _TIE.finditer(text):
        if tie.start() < done:
            continue
        begin = tie.start()
        while begin and not _NEVER_JOINED.match(text, begin - 1):
            begin -= 1
        ends = _NEVER_JOINED.search(text, tie.end())
        done = ends.start() if ends else len(text)
        words = list(_words_of(text[begin:done]))
        starts[begin:done] = False
        starts[begin + np.cumsum([0, *map(len, words[:-1])])] = True


def _words_of(block: str) -> Iterator[str]:
    """The words of a block as `jieba.Tokenizer.__cut_DAG` finds them.

    Runs of single characters are cut by jieba's HMM, unless a run is a word of the dictionary itself.
    """
    import rjieba

    finalseg = _import_jieba().finalseg
    single = ""
    for word in [*rjieba.cut(block, hmm=False), ""]:
        if len(word) == 1 or (word.isascii() and word and not _ASCII_WORD.fullmatch(word)):
            single += word
            continue
        # `cut_all` lists every word of the dictionary and also runs of letters, which the dictionary does not have.
        if len(single) > 1 and (_ASCII_RUN.search(single) or single not in rjieba.cut_all(single)):
            yield from finalseg.cut(single)
        else:
            yield from single
        single = ""
        if word:
            yield word


@lru_cache(maxsize=1 << 16)
def _ascii_starts(run: str) -> bytes:
    parts = [[part] if _ASCII_WORD.match(part) else _ASCII_PART.split(part) for part in _ASCII_WORD.split(run)]
    return b"".join(b"\1" + bytes(len(word) - 1) for word in chain.from_iterable(parts) if word)


def _pieces(text: str) -> Iterator[str]:
    """Pieces of `text`, each cut after a character that jieba never joins to the next, so that no word is cut."""
    begin = 0
    while len(text) - begin > PIECE_CHARACTERS:
        end = _PIECE_END.search(text, begin + PIECE_CHARACTERS)
        if end is None:
            break
        yield text[begin : end.end()]
        begin = end.end()
    if begin < len(text):
        yield text[begin:]


def _load_rjieba() -> Cut | None:
    try:
        import rjieba
    except ImportError as error:
        logger.warning("words: rjieba is not used: %s", error)
        return None
    words = _PROBE.split()
    text = "".join(words)
    found = _chinese_starts(rjieba.cut, text, _SIGNS.take(codes_of(text), mode="clip")).tobytes()
    if found != b"".join(b"\1" + bytes(len(word) - 1) for word in words):
        logger.warning("words: rjieba %s is not used: it splits the test sentence unlike jieba", version("rjieba"))
        return None
    return rjieba.cut


def _load_jieba(dictionaries: list[Path]) -> Cut:
    jieba = _import_jieba()
    jieba.setLogLevel(logging.WARNING)
    tokenizer = jieba.Tokenizer()
    # jieba's own `initialize` would unmarshal /tmp/jieba.cache, which anyone may have written, and is not faster.
    tokenizer.FREQ, tokenizer.total = tokenizer.gen_pfdict(tokenizer.get_dict_file())
    tokenizer.initialized = True
    for path in dictionaries:
        tokenizer.load_userdict(str(path))
    return tokenizer.lcut


def _import_jieba() -> Any:
    """jieba, imported without pkg_resources, which is not needed, takes most of the time and warns to be obsolete."""
    is_new = sys.modules.setdefault("pkg_resources", None) is None  # type: ignore[arg-type]
    try:
        import jieba
    finally:
        if is_new:
            del sys.modules["pkg_resources"]
    return jieba


def _read_dictionary(path: Path) -> bytes:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"words.user_dictionaries: {path}: {error.strerror}", error) from None
    lines = content.split(b"\n")
    for number, line in enumerate(lines, 1):
        try:
            entry = _ENTRY.match(line.strip().decode("utf-8-sig"))
        except UnicodeDecodeError:
            raise UserError(f"{path}: line {number} is not UTF-8; save the user dictionary as UTF-8") from None
        if entry is not None and _NEVER_JOINED.search(entry[1]):
            logger.info(
                "words: %s line %d has no effect: jieba reads %r as the word, and never joins all of its characters "
                "(a line is a word, perhaps its frequency and a tag, with single spaces between them)",
                path,
                number,
                entry[1],
            )
    return content
