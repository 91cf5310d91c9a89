"""Answers and the sentences that support them, from marks in one row (`task.form=marked`).

A row is question and text, [q] question [/q] and <t> title </t> sentence [s] sentence [s] ... of each paragraph
(Longformer on HotpotQA: Beltagy et al. 2020, appendix D.1), in ERNIE-Doc title [p] sentence [SEP] sentence [SEP] ...
(Ding et al. 2021). A blank sentence has no mark.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from reread.preprocessing.errors import UserError
from reread.preprocessing.labelled.tasks.answer import NOWHERE, AnswerExample, Fact
from reread.training.data.batch import IGNORED, Rows
from reread.training.data.tasks.answer import AnswerDataset
from reread.training.data.tasks.answer_settings import AnswerSettings
from reread.training.data.tasks.classify import softmax
from reread.training.data.tasks.dataset import SHOWN, Mark, Member, Mistake, Outputs
from reread.training.data.tasks.documents import TaskDocument, Tokens
from reread.training.data.tasks.windows import Row
from reread.training.scoring.evidence import evidence, fact_measures
from reread.training.scoring.ranking import Bm25
from reread.training.scoring.spans import Decoded, Span
from reread.training.scoring.task_scores import scores

SENTENCE, PARAGRAPH = 0, 1
"""The columns of the logits and labels of marks."""


class Found(NamedTuple):
    """As `Decoded`, with the logits of the sentences and of the paragraphs that were read."""

    best: Span | None
    n_best: tuple[Span, ...]
    sentences: Mapping[Fact, float]
    paragraphs: Mapping[int, float]


class MarkedDataset(AnswerDataset):
    _choices = {}  # type: ignore[assignment]  # they do not stand in the row

    def __init__(self, settings: AnswerSettings, seed: int, examples: Sequence[AnswerExample]) -> None:
        super().__init__(settings, seed, examples)
        self._before, self._after, sentence = [], self.own_tokens[2:3], self.special["sep"]
        if settings.frame != "segments":
            self._before, self._after, sentence = self.own_tokens[2:3], self.own_tokens[3:4], self.own_tokens[4]
        self.special |= {"paragraph": self.own_tokens[2], "sentence": sentence}

    def encode(self, examples: Sequence[AnswerExample]) -> list[TaskDocument]:
        """Raises `UserError` for a text without paragraphs."""
        if bare := [one for one in examples if not one.paragraphs]:
            raise UserError(
                f"{bare[0].location}: a text without `paragraphs`, on which task.form=marked puts marks; HotpotQA's "
                "files and JSON lines can have them, else set task.form=plain"
            )
        form = self.settings.question_form
        questions = self.encoder.ids([form.replace("{question}", one.question) for one in examples])
        texts = [[part.rstrip() for paragraph in one.parts for part in paragraph] for one in examples]
        encoded = iter(self.encoder.tokens(list(chain.from_iterable(texts))))
        opens, closes = self.own_tokens[:2]
        documents = []
        for one, question, parts in zip(examples, questions, texts, strict=True):
            ids, offsets = self._marked(one, parts, islice(encoded, len(parts)))
            asked = np.array([opens, *self._without_marks(question)[0], closes], np.int32)
            documents.append(self.document(ids, [[asked]], offsets))
        return documents

    def _marked(
        self, example: AnswerExample, parts: Sequence[str], encoded: Iterator[tuple[Tokens, NDArray[np.int32]]]
    ) -> tuple[Tokens, NDArray[np.int32]]:
        """Tokens and offsets of a text with its marks; a mark's are those of the character before which it stands."""
        begins = chain.from_iterable(example.paragraphs)
        texts, ids, offsets = iter(parts), list[Tokens](), list[NDArray[np.int32]]()

        def mark(marks: list[int], character: int) -> None:
            ids.append(np.array(marks, np.int32))
            offsets.append(np.full((len(marks), 2), character, np.int32))

        for paragraph in example.paragraphs:
            for number in range(len(paragraph)):
                begin, text, (tokens, where) = next(begins), next(texts), next(encoded)
                if number and not text.strip():
                    continue
                mark([] if number else self._before, begin)
                kept, places = self._without_marks(tokens, where)
                ids.append(kept)
                offsets.append(places + np.int32(begin))
                mark([self.special["sentence"]] if number else self._after, begin + len(text))
        return np.concatenate(ids), np.concatenate(offsets)

    def unmarked(self, ids: Tokens) -> NDArray[np.bool_]:
        """Which are also no [SEP], with which ERNIE-Doc's sentences end."""
        return super().unmarked(ids) & (ids != self.special["sep"])

    def _without_marks(self, *of_tokens: NDArray[np.int32]) -> list[NDArray[np.int32]]:
        """Tokens, and what else is given of each; a text that spells a mark or [SEP] has none in its place."""
        kept = self.unmarked(of_tokens[0])
        return [one[kept] for one in of_tokens]

    def _shown(self, parts: list[Sequence[int]], text: int) -> list[Sequence[int]]:
        """A question is cut between its marks."""
        opens, *question, closes = parts[0]
        return [[opens, *super()._shown([question], text)[0], closes]]

    def _places(self, example: int, column: int) -> tuple[list[Any], NDArray[np.int64]]:
        """The paragraphs, or the facts, that have a mark in the text that is read, and where their marks are in it."""
        ids, one = self.documents[example].ids, self.examples[example]
        places = np.flatnonzero(ids == self.special["paragraph" if column == PARAGRAPH else "sentence"])
        names: list[Any] = list(range(len(one.paragraphs)))
        if column == SENTENCE:
            names = [
                Fact(paragraph, number)
                for paragraph, (_, *sentences) in enumerate(one.parts)
                for number, sentence in enumerate(sentences)
                if sentence.strip()
            ]
        return names[: len(places)], places

    def targets(self, members: Sequence[Member], rows: Sequence[Row], shape: tuple[int, int]) -> Rows:
        """Beside those of `AnswerDataset`, choice int64 [B]: 0 for a span, 1 + n for choice n; and marks int64
        [B, L, 2]: 1 for the mark of a sentence, or of a paragraph, that supports the answer, 0 for another, else
        `IGNORED`, also where another window has more context of a mark."""
        labels = np.full((*shape, 2), IGNORED)
        for row, (member, built) in enumerate(zip(members, rows, strict=True)):
            document, example = self.documents[member.example], self.examples[member.example]
            window = document.window(member.window)
            gold: tuple[set[Any], set[Any]] = set(example.evidence or ()), {one for one, _ in example.evidence or ()}
            for column in (SENTENCE, PARAGRAPH):
                names, places = self._places(member.example, column)
                right = np.array([name in gold[column] for name in names], np.int64)
                here = document.owners[places] == member.window
                labels[row, built.content + places[here] - window.start, column] = right[here]
        choices = [self._choice(self.examples[one.example]) for one in members]
        return {**super().targets(members, rows, shape), "choice": np.array(choices), "marks": labels}

    def _choice(self, example: AnswerExample) -> int:
        for answer in example.learnable[:1]:
            if answer.start == NOWHERE and answer.text in self.settings.choices:
                return 1 + self.settings.choices.index(answer.text)
        return 0

    def label_of(self, example: AnswerExample, option: int) -> str:
        return f"{super().label_of(example, option)}; evidence: {_listed(_named(example, example.evidence or ()))}"

    def marks(self, row: Rows) -> list[Mark]:
        places = np.flatnonzero((row["marks"][0] == 1).any(-1)).tolist()
        answers = super().marks(row) if self.settings.answers else []
        return sorted([*answers, *(Mark(place, place, "evidence") for place in places)])

    def decode(self, example: int, outputs: Outputs) -> Any:
        """A `Found`. `outputs` are logits [L, 4 + K]: of start and end, of sentence and paragraph, of the kinds."""
        document = self.documents[example]
        spans = dict[tuple[int, int], NDArray[np.float64]]()
        logits = np.full((len(document.ids), 2), np.nan)
        for (option, number), values in outputs.items():
            window, content = document.window(number), self._content(Member(example, option, number))
            inside = slice(content, content + window.stop - window.start)
            owned = np.flatnonzero(document.owners[window] == number)
            logits[window.start + owned] = values[inside][owned, 2:4]
            spans[option, number] = values[:, :2].copy()
            spans[option, number][inside][~self.unmarked(document.ids[window])] = -np.inf
        answer = Decoded(None, ())
        if self.settings.answers:
            kinds = softmax(np.mean([values[self._cls(len(values)), 4:] for values in outputs.values()], axis=0))
            answer = self._chosen(super().decode(example, spans), kinds)
        return Found(
            *answer,
            *(
                {
                    name: float(logits[place, column])
                    for name, place in zip(*self._places(example, column), strict=True)
                    if not np.isnan(logits[place, column])
                }
                for column in (SENTENCE, PARAGRAPH)
            ),
        )

    def _chosen(self, spans: Decoded, kinds: NDArray[np.float64]) -> Decoded:
        """The likeliest choice, or the best span, and then all others by probability; `kinds` [K] has the probability
        of a span and of each choice."""
        listed = [one._replace(probability=one.probability * float(kinds[0])) for one in spans.n_best]
        choices = [Span(-n, -n, float(np.log(max(p, 1e-300))), float(p)) for n, p in enumerate(kinds) if n]
        best = (
            choices[int(kinds.argmax()) - 1]
            if kinds.argmax()
            else spans.best and listed[spans.n_best.index(spans.best)]
        )
        others = sorted((one for one in [*listed, *choices] if one != best), key=lambda one: -one.probability)
        return Decoded(best or None, tuple([best, *others] if best else others))

    def evidence_of(self, example: int, prediction: Found) -> list[Fact]:
        """The sentences that are predicted to support the answer."""
        return evidence(prediction.sentences, self.settings.evidence_paragraphs)

    def scores(self, predictions: Mapping[int, Any]) -> dict[str, float]:
        """A sentence is named by its title and number, as HotpotQA's script does."""
        gold = {
            one.id: (
                dict.fromkeys(answer.text for answer in one.answers or () if answer.text),
                _named(one, one.evidence or ()),
            )
            for one in self.examples
        }
        predicted = {
            self.examples[index].id: (
                self.scored(index, one),
                _named(self.examples[index], self.evidence_of(index, one)),
            )
            for index, one in predictions.items()
        }
        return scores(self.settings.scored_as, gold, predicted, style=self.settings.style)

    def remarks(self) -> list[str]:
        """How many supporting sentences have no mark in what is read."""
        gold = [set(one.evidence or ()) for one in self.examples]
        lost = sum(len(facts.difference(self._places(number, SENTENCE)[0])) for number, facts in enumerate(gold))
        line = f"{lost:,} of {sum(map(len, gold)):,} supporting sentences are blank, not there or not read"
        return [*super().remarks(), *([line] if lost else [])]

    def written(self, example: int, prediction: Any) -> dict[str, Any]:
        """The answer as without marks, the evidence, and a ranking of the paragraphs, as `rank` writes it."""
        one, parts = self.examples[example], self.examples[example].parts
        facts = self.evidence_of(example, prediction)
        found = [
            {"title": title, "sentence": number, "text": parts[fact.paragraph][1 + number].strip()}
            for fact, (title, number) in zip(facts, _named(one, facts), strict=True)
        ]
        order = sorted(prediction.paragraphs, key=lambda number: -prediction.paragraphs[number])
        ranking = [{"passage": number, "score": round(prediction.paragraphs[number], 6)} for number in order]
        answer = super().written(example, prediction) if self.settings.answers else {}
        return {**answer, "evidence": found, "ranking": ranking}

    def mistake(self, index: int, prediction: Any) -> Mistake | None:
        """In the answer, or in the evidence where that is predicted alone."""
        if self.settings.answers:
            return super().mistake(index, prediction)
        example = self.examples[index]
        gold, made = (_named(example, facts) for facts in (example.evidence or (), self.evidence_of(index, prediction)))
        if set(gold) == set(made):
            return None
        text = f"{example.question}\n{example.text[:SHOWN]}"
        return Mistake(1 - fact_measures(gold, made).f1, text, _listed(gold), _listed(made))

    def baselines(self, train: Sequence[AnswerExample]) -> Iterator[tuple[str, Mapping[int, Any]]]:
        """As without marks, with the two sentences of each question that BM25 prefers."""
        for name, predictions in super().baselines(train):
            found = {
                index: Found(one.best, one.n_best, self._lexical(self.examples[index]), {})
                for index, one in predictions.items()
            }
            best = "best sentences by BM25"
            yield (f"{name}, {best}" if self.settings.answers else best), found

    @staticmethod
    def _lexical(example: AnswerExample) -> dict[Fact, float]:
        """1 for the two sentences, with their titles, that BM25 prefers, -1 for the others."""
        texts = {
            Fact(paragraph, number): f"{title}{sentence}"
            for paragraph, (title, *sentences) in enumerate(example.parts)
            for number, sentence in enumerate(sentences)
            if sentence.strip()
        }
        bm25 = Bm25(texts.values())
        best = sorted(texts, key=lambda fact: -bm25.score(example.question, texts[fact]))[:2]
        return {fact: 1.0 if fact in best else -1.0 for fact in texts}


def _named(example: AnswerExample, facts: Sequence[Fact]) -> list[tuple[str, int]]:
    """(title, number) of each fact."""
    titles = [title.rstrip("\n") for title, *_ in example.parts]
    return [(titles[paragraph], sentence) for paragraph, sentence in facts]


def _listed(facts: Sequence[tuple[str, int]]) -> str:
    return ", ".join(f"{title} {number}" for title, number in facts) or "none"
