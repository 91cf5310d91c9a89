"""Options of a configuration for the heads of tasks: how a row is pooled, how texts longer than a window are read, and
how many spans of a text are kept.

Copied beside exported weights; imports no torch.
"""

from collections.abc import Mapping
from typing import Any

POOLINGS = ("cls", "mean")
DEFAULTS: dict[str, Any] = {"length": None, "step": None, "predict": "mean", "retrospective": False}


def checked_pooling(pooling: str) -> str:
    """The setting `classifier_pooling` of a configuration. Raises ValueError unless it is one of `POOLINGS`."""
    if pooling not in POOLINGS:
        raise ValueError(f"classifier_pooling is {' or '.join(POOLINGS)}, not {pooling!r}")
    return pooling


def checked_reading(reading: Mapping[str, Any] | None, longest: int | None = None) -> dict[str, Any] | None:
    """The setting `reading` of a configuration, complete; None, if texts are only read as they are given.

    length: tokens of a window, special tokens included; at most `longest`, the model's own limit.
    step: tokens from the beginning of one window to that of the next; None: a window's whole room for text, or half of
        it where tokens are predicted.
    predict: of a text's classes or options, "mean": the windows' mean probability, or "last": the last window's.
    retrospective: whether a model with memory skims the text before it reads it.

    Raises ValueError for other keys and for values out of range.
    """
    if reading is None:
        return None
    if unknown := sorted(set(reading) - set(DEFAULTS)):
        raise ValueError(f"reading has the keys {', '.join(DEFAULTS)}, not {unknown[0]!r}")
    values = {**DEFAULTS, **reading}
    for name in ("length", "step"):
        if name == "step" and values[name] is None:
            continue
        if not isinstance(values[name], int) or isinstance(values[name], bool) or values[name] < 1:
            raise ValueError(f"reading.{name} is a number of tokens, 1 or more, not {values[name]!r}")
    if longest is not None and values["length"] > longest:
        raise ValueError(f"reading.length is {values['length']}, but the model reads at most {longest} tokens at once")
    if values["predict"] not in ("mean", "last"):
        raise ValueError(f"reading.predict is mean or last, not {values['predict']!r}")
    if not isinstance(values["retrospective"], bool):
        raise ValueError(f"reading.retrospective is true or false, not {values['retrospective']!r}")
    return values


def kept_spans(words: int, spans_per_word: float) -> int:
    """The spans of a text of `words` words whose antecedents are scored."""
    return min(words, max(1, int(words * spans_per_word)))
