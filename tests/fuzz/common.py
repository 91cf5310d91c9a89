"""What the fuzzers share: cases drawn by their number, and changes of bytes and of JSON."""

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

from reread.preprocessing.errors import UserError, describe

Case = Callable[[Random], None]
"""Changes something as the generator says, and uses it."""
Prepare = Callable[[Path], Case]
"""Makes in a folder what the cases of a target need."""

WILD: list[Any] = [
    None, True, False, 0, 1, -1, 2, 7, 255, 2**16, 2**31, 2**32, 2**53 + 1, 2**63, 2**64, 2**70, -(2**63), 10**400,
    0.5, -0.0, 1e308, float("nan"), float("inf"), "", " ", "0", "a", "\0", "\n", "a\nb", "\ud800", "\u0085", "..",
    "../x", "/", "/dev/zero", "x" * 5000, "[BLANK1]", "nezha", [], [[]], [None], {}, {"a": 1}, {"": None}, ["a", "a"],
]  # fmt: skip
BYTES = [
    b"", b"\0", b"\n", b"\r\n", b"\t", b'"', b",", b"{", b"}", b"[", b"]", b"<", b">", b"</", b"&#0;", b"\xff",
    b"\xfe\xff", b"\xef\xbb\xbf", b"\xed\xa0\x80", b"\xe2\x80\xa8", b"\x1f\x8b", b"PK\x03\x04", b"PAR1", b"[" * 3000,
    b"9" * 5000, b"1e999", b"NaN", b"null", b"\\ud800", b"-1", b"\x00" * 64, b"\xff" * 64,
]  # fmt: skip


def changed_bytes(random: Random, data: bytes) -> bytes:
    """`data` with up to four bits flipped, parts cut, doubled, moved, or replaced by bytes that readers look for."""
    for _ in range(random.choice((1, 1, 1, 2, 4))):
        begin = random.randint(0, len(data))
        end = min(len(data), begin + random.choice((0, 1, 1, 4, 16, 200, len(data))))
        part, how = data[begin:end], random.randrange(6)
        if how == 0 and data:
            at = random.randrange(len(data))
            data = data[:at] + bytes([data[at] ^ 1 << random.randrange(8)]) + data[at + 1 :]
        elif how == 1:
            data = data[:begin] + data[end:]
        elif how == 2:
            data = data[:end] + part[:1000] * random.choice((1, 1, 30)) + data[end:]
        elif how == 3:
            at = random.randint(0, len(data))
            data = data[:at] + part + data[at:]
        elif how == 4:
            data = data[:begin] + random.choice(BYTES) + data[end:]
        else:
            data = data[:begin] + random.randbytes(len(part)) + data[end:]
    return data


def changed_json(random: Random, values: Any) -> Any:
    """`values` with one to three values replaced, left out, renamed, added or exchanged."""
    values = copy.deepcopy(values)
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        places = [*_places(values)]
        if not places:
            return wild(random)
        inner, key = random.choice(places)
        how = random.randrange(8)
        if how == 0:
            del inner[key]
        elif how == 1 and isinstance(inner, dict):
            inner[str(wild(random))] = inner.pop(key)
        elif how == 2:
            other, its_key = random.choice(places)
            inner[key] = copy.deepcopy(other[its_key])
        elif how == 3 and isinstance(inner[key], int):
            inner[key] += random.choice((-1, 1, 1000))
        elif how == 4 and isinstance(inner, list):
            inner.insert(key, copy.deepcopy(inner[key]))
        elif how == 5 and isinstance(inner[key], str):
            inner[key] = changed_bytes(random, inner[key].encode("utf-8", "replace")).decode("utf-8", "replace")
        else:
            inner[key] = wild(random)
    return values


def wild(random: Random) -> Any:
    return copy.deepcopy(random.choice(WILD))


def _places(values: Any) -> Iterator[tuple[Any, Any]]:
    """Each object or list, with each of its keys or positions."""
    for key in values if isinstance(values, dict) else range(len(values)) if isinstance(values, list) else ():
        yield values, key
        yield from _places(values[key])


def fault(case: Case, number: int) -> BaseException | None:
    """What a case raises that is not one line for the user; None if it ends well."""
    try:
        case(Random(number))
    except (UserError, OSError) as error:
        line = describe(error)
        return None if line is not None and line[0].isprintable() else error
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return error
    return None
