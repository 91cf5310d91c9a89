"""The settings of `answer`."""

import re
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field

from reread.preprocessing.labelled.examples import Given
from reread.preprocessing.labelled.tasks.answer import AnswerExample, choices_of
from reread.training.data.settings import LONGEST
from reread.training.data.tasks.settings import TaskSettings


def _with_question(form: str) -> str:
    if "{question}" not in form:
        raise ValueError("has no {question}, which the question takes the place of")
    return form


class AnswerSettings(TaskSettings):
    """A span of the text that answers a question."""

    may_change = TaskSettings.file_fields | {"question", "evidence_paragraphs"}  # examples, rows and targets stay

    beside_tokens: ClassVar[frozenset[str]] = TaskSettings.beside_tokens | {"answers", "evidence_paragraphs"}

    kind: Literal["answer"]
    form: Literal["plain", "marked"] = "plain"
    """`plain`: the text as it is. `marked`: question, titles and sentences have marks, tokens that the vocabulary gets,
    from whose states the paragraphs and sentences that support the answer are learned beside it; `choices` are learned
    from [CLS] (Longformer and ERNIE-Doc on HotpotQA: Beltagy et al. 2020, appendix D.1; Ding et al. 2021)."""
    answers: bool = True
    """Whether answers are learned and predicted; false: evidence and paragraphs alone, from marks (`form: marked`; the
    first of ERNIE-Doc's two models for HotpotQA)."""
    evidence_paragraphs: int | None = Field(default=None, ge=1, le=1000)
    """Number of paragraphs from which evidence is predicted (`form: marked`), of each its best sentence and those above
    0; null: all sentences above 0."""
    occurrences: Literal["first", "all"] = "first"
    """`first`: the first answer is learned; `all`: any occurrence of an answer, in any window of the document, is right
    (Longformer's OR loss with a softmax over all windows: Beltagy et al. 2020, appendix D.1)."""
    without: Literal["cls", "skip"] = "cls"
    """Target of a window (or of a document, with `all`) without the answer: [CLS], or none and no loss."""
    no_answer: float | None = None
    """A question has no answer if [CLS] exceeds the best span's score by this; null: all questions have answers."""
    style: Literal["cmrc", "squad", "triviaqa", "hotpotqa"] = "squad"
    """The official script whose EM and F1 are computed; `cmrc` is that of CMRC2018, DRCD and DuReader."""
    answer_length: int = Field(default=100, ge=1, le=LONGEST)
    """Tokens of the longest answer."""
    misplaced: float = Field(default=0, ge=0, le=1)
    """Share of a file's questions that may have a misplaced answer, which is not where the file says. Such an answer is
    scored, but not learned."""
    choices: list[str] = []
    """Answers that are no part of the text, such as YES and NO. They stand before each question and are predicted as
    spans of the text are, but where `form` is `marked`. `reread finetune` fills in those of the training examples."""
    question_form: Annotated[str, AfterValidator(_with_question)] = "{question}"
    """The question as the model reads it, `{question}` in it, such as `[q] {question} [/q]`."""
    question_tokens: bool = False
    """Whether what stands in square brackets in `question_form`, such as [q], is a token of its own, which the
    vocabulary gets if it lacks it (ERNIE-Doc, appendix A.5); false: it is text."""
    question: str | None = None
    """The question about each text that has none of its own, such as raw text."""

    @property
    def given(self) -> Given:
        return Given(question=self.question, evidence=self.is_marked)

    @property
    def needs_own_head(self) -> bool:
        return self.is_marked

    @property
    def is_marked(self) -> bool:
        return self.form == "marked"

    @property
    def own_tokens(self) -> tuple[str, ...]:
        """Those of the question's form; or [q], [/q] and the marks of titles and sentences, of which ERNIE-Doc's end
        with [SEP]."""
        if not self.is_marked:
            return tuple(re.findall(r"\[[^\[\]{}]+\]", self.question_form)) if self.question_tokens else ()
        return ("[q]", "[/q]", "[p]") if self.frame == "segments" else ("[q]", "[/q]", "<t>", "</t>", "[s]")

    @property
    def scored_as(self) -> str:
        if not self.answers:
            return "evidence"
        return "answer-evidence" if self.is_marked else self.kind

    @property
    def may_decline(self) -> bool:
        """Whether a prediction may be that the text has no answer; a model without [CLS] cannot predict that."""
        return self.no_answer is not None and not self.text_only

    @property
    def one_softmax(self) -> bool:
        """Whether the windows of a document share a softmax: with memory, they are read one after the other."""
        return self.occurrences == "all" and self.frame != "segments"

    @property
    def overlaps(self) -> bool:
        return True

    def found_in(self, train: Sequence[AnswerExample]) -> dict[str, Any]:
        return {"choices": self.choices or choices_of(train)}

    @property
    def remarks(self) -> list[str]:
        if not self.choices:
            return []
        return [f"task.choices: {self.choices}, since task.train has these answers and its texts do not"]
