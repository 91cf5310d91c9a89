"""`hotpotqa`, `hotpotqa-sentences`: HotpotQA's questions over ten paragraphs each (Yang et al. 2018), to answer, or to
rank the paragraphs or their sentences."""

import logging
import re
from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from reread.preprocessing.errors import UserError
from reread.preprocessing.labelled.examples import Example
from reread.preprocessing.labelled.file import LabelledFile
from reread.preprocessing.labelled.tasks.answer import ELSEWHERE, NOWHERE, Answer, AnswerExample, Fact
from reread.preprocessing.labelled.tasks.rank import RankExample
from reread.preprocessing.settings import Settings

log = logging.getLogger("reread")


class Asked(Settings):
    model_config = ConfigDict(extra="ignore")

    id: str = Field(alias="_id")
    question: str
    context: Annotated[list[tuple[str, list[str]]], Field(min_length=1)]
    """Each paragraph's title and sentences."""
    answer: str | None = None
    supporting_facts: list[tuple[str, int]] | None = None
    """(title, number of the sentence, from 0)."""

    @property
    def sentences(self) -> dict[tuple[str, int], str]:
        """All sentences that are not blank, by title and number; of two paragraphs of one title the first one's."""
        found = ((title, number, one) for title, all in self.context[::-1] for number, one in enumerate(all))
        by_fact = {(title, number): one.strip() for title, number, one in found if one.strip()}
        order = {title: number for number, (title, _) in reversed(list(enumerate(self.context)))}
        return dict(sorted(by_fact.items(), key=lambda one: (order[one[0][0]], one[0][1])))


def asked_in(source: LabelledFile) -> Iterator[tuple[str, Asked]]:
    """The location of each question, and what it asks. Raises `UserError` for another file."""
    data = source.json()
    if not isinstance(data, list):
        raise UserError(f"{source.path}: no list of questions; is it another format?")
    for position, asked in source.parse_each(Asked, data, "question"):
        yield source.location(f"{position}, {asked.id}"), asked


def read_hotpotqa(source: LabelledFile) -> Iterator[Example]:
    """`answer`: the text is all paragraphs, each after its title. A span of text is an answer wherever it stands as
    whole words, the places in supporting sentences first; `yes` and `no` are YES and NO. `rank`: the passages are the
    paragraphs, and those with a supporting sentence are relevant.

    A question without `answer` is unlabelled, as is a ranking, or a question whose evidence the task reads, without
    `supporting_facts`.
    """
    kind: Literal["answer", "rank"] = "rank" if source.task == "rank" else "answer"
    absent = 0
    for location, asked in asked_in(source):
        sentences = {title: len(found) for title, found in asked.context}
        wrong = [title for title, number in asked.supporting_facts or () if not 0 <= number < sentences.get(title, 0)]
        # Some of the owner's facts name a sentence that is not there; its paragraph is relevant all the same.
        if any(title not in sentences for title in wrong):
            source.mistake(location, f"supporting_facts: {_without(wrong, sentences)}")
        elif kind == "rank":
            yield _ranking(asked, location)
        else:
            absent += len(wrong)
            yield _question(asked, location, source.given.evidence)
    if absent and source.given.evidence:
        log.info(f"{source.name}: {absent:,} supporting facts name a sentence that is not there; they count as missed")


def _without(titles: list[str], known: Collection[str]) -> str:
    missing = next(title for title in titles if title not in known)
    return f"no paragraph has the title `{missing}`; the file of the distractor setting has all, that of fullwiki not"


def read_sentences(source: LabelledFile) -> Iterator[RankExample]:
    """The passages are all sentences, each after its paragraph's title; those that support the answer are relevant. A
    fact whose sentence is not there is left out; a question without `supporting_facts` is unlabelled."""
    for location, asked in asked_in(source):
        titles = {title for title, _ in asked.context}
        wrong = [title for title, _ in asked.supporting_facts or () if title not in titles]
        if wrong:
            source.mistake(location, f"supporting_facts: {_without(wrong, titles)}")
            continue
        passages, grades = tuple(f"{title}\n{text}" for (title, _), text in asked.sentences.items()), None
        if asked.supporting_facts is not None:
            facts = set(asked.supporting_facts)
            grades = tuple(float(fact in facts) for fact in asked.sentences)
        yield RankExample(asked.id, location, asked.question, passages, grades)


def _ranking(asked: Asked, location: str) -> RankExample:
    passages = tuple(f"{title}\n{''.join(sentences)}" for title, sentences in asked.context)
    grades = None
    if asked.supporting_facts is not None:
        relevant = {title for title, _ in asked.supporting_facts}
        grades = tuple(float(title in relevant) for title, _ in asked.context)
    return RankExample(asked.id, location, asked.question, passages, grades)


def _question(asked: Asked, location: str, with_evidence: bool) -> AnswerExample:
    text, supporting = "", []
    begins: list[list[int]] = []
    facts = set(asked.supporting_facts or ())
    for title, sentences in asked.context:
        begins.append([len(text)])
        text += f"{title}\n"
        for number, sentence in enumerate(sentences):
            begins[-1].append(len(text))
            if (title, number) in facts:
                supporting.append((len(text), len(text) + len(sentence)))
            text += sentence
        text += "\n"
    answers = None if asked.answer is None else _answers(text, asked.answer, supporting)
    text = text.rstrip("\n")
    example = AnswerExample(asked.id, location, text, asked.question, answers)
    if not with_evidence:
        return example
    paragraphs = tuple(tuple(min(begin, len(text)) for begin in one) for one in begins)
    return replace(example, paragraphs=paragraphs, evidence=_evidence(asked))


def _evidence(asked: Asked) -> tuple[Fact, ...] | None:
    """The supporting facts by number; of two paragraphs of one title the first one's."""
    if asked.supporting_facts is None:
        return None
    numbers = {title: number for number, (title, _) in reversed(list(enumerate(asked.context)))}
    return tuple(Fact(numbers[title], sentence) for title, sentence in asked.supporting_facts)


def _answers(text: str, answer: str, supporting: list[tuple[int, int]]) -> tuple[Answer, ...]:
    if answer in ("yes", "no"):
        return (Answer(NOWHERE, answer.upper()),)
    pattern = rf"(?<!\w){re.escape(answer)}(?!\w)"
    begins = [found.start() for found in re.finditer(pattern, text)] if answer.strip() else []
    begins = sorted(begins, key=lambda at: not any(first <= at < end for first, end in supporting))
    return tuple(Answer(begin, answer) for begin in begins) or (Answer(ELSEWHERE, answer),)
