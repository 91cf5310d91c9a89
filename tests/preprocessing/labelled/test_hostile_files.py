"""Whatever a file holds, reading it gives examples or one line, and never a traceback."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reread.preprocessing.errors import UserError
from reread.preprocessing.labelled.read import read_examples
from reread.preprocessing.labelled.splits import duplicates, labels_of

JSON: dict[str, tuple[Any, Any]] = {
    "jsonl": ("tag", {"id": 1, "tokens": ["a", "b"], "tags": ["O", "O"], "joiner": " "}),
    "clue": ("classify", {"sentence1": "a", "sentence2": "b", "label": [1, "x"], "id": 3}),
    "squad": (
        "answer",
        {"data": [{"paragraphs": [{"context": "abc", "qas": [
            {"id": 1, "question": "?", "answers": [{"text": "b", "answer_start": 1}], "is_impossible": False}
        ]}]}]},
    ),
    "c3": ("choose", [[["a", "b"], [{"question": "?", "choice": ["a", "b"], "answer": "a"}], "id"]]),
    "wikihop": (
        "choose", [{"id": "i", "query": "q", "candidates": ["a", "b"], "supports": ["x", "y"], "answer": "b"}]
    ),
    "cmrc2019": ("choose", {"data": [{"context_id": 1, "context": "[BLANK1]", "choices": ["a", "b"], "answers": [0]}]}),
    "arxiv": ("generate", {"article_id": "i", "article_text": ["a", "b"], "abstract_text": ["<S> a </S>"]}),
    "cail": ("choose", {"A": "a", "B": "b", "C": "c", "label": "B"}),
    "clue-chid": ("choose", {"content": ["#idiom1#"], "candidates": ["a", "b"]}),
    "clue-wsc": (
        "classify",
        {"text": "ab", "target": {"span1_text": "a", "span1_index": 0, "span2_text": "b", "span2_index": 1},
         "label": "true"},
    ),
}  # fmt: skip
OTHER = st.sampled_from([None, True, 0, -1, 1 << 70, 1e400, "", "\ud83d", "x\n", [], [[]], {}, {"a": 1}])
BYTES = {
    ("tsv", "classify"): b"label\ttext\n1\tx\n0\ty\n",
    ("csv", "classify"): b'label,text\n1,"x ""y"",\nz"\n0,y\n',
    ("conll", "tag"): b"x O\ny B-X\n\nz O\n",
    ("clue", "classify"): b'{"sentence": "x", "label": 1}\n{"sentence": "x", "label": 1}\n',
    ("semeval", "classify"): b'<articles><article id="1" title="t">a<p>b</p></article></articles>',
    (None, "choose"): b'{"A": "a", "B": "b", "C": "c"}\n',
}


def read(path: Path, *arguments: Any, **settings: Any) -> None:
    try:
        found = read_examples(path, *arguments, wrong="skip", **settings)
        duplicates(found.examples, found.examples)
        labels_of(found.examples)
    except UserError as error:
        assert "\n" not in str(error)


def replaced(value: Any, place: int, other: Any) -> tuple[Any, int]:
    """`value` with the part at `place` (counted from the inside out) replaced, and the number of its parts."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    count, changed = 0, {}
    for key, inner in items:
        changed[key], parts = replaced(inner, place - count, other)
        count += parts
    if count == place:
        return other, count + 1
    return (changed if isinstance(value, dict) else [*changed.values()] if items else value), count + 1


@pytest.mark.parametrize("format", JSON)
@given(place=st.integers(0, 20), other=OTHER)
def test_any_value_in_json_may_be_another(
    format: str, place: int, other: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    task, value = JSON[format]
    path = tmp_path_factory.getbasetemp() / "hostile.json"
    changed, _ = replaced(value, place, other)
    path.write_text(json.dumps(changed))
    read(path, task, format)
    read(path, task, format, labels="set" if format == "clue" else "one")


@pytest.mark.parametrize(("format", "task"), BYTES)
@given(data=st.data())
def test_any_bytes_may_be_others(
    format: str | None, task: Any, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    good = BYTES[format, task]
    begin = data.draw(st.integers(0, len(good)))
    end = data.draw(st.integers(begin, len(good)))
    inserted = data.draw(st.binary(max_size=4) | st.sampled_from([b'"', b"\n", b"\t", b"\0", b"\xff", b"[" * 9999]))
    path = tmp_path_factory.getbasetemp() / "hostile.txt"
    path.write_bytes(good[:begin] + inserted + good[end:])
    read(path, task, format)
