"""Traditional to simplified Chinese: OpenCC's `t2s`, a character table doing the work where no phrase is met."""

import re
from collections.abc import Callable
from functools import cache
from typing import NamedTuple


class _Tables(NamedTuple):
    changing: re.Pattern[str]
    characters: dict[int, str]
    starts: re.Pattern[str]
    phrases: dict[str, tuple[str, ...]]
    """By first character."""
    separators: re.Pattern[str]
    convert: Callable[[str], str]


def simplify(text: str) -> str:
    """`text` in simplified characters; equal to `opencc.OpenCC("t2s").convert(text)`."""
    tables = _tables()
    if not tables.changing.search(text):
        return text
    parts = tables.separators.split(text)  # OpenCC converts what stands between them by itself
    return "".join(
        tables.convert(part) if _has_phrase(part, tables) else part.translate(tables.characters) for part in parts
    )


def _has_phrase(text: str, tables: _Tables) -> bool:
    return any(text.startswith(tables.phrases[found[0]], found.start()) for found in tables.starts.finditer(text))


@cache
def _tables() -> _Tables:
    from opencc import OpenCC

    converter = OpenCC("t2s")
    entries = {key: value for *_, table in converter.dict_cache.values() for key, value in table.items()}
    phrases: dict[str, tuple[str, ...]] = {}
    for key in entries:
        if len(key) > 1:
            phrases[key[0]] = (*phrases.get(key[0], ()), key)
    seconds = {phrase[1] for group in phrases.values() for phrase in group}
    characters = {ord(key): value.split(" ")[0] for key, value in entries.items() if len(key) == 1}
    changing = "".join({*map(chr, characters), *phrases})
    return _Tables(
        changing=re.compile(f"[{changing}]"),
        characters=characters,
        starts=re.compile(f"[{''.join(phrases)}](?=[{''.join(seconds)}])"),
        phrases=phrases,
        separators=converter.split_chars_re,
        convert=converter.convert,
    )
