"""One of several options: each is read with the text, or all in one row, and that with the highest logit is chosen."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from reread.preprocessing.errors import UserError
from reread.preprocessing.labelled.examples import Given
from reread.preprocessing.labelled.tasks.choose import ChooseExample
from reread.training.data.batch import Rows, percentage
from reread.training.data.order import random
from reread.training.data.order.random import Purpose
from reread.training.data.settings import LONGEST
from reread.training.data.tasks.classify import softmax
from reread.training.data.tasks.dataset import SHOWN, Mark, Member, Mistake, Outputs, TaskDataset
from reread.training.data.tasks.documents import TaskDocument, Tokens
from reread.training.data.tasks.settings import PooledSettings, TaskSettings
from reread.training.data.tasks.windows import Row, longest_of, room_beside
from reread.training.scoring.baselines import longest_option, majority, most_shared_option

MARKS = ("[question]", "[/question]", "[ent]", "[/ent]")
"""Around the question and around each option, where all stand in one row."""


class ChooseSettings(PooledSettings):
    """One of several options."""

    may_change = TaskSettings.file_fields | {"question", "options"}

    beside_tokens: ClassVar[frozenset[str]] = PooledSettings.beside_tokens | {"shuffled"}

    kind: Literal["choose"]
    form: Literal["rows", "aligned", "joined"] = "rows"
    """`rows`: each option is read with the text in a row of its own. `aligned`: so, too, but windows move over the text
    and the options at the same tokens, after all of them are cut to the shortest (ERNIE-Doc on CAIL2019-SCM). `joined`:
    question and all options stand in one row before the text, and again in each of its windows; the score of an option
    is the mean over windows of a logit of its [ent], a token that the vocabulary gets (Longformer on WikiHop: Beltagy
    et al. 2020, appendix D.1)."""
    shuffled: bool = False
    """Whether options, and the documents of a text, stand in another order in each epoch of training, which seed, epoch
    and example determine (`form: joined`; Longformer's code for WikiHop). Predictions are made in the file's order."""
    question_option_length: int | None = Field(default=None, ge=1, le=LONGEST)
    """Tokens of a question and an option together that are read at most: the longer of the two is shortened first. 62
    in ERNIE-Doc's code for C3. Null: no limit but `other_length`."""
    question: str | None = None
    """The question about each text that has none of its own, such as raw text."""
    options: list[str] = []
    """The options of each text that has none of its own."""

    @property
    def given(self) -> Given:
        return Given(question=self.question, options=tuple(self.options))

    @property
    def needs_own_head(self) -> bool:
        return self.is_joined

    @property
    def is_joined(self) -> bool:
        return self.form == "joined"

    @property
    def own_tokens(self) -> tuple[str, ...]:
        return MARKS if self.is_joined else ()

    @property
    def one_softmax(self) -> bool:
        """Whether the windows of a document share a softmax: with memory, they are read one after the other."""
        return self.is_joined and self.frame != "segments"


class ChooseDataset(TaskDataset[ChooseSettings, ChooseExample]):
    def encode(self, examples: Sequence[ChooseExample]) -> list[TaskDocument]:
        options = iter(self.encoder.ids([option for example in examples for option in example.options]))
        questions = self.encoder.ids([example.question for example in examples])
        texts = self.encoder.ids([example.text for example in examples])
        documents = []
        for example, question, text in zip(examples, questions, texts, strict=True):
            asked = [question] if len(question) else []
            documents.append(self.document(text, [[*asked, next(options)] for _ in example.options]))
        return documents

    def _shown(self, parts: list[Sequence[int]], text: int) -> list[Sequence[int]]:
        if (limit := self.settings.question_option_length) is not None:
            *asked, option = parts
            asked = [part[: max(limit - limit // 2, limit - len(option))] for part in asked]
            parts = [*asked, option[: max(0, limit - sum(map(len, asked)))]]
        return super()._shown(parts, text)

    def targets(self, members: Sequence[Member], rows: Sequence[Row], shape: tuple[int, int]) -> Rows:
        """is_right bool [B]."""
        return {"is_right": np.array([self.examples[one.example].label == one.option for one in members])}

    def gold(self, example: ChooseExample) -> Any:
        return example.label

    def label_of(self, example: ChooseExample, option: int) -> str:
        return "right" if example.label == option else "wrong"

    def decode(self, example: int, outputs: Outputs) -> NDArray[np.float64]:
        """The mean over windows of the probabilities of the options [K]."""
        options = range(len(self.documents[example].options))
        windows = sorted({window for _, window in outputs})
        logits = np.array([[outputs[option, window][0] for option in options] for window in windows])
        return softmax(logits).mean(0)  # type: ignore[no-any-return]

    def scored(self, example: int, prediction: NDArray[np.float64]) -> int:
        return int(prediction.argmax())

    def scores(self, predictions: Mapping[int, Any]) -> dict[str, float]:
        groups = {one.id: one.group for one in self.examples if one.group is not None}
        return self._scores(predictions, **({"groups": groups} if groups else {}))

    def written(self, example: int, prediction: NDArray[np.float64]) -> dict[str, Any]:
        number = self.scored(example, prediction)
        return {
            "option": number,
            "text": self.examples[example].options[number],
            "probabilities": [round(float(p), 6) for p in prediction],
        }

    def mistake(self, index: int, prediction: Any) -> Mistake | None:
        example, guess = self.examples[index], self.scored(index, prediction)
        assert example.label is not None
        if guess == example.label:
            return None
        gold, made = (f"{example.options[one]} ({prediction[one]:.2f})" for one in (example.label, guess))
        text = f"{example.question}\n{example.text[:SHOWN]}"
        return Mistake(float(prediction[guess] - prediction[example.label]), text, gold, made)

    def baselines(self, train: Sequence[ChooseExample]) -> Iterator[tuple[str, Mapping[int, Any]]]:
        usual = majority(one.label for one in train if one.label is not None)
        rules: dict[str, Callable[[Any], int]] = {
            "best fixed option": lambda one: min(usual, len(one.options) - 1),
            "longest option": lambda one: longest_option(one.options),
            "option with most characters in the text": lambda one: most_shared_option(one.text, one.options),
        }
        for name, rule in rules.items():
            yield name, {index: np.eye(len(one.options))[rule(one)] for index, one in enumerate(self.examples)}


class AlignedDataset(ChooseDataset):
    """A window of an option stands beside the window of the text that begins at the same token: ERNIE-Doc's code for
    CAIL2019-SCM."""

    def encode(self, examples: Sequence[ChooseExample]) -> list[TaskDocument]:
        """Raises `UserError` for an example with a question, which would have no place."""
        settings, none = self.settings, np.empty((0, 2), np.int32)
        if asked := next((one for one in examples if one.question), None):
            raise UserError(f"{asked.location}: a question, which task.form=aligned has no place for; set it to rows")
        room = (settings.sequence_length - self.framing.special(1)) // 2
        step = min(settings.step or room, room)
        options = iter(self.encoder.ids([option for example in examples for option in example.options]))
        documents = []
        for example, text in zip(examples, self.encoder.ids([one.text for one in examples]), strict=True):
            beside = [next(options) for _ in example.options]
            lengths = [len(text), *map(len, beside)]
            shortest = min(lengths) if settings.longest is None else min(*lengths, settings.longest)
            cut = [[one[:shortest]] for one in beside]
            documents.append(
                TaskDocument(text[:shortest], none, cut, room, step, sum(lengths) - shortest * len(lengths))
            )
        return documents

    def _row(self, member: Member, training: bool) -> Row:
        document = self.documents[member.example]
        window = document.window(member.window)
        beside = [part[window].tolist() for part in document.options[member.option]]
        return self.framing.row(document.ids[window].tolist(), beside)

    def remarks(self) -> list[str]:
        read, unread = self._read()
        return [f"{percentage(read, read + unread)} of the text is read, since all texts are cut to the shortest"]

    @property
    def row_tokens(self) -> NDArray[np.int64]:
        documents = self.documents
        return documents.counts * (2 * documents.shown + documents.windows * self.framing.special(1))


class JoinedDataset(ChooseDataset):
    """All options in one row: [question] question [/question] [ent] option [/ent] ..., then the text."""

    is_question: ClassVar[bool] = True

    _epochs: Mapping[int, int] = {}
    """The epoch of each example whose options and documents are shuffled."""

    def encode(self, examples: Sequence[ChooseExample]) -> list[TaskDocument]:
        """The documents of a text have a [SEP] between them."""
        opens, closes, begin, end = ([mark] for mark in self.own_tokens)
        questions = self._without_marks([example.question for example in examples])
        options = iter(self._without_marks([option for example in examples for option in example.options]))
        texts = iter(self._without_marks([one for example in examples for one in example.documents]))
        documents = []
        for example, question in zip(examples, questions, strict=True):
            text = [part for _ in example.documents for part in ([self.framing.sep], next(texts))][1:]
            beside = [np.concatenate([opens, question, closes])]
            beside += [np.concatenate([begin, next(options), end]) for _ in example.options]
            documents.append(self.document(np.concatenate(text), [beside]))
        return documents

    def _without_marks(self, texts: Sequence[str]) -> list[Tokens]:
        """The tokens of texts; a text that spells a mark has none in its place."""
        return [ids[self.unmarked(ids)] for ids in self.encoder.ids(texts)]

    def _shown(self, parts: list[Sequence[int]], text: int) -> list[Sequence[int]]:
        """Question and options as one part, each of them cut between its marks to the room beside a window."""
        limit = self.settings.other_length
        if limit is None:
            room = self.settings.sequence_length - self.framing.special(1)
            limit = longest_of([len(part) for part in parts], room_beside(text, room)) - 2
        if limit < 1:
            raise UserError(
                f"task.sequence_length: {self.settings.sequence_length} leaves no room beside a question and its "
                f"{len(parts) - 1} options in one row; raise it, or set task.form=rows"
            )
        cut = [part if len(part) <= limit + 2 else [*part[: limit + 1], part[-1]] for part in parts]
        return [[token for part in cut for token in part]]

    def in_epochs(self, epochs: Mapping[int, int]) -> "JoinedDataset":
        """An example of two epochs, as a step at their turn may have it, is in the order of the second in both."""
        if not self.settings.shuffled:
            return self
        _ = self.documents  # that the copy shares them
        read = copy(self)
        read._epochs = epochs
        return read

    def _order(self, example: int, purpose: Purpose, count: int) -> NDArray[np.int64]:
        """The numbers [count] of an example's options, or documents, in the order in which they stand in its rows."""
        if example not in self._epochs:
            return np.arange(count)
        key = random.key(self.seed, self._epochs[example], [example])
        return random.uniform(key, purpose, count)[0].argsort(kind="stable")

    def _reordered(self, ids: Tokens, example: int, purpose: Purpose, mark: int) -> Tokens:
        """Ids whose parts, each of which begins with `mark`, are in their order; what is before them stays."""
        before, *parts = np.split(ids, np.flatnonzero(ids == mark))
        return np.concatenate([before, *(parts[number] for number in self._order(example, purpose, len(parts)))])

    def _document(self, example: int) -> TaskDocument:
        """The document of an example with options and documents in their order."""
        document = self.documents[example]
        if example not in self._epochs:
            return document
        sep, begin = self.framing.sep, self.own_tokens[2]
        text = np.append(np.int32(sep), document.ids)
        return replace(
            document,
            ids=self._reordered(text, example, Purpose.DOCUMENT_ORDER, sep)[1:],
            options=[[self._reordered(document.options[0][0], example, Purpose.OPTION_ORDER, begin)]],
        )

    def _row(self, member: Member, training: bool) -> Row:
        document = self._document(member.example)
        window = document.window(member.window)
        return self.framing.row(document.ids[window].tolist(), [document.options[0][0].tolist()], self.is_question)

    def _places(self, member: Member) -> NDArray[np.int64]:
        """The positions [K] in a row of the options' [ent], in the file's order wherever they stand."""
        document = self._document(member.example)
        window = document.window(member.window)
        begin = window.stop - window.start + 1 if self.settings.frame == "segments" else int(self.settings.frame == "")
        places = begin + np.flatnonzero(document.options[0][0] == self.own_tokens[2])
        return places[self._order(member.example, Purpose.OPTION_ORDER, len(places)).argsort()]

    def units(self, example: int, last_only: bool) -> list[list[Member]]:
        units = super().units(example, last_only)
        return [[member for unit in units for member in unit]]

    def targets(self, members: Sequence[Member], rows: Sequence[Row], shape: tuple[int, int]) -> Rows:
        """places int64 [B, K], of each option's [ent], -1 past the last option; right int64 [B], the right option."""
        found = [self._places(member) for member in members]
        places = np.full((len(members), max(map(len, found))), -1)
        for row, one in zip(places, found, strict=True):
            row[: len(one)] = one
        return {"places": places, "right": np.array([self.examples[one.example].label or 0 for one in members])}

    def label_of(self, example: ChooseExample, option: int) -> str:
        return "unlabelled" if example.label is None else f"right: {example.options[example.label]}"

    def marks(self, row: Rows) -> list[Mark]:
        place = int(row["places"][0, row["right"][0]])
        return [Mark(place, place, "right option")]

    def decode(self, example: int, outputs: Outputs) -> NDArray[np.float64]:
        """The probabilities [K] of the options, from the mean over windows of their logits; `outputs` are [L, 1]."""
        logits = [values[self._places(Member(example, 0, window)), 0] for (_, window), values in outputs.items()]
        return softmax(np.mean(logits, axis=0))  # type: ignore[no-any-return]
