"""Finds the fields of an example in a record of a labelled file: a row of a table, or a JSON object."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from reread.preprocessing.errors import nearest
from reread.preprocessing.input.fields import FieldError, TextField

NAMES = {
    "id": ("id", "guid"),
    "text": ("text", "text_a", "sentence", "sentence1", "review", "premise", "question1", "query", "content"),
    "second": ("second", "text_b", "sentence2", "hypothesis", "hypo", "question2"),
    "label": ("label", "labels", "gold_label", "class"),
}
"""The names that published data sets have for each field of an example."""


class Columns:
    """The name, path or template by which a record has each field of an example, as in `input.text_field`."""

    def __init__(self, columns: Mapping[str, str], join: str) -> None:
        """`join` stands between the texts that a path such as `turns[].text` finds."""
        self._fields = {
            field: TextField(path, "field", join, f"task.columns.{field}") for field, path in columns.items()
        }

    @property
    def numbered(self) -> bool:
        """Whether columns are named by their numbers, as `[1]`, in a table without a header."""
        return any(isinstance(path[0], int) for field in self._fields.values() for path in field.paths)

    def roots(self, known: Collection[str]) -> set[str]:
        """The names of the columns, or of the fields at the top of a record with the fields `known`, that are read."""
        return {root for field in self._fields.values() for root in field.roots(list(known))}

    def text(self, record: Any, field: str) -> str | None:
        """The text of a field; None if the record has none. Raises ValueError if the value is not a text."""
        if field in self._fields and isinstance(record, dict):
            value = record.get(self._fields[field].field)
            if isinstance(value, str):  # as in every row of a table with a header
                return value
        if field not in self._fields or (field != "text" and self._is_null(record, field)):
            return None
        ((text, problem),) = self._fields[field].texts(record)
        if problem:
            raise ValueError(problem)
        return text

    def value(self, record: Any, field: str) -> Any:
        """The value of a field, of any type; None if none is named. Raises ValueError if the record lacks it."""
        if field not in self._fields:
            return None
        try:
            return self._fields[field].value(record)
        except FieldError as error:
            raise ValueError(str(error)) from None

    def _is_null(self, record: Any, field: str) -> bool:
        return not self._fields[field].is_template and self.value(record, field) is None


def find_columns(
    known: Collection[str],
    columns: Mapping[str, str],
    join: str,
    names: Mapping[str, tuple[str, ...]] = NAMES,
    needed: Sequence[str] = ("text",),
) -> Columns:
    """The columns of a record with the fields `known`: as `columns` says, else by their usual `names`.

    Raises ValueError if one that is `needed` or a name of `columns` is missing, or two usual names fit.
    """
    stated = {field: Columns({field: path}, join).roots(known) for field, path in columns.items()}
    for field, roots in stated.items():
        for name in roots:
            if name not in known:
                raise ValueError(f"no column `{name}` for `{field}`; {nearest(name, known, 'it has')}")
    found, taken = dict(columns), {name for roots in stated.values() for name in roots}
    for field, theirs in names.items():
        usual = [name for name in theirs if name in known and name not in taken and field not in columns]
        if len(usual) > 1:
            raise ValueError(f"both `{usual[0]}` and `{usual[1]}` may be the {field}; choose by `task.columns.{field}`")
        if usual:
            found[field] = usual[0]
    for field in needed:
        if field not in found:
            raise ValueError(f"no column for the {field} among {', '.join(known)}; name it by `task.columns.{field}`")
    return Columns(found, join)
