"""`squad`, `c3`, `cmrc2019` and `cail`: questions about texts, answered by spans or by one of several options."""

import logging
import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from reread.preprocessing.errors import UserError
from reread.preprocessing.input.fields import json_type
from reread.preprocessing.labelled.file import LabelledFile
from reread.preprocessing.labelled.tasks.answer import NOWHERE, Answer, AnswerExample
from reread.preprocessing.labelled.tasks.choose import ChooseExample
from reread.preprocessing.settings import Settings

log = logging.getLogger("reread")
_BLANK = re.compile(r"\[BLANK\d+\]")


class _Published(Settings):
    """A part of a published file; other fields are ignored."""

    model_config = ConfigDict(extra="ignore")


class _SquadAnswer(_Published):
    text: str
    answer_start: int


class _Question(_Published):
    id: str | int
    question: str
    answers: list[_SquadAnswer] | None = None
    is_impossible: bool | Literal["true", "false", ""] = False
    """CAIL2019 has it as text, empty in a file to predict for."""


class _Paragraph(_Published):
    context: str
    qas: list[Any]


class _Article(_Published):
    paragraphs: list[Any]


class _Options(_Published):
    question: str
    choice: Annotated[list[str], Field(min_length=1)]
    answer: str = ""


class _Document(_Published):
    lines: list[str]
    questions: list[Any]
    id: str | int


class _Cloze(_Published):
    context_id: str | int
    context: str
    choices: list[str]
    answers: list[int] | None = None


class _Cases(_Published):
    A: str
    B: str
    C: str
    label: Literal["B", "C"] | None = None


def _data(source: LabelledFile) -> list[Any]:
    values = source.json()
    data = values.get("data") if isinstance(values, dict) else None
    if not isinstance(data, list):
        raise UserError(f"{source.path}: no list under `data` at the top; is it another format?")
    return data


def read_squad(source: LabelledFile) -> Iterator[AnswerExample]:
    """SQuAD 1 and 2 and what has their form: CMRC2018, DRCD, DuReader, TriviaQA, CAIL2019's reading questions.

    A question without the field `answers` is unlabelled; one with an empty list has no answer. In CAIL2019 -1 is the
    start of YES, of NO, and of an empty text where an annotator found no answer; what `is_impossible` says beside
    answers does not count, as in its owner's script (evaluate.py).
    """
    for where, article in source.parse_each(_Article, _data(source), "article"):
        for position, paragraph in source.parse_each(_Paragraph, article.paragraphs, f"{where}, paragraph"):
            for question in paragraph.qas:
                yield from _question(source, paragraph.context, question, position)


def _question(source: LabelledFile, context: str, values: Any, position: str) -> Iterator[AnswerExample]:
    name = values.get("id", "without id") if isinstance(values, dict) else type(values).__name__
    location = source.location(f"{position}, question {name}")
    question = source.parse(_Question, values, location)
    if question is None:
        return
    answers = question.answers
    if question.is_impossible is True:
        if answers:
            source.mistake(location, "`is_impossible`, but it has answers; delete one of the two")
            return
        answers = []
    if question.is_impossible == "" and not answers:
        answers = None
    spans = None if answers is None else tuple(Answer(span.answer_start, span.text) for span in answers)
    if spans and all(span == (NOWHERE, "") for span in spans):
        spans = ()
    yield AnswerExample(str(question.id), location, context, question.question, spans)


def read_c3(source: LabelledFile) -> Iterator[ChooseExample]:
    """C3: documents or dialogues as lists of lines, and questions with options, of which the answer is one's text.

    An option that repeats another one is left out, since no model can distinguish the two. C3's dialogues and other
    texts share ids: the second document of an id gets its position in the file beside it.
    """
    data = source.json()
    if not isinstance(data, list):
        raise UserError(f"{source.path}: {json_type(data)}, not a list of documents; is it another format?")
    repeated, groups, shared = 0, set[str](), 0
    for number, values in enumerate(data, 1):
        # A document, whose id becomes the group of its questions
        location = source.location(f"document {number}")
        if not isinstance(values, list) or len(values) != 3:
            source.mistake(location, "not a list of lines, questions and an id")
            continue
        document = source.parse(_Document, dict(zip(("lines", "questions", "id"), values, strict=True)), location)
        if document is None:
            continue
        text, group = "\n".join(document.lines), str(document.id)
        if group in groups:
            group, shared = f"{group}@{number}", shared + 1
        groups.add(group)
        # Its questions
        for order, inner in enumerate(document.questions, 1):
            location = source.location(f"document {number}, question {order}")
            question = source.parse(_Options, inner, location)
            if question is None:
                continue
            options = tuple(dict.fromkeys(question.choice))
            repeated += len(options) < len(question.choice)
            if question.answer and question.answer not in options:
                source.mistake(location, f"the answer `{question.answer}` is none of its options")
                continue
            label = options.index(question.answer) if question.answer else None
            yield ChooseExample(f"{group}-{order}", location, text, question.question, options, label, group)
    if repeated:
        log.info(f"{source.path}: {repeated:,} questions have an option twice; the copies are left out")
    if shared:
        log.info(f"{source.path}: {shared:,} documents share the id of another one; their ids end with their position")


def read_cmrc2019(source: LabelledFile) -> Iterator[ChooseExample]:
    """CMRC2019: passages with blanks, each filled by one of the passage's sentences; one example for each blank.

    An empty list of answers, as in the owner's file to predict for, means unlabelled.
    """
    for position, passage in source.parse_each(_Cloze, _data(source), "article"):
        location = source.location(position)
        blanks = _BLANK.findall(passage.context)
        if not blanks or len(set(blanks)) < len(blanks):
            source.mistake(location, "a blank stands twice in its text" if blanks else "no [BLANK1] in its text")
            continue
        if passage.answers and len(passage.answers) != len(blanks):
            source.mistake(location, f"{len(passage.answers)} answers for {len(blanks)} blanks")
            continue
        group, options = str(passage.context_id), tuple(passage.choices)
        for order, blank in enumerate(blanks):
            name = f"{location}, {blank[1:-1]}"
            label = passage.answers[order] if passage.answers else None
            yield ChooseExample(f"{group}-{blank[1:-1]}", name, passage.context, blank, options, label, group)


def read_cail(source: LabelledFile) -> Iterator[ChooseExample]:
    """CAIL2019-SCM: is case B or case C nearer to case A? The question is empty, the options are B and C."""
    for number, values in source.json_lines():
        location = source.location(number)
        cases = source.parse(_Cases, values, location)
        if cases is not None:
            label = None if cases.label is None else "BC".index(cases.label)
            yield ChooseExample(str(number), location, cases.A, "", (cases.B, cases.C), label)
