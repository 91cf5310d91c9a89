"""Replaces quotation marks, dashes and similar marks that a vocabulary lacks by marks that it has."""

from reread.preprocessing.tokens.tokenizer import Tokenizer

_WRITTEN = (
    ("“”„‟«»「」『』〝〞＂", ('"',)),
    ("‘’‚‛‹›", ("'",)),
    ("—–―‒─‐‑", ("-",)),
    ("…⋯", ("...", "。。。")),
    ("～〜", ("~", "-")),
    ("·•・‧", ("·", ".")),
)
"""Marks, and the ways in which each may be written instead, the best way first."""
MARKS = frozenset("".join(marks for marks, _ in _WRITTEN))


def marks_to_map(tokenizer: Tokenizer) -> dict[str, str]:
    """The marks that the vocabulary lacks, each with its substitute; marks without a substitute are left out."""

    def is_known(text: str) -> bool:
        ids, _ = tokenizer.encode(text)
        return len(ids) > 0 and tokenizer.special["unk"] not in ids.tolist()

    found = {}
    for marks, ways in _WRITTEN:
        known = [way for way in ways if is_known(way)]
        for mark in marks:
            others = [way for way in known if way != mark]
            if others and not is_known(mark):
                found[mark] = others[0]
    return found
