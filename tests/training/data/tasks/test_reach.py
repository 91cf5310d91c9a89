"""Gold answers that no prediction can be, counted and scored against every span that a prediction may be."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reread.preprocessing.errors import UserError
from reread.preprocessing.labelled.tasks.answer import ELSEWHERE, MISPLACED, Answer, AnswerExample
from reread.preprocessing.tokens.wordpiece import WordPiece
from reread.training.data.tasks.answer import AnswerDataset
from reread.training.data.tasks.answer_settings import AnswerSettings
from reread.training.data.tasks.examples import examples_of
from reread.training.data.tasks.reach import within_reach
from reread.training.scoring.answers import exact_match
from reread.training.scoring.spans import Decoded, Span
from tests.conftest import shared
from tests.tasks import WORDS, dataset_of, number_of, task_values, write_tokenizer
from tests.training.scoring.real_data import questions

TEXT = " ".join(WORDS[:20])


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokenizer(tmp_path_factory.mktemp("tokenizer"))


def answers_of(tokenizer: Path, *examples: AnswerExample, model: str = "nezha", **task: Any) -> Any:
    return dataset_of(task_values(model, "answer", tokenizer, **{"sequence_length": 16, **task}), examples)


def asked(name: str, *texts: str, text: str = TEXT) -> AnswerExample:
    return AnswerExample(name, "", text, "q ?", tuple(Answer(text.find(one), one) for one in texts))


REACHED = "f1 100.00, em 100.00, average 100.00"
CASES: list[tuple[str, dict[str, Any], str, str]] = [
    ("b c d", {}, "", REACHED),
    ("b c d e", {"answer_length": 3}, "longer than task.answer_length=3", "f1 92.86, em 50.00, average 71.43"),
    ("r s t", {"longest": 18}, "past task.longest=18", "f1 75.00, em 50.00, average 62.50"),
    ("i j k l m n", {"step": 11}, "in no window of task.sequence_length=16", "f1 83.33, em 50.00, average 66.67"),
    ("b c x y", {}, "that the text does not hold", "f1 83.33, em 50.00, average 66.67"),
    ("", {}, "without an answer, where task.no_answer=null", "f1 50.00, em 50.00, average 50.00"),
    ("", {"no_answer": 0.0}, "", REACHED),
    ("", {"no_answer": 0.0, "model": "ran"}, "without an answer, which this model cannot predict", "f1 50.00, em 50"),
]


@pytest.mark.parametrize(("answer", "task", "reason", "ceiling"), CASES)
def test_each_way_to_lose_a_gold_answer_is_counted(
    tokenizer: Path, answer: str, task: dict[str, Any], reason: str, ceiling: str
) -> None:
    """11 tokens of the text are in a window; another question's answer is within reach."""
    data = answers_of(tokenizer, asked("lost", *([answer] if answer else [])), asked("found", "b"), **task)
    lost = f"1 of 2 gold answers are out of reach (1 {reason})" if reason else "0 of 2 gold answers are out of reach"
    assert data.remarks()[-1].startswith(f"{lost}; the best possible scores are {ceiling}")


def test_an_answer_counts_as_reached_where_another_place_or_form_of_it_is(tokenizer: Path) -> None:
    twice = "a b. c d e f g h i j k l m n o p q r s t a b"
    past = AnswerExample("q", "", twice, "q ?", (Answer(len(twice) - 3, "a b"), Answer(MISPLACED, "The A b!")))
    data = answers_of(tokenizer, past, longest=12)
    assert data.remarks()[-1].startswith("0 of 2 gold answers are out of reach; ")
    with_others = answers_of(tokenizer, asked("q", "b c d e f", "i"), answer_length=3)
    assert "1 of 2 gold answers are out of reach (1 longer than task.answer_length=3)" in with_others.remarks()[-1]
    assert with_others.remarks()[-1].endswith("f1 100.00, em 100.00, average 100.00")


def test_unlabelled_questions_have_no_ceiling(tokenizer: Path) -> None:
    assert answers_of(tokenizer, AnswerExample("q", "", TEXT, "q ?")).remarks() == []


@given(
    length=st.integers(1, 25),
    where=st.integers(0, 24),
    size=st.integers(1, 12),
    room=st.integers(9, 16),
    step=st.integers(1, 20),
    longest=st.integers(1, 12),
    read=st.integers(1, 30),
)
def test_the_ceiling_is_the_best_of_all_spans_that_a_prediction_may_be(
    tokenizer: Path, length: int, where: int, size: int, room: int, step: int, longest: int, read: int
) -> None:
    """Each word stands once: pieces of an answer that stand elsewhere, too, are not looked for."""
    words = WORDS[1 : 1 + length]  # SQuAD's F1 leaves "a" out
    text, gold = " ".join(words), " ".join(words[where % length :][:size])
    example = AnswerExample("q", "", text, "q ?", (Answer(2 * (where % length), gold),))
    settings = {"sequence_length": room, "step": step, "answer_length": longest, "longest": read}
    data = answers_of(tokenizer, example, **settings)
    document = data.documents[0]
    spans = {
        " ".join(words[first : last + 1])
        for number in range(document.windows)
        for first in range(length)[document.window(number)]
        for last in range(first, min(first + longest, document.window(number).stop))
    }
    wanted = {*gold.split()}
    best = max(len({*span.split()} & wanted) * 2 / (len({*span.split()}) + len(wanted)) for span in spans)
    line = data.remarks()[-1]
    assert line.startswith(f"{int(gold not in spans)} of 1 gold answers are out of reach")
    assert f"em {100 * (gold in spans):.2f}" in line and f"f1 {100 * best:.2f}" in line


@pytest.mark.long
@pytest.mark.slow
def test_the_ceiling_of_cmrc2018_counts_all_its_answers(tmp_path: Path) -> None:
    """By an enumeration of all spans of at most 30 tokens, in the metric's normal form written anew, 581 answers are
    out of reach and EM is at most 95.31; of 100 tokens all questions have an answer within reach."""
    path, vocabulary = shared("zh_cmrc2018/cmrc2018_dev.json.xz"), shared("vocab/bert-base-chinese.vocab.txt")
    tokens = vocabulary.read_text(encoding="utf-8").split("\n")[:-1]
    WordPiece(vocabulary, tokens, True).save(tmp_path)
    values = {"kind": "answer", "train": path, "dev": path, "tokenizer": tmp_path, "sequence_length": 384, "step": 128}
    settings = AnswerSettings.parse({**values, "style": "cmrc", "misplaced": 0.06}, "test")
    data = AnswerDataset(settings, 0, examples_of(settings, "validation"))
    assert sum(len(one.answers or ()) for one in data.examples) == 9657
    assert within_reach(settings, data.examples, data.documents).endswith(REACHED)
    thirty = within_reach(settings.model_copy(update={"answer_length": 30}), data.examples, data.documents)
    assert thirty.startswith("581 of 9,657 gold answers are out of reach (504 longer than task.answer_length=30, 77 ")
    assert "em 95.31," in thirty


def test_an_annotators_own_answers_are_all_right() -> None:
    """Scored against the answers that stand at their places alone they were 98.2 % right."""
    path = shared("zh_cmrc2018/cmrc2018_dev.json.xz")
    settings = AnswerSettings.parse({"kind": "answer", "train": path, "dev": path, "misplaced": 0.06}, "test")
    examples = examples_of(settings, "validation")
    theirs = {one.id: one.answers for one in questions("zh_cmrc2018/cmrc2018_dev.json.xz")}
    gold = {one.id: [answer.text for answer in one.answers] for one in examples}
    assert [exact_match(gold, {name: texts[one] for name, texts in theirs.items()}, "cmrc") for one in range(3)] == [
        100,
        100,
        100,
    ]
    placed = {one.id: [answer.text for answer in one.learnable] for one in examples if one.learnable}
    third = {name: texts[2] for name, texts in theirs.items() if name in placed}
    assert exact_match(placed, third, "cmrc") == pytest.approx(98.2, abs=0.01)
    assert len(examples_of(settings, "predict")) == 3219 and len(examples_of(settings, "train")) == 3216


def test_a_question_about_several_texts_has_the_answer_with_the_highest_score(tokenizer: Path) -> None:
    """As TriviaQA's script, which takes one answer a question: all aliases are right, wherever they stand."""

    def about(question: str, name: str, text: str) -> AnswerExample:
        placed = tuple(Answer(text.index(one), one) for one in ("x y",) if one in text)
        return AnswerExample(name, "", text, "q ?", (*placed, Answer(ELSEWHERE, "y z")), question)

    examples = [about("1", "a", "b x y"), about("1", "b", "c d"), about("2", "c", "x y"), about("2", "d", "y z")]
    data = answers_of(tokenizer, *examples, style="triviaqa")

    def decoded(start: int, end: int, score: float) -> Decoded:
        return Decoded(Span(start, end, score, 1.0), ())

    first = {0: decoded(2, 5, 1.0), 1: decoded(0, 1, 0.5)}  # `x y` before `c`
    second = {2: decoded(0, 1, -2.0), 3: decoded(0, 3, -1.0)}  # `y z` before `x`
    assert data.scores({**first, **second}) == {"f1": 100, "em": 100, "average": 100}
    assert data.scores({**first, 1: decoded(0, 1, 1.5), **second})["em"] == 50
    assert data.scores({2: second[2]})["f1"] == pytest.approx(100 * 2 / 3 / 2)
    assert data.scores({1: Decoded(None, ())}) == {"f1": 0, "em": 0, "average": 0}


def test_answers_are_sought_in_all_texts_of_a_question(tokenizer: Path) -> None:
    here, nowhere = (Answer(2, "x"), Answer(ELSEWHERE, "x")), (Answer(ELSEWHERE, "x"),)
    texts = [("1", here, "b x"), ("1", nowhere, "c d"), ("2", nowhere, "e f")]
    examples = [AnswerExample(str(n), "", text, "q ?", gold, name) for n, (name, gold, text) in enumerate(texts)]
    line = answers_of(tokenizer, *examples, style="triviaqa").remarks()[-1]
    assert line.startswith("1 of 2 gold answers are out of reach (1 that no text of their question holds); the best ")
    assert "em 50.00" in line


def test_the_question_is_read_in_its_form(tokenizer: Path) -> None:
    plain, formed = (
        answers_of(tokenizer, asked("a", "b"), **form).documents[0].options[0][0].tolist()
        for form in ({}, {"question_form": "a {question} b"})
    )
    assert formed == [number_of("a"), *plain, number_of("b")]
    with pytest.raises(UserError, match=r"question_form: .*has no \{question\}"):
        answers_of(tokenizer, asked("a", "b"), question_form="{q}")


def test_marks_around_the_question_are_tokens_that_nothing_else_has(tokenizer: Path) -> None:
    """A question that is cut keeps its end; a question or a text that spells a mark has none, and answers stay."""
    spelt = AnswerExample("a", "", "x [/q] y z t", "a [q] b c", (Answer(9, "z"),))
    usual = AnswerExample("a", "", "x y z t", "a b c", (Answer(4, "z"),))
    form = {"question_form": "[q]{question}[/q]", "question_tokens": True, "sequence_length": 20}
    data, plain = answers_of(tokenizer, spelt, **form), answers_of(tokenizer, usual, sequence_length=20)
    begin, end = data.own_tokens
    assert (begin, end) == (plain.vocab_size, plain.vocab_size + 1)
    (question,), (bare,) = data.documents[0].options[0], plain.documents[0].options[0]
    assert question.tolist() == [begin, *bare.tolist(), end]
    assert data.documents[0].ids.tolist() == plain.documents[0].ids.tolist()
    for one in (data, plain):
        row = next(iter(one.passes([0], 1, training=True)))
        assert row["input_ids"][row["starts"]].tolist() == [number_of("z")]
    cut = answers_of(tokenizer, spelt, **form, other_length=4).documents[0].options[0][0].tolist()
    assert cut == [begin, *bare.tolist()[:2], end]
