"""A tag for each word or character; the first piece of a word carries its tag (Devlin et al. 2019, section 5.3)."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from reread.preprocessing.errors import UserError
from reread.preprocessing.labelled.examples import Given, Split
from reread.preprocessing.labelled.mapped import summary_of
from reread.preprocessing.labelled.tasks.tag import TagExample, split_of
from reread.training.data.batch import IGNORED, Rows
from reread.training.data.tasks.class_weights import ClassWeights
from reread.training.data.tasks.dataset import SHOWN, Mark, Member, Mistake, Names, Outputs
from reread.training.data.tasks.documents import TaskDocument
from reread.training.data.tasks.settings import TaskSettings
from reread.training.data.tasks.windows import Row
from reread.training.data.tasks.words import WordsDataset
from reread.training.scoring.baselines import KnownEntities
from reread.training.scoring.entities import Entity, entities, scheme_of

LONGEST = 32
"""Bytes of a word that are read, as in `characters_of`."""

TagsOf = Callable[[NDArray[np.float64]], NDArray[np.int64]]
"""Logits of the words of a text [N, K] -> the numbers of their tags [N]."""


class TagSettings(TaskSettings):
    """A tag for each word or character."""

    may_change = TaskSettings.file_fields | {"split", "characters"}

    beside_tokens: ClassVar[frozenset[str]] = TaskSettings.beside_tokens | {"crf", "characters", "class_weights"}

    kind: Literal["tag"]
    scheme: Literal["BIO", "BIOES"] = "BIO"
    """How tags mark the beginning of an entity; BMES is BIOES, with M- for I-. Where a recipe does not say, `reread
    finetune` finds out by the tags of the training examples."""
    crf: bool = False
    """Learn the tags of a text as a chain, a conditional random field, and predict the best chain that their scheme
    allows; false: each tag by itself."""
    characters: bool = False
    """Whether the model reads the characters of words, as with `model.character_filters`."""
    class_weights: ClassWeights = None
    """The factor of each tag in the loss, in the order of `labels`: numbers, or `balanced` by how often each is in the
    training examples. Not with `crf`."""
    split: Split | None = None
    """Units of raw text to tag: `characters`, `words` as in BERT's basic tokenisation, or `blanks`, words that blanks
    alone separate. null: `reread finetune` finds out which of the first two the tokens of the training examples are."""

    @property
    def given(self) -> Given:
        return Given(split=self.split)

    @property
    def has_classes(self) -> bool:
        return True

    @property
    def overlaps(self) -> bool:
        return True

    @property
    def needs_own_head(self) -> bool:
        return self.crf

    def found_in(self, train: Sequence[TagExample]) -> dict[str, Any]:
        return {"split": self.split or split_of(train), "scheme": self._scheme_of(train)}

    def _scheme_of(self, train: Sequence[TagExample]) -> str:
        """The scheme of the tags. Raises `UserError` for a tag of another one, if there are texts to score."""
        summary, found = summary_of(train), self.scheme
        is_stated = "scheme" in self.model_fields_set
        for tag in self.labels or summary.counts:
            try:
                found = scheme_of([tag]) if found == "BIO" and not is_stated else found
                entities([tag], found)
            except UserError as error:
                if self.splits:
                    raise UserError(f"{summary.first.get(tag, 'task.labels')}: {error}") from None
                return self.scheme
        return found

    @property
    def remarks(self) -> list[str]:
        scheme = ["task.scheme: BIOES"] * (self.scheme == "BIOES")
        if self.split:
            return [*scheme, f"task.split: raw text is split into {self.split}, like the tokens of task.train"]
        return [
            *scheme,
            "task.split: raw text cannot be tagged, since the tokens of task.train are neither characters nor words",
        ]


class TagDataset(WordsDataset[TagSettings, TagExample]):
    def encode(self, examples: Sequence[TagExample]) -> list[TaskDocument]:
        return self.of_words([one.tokens for one in examples])

    def rows(self, members: Sequence[Member], training: bool) -> Rows:
        """As in `TaskDataset`; with `task.characters` also characters int32 [B, L, C], of first pieces 1 + each byte of
        their word, as the exported model's `characters_of` gives them."""
        rows = super().rows(members, training)
        if self.settings.characters:
            found = np.zeros((*rows["input_ids"].shape, LONGEST), np.int32)
            for row, member in enumerate(members):
                tokens, content = self.examples[member.example].tokens, self._content(member)
                for position, word, _ in zip(*self.first_pieces(member), strict=True):
                    known = np.frombuffer(tokens[word].encode()[:LONGEST], np.uint8)
                    found[row, content + position, : len(known)] = known.astype(np.int32) + 1
            rows["characters"] = found[..., : max(1, int((found != 0).any((0, 1)).sum()))]
        return rows

    def targets(self, members: Sequence[Member], rows: Sequence[Row], shape: tuple[int, int]) -> Rows:
        """labels int [B, L]: each word has its tag in one window alone, that of most context."""
        numbers = {label: number for number, label in enumerate(self.settings.labels)}
        labels = np.full(shape, IGNORED)
        for row, (member, built) in enumerate(zip(members, rows, strict=True)):
            tags = self.examples[member.example].tags or ()
            for position, word in self._scored(member):
                labels[row, built.content + position] = numbers[tags[word]]
        return {"labels": labels}

    def _scored(self, member: Member) -> list[tuple[int, int]]:
        """(position in the window, word) of the words that this window decides."""
        positions, words, decided = self.first_pieces(member)
        return list(zip(positions[decided].tolist(), words[decided].tolist(), strict=True))

    def gold(self, example: TagExample) -> Any:
        return example.tags

    def label_of(self, example: TagExample, option: int) -> str:
        return f"{len(entities(example.tags or (), self.settings.scheme))} entities"

    def marks(self, row: Rows) -> list[Mark]:
        """The entities among the words that this window decides."""
        member = Member(int(row["example"][0]), 0, int(row["window"][0]))
        tags, content = self.examples[member.example].tags or (), self._content(member)
        document, decided = self.documents[member.example], self._scored(member)
        words = document.offsets[document.window(member.window), 0]  # of each piece
        return [
            Mark(content + decided[start][0], content + int(np.flatnonzero(words == decided[end - 1][1])[-1]), name)
            for name, start, end in entities([tags[word] for _, word in decided], self.settings.scheme)
        ]

    def decode(self, example: int, outputs: Outputs, tags_of: TagsOf = lambda logits: logits.argmax(-1)) -> Any:
        """A tag for each word, by `tags_of` the logits of all; a word past `longest` has the most frequent tag, O."""
        words, logits = [], []
        for (_, window), values in sorted(outputs.items()):
            member = Member(example, 0, window)
            for position, word in self._scored(member):
                words.append(word)
                logits.append(values[self._content(member) + position])
        tags = ["O"] * len(self.examples[example].tokens)
        for word, tag in zip(words, tags_of(np.stack(logits)).tolist() if words else (), strict=True):
            tags[word] = self.settings.labels[tag]
        return tuple(tags)

    def scored(self, example: int, prediction: Any) -> Any:
        return prediction

    def scores(self, predictions: Mapping[int, Any]) -> dict[str, float]:
        return self._scores(predictions, scheme=self.settings.scheme)

    def written(self, example: int, prediction: Any) -> dict[str, Any]:
        one = self.examples[example]
        found: dict[str, Any] = {"tokens": one.tokens, "tags": prediction, "spans": one.spans}
        if self._names_entities:
            found["entities"] = [self._entity(one, *entity) for entity in entities(prediction, self.settings.scheme)]
        return found

    @staticmethod
    def _entity(example: TagExample, name: str, first: int, end: int) -> dict[str, Any]:
        start, stop = example.spans[first][0], example.spans[end - 1][1]
        return {"entity": name, "text": example.text[start:stop], "start": start, "end": stop}

    @cached_property
    def _names_entities(self) -> bool:
        """Whether the tags follow the scheme; tags of parts of speech do not."""
        try:
            entities(self.settings.labels, self.settings.scheme)
        except UserError:
            return False
        return True

    def check_predicted(self) -> None:
        tags = {tag: example.location for example in self.examples for tag in example.tags or ()}
        if tags and not tags.keys() & set(self.settings.labels):
            tag, location = next(iter(tags.items()))
            raise UserError(
                f"{location}: the model has no tag `{tag}`, nor any other tag of the file (task.format is "
                f"{self.settings.format or 'null'}); read plain text by task.format=document-per-line or "
                "document-per-file"
            )

    def named(self, index: int, prediction: Any) -> tuple[Names, Names]:
        gold, guess = (entities(tags, self.settings.scheme) for tags in (self.examples[index].tags or (), prediction))
        return set(gold), set(guess)

    def mistake(self, index: int, prediction: Any) -> Mistake | None:
        example = self.examples[index]
        gold, guess = self.named(index, prediction)
        differ = set(gold) ^ set(guess)
        if not differ:
            return None
        return Mistake(len(differ), example.text[:SHOWN], *(_only(example, found, differ) for found in (gold, guess)))

    def baselines(self, train: Sequence[TagExample]) -> Iterator[tuple[str, Mapping[int, Any]]]:
        known = KnownEntities(((one.tokens, one.tags or ()) for one in train), self.settings.scheme)
        yield "known entities", {index: tuple(known.tags(one.tokens)) for index, one in enumerate(self.examples)}


def _only(example: TagExample, found: Names, differ: Names) -> str:
    """The entities of `found` that are in `differ`, in order, as text."""
    only = sorted((Entity(*one) for one in found if one in differ), key=lambda one: one.start)
    return (
        ", ".join(f"{example.joiner.join(example.tokens[one.start : one.end])} = {one.type}" for one in only) or "none"
    )
