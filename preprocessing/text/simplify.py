"""Traditional to simplified Chinese: OpenCC's `t2s`, by a character table alone where no phrase occurs.

The conversion is idempotent, which OpenCC's own is not, for two reasons. A phrase that keeps a traditional character
(乾清宮 -> 乾清宫) is not a phrase when converted again (干清宫): here its simplified form is a phrase, too. And 薴 is
simplified to 苧, which is simplified to 苎: here in one step.
"""

import re
from functools import cache
from typing import NamedTuple


class _Tables(NamedTuple):
    changing: re.Pattern[str]
    characters: dict[int, str]
    starts: re.Pattern[str]
    phrases: dict[str, str]
    first: dict[str, tuple[str, ...]]
    """The phrases by their first character."""
    by_length: list[re.Pattern[str]]
    """One pattern for the phrases of each length, the greatest length first."""
    separators: re.Pattern[str]


def simplify(text: str) -> str:
    """`text` in simplified characters: `opencc.OpenCC("t2s").convert(text)`, made idempotent."""
    tables = _tables()
    if not tables.changing.search(text):
        return text
    # OpenCC converts each stretch between separators separately.
    return "".join(_simplified(part, tables) for part in tables.separators.split(text))


def _simplified(part: str, tables: _Tables) -> str:
    for _ in range(4):  # two phrases side by side could make a third
        if not any(part.startswith(tables.first[found[0]], found.start()) for found in tables.starts.finditer(part)):
            return part.translate(tables.characters)
        before, part = part, _with_phrases(part, tables)
        if part == before:
            break
    return part


def _with_phrases(part: str, tables: _Tables) -> str:
    """Convert as OpenCC does: the longest phrases first, wherever they occur, then shorter ones in the rest."""
    pieces = [(part, False)]
    for pattern in tables.by_length:
        found: list[tuple[str, bool]] = []
        for text, is_done in pieces:
            if is_done:
                found.append((text, True))
                continue
            begin = 0
            for match in pattern.finditer(text):
                found += [(text[begin : match.start()], False), (tables.phrases[match[0]], True)]
                begin = match.end()
            found.append((text[begin:], False))
        pieces = found
    return "".join(text if is_done else text.translate(tables.characters) for text, is_done in pieces)


@cache
def _tables() -> _Tables:
    from opencc import OpenCC

    converter = OpenCC("t2s")
    entries = {key: value.split(" ")[0] for *_, table in converter.dict_cache.values() for key, value in table.items()}
    characters = {ord(key): value for key, value in entries.items() if len(key) == 1}
    characters = {code: value.translate(characters) for code, value in characters.items()}
    phrases = {key: value for key, value in entries.items() if len(key) > 1}
    kept = [value for value in phrases.values() if value.translate(characters) != value]
    phrases = {**dict(zip(kept, kept, strict=True)), **phrases}
    first: dict[str, tuple[str, ...]] = {}
    for phrase in phrases:
        first[phrase[0]] = (*first.get(phrase[0], ()), phrase)
    seconds = {phrase[1] for phrase in phrases}
    lengths = sorted({len(phrase) for phrase in phrases}, reverse=True)
    return _Tables(
        changing=re.compile(f"[{''.join({*map(chr, characters), *first})}]"),
        characters=characters,
        starts=re.compile(f"[{''.join(first)}](?=[{''.join(seconds)}])"),
        phrases=phrases,
        first=first,
        by_length=[re.compile("|".join(phrase for phrase in phrases if len(phrase) == length)) for length in lengths],
        separators=converter.split_chars_re,
    )
