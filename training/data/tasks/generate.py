"""A target is written of a source: a row is both, or the source alone where a decoder reads the target."""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from reread.preprocessing.errors import UserError
from reread.preprocessing.labelled.tasks.generate import GenerateExample
from reread.preprocessing.text.sentences import sentence_ends
from reread.training.data.batch import IGNORED, Rows
from reread.training.data.settings import LONGEST
from reread.training.data.tasks.dataset import NO_OFFSETS, SHOWN, Mark, Member, Mistake, Outputs, TaskDataset
from reread.training.data.tasks.documents import TaskDocument
from reread.training.data.tasks.settings import TaskSettings
from reread.training.data.tasks.windows import Framing, Row
from reread.training.scoring.written import similarity, units

_BLANK = re.compile("(?<=[\u3000-\u303f\u3400-\u9fff\uff00-\uffef]) | (?=[\u3000-\u303f\u3400-\u9fff\uff00-\uffef])")
"""The blanks that a decoder puts beside Chinese characters and marks."""


class GenerateSettings(TaskSettings):
    """A source, and the target that is written of it."""

    beside_tokens: ClassVar[frozenset[str]] = TaskSettings.beside_tokens | {"beams"}
    may_change = TaskSettings.file_fields | {"beams"}

    kind: Literal["generate"]
    target_length: int = Field(default=32, ge=1, le=LONGEST)
    """Tokens of the longest target that is learned and written; the source has the rest of `sequence_length`, and all
    of it where a decoder reads the target (BART, LED)."""
    long_targets: Literal["refuse", "cut"] = "refuse"
    """What happens to a longer target that is to be learned."""
    beams: int = Field(default=4, ge=1, le=64)
    """Targets that are pursued at once; the one with the highest mean log-probability of a token is written. 1: the
    likeliest token each time."""

    @property
    def in_one_row(self) -> bool:
        """Whether a row is [CLS] source [SEP] target [SEP], with a prefix mask. Otherwise it is [CLS] source [SEP], and
        a decoder reads [CLS] target [SEP]."""
        return self.frame == "bare"

    @property
    def room(self) -> int:
        """Tokens of a source in a row."""
        return self.sequence_length - (self.target_length + 3 if self.in_one_row else 2)

    def blank(self, rows: int) -> Rows:
        targets = np.zeros((rows, self.target_length + (1 if self.in_one_row else 2)), np.int64)
        places = {"predicted_at": np.zeros(targets.shape, np.int32)} if self.in_one_row else {}
        return {**super().blank(rows), "labels": targets, **places}


class GenerateDataset(TaskDataset[GenerateSettings, GenerateExample]):
    """A row is [CLS] source [SEP] target [SEP], or without the target (`in_one_row`, and to predict)."""

    def __init__(self, settings: GenerateSettings, seed: int, examples: Sequence[GenerateExample]) -> None:
        super().__init__(settings, seed, examples)
        self.framing = Framing("", self.special["cls"], self.special["sep"], 1)  # whatever else the model reads

    @classmethod
    def open(cls, settings: GenerateSettings, seed: int, split: str) -> "GenerateDataset":
        """Raises `UserError` if an example to learn has a target that is longer than `target_length`, unless it is cut,
        or no token."""
        dataset: Any = super().open(settings, seed, split)
        if split == "train":
            dataset._check_targets()
        return dataset

    def _check_targets(self) -> None:
        lengths = self.documents.longest_others
        most = self.settings.target_length
        for wrong, reason, way_out in (
            (
                (lengths > most) & (self.settings.long_targets == "refuse"),
                f"has more than task.target_length={most} tokens",
                "raise it, shorten the target, or set task.long_targets=cut",
            ),
            (lengths == 0, "has no token", "correct it, or delete the example"),
        ):
            labelled = [one for one in np.flatnonzero(wrong).tolist() if self.examples[one].target is not None]
            if labelled:
                count = f" (the first of {len(labelled):,} such examples)" if len(labelled) > 1 else ""
                raise UserError(f"{self.examples[labelled[0]].location}: target {reason}{count}; {way_out}")

    def encode(self, examples: Sequence[GenerateExample]) -> list[TaskDocument]:
        """A target is kept up to a token more than `target_length`, which tells that it is longer."""
        settings, room = self.settings, self.settings.room
        if room < 1:
            raise UserError(
                f"task.sequence_length: {settings.sequence_length} leaves no room for a source beside "
                f"task.target_length={settings.target_length} and 3 special tokens; raise it, or lower "
                "task.target_length"
            )
        most = room if settings.longest is None else min(room, settings.longest)
        sources = self.encoder.ids([one.text for one in examples])
        targets = self.encoder.ids([one.target or "" for one in examples])
        return [
            TaskDocument(
                np.array(source[:most], np.int32),
                NO_OFFSETS,
                [[np.array(target[: settings.target_length + 1], np.int32)]],
                *(room, room, max(0, len(source) - most)),
            )
            for source, target in zip(sources, targets, strict=True)
        ]

    def passes(self, group: Sequence[int], size: int, *, training: bool) -> Iterator[Rows]:
        """As in `TaskDataset`; a row to predict for becomes one for each beam."""
        yield from super().passes(group, size if training else max(1, size // self.settings.beams), training=training)

    def _row(self, member: Member, training: bool) -> Row:
        """Its types are the segments of the prefix mask: 0 for the source and 1 for the target."""
        others = [self._target(member)] if training and self.settings.in_one_row else []
        return self.framing.row(self.documents[member.example].ids.tolist(), others)

    def _target(self, member: Member) -> list[int]:
        return self.documents[member.example].options[0][0][: self.settings.target_length].tolist()  # type: ignore[no-any-return]

    def targets(self, members: Sequence[Member], rows: Sequence[Row], shape: tuple[int, int]) -> Rows:
        """labels int [B, T]: the tokens of the target and [SEP], where a decoder reads them behind [CLS], then
        `IGNORED`. For targets in the row predicted_at int32 [B, T]: the position of the token before each, 0 behind
        them."""
        begin = [] if self.settings.in_one_row else [self.special["cls"]]
        targets = [[*begin, *self._target(member), self.special["sep"]] for member in members]
        most = max(map(len, targets))
        labels, places = np.full((len(members), most), IGNORED), np.zeros((len(members), most), np.int32)
        for row, (target, built) in enumerate(zip(targets, rows, strict=True)):
            labels[row, : len(target)] = target
            places[row, : len(target)] = np.arange(len(target)) + (len(built.ids) - len(target) - 1)
        return {"labels": labels, "predicted_at": places} if self.settings.in_one_row else {"labels": labels}

    @property
    def row_tokens(self) -> NDArray[np.int64]:
        return super().row_tokens if self.settings.in_one_row else self.documents.shown + self.framing.special(0)

    def gold(self, example: GenerateExample) -> str | None:
        return example.target

    def label_of(self, example: GenerateExample, option: int) -> str:
        return f"target: {(example.target or 'none')[:SHOWN]}"

    def marks(self, row: Rows) -> list[Mark]:
        target = np.flatnonzero(row["token_type_ids"][0] == 1)
        return [Mark(int(target[0]), int(target[-1]), "target")] if len(target) else []

    def decode(self, example: int, outputs: Outputs) -> str:
        """The text of the tokens in the row's output, which end before the first [SEP]."""
        end = self.special["sep"]
        tokens = takewhile(lambda token: token != end, outputs[0, 0].astype(np.int64).tolist())
        return _BLANK.sub("", self._tokenizer.decode(list(tokens)))

    def scored(self, example: int, prediction: str) -> str:
        return prediction

    def scores(self, predictions: Mapping[int, Any]) -> dict[str, float]:
        return self._scores(predictions)

    def written(self, example: int, prediction: str) -> dict[str, Any]:
        return {"target": prediction}

    def lengths(self) -> dict[str, NDArray[np.int64]]:
        targets = self._lengths([one.target for one in self.examples if one.target is not None])
        return {"of a text": super().lengths()["of a text"], "of a target": targets}

    def remarks(self) -> list[str]:
        most = self.settings.target_length
        long = int((self.documents.longest_others > most).sum())
        line = f"{long:,} of {len(self):,} targets have more tokens than task.target_length={most}: not written whole"
        return [*super().remarks(), *([line] if long else [])]

    def mistake(self, index: int, prediction: str) -> Mistake | None:
        """The targets differ by more than marks and blanks; the less they share, the worse it is."""
        example = self.examples[index]
        gold = example.target or ""
        if units(gold) == units(prediction):
            return None
        return Mistake(1 - similarity(gold, prediction), example.text[:SHOWN], gold[:SHOWN], prediction)

    def baselines(self, train: Sequence[GenerateExample]) -> Iterator[tuple[str, Mapping[int, Any]]]:
        yield "lead", {index: self._lead(one.text.strip()) for index, one in enumerate(self.examples)}

    def _lead(self, text: str) -> str:
        """The first sentence, cut to `target_length` tokens."""
        sentence = text[: sentence_ends(text)[0]]
        (_, places), most = self.encoder.tokens([sentence])[0], self.settings.target_length
        return sentence if len(places) <= most else sentence[: places[most - 1, 1]]
