"""A span of the text that answers a question."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reread.preprocessing.errors import UserError
from reread.preprocessing.labelled.tasks.answer import NOWHERE, AnswerExample
from reread.training.data.batch import Rows
from reread.training.data.tasks.answer_settings import AnswerSettings
from reread.training.data.tasks.dataset import SHOWN, Mark, Member, Mistake, Outputs, TaskDataset
from reread.training.data.tasks.documents import TaskDocument, Tokens
from reread.training.data.tasks.reach import within_reach
from reread.training.data.tasks.windows import Row
from reread.training.scoring.answers import answer_f1
from reread.training.scoring.baselines import likeliest_clause
from reread.training.scoring.spans import Decoded, Span, Window, decode
from reread.training.scoring.task_scores import scores


class AnswerDataset(TaskDataset[AnswerSettings, AnswerExample]):
    is_question = True

    def encode(self, examples: Sequence[AnswerExample]) -> list[TaskDocument]:
        questions = self._questions([example.question for example in examples])
        texts = self.encoder.tokens([example.text for example in examples])
        if self.own_tokens:
            texts = [(ids[kept], offsets[kept]) for ids, offsets in texts for kept in [self.unmarked(ids)]]
        choices = [number for ids in self._choices.values() for number in ids]
        room = self.settings.other_length or self.settings.sequence_length // 4  # the least without other_length
        if len(choices) > room:
            raise UserError(
                f"task.other_length: {room} leaves no room beside {len(choices)} tokens of task.choices; raise it"
            )
        return [
            self.document(text, [[[*choices, *question]]], offsets)
            for question, (text, offsets) in zip(questions, texts, strict=True)
        ]

    def _questions(self, questions: Sequence[str]) -> list[Tokens]:
        """The tokens of questions in `question_form`; a question that spells one of its own tokens has none there."""
        form = self.settings.question_form
        if not self.own_tokens:
            return self.encoder.ids([form.replace("{question}", question) for question in questions])
        before, *after = self.encoder.ids(form.split("{question}"))
        unmarked = [ids[self.unmarked(ids)] for ids in self.encoder.ids(questions)]
        return [np.concatenate([before, *(part for one in after for part in (ids, one))]) for ids in unmarked]

    def _shown(self, parts: list[Sequence[int]], text: int) -> list[Sequence[int]]:
        """As of all tasks, and a question that is cut keeps the tokens behind it."""
        (whole,), (cut,) = parts, super()._shown(parts, text)
        if not self.own_tokens or len(cut) == len(whole):
            return [cut]
        (behind,) = self.encoder.ids([self.settings.question_form.rpartition("{question}")[2]])
        return [[*cut[: max(0, len(cut) - len(behind))], *behind]]

    @cached_property
    def _choices(self) -> dict[str, Tokens]:
        """The tokens of each choice, which stand before the question."""
        return dict(zip(self.settings.choices, self.encoder.ids(self.settings.choices), strict=True))

    def _choice_positions(self, window: int) -> dict[str, tuple[int, int]]:
        """The first and the last token of each choice in a row whose window has `window` tokens."""
        position = window + 1 if self.settings.frame == "segments" else int(self.settings.frame == "")
        positions = {}
        for choice, ids in self._choices.items():
            positions[choice] = (position, position + len(ids) - 1)
            position += len(ids)
        return positions

    def units(self, example: int, last_only: bool) -> list[list[Member]]:
        units = super().units(example, last_only)
        if self.settings.one_softmax:
            return [[member for unit in units for member in unit]]
        return units

    def targets(self, members: Sequence[Member], rows: Sequence[Row], shape: tuple[int, int]) -> Rows:
        """starts, ends bool [B, L]: the right positions; [CLS], or none, in a softmax without an answer."""
        starts, ends = np.zeros(shape, bool), np.zeros(shape, bool)
        units = [member.example if self.settings.one_softmax else row for row, member in enumerate(members)]
        for row, (member, built) in enumerate(zip(members, rows, strict=True)):
            for first, last in self._answers(member, built.content):
                starts[row, first] = ends[row, last] = True
        if self.settings.without == "cls" and not self.settings.text_only:
            answered = {units[row] for row in np.flatnonzero(starts.any(1))}
            none = [
                unit not in answered and not self._is_unreachable(member)
                for unit, member in zip(units, members, strict=True)
            ]
            cls = self._cls(shape[1])
            starts[none, cls] = ends[none, cls] = True
        return {"starts": starts, "ends": ends}

    def _is_unreachable(self, member: Member) -> bool:
        """Whether the answer cannot be learned: a choice absent from training, or misplaced. Unanswered examples do not
        count."""
        example = self.examples[member.example]
        if not example.learnable:
            return bool(example.answers)
        first = example.learnable[0]
        return first.start == NOWHERE and first.text not in ("", *self._choices)

    def _cls(self, length: int) -> int:
        return length - 1 if self.settings.frame == "segments" else 0

    def _answers(self, member: Member, content: int) -> list[tuple[int, int]]:
        """The positions in a row of the first and the last token of each answer to learn that its window holds;
        `content` is the position of the window's first token."""
        document = self.documents[member.example]
        window, offsets = document.window(member.window), document.offsets
        answers = self.examples[member.example].learnable
        found = []
        for answer in answers if self.settings.occurrences == "all" else answers[:1]:
            if answer.start == NOWHERE:
                positions = self._choice_positions(window.stop - window.start)
                found += [positions[answer.text]] if answer.text in positions else []
                continue
            end = answer.start + len(answer.text)
            inside = np.flatnonzero((offsets[:, 1] > answer.start) & (offsets[:, 0] < end))
            if len(inside) and window.start <= inside[0] and inside[-1] < window.stop:
                found.append((content + int(inside[0]) - window.start, content + int(inside[-1]) - window.start))
        return found

    def gold(self, example: AnswerExample) -> Any:
        return None if example.answers is None else [answer.text for answer in example.answers]

    def label_of(self, example: AnswerExample, option: int) -> str:
        return "answers: " + (", ".join(dict.fromkeys(one.text for one in example.answers or ())) or "none")

    def marks(self, row: Rows) -> list[Mark]:
        """The answers in the window, or [CLS] if that is the window's answer."""
        first = int(np.flatnonzero(row["starts"][0])[0]) if row["starts"].any() else -1
        if first == self._cls(row["starts"].shape[1]) and not self.settings.text_only:
            return [Mark(first, first, "no answer here")]
        member = Member(int(row["example"][0]), 0, int(row["window"][0]))
        return [Mark(first, last, "answer") for first, last in self._answers(member, self._content(member))]

    def decode(self, example: int, outputs: Outputs) -> Decoded:
        """`outputs` are start and end logits [L, 2]."""
        document = self.documents[example]
        windows = []
        chosen = dict.fromkeys(self._choices, -np.inf)
        for (_, number), logits in sorted(outputs.items()):
            content = self._content(Member(example, 0, number))
            window = document.window(number)
            for choice, (first, last) in self._choice_positions(window.stop - window.start).items():
                chosen[choice] = max(chosen[choice], float(logits[first, 0] + logits[last, 1]))
            inside = slice(content, content + window.stop - window.start)
            offsets = np.full((len(logits), 2), -1)
            offsets[inside] = document.offsets[window]
            null = float(logits[self._cls(len(logits))].sum()) if self.settings.may_decline else None
            windows.append(Window(logits[:, 0], logits[:, 1], offsets, window.start, null))
        return decode(
            windows,
            self.examples[example].text,
            longest=self.settings.answer_length,
            null_threshold=self.settings.no_answer or 0.0,
            choices=list(chosen.values()),
        )

    def scored(self, example: int, prediction: Decoded) -> str:
        return "" if prediction.best is None else self._text_of(example, prediction.best)

    def _text_of(self, example: int, span: Span) -> str:
        if span.start < 0:
            return self.settings.choices[-1 - span.start]
        return self.examples[example].text[span.start : span.end]

    @property
    def lines(self) -> list[list[int]] | None:
        """The texts of each question; None if no question is about several."""
        if all(one.question_id is None for one in self.examples):
            return None
        found = dict[str, list[int]]()
        for index, example in enumerate(self.examples):
            found.setdefault(self._question_of(example), []).append(index)
        return list(found.values())

    @staticmethod
    def _question_of(example: AnswerExample) -> str:
        return example.id if example.question_id is None else example.question_id

    def best_of(self, members: Sequence[int], predictions: Mapping[int, Decoded]) -> int:
        """The text whose answer has the highest score, the first of equals; scores of a question's windows and texts
        can be compared (Clark and Gardner 2018)."""
        return max(members, key=lambda one: self._score(predictions[one]))

    @staticmethod
    def _score(prediction: Decoded) -> float:
        return -np.inf if prediction.best is None else prediction.best.score

    def scores(self, predictions: Mapping[int, Any]) -> dict[str, float]:
        """Of a question about several texts the answer with the highest score counts (TriviaQA)."""
        gold: dict[str, list[str]] = {}
        best: dict[str, tuple[float, str]] = {}
        for index, example in enumerate(self.examples):
            question = self._question_of(example)
            gold.setdefault(question, []).extend(self.gold(example) or ())
            if index in predictions:
                found = (self._score(predictions[index]), self.scored(index, predictions[index]))
                best[question] = max(best.get(question, found), found, key=lambda one: one[0])
        answers = {question: text for question, (_, text) in best.items()}
        return scores(self.settings.scored_as, gold, answers, style=self.settings.style)

    def lengths(self) -> dict[str, NDArray[np.int64]]:
        read = self.documents.lengths  # a whole text, or up to `longest`; what else is unread is of the question
        return {
            "of a text": np.where(read == self.settings.longest, read + self.documents.unread, read),
            "of a question": self._lengths([one.question for one in self.examples]),
            "of an answer": self._lengths([answer.text for one in self.examples for answer in one.answers or ()]),
        }

    def remarks(self) -> list[str]:
        if not self.settings.answers or any(one.answers is None for one in self.examples):
            return super().remarks()
        return [*super().remarks(), within_reach(self.settings, self.examples, self.documents)]

    def written(self, example: int, prediction: Decoded) -> dict[str, Any]:
        spans = []
        for one in prediction.n_best[:5]:
            ends = {"start": one.start, "end": one.end} if one.start >= 0 else {}
            spans.append({"text": self._text_of(example, one), **ends, "probability": one.probability})
        question = self.examples[example].question_id
        of_several: dict[str, Any] = {} if question is None else {"id": question, "document": self.examples[example].id}
        if question is not None and prediction.best is not None:
            of_several["score"] = prediction.best.score
        return {**of_several, "answer": self.scored(example, prediction), "spans": spans}

    def mistake(self, index: int, prediction: Any) -> Mistake | None:
        example, guess = self.examples[index], self.scored(index, prediction)
        f1 = answer_f1({"": self.gold(example)}, {"": guess}, self.settings.style)
        if f1 == 100:
            return None
        sure = prediction.best.probability if prediction.best else 0.0
        begin = max(0, (example.answers[0].start if example.answers else 0) - SHOWN // 2)
        text = f"{example.question}\n{'...' if begin else ''}{example.text[begin : begin + SHOWN]}"
        gold = " / ".join(dict.fromkeys(one.text for one in example.answers or ())) or "no answer"
        return Mistake(100 - f1 + sure, text, gold, guess or "no answer")

    def baselines(self, train: Sequence[AnswerExample]) -> Iterator[tuple[str, Mapping[int, Any]]]:
        clauses = [likeliest_clause(one.text, one.question) for one in self.examples]
        yield "likeliest clause", {index: Decoded(Span(*clause, 0.0, 1.0), ()) for index, clause in enumerate(clauses)}
