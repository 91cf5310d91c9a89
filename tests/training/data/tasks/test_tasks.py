"""Labelled documents as windows: what is read, what is learned, and that predictions find what the labels say."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example as explicit
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from reread.preprocessing.errors import UserError
from reread.preprocessing.labelled.tasks.answer import Answer, AnswerExample
from reread.preprocessing.labelled.tasks.choose import ChooseExample
from reread.preprocessing.labelled.tasks.classify import ClassifyExample
from reread.preprocessing.labelled.tasks.tag import TagExample
from reread.preprocessing.tokens.wordpiece import WordPiece
from reread.training.data.batch import IGNORED
from reread.training.data.tasks.answer import AnswerDataset
from reread.training.data.tasks.answer_settings import AnswerSettings
from reread.training.data.tasks.choose import ChooseDataset, ChooseSettings
from reread.training.data.tasks.classify import ClassifyDataset, ClassifySettings
from reread.training.data.tasks.dataset import TaskDataset
from reread.training.data.tasks.tag import TagDataset, TagSettings
from reread.training.data.tasks.windows import longest_of, window_count

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LETTERS = "abcdefghijklmnopqrstuvwxyz"
FRAMES = ("", "segments", "bare")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A vocabulary of letters, each a word of its own between blanks."""
    folder = tmp_path_factory.mktemp("tokenizer")
    (folder / "vocab.txt").write_text("\n".join([*SPECIAL, *LETTERS, "?"]), encoding="utf-8")
    WordPiece(folder / "vocab.txt", [*SPECIAL, *LETTERS, "?"], True).save(folder)
    return folder


def settings(kind: type[Any], tokenizer: Path, frame: str, length: int, **more: Any) -> Any:
    values = {"train": "train", "tokenizer": tokenizer, "frame": frame, "sequence_length": length, **more}
    return kind.parse({"kind": kind.__name__.removesuffix("Settings").lower(), **values}, "test")


def words(count: int) -> str:
    return " ".join(LETTERS[number % 26] for number in range(count))


@pytest.mark.parametrize("cut", [{"longest": 5}, {"other_length": 2}])
def test_lengths_are_those_of_whole_texts_questions_and_answers(tokenizer: Path, cut: dict[str, int]) -> None:
    """Whatever of them is read."""
    task = settings(AnswerSettings, tokenizer, "", 12, **cut)
    answers = (Answer(0, "a b"), Answer(2, "b"))
    data = AnswerDataset(task, 0, [AnswerExample("1", "a:1", words(30), "a b c ?", answers)])
    found = {name: [*values] for name, values in data.lengths().items()}
    assert found == {"of a text": [30], "of a question": [4], "of an answer": [2, 1]}


@given(st.integers(0, 400), st.integers(1, 60), st.integers(1, 60))
def test_windows_reach_the_end_and_none_is_needless(tokens: int, room: int, step: int) -> None:
    step = min(step, room)
    begins, covered = [0], room
    while covered < tokens:
        begins.append(begins[-1] + step)
        covered = begins[-1] + room
    assert window_count(tokens, room, step) == len(begins)


@pytest.mark.parametrize("frame", FRAMES)
def test_every_token_of_a_text_is_read_and_the_rest_of_a_row_is_special(tokenizer: Path, frame: str) -> None:
    examples = [ClassifyExample(str(n), "", words(n), None, "a") for n in (1, 7, 30, 61)]
    data = ClassifyDataset(settings(ClassifySettings, tokenizer, frame, 12, labels=["a", "b"]), 0, examples)
    specials = {data.special[name] for name in ("cls", "sep", "pad")}
    read: dict[int, list[int]] = {n: [] for n in range(4)}
    for rows in data.passes(range(4), 64, training=True):
        assert rows["input_ids"].shape[1] <= 12
        for example, ids, mask in zip(rows["example"], rows["input_ids"], rows["attention_mask"], strict=True):
            read[int(example)] += [one for one in ids[mask == 1].tolist() if one not in specials]
            if frame == "segments":
                assert ids[-1] == data.special["cls"] and mask[-1] == 1
    for n, example in enumerate(examples):
        assert read[n] == [data._tokenizer.token_to_id(word) for word in example.text.split()]


@pytest.mark.parametrize("kind", ["pair", "answer"])
@pytest.mark.parametrize("frame", FRAMES)
def test_an_exported_tokenizer_frames_two_texts_as_training_does(
    tokenizer: Path, tmp_path: Path, frame: str, kind: str
) -> None:
    """transformers gives a question before its text, but behind it to a tokenizer that pads on the left."""
    from reread.training.exchange.tokenizer import FRAMES as TEMPLATES
    from reread.training.exchange.tokenizer import frame_tokenizer

    folder = shutil.copytree(tokenizer, tmp_path / "export")
    frame_tokenizer(folder, f"{frame} {kind}" if f"{frame} {kind}" in TEMPLATES else frame)
    text, other = words(6), "x y ?"
    if kind == "answer":
        example: Any = AnswerExample("q", "", text, other)
        data: Any = AnswerDataset(settings(AnswerSettings, tokenizer, frame, 24), 0, [example])
    else:
        example = ClassifyExample("c", "", text, other, "a")
        data = ClassifyDataset(settings(ClassifySettings, tokenizer, frame, 24, labels=["a"]), 0, [example])
    (rows,) = data.passes([0], 4, training=True)
    given = (other, text) if kind == "answer" and frame != "segments" else (text, other)
    exported = Tokenizer.from_file(str(folder / "tokenizer.json")).encode(*given)
    assert rows["input_ids"][0].tolist() == exported.ids
    if frame != "bare":  # RAN has no types
        assert rows["token_type_ids"][0].tolist() == exported.type_ids


def test_longest_leaves_text_out_and_the_table_tells_how_much(tokenizer: Path) -> None:
    examples = [ClassifyExample("x", "", words(40), None, "a"), ClassifyExample("y", "", words(5), None, "a")]
    data = ClassifyDataset(settings(ClassifySettings, tokenizer, "", 12, labels=["a"], longest=15), 0, examples)
    assert dict(data.coverage())["tokens read"] == "44.44 % of 45; 1 examples are cut"


@pytest.mark.parametrize(
    ("text", "second", "shown"),
    [
        (3, 4, (3, 4)),
        (3, 40, (3, 14)),  # what the text does not need
        (40, 3, (14, 3)),
        (40, 40, (9, 8)),  # half, and further windows of the text
        (40, 8, (9, 8)),
    ],
)
@pytest.mark.parametrize("frame", FRAMES)
def test_the_room_is_shared_by_need(
    tokenizer: Path, frame: str, text: int, second: int, shown: tuple[int, int]
) -> None:
    """17 tokens beside the special ones: no token is left out that has room."""
    special = 1 if frame == "bare" else 3
    given = settings(ClassifySettings, tokenizer, frame, 17 + special, labels=["a"])
    data = ClassifyDataset(given, 0, [ClassifyExample("x", "", words(text), words(second), "a")])
    (document,) = data.documents
    assert (min(document.room, len(document.ids)), len(document.options[0][0])) == shown
    assert document.unread == second - shown[1] and len(document.ids) == text
    assert all(rows["input_ids"].shape[1] <= 17 + special for rows in data.passes([0], 9, training=True))


def test_question_and_option_are_cut_to_one_length_where_both_are_long(tokenizer: Path) -> None:
    assert [longest_of(lengths, 20) for lengths in ([5, 9], [5, 90], [90, 5], [90, 90], [], [30])] == [
        9,
        15,
        15,
        10,
        0,
        20,
    ]
    options = (words(3), words(30))
    example = ChooseExample("x", "", words(50), words(12), options, 0)
    (document,) = ChooseDataset(settings(ChooseSettings, tokenizer, "", 44), 0, [example]).documents
    assert [[len(part) for part in option] for option in document.options] == [[12, 3], [10, 10]]
    assert document.room == 20


@pytest.mark.parametrize(("question", "option", "limit"), [(40, 40, 62), (50, 3, 9), (3, 50, 9), (9, 9, 7), (2, 3, 9)])
def test_a_question_and_an_option_are_cut_together_as_by_ernie_docs_code(
    tokenizer: Path, question: int, option: int, limit: int
) -> None:
    """Which drops the last token of the longer until both fit, and of the option if they are as long."""
    left = [question, option]
    while sum(left) > limit:
        left[left[0] <= left[1]] -= 1
    example = ChooseExample("x", "", words(50), words(question), (words(option), words(1)), 0)
    given = settings(ChooseSettings, tokenizer, "", 120, question_option_length=limit)
    (document,) = ChooseDataset(given, 0, [example]).documents
    assert [len(part) for part in document.options[0]] == left


def test_little_that_is_read_is_a_line_with_what_to_set(tokenizer: Path) -> None:
    pair = ClassifyExample("x", "", words(20), words(80), "a")

    def remarks(**given: Any) -> list[str]:
        return ClassifyDataset(settings(ClassifySettings, tokenizer, "", labels=["a"], **given), 0, [pair]).remarks()

    assert remarks(length=103) == []
    assert remarks(length=93) == []  # 90 of 100
    assert remarks(length=92) == ["only 89.00 % of the text is read; to read more, raise task.sequence_length (92 now)"]
    assert remarks(length=200, other_length=64) == [
        "only 84.00 % of the text is read; to read more, raise task.other_length (64 now, null for no limit) or "
        "task.sequence_length (200 now)"
    ]
    assert "raise task.longest (5 now, null for no limit) or task.seq" in remarks(length=200, longest=5)[0]


def test_the_longest_pass_has_the_longest_pair(tokenizer: Path) -> None:
    """By the text alone the second would be taken, of a third of the tokens."""
    pairs = [ClassifyExample("x", "", words(10), words(80), "a"), ClassifyExample("y", "", words(20), words(10), "a")]
    data = ClassifyDataset(settings(ClassifySettings, tokenizer, "", 200, labels=["a"]), 0, pairs)
    assert next(data.longest(1, 1))[0]["input_ids"].shape == (1, 93)


def test_a_question_that_fills_the_window_is_one_line(tokenizer: Path) -> None:
    given = settings(AnswerSettings, tokenizer, "", 12, other_length=64)
    data = AnswerDataset(given, 0, [AnswerExample("q", "", "a b", words(30))])
    with pytest.raises(UserError, match=r"task\.sequence_length: 12 leaves no room beside 33 tokens"):
        data.verify()


@pytest.mark.parametrize("frame", FRAMES)
@given(length=st.integers(1, 50), where=st.integers(0, 49), size=st.integers(1, 6), room=st.integers(9, 20))
@explicit(length=10, where=6, size=4, room=14)  # the window of the answer's first token does not hold its last
def test_gold_logits_give_the_gold_answer_through_any_windows(
    tokenizer: Path, frame: str, length: int, where: int, size: int, room: int
) -> None:
    where = min(where, length - 1)
    size = min(size, length - where, (room - 6) // 2)
    text = words(length)
    gold = " ".join(text.split()[where : where + size])
    example = AnswerExample("q", "", text, "a ?", (Answer(2 * where, gold),))
    data = AnswerDataset(settings(AnswerSettings, tokenizer, frame, room, without="skip"), 0, [example])
    outputs = oracle(data, lambda rows, row: np.stack([rows["starts"][row], rows["ends"][row]], -1) * 10.0)
    prediction = data.decode(0, outputs)
    assert data.scored(0, prediction) == gold
    assert data.scores({0: prediction}) == {"f1": 100, "em": 100, "average": 100}


@pytest.mark.parametrize("frame", FRAMES)
@pytest.mark.parametrize("occurrences", ["first", "all"])
def test_gold_logits_give_choices_spans_and_no_answer(tokenizer: Path, frame: str, occurrences: str) -> None:
    """Of texts of several windows. A choice that no training example has is neither learned nor taken for no answer."""
    answers = {
        "yes": (Answer(-1, "YES"),),
        "no": (Answer(-1, "NO"), Answer(-1, "NO")),
        "span": (Answer(4, "c d"),),
        "nothing": (),
        "divided": (Answer(-1, ""), Answer(-1, "YES")),
    }
    examples = [AnswerExample(name, "", words(30), "a ?", gold) for name, gold in answers.items()]
    values = {"choices": ["YES", "NO"], "no_answer": 0.0 if frame != "bare" else None, "occurrences": occurrences}
    data = AnswerDataset(settings(AnswerSettings, tokenizer, frame, 20, **values), 0, examples)
    found = {}
    for number, example in enumerate(examples):
        outputs = oracle(data, lambda rows, row: np.stack([rows["starts"][row], rows["ends"][row]], -1) * 10.0, number)
        found[example.id] = data.scored(number, data.decode(number, outputs))
    expected = {"yes": "YES", "no": "NO", "span": "c d"}
    if frame != "bare":
        expected |= {"nothing": "", "divided": "" if occurrences == "first" else "YES"}
    assert {name: found[name] for name in expected} == expected
    outputs = oracle(data, lambda rows, row: np.stack([rows["starts"][row], rows["ends"][row]], -1) * 10.0)
    spans = data.written(0, data.decode(0, outputs))["spans"]
    assert spans[0].keys() == {"text", "probability"} and spans[0]["text"] == "YES"
    assert spans[-1].keys() == {"text", "start", "end", "probability"}
    without = AnswerDataset(settings(AnswerSettings, tokenizer, frame, 20, choices=["NO"]), 0, examples)
    assert not any(rows["starts"].any() for rows in without.passes([0], 8, training=True))


def test_choices_that_do_not_fit_are_one_line(tokenizer: Path) -> None:
    values = settings(AnswerSettings, tokenizer, "", 20, choices=["a b c", "d"], other_length=3)
    with pytest.raises(UserError, match=r"task\.other_length: 3 leaves no room beside 4 tokens of task\.choices"):
        AnswerDataset(values, 0, [AnswerExample("q", "", "a b", "c ?")]).verify()


@pytest.mark.parametrize("frame", FRAMES)
@given(tags=st.lists(st.sampled_from(["O", "B-X", "I-X"]), min_size=1, max_size=60), room=st.integers(6, 20))
def test_gold_logits_give_the_gold_tags_and_each_word_is_scored_once(
    tokenizer: Path, frame: str, tags: list[str], room: int
) -> None:
    example = TagExample("t", "", tuple(words(len(tags)).split()), tuple(tags))
    labels = ["O", "B-X", "I-X"]
    data = TagDataset(settings(TagSettings, tokenizer, frame, max(room, 8), labels=labels), 0, [example])
    scored = sum(int((rows["labels"] != IGNORED).sum()) for rows in data.passes([0], 4, training=True))
    assert scored == len(tags)
    outputs = oracle(data, lambda rows, row: np.eye(3)[np.maximum(rows["labels"][row], 0)])
    assert data.decode(0, outputs) == tuple(tags)


def test_a_character_without_pieces_keeps_its_place(tokenizer: Path) -> None:
    example = TagExample("t", "", ("a", "\u200d", "b"), ("O", "O", "B-X"))
    data = TagDataset(settings(TagSettings, tokenizer, "", 12, labels=["O", "B-X"]), 0, [example])
    (rows,) = data.passes([0], 4, training=True)
    assert rows["labels"][0].tolist() == [IGNORED, 0, 0, 1, IGNORED]


def test_the_order_of_options_changes_no_prediction(tokenizer: Path) -> None:
    options = ("a b", "c", "d e f")
    first = ChooseExample("x", "", words(30), "q ?", options, 2)
    second = ChooseExample("x", "", words(30), "q ?", options[::-1], 0)
    chosen = []
    for example in (first, second):
        data = ChooseDataset(settings(ChooseSettings, tokenizer, "", 16), 0, [example])
        prediction = data.decode(0, oracle(data, lambda rows, row: np.array([1.0 * rows["is_right"][row]])))
        chosen.append(example.options[data.scored(0, prediction)])
        assert data.scores({0: prediction})["accuracy"] == 100
    assert chosen == ["d e f", "d e f"]


def oracle(
    data: TaskDataset[Any, Any], output: Callable[[Any, int], Any], example: int = 0
) -> dict[tuple[int, int], Any]:
    """What a model would give that knows the targets: (option, window) -> `output`, without padding."""
    found = {}
    for rows in data.passes([example], 4, training=True):
        for row in range(len(rows["example"])):
            value = np.asarray(output(rows, row), float)
            real = rows["attention_mask"][row] == 1
            place = int(rows["option"][row]), int(rows["window"][row])
            found[place] = value[real] if value.ndim == 2 else value
    return found


def test_a_step_has_the_same_passes_on_any_number_of_ranks(tokenizer: Path) -> None:
    examples = [ClassifyExample(str(n), "", words(1 + n * 7 % 40), None, "a") for n in range(23)]
    data = ClassifyDataset(settings(ClassifySettings, tokenizer, "", 12, labels=["a"]), 3, examples)

    def passes(ranks: int) -> dict[int, list[Any]]:
        found: dict[int, list[Any]] = {}
        for rank in range(ranks):
            for group, rows in data.step_passes(5, 8, 2, ranks, rank):
                found.setdefault(group, []).append({name: values.tolist() for name, values in rows.items()})
        return found

    assert json.dumps(passes(1), sort_keys=True) == json.dumps(passes(4), sort_keys=True)


def test_an_epoch_has_each_example_once(tokenizer: Path) -> None:
    examples = [ClassifyExample(str(n), "", words(1 + n), None, "a") for n in range(24)]
    data = ClassifyDataset(settings(ClassifySettings, tokenizer, "", 64, labels=["a"]), 3, examples)
    seen = [int(one) for step in range(3) for _, rows in data.step_passes(step, 8, 4, 1, 0) for one in rows["example"]]
    assert sorted(seen) == list(range(24))
