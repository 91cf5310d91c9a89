"""Tokenised examples in flat arrays: as they came, and their figures as counted window by window."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reread.preprocessing.labelled.tasks.classify import ClassifyExample
from reread.preprocessing.labelled.tasks.rank import RankExample
from reread.preprocessing.tokens.wordpiece import WordPiece
from reread.training.data.tasks import dataset as of_tasks
from reread.training.data.tasks import encoder
from reread.training.data.tasks.classify import ClassifyDataset, ClassifySettings
from reread.training.data.tasks.documents import Documents, TaskDocument
from reread.training.data.tasks.rank import RankDataset, RankSettings

TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "##b", "c", "中", "文", "!"]
TEXTS = [
    "a",
    "ab c",
    "中文 ab!",
    "[MASK] a",
    "a[SEP]中",
    "a\nb\r\n c",
    "",
    "\u0301b",
    "A[mask]",
    "d" * 150,
    "中\u3000文",
]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    (folder / "vocab.txt").write_text("\n".join(TOKENS), encoding="utf-8")
    WordPiece(folder / "vocab.txt", TOKENS, True).save(folder)
    return folder


def tokens(draw: Any, most: int) -> Any:
    return np.array(draw(st.lists(st.integers(0, 99), max_size=most)), np.int32)


@st.composite
def documents(draw: Any) -> TaskDocument:
    ids, room = tokens(draw, 30), draw(st.integers(1, 12))
    offsets = np.arange(2 * len(ids), dtype=np.int32).reshape(-1, 2)
    options = [[tokens(draw, 5) for _ in range(draw(st.integers(0, 2)))] for _ in range(draw(st.integers(1, 3)))]
    return TaskDocument(ids, offsets, options, room, draw(st.integers(1, room)), draw(st.integers(0, 9)))


def as_lists(one: TaskDocument) -> list[Any]:
    options = [[part.tolist() for part in option] for option in one.options]
    return [one.ids.tolist(), one.offsets.tolist(), options, one.room, one.step, one.unread]


@given(st.lists(documents(), min_size=1, max_size=6))
def test_documents_come_back_and_their_figures_are_those_of_each(given: list[TaskDocument]) -> None:
    found = Documents.of(given)
    assert [as_lists(one) for one in found] == [as_lists(one) for one in given]
    assert as_lists(found[-1]) == as_lists(given[-1]) and len(found[1:3]) == len(given[1:3])
    assert found.lengths.tolist() == [len(one.ids) for one in given]
    assert found.windows.tolist() == [one.windows for one in given]
    assert found.longest_others.tolist() == [max(sum(map(len, option)) for option in one.options) for one in given]
    assert found.others == sum(len(part) for one in given for option in one.options for part in option)
    windows = [one.window(number) for one in given for number in range(one.windows)]
    assert found.shown.sum() == sum(window.stop - window.start for window in windows)
    with pytest.raises(IndexError):
        found[len(given)]


def test_no_documents() -> None:
    assert len(Documents.of([])) == 0 and list(Documents.of([])) == []


@pytest.mark.parametrize("at_once", [1, 2, 7, 1000])
def test_many_examples_have_the_tokens_of_few(tokenizer: Path, monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    """However many are encoded together. Above `at_once` by the table-driven encoder, special tokens in a text too."""
    common = {"train": "train", "tokenizer": tokenizer, "frame": "", "sequence_length": 40}
    pairs: Any = [
        ClassifyExample(str(number), "", text, TEXTS[-number] if number % 2 else None, "x")
        for number, text in enumerate(TEXTS)
    ]
    queries: Any = [RankExample(str(number), "", text, tuple(TEXTS), (1,) * 11) for number, text in enumerate(TEXTS)]
    for dataset, settings, examples, more in (
        (ClassifyDataset, ClassifySettings, pairs, {"labels": ["x"]}),
        (RankDataset, RankSettings, queries, {}),
    ):
        kind = {"kind": settings.__name__.removesuffix("Settings").lower()}
        parsed: Any = settings.parse({**kind, **common, **more}, "test")
        expected = [as_lists(one) for one in dataset(parsed, 0, examples).documents]
        with monkeypatch.context() as patch:
            patch.setattr(of_tasks, "ENCODED_AT_ONCE", at_once)
            patch.setattr(encoder, "MANY", at_once)
            many = dataset(parsed, 0, examples)
            assert [as_lists(one) for one in many.documents] == expected
            assert ("_fast" in vars(many.encoder)) == (at_once < len(examples))
    assert any(TOKENS.index("[MASK]") in one[0] for one in expected)
