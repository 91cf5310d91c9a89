"""Examples in mapped arrays are those that were written, and so is what is asked of all of them."""

import tempfile
from collections import Counter
from dataclasses import fields
from hashlib import md5
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reread.preprocessing.arrays import ArrayWriter, made_once
from reread.preprocessing.labelled import mapped as module
from reread.preprocessing.labelled.examples import Example
from reread.preprocessing.labelled.mapped import EXAMPLES, MappedExamples, fingerprint_of, summary_of, write_examples
from reread.preprocessing.labelled.tasks import TASKS
from reread.preprocessing.labelled.tasks.answer import MISPLACED, NOWHERE, Answer, AnswerExample, Fact
from reread.preprocessing.labelled.tasks.choose import ChooseExample
from reread.preprocessing.labelled.tasks.classify import ClassifyExample
from reread.preprocessing.labelled.tasks.coreference import CoreferenceExample
from reread.preprocessing.labelled.tasks.generate import GenerateExample
from reread.preprocessing.labelled.tasks.phrases import PhrasesExample
from reread.preprocessing.labelled.tasks.rank import RankExample
from reread.preprocessing.labelled.tasks.tag import SplitExample, TagExample

text = st.text(st.characters(codec="utf-8"), max_size=12) | st.sampled_from(
    ["中文\u2028", '"\\\n', "😀", "it's, isn't it", '"it\'s 中文" 😀', 'a "quoted" word']
)
places = text | st.just("folder-\udcff:3")  # a name of bytes that are no UTF-8
numbers = st.floats(allow_nan=False) | st.integers()
texts = st.lists(text, max_size=4).map(tuple)
head = (text, places)
KINDS: dict[type[Example], st.SearchStrategy[Any]] = {
    ClassifyExample: st.builds(ClassifyExample, *head, text, st.none() | text, st.none() | text | texts | numbers),
    TagExample: st.builds(TagExample, *head, texts, st.none() | texts, st.sampled_from(["", " "])),
    SplitExample: st.builds(
        SplitExample, *head, texts, st.none(), st.just(""), st.lists(st.integers(0, 99)).map(tuple), text
    ),
    AnswerExample: st.builds(
        AnswerExample,
        *(*head, text, text),
        st.none()
        | st.lists(st.builds(Answer, st.sampled_from([NOWHERE, MISPLACED, 0, 7]), text), max_size=3).map(tuple),
        st.none() | text,
        st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=3).map(tuple), max_size=2).map(tuple),
        st.none() | st.lists(st.builds(Fact, st.integers(0, 9), st.integers(-1, 9)), max_size=2).map(tuple),
    ),
    ChooseExample: st.builds(
        ChooseExample,
        *(*head, text, text, texts, st.none() | st.integers(0, 3), st.none() | text),
        st.lists(st.integers(0, 9), max_size=2).map(tuple),
    ),
    RankExample: st.builds(
        RankExample, *head, text, texts, st.none() | st.lists(numbers, max_size=3).map(tuple), texts
    ),
    PhrasesExample: st.builds(
        PhrasesExample,
        *(*head, text, st.sampled_from(["words", "blanks"]), st.none() | texts),
        st.lists(texts, max_size=3).map(tuple),
        st.lists(st.integers(-1, 9), max_size=3).map(tuple),
    ),
    GenerateExample: st.builds(GenerateExample, *head, text, st.none() | text),
    CoreferenceExample: st.builds(
        CoreferenceExample,
        *(*head, text, st.sampled_from(["words", "blanks"])),
        st.none()
        | st.lists(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=3).map(tuple)).map(tuple),
    ),
}


def test_every_kind_of_example_can_be_mapped() -> None:
    assert set(KINDS) == set(EXAMPLES.values())
    assert {one.__module__ for one in TASKS.values()} == {one.__module__ for one in EXAMPLES.values()}


def mapped(examples: list[Any], folder: Path) -> MappedExamples:
    def make(writer: ArrayWriter) -> Any:
        return write_examples(examples, writer).mapped.facts

    made_once(folder, make)
    return MappedExamples(made_once(folder, make))


LATER = (
    *((AnswerExample, "question_id", None), (AnswerExample, "paragraphs", ()), (AnswerExample, "evidence", None)),
    (ChooseExample, "starts", ()),
)
"""Fields that came later, with the values that do not count."""


@pytest.mark.parametrize("kind", KINDS, ids=lambda one: one.__name__)
def test_examples_come_back_with_their_types(kind: type[Example], monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts of more than six characters as long ones, which have a place of their own, and few recent ones."""
    monkeypatch.setattr(module, "LONG", 6)
    monkeypatch.setattr(module, "_RECENT_BYTES", 20)

    @settings(max_examples=40)
    @given(st.lists(KINDS[kind], max_size=5))
    def holds(examples: list[Any]) -> None:
        with tempfile.TemporaryDirectory() as folder:
            found = mapped(examples, Path(folder) / "made")
            assert list(map(repr, found)) == list(map(repr, examples)) == [repr(found[n]) for n in range(len(found))]
            assert list(found) == examples == found[:] and found[1:3] == examples[1:3]
            with pytest.raises(IndexError):
                found[len(examples)]
            # Computed otherwise than ours
            digest = md5()
            for one in examples:
                named = [(name.name, getattr(one, name.name)) for name in fields(one)[2:]]
                values = [value for name, value in named if (kind, name, value) not in LATER]
                digest.update(repr((one.id, values)).encode(errors="surrogatepass"))
            summary = summary_of(found)
            assert fingerprint_of(found) == fingerprint_of(examples) == digest.hexdigest()
            assert summary.counts == Counter(name for one in examples for name in one.classes)
            first = {name: next(one.location for one in examples if name in one.classes) for name in summary.counts}
            assert summary.first == first
            assert summary.unlabelled == next((one.location for one in examples if one.target is None), None)
            assert summary.not_learned == sum(not one.can_be_learned for one in examples)

    holds()


def test_some_of_the_examples_and_changed_ones_are_as_a_list_of_them(tmp_path: Path) -> None:
    examples = [ClassifyExample(str(n), f"f:{n}", "x" * n, None, "ab"[n % 2]) for n in range(9)]
    whole = mapped(examples, tmp_path / "made")
    some = whole.where(lambda one: one.label == "b").where(lambda one: one.id != "3")
    expected = [examples[1], examples[5], examples[7]]
    assert list(some) == expected and some[-1] == examples[7] and len(some) == 3
    assert fingerprint_of(some) == fingerprint_of(expected) != fingerprint_of(whole)
    assert summary_of(some).counts == {"b": 3}
    shout = some.changed(lambda one: ClassifyExample(one.id, one.location, one.text.upper(), None, one.label))
    assert [one.text for one in shout] == [one.text.upper() for one in expected] and shout[0].text == "X"
    assert fingerprint_of(shout) == fingerprint_of(list(shout)) != fingerprint_of(some)
    assert list(whole) == examples
