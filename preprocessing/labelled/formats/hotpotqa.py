"""`hotpotqa`: HotpotQA's questions over ten paragraphs each (Yang et al. 2018), to answer or to rank the paragraphs."""

import re
from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from reread.preprocessing.errors import UserError
from reread.preprocessing.labelled.examples import Example
from reread.preprocessing.labelled.file import LabelledFile
from reread.preprocessing.labelled.tasks.answer import ELSEWHERE, NOWHERE, Answer, AnswerExample
from reread.preprocessing.labelled.tasks.rank import RankExample
from reread.preprocessing.settings import Settings


class _Asked(Settings):
    model_config = ConfigDict(extra="ignore")

    id: str = Field(alias="_id")
    question: str
    context: Annotated[list[tuple[str, list[str]]], Field(min_length=1)]
    """Each paragraph's title and sentences."""
    answer: str | None = None
    supporting_facts: list[tuple[str, int]] | None = None
    """(title, number of the sentence, from 0)."""


def read_hotpotqa(source: LabelledFile) -> Iterator[Example]:
    """`answer`: the text is all paragraphs, each after its title. A span of text is an answer wherever it stands as
    whole words, the places in supporting sentences first; `yes` and `no` are YES and NO. `rank`: the passages are the
    paragraphs, and those with a supporting sentence are relevant.

    A question without `answer` is unlabelled, as is a ranking without `supporting_facts`.
    """
    data = source.json()
    if not isinstance(data, list):
        raise UserError(f"{source.path}: no list of questions; is it another format?")
    kind: Literal["answer", "rank"] = "rank" if source.task == "rank" else "answer"
    for position, asked in source.parse_each(_Asked, data, "question"):
        location = source.location(f"{position}, {asked.id}")
        sentences = {title: len(found) for title, found in asked.context}
        wrong = [title for title, number in asked.supporting_facts or () if not 0 <= number < sentences.get(title, 0)]
        # Some of the owner's facts name a sentence that is not there; its paragraph is relevant all the same.
        if any(title not in sentences for title in wrong):
            source.mistake(location, f"supporting_facts: no paragraph has the title `{wrong[0]}`")
        elif kind == "rank":
            yield _ranking(asked, location)
        else:
            yield _question(asked, location)


def _ranking(asked: _Asked, location: str) -> RankExample:
    passages = tuple(f"{title}\n{''.join(sentences)}" for title, sentences in asked.context)
    grades = None
    if asked.supporting_facts is not None:
        relevant = {title for title, _ in asked.supporting_facts}
        grades = tuple(float(title in relevant) for title, _ in asked.context)
    return RankExample(asked.id, location, asked.question, passages, grades)


def _question(asked: _Asked, location: str) -> AnswerExample:
    text, supporting = "", []
    facts = set(asked.supporting_facts or ())
    for title, sentences in asked.context:
        text += f"{title}\n"
        for number, sentence in enumerate(sentences):
            if (title, number) in facts:
                supporting.append((len(text), len(text) + len(sentence)))
            text += sentence
        text += "\n"
    answers = None if asked.answer is None else _answers(text, asked.answer, supporting)
    return AnswerExample(asked.id, location, text.rstrip("\n"), asked.question, answers)


def _answers(text: str, answer: str, supporting: list[tuple[int, int]]) -> tuple[Answer, ...]:
    if answer in ("yes", "no"):
        return (Answer(NOWHERE, answer.upper()),)
    pattern = rf"(?<!\w){re.escape(answer)}(?!\w)"
    begins = [found.start() for found in re.finditer(pattern, text)] if answer.strip() else []
    begins = sorted(begins, key=lambda at: not any(first <= at < end for first, end in supporting))
    return tuple(Answer(begin, answer) for begin in begins) or (Answer(ELSEWHERE, answer),)
