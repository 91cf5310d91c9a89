"""Reads the YAML of recipes, overrides and slurm/site.yaml as values for typed settings."""

from typing import Any

import yaml

from reread.preprocessing.errors import UserError
from reread.preprocessing.redaction import redacted

MOST_VALUES = 100_000
"""Most values in one text; a value is counted as often as aliases repeat it."""
MOST_LEVELS = 32


class NotYamlError(UserError):
    """The text is not YAML, for example `*.txt` or `[MASK] x`."""


class _Loader(yaml.SafeLoader):
    """Reads dates as text: no setting is a date, and a name may look like one."""

    yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


def read_values(text: str, where: str) -> Any:
    """The values of YAML text: mappings with text as keys, lists, text, numbers, true, false, null.

    Raises `NotYamlError` for text that is not YAML, and `UserError` for other types of values, for characters that no
    file can hold, and for aliases that repeat without end. The errors begin with `where`.
    """
    try:
        values = _Loader(text).get_single_data()
    except RecursionError:
        raise UserError(f"{where}: nested too deeply") from None
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a number that Python does not read
        raise NotYamlError(f"{where}: not readable as YAML: {' '.join(str(error).split())}") from None
    _check(values, where)
    return _unshared(values)


def _unshared(values: Any) -> Any:
    """A copy in which what aliases repeat is there several times, so that an override changes one of them."""
    if isinstance(values, dict):
        return {key: _unshared(value) for key, value in values.items()}
    return [_unshared(value) for value in values] if isinstance(values, list) else values


def as_yaml(text: str) -> str:
    """`text` as YAML, in quotes if it could be read as something else."""
    try:
        plain = read_values(text, "") == text
    except NotYamlError:  # an override of it is text, too
        plain = True
    except UserError:
        plain = False
    return text if plain else yaml.safe_dump(text, default_style='"', allow_unicode=True, width=1 << 30).strip()


def read_override(text: str, where: str) -> Any:
    """The value of an override. A value that is not YAML is text, and so is one of which YAML would drop a part: a
    comment sign, the mark of a block, blanks around a text (`task.label_separator=#`, `input.join=' | '`)."""
    try:
        value = read_values(text, where)
    except NotYamlError:
        value = text
    lost = value is None and text not in ("", "~", "null", "Null", "NULL")
    if not text.lstrip().startswith(("'", '"')) and (lost or (isinstance(value, str) and value != text)):
        value = text
    _check(value, where)
    return value


def _check(values: Any, where: str) -> None:
    waiting, count = [(values, 1)], 0
    while waiting:
        value, level = waiting.pop()
        count += 1
        if count > MOST_VALUES or level > MOST_LEVELS:
            raise UserError(
                f"{where}: nested too deeply, or too much of it; does an alias (*) stand in its own anchor (&)?"
            )
        if isinstance(value, dict):
            for key in value:
                if not isinstance(key, str):
                    raise UserError(f"{where}: the key {key!r} is not text; write '{key}' in quotes if it is meant")
            waiting += [(inner, level + 1) for pair in value.items() for inner in pair]
        elif isinstance(value, list):
            waiting += [(inner, level + 1) for inner in value]
        elif isinstance(value, str):
            if "\0" in value or any("\ud800" <= character <= "\udfff" for character in value):
                raise UserError(f"{where}: {redacted(value)[:80]!r} holds a character that no file can")
        elif value is not None and not isinstance(value, bool | int | float):
            raise UserError(f"{where}: {str(value)[:80]!r} is a {type(value).__name__}; write it as text or numbers")
