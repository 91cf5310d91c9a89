"""`task.columns`, `task.join` and `task.label_separator`: where a record has the fields of an example."""

from pathlib import Path
from typing import Any

import pytest

from reread.preprocessing.errors import UserError
from reread.preprocessing.labelled.read import read_examples
from reread.preprocessing.labelled.tasks.answer import Answer
from reread.training.data.tasks.classify import ClassifySettings
from tests.preprocessing.labelled.files import write


def read(path: Path, task: Any = "classify", format: str | None = None, **given: Any) -> list[Any]:
    return read_examples(path, task, format, **given).examples


def labelled(examples: list[Any]) -> list[tuple[Any, ...]]:
    return [(one.id, one.text, one.second, one.label) for one in examples]


@pytest.mark.parametrize(("name", "mark"), [("a.tsv", "\t"), ("a.csv", ",")])
def test_a_table_without_header_is_read_by_numbers(name: str, mark: str, tmp_path: Path) -> None:
    path = write(tmp_path / name, f"0{mark}坏{mark}x\n1{mark}好{mark}y\n1{mark}好\n".encode())
    columns = {"label": "[0]", "text": "{[1]}: {[2]}"}
    found = read_examples(path, "classify", columns=columns, wrong="skip")
    assert labelled(found.examples) == [("1", "坏: x", None, "0"), ("2", "好: y", None, "1")]
    assert found.skipped == [f"{path}:3: 2 columns, where the first row has 3"]
    with pytest.raises(UserError, match=r"a\.\w+:1: .*a list of 3 where \[7\] is asked for"):
        read(path, columns={"text": "[7]"})
    with pytest.raises(UserError, match=r"no column for the text among 0, 坏, x; .*`task\.columns\.text=\[1\]` names"):
        read(path)


def test_numbers_on_the_command_line_are_numbers_of_columns() -> None:
    """YAML reads `[1]` as a list."""
    values = {"kind": "classify", "train": "a.tsv", "columns": {"text": [1], "label": "[0]"}}
    assert ClassifySettings.parse(values, "test").columns == {"text": "[1]", "label": "[0]"}


def test_a_template_joins_columns_of_a_table(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", 'title,body,label\nA,"b, c",1\n')
    assert labelled(read(path, columns={"text": "{title}\\n{body}"})) == [("2", "A\nb, c", None, "1")]
    with pytest.raises(UserError, match=r"no column `bdoy` for `text`; did you mean `body`"):
        read(path, columns={"text": "{title} {bdoy}"})


LINE: dict[str, Any] = {
    "meta": {"id": "q7", "mood": ["sad", "sad", "angry"], "tags": "a|b"},
    "turns": [{"who": "A", "text": "你好"}, {"who": "B", "text": "再见"}],
    "verdict": "no",
}


@pytest.mark.parametrize("format", ["clue", "jsonl", None])
def test_paths_lead_into_json_lines(format: str | None, tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", [LINE])
    columns = {"text": "turns[].text", "second": "turns[0].who", "label": "verdict", "id": "meta.id"}
    assert labelled(read(path, format=format, columns=columns)) == [("q7", "你好\n再见", "A", "no")]
    assert read(path, format=format, columns=columns, join=" / ")[0].text == "你好 / 再见"
    columns = {"text": "{verdict}: {turns[].text}", "label": "meta.mood"}
    (found,) = read(path, format=format, columns=columns, labels="set", join="|")
    assert (found.text, found.label) == ("no: 你好|再见", ("sad", "angry"))
    wrong = columns | {"label": "meta.moood"}
    with pytest.raises(UserError, match=r"a\.json:1: no field `moood`; .*\(`task\.columns\.label` says which\)"):
        read(path, format=format, columns=wrong, labels="set")


def test_labels_of_a_set_stand_in_one_text_between_separators(tmp_path: Path) -> None:
    lines = write(tmp_path / "a.json", [LINE])
    columns = {"text": "verdict", "label": "meta.tags"}
    assert read(lines, columns=columns, labels="set", label_separator="|")[0].label == ("a", "b")
    with pytest.raises(UserError, match=r"label 'a\|b' is not a list.*`task\.label_separator`"):
        read(lines, columns=columns, labels="set")
    table = write(tmp_path / "a.tsv", "text\tlabel\nx\ta, b; c\ny\t\n")
    assert [one.label for one in read(table, labels="set")] == [("a", "b; c"), ()]
    assert [one.label for one in read(table, labels="set", label_separator=";")] == [("a, b", "c"), ()]
    with pytest.raises(UserError, match=r"task\.label_separator: separates labels of a set; set task\.answer=set"):
        read(table, label_separator=";")


@pytest.mark.parametrize(
    ("task", "columns", "line", "expected"),
    [
        (
            "tag",
            {"tokens": "words[].form", "tags": "words[].tag"},
            {"words": [{"form": "张", "tag": "B-P"}, {"form": "说", "tag": "O"}]},
            {"tokens": ("张", "说"), "tags": ("B-P", "O")},
        ),
        (
            "answer",
            {"text": "article[]", "question": "ask.text", "answers": "ask.found"},
            {"article": ["水", "山下"], "ask": {"text": "?", "found": [{"start": 2, "text": "山下"}]}},
            {"text": "水\n山下", "question": "?", "answers": (Answer(2, "山下"),)},
        ),
        (
            "choose",
            {"text": "{title}\\n{text}", "options": "choices[].label", "label": "gold"},
            {"title": "T", "text": "t", "question": "?", "choices": [{"label": "a"}, {"label": "b"}], "gold": 1},
            {"text": "T\nt", "options": ("a", "b"), "label": 1},
        ),
    ],
)
def test_every_kind_of_task_takes_its_fields_from_where_a_line_has_them(
    task: Any, columns: dict[str, str], line: dict[str, Any], expected: dict[str, Any], tmp_path: Path
) -> None:
    (found,) = read(write(tmp_path / "a.jsonl", [line]), task, columns=columns)
    assert {name: getattr(found, name) for name in expected} == expected
    with pytest.raises(UserError, match=r"task\.columns: `txt` is unknown to format jsonl"):
        read(tmp_path / "a.jsonl", task, columns={"txt": "x"})
