"""A tag for each word or character; the first piece of a word carries its tag (Devlin et al. 2019, section 5.3)."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from preprocessing.labelled.examples import TagExample
from training.data.rows import IGNORED, Rows
from training.data.tasks.dataset import Document, Mark, Member, Outputs, TaskDataset
from training.data.tasks.settings import TagSettings
from training.data.tasks.windows import Row
from training.scoring.entities import entities


class TagDataset(TaskDataset[TagSettings, TagExample]):
    def encode(self, examples: Sequence[TagExample]) -> list[Document]:
        """`Document.offsets` are (word, 1 for its first piece); a word without pieces, such as a control character, is
        [UNK], so that the tags after it keep their places."""
        documents = []
        for example, encoding in zip(examples, self.words([one.tokens for one in examples]), strict=True):
            pieces: list[list[int]] = [[] for _ in example.tokens]
            for number, word in zip(encoding.ids, encoding.word_ids, strict=True):
                if word is not None:
                    pieces[word].append(number)
            ids, offsets = [], []
            for word, found in enumerate(pieces):
                ids += found or [self.special["unk"]]
                offsets += [(word, int(piece == 0)) for piece in range(max(1, len(found)))]
            documents.append(self.document(ids, np.array(offsets), [[]]))
        return documents

    def targets(self, members: Sequence[Member], rows: Sequence[Row], shape: tuple[int, int]) -> Rows:
        """labels int [B, L]: each word has its tag in one window alone, that of most context."""
        numbers = {label: number for number, label in enumerate(self.settings.labels)}
        labels = np.full(shape, IGNORED)
        for row, (member, built) in enumerate(zip(members, rows, strict=True)):
            tags = self.examples[member.example].tags or ()
            for place, word in self._scored(member):
                labels[row, built.content + place] = numbers[tags[word]]
        return {"labels": labels}

    def _scored(self, member: Member) -> list[tuple[int, int]]:
        """(place in the window, word) of the words that this window decides."""
        document = self.documents[member.example]
        window = document.window(member.window)
        words = document.offsets[window]
        decided = words[:, 1] == 1
        if document.windows > 1:
            decided &= document.owners[window] == member.window
        places = np.flatnonzero(decided)
        return list(zip(places.tolist(), words[places, 0].tolist(), strict=True))

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

    def decode(self, example: int, outputs: Outputs) -> tuple[str, ...]:
        """A tag for each word; a word past `longest` has the most frequent tag of text, O."""
        tags = ["O"] * len(self.examples[example].tokens)
        for (_, window), logits in outputs.items():
            member = Member(example, 0, window)
            content = self._content(member)
            for place, word in self._scored(member):
                tags[word] = self.settings.labels[int(logits[content + place].argmax())]
        return tuple(tags)

    def scored(self, example: int, prediction: Any) -> Any:
        return prediction

    def scores(self, predictions: Mapping[int, Any]) -> dict[str, float]:
        return self._scores(predictions, scheme=self.settings.scheme)

    def written(self, example: int, prediction: Any) -> dict[str, Any]:
        return {"tokens": self.examples[example].tokens, "tags": prediction}
