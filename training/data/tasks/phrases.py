"""Key phrases: whether each run of words of a document is one."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from reread.preprocessing.labelled.examples import Given, Split
from reread.preprocessing.labelled.tasks.phrases import ABSENT, Phrase, PhrasesExample, places_of
from reread.training.data.batch import IGNORED, Rows
from reread.training.data.tasks.dataset import SHOWN, Mark, Member, Mistake, Outputs
from reread.training.data.tasks.documents import TaskDocument
from reread.training.data.tasks.reach import reach_line
from reread.training.data.tasks.settings import TaskSettings
from reread.training.data.tasks.windows import Row
from reread.training.data.tasks.words import WordsDataset, with_blanks
from reread.training.scoring.phrases import DEPTHS, TfIdf
from reread.training.scoring.task_scores import scores


class PhrasesSettings(TaskSettings):
    """A document and its key phrases, runs of its words."""

    may_change = TaskSettings.file_fields | {"phrases", "misplaced"}  # which leave rows and targets as they are

    kind: Literal["phrases"]
    phrase_words: int = Field(default=5, ge=1, le=32)
    """Words of the longest phrase that is learned and predicted. A Chinese character is a word."""
    phrases: int = Field(default=5, ge=1, le=1000)
    """Phrases of a document that `reread predict` writes at most, the most probable ones."""
    split: Split = "words"
    """Words of a document and of its phrases: `words` as in BERT's basic tokenisation, of which each Chinese character
    and each punctuation mark is one, `blanks` between which words lie, as in OpenKP, or `characters`."""
    misplaced: float = Field(default=0, ge=0, le=1)
    """Share of a file's documents that may have a key phrase that they do not hold. Such a phrase is scored, but not
    learned."""

    @property
    def given(self) -> Given:
        return Given(split=self.split)

    @property
    def overlaps(self) -> bool:
        return True

    def blank(self, rows: int) -> Rows:
        blank = super().blank(rows)
        shape = blank["input_ids"].shape
        return {
            **blank,
            "word_starts": np.ones(shape, np.int32),
            "labels": np.full((*shape, self.phrase_words), IGNORED),
        }


class Found(NamedTuple):
    """A predicted phrase: its probability, and the first word and the number of words of its first occurrence."""

    probability: float
    first: int
    words: int


class PhrasesDataset(WordsDataset[PhrasesSettings, PhrasesExample]):
    """A run of words is in a window if the first pieces of all its words are, and the window that decides its first
    word decides it."""

    def encode(self, examples: Sequence[PhrasesExample]) -> list[TaskDocument]:
        return self.of_words([with_blanks(one.text, one.words, one.starts) for one in examples])

    def rows(self, members: Sequence[Member], training: bool) -> Rows:
        """As in `TaskDataset`, with word_starts int32 [B, L], 1 for the first piece of a word."""
        rows = super().rows(members, training)
        rows["word_starts"] = np.zeros(rows["input_ids"].shape, np.int32)
        for row, member in enumerate(members):
            rows["word_starts"][row, self._content(member) + self.first_pieces(member)[0]] = 1
        return rows

    def _decided(self, member: Member) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.bool_]]:
        """(position in the window [M], word [M]) of the words in a window, and whether it decides the run of n + 1
        words from there, [M, N]."""
        positions, words, decided = self.first_pieces(member)
        words_left = len(words) - np.arange(len(words))
        counts = np.arange(1, self.settings.phrase_words + 1)
        return positions, words, decided[:, None] & (counts <= words_left[:, None])

    def targets(self, members: Sequence[Member], rows: Sequence[Row], shape: tuple[int, int]) -> Rows:
        """labels int [B, L, N]: 1 if a key phrase of n + 1 words begins here, else 0; `IGNORED` where the window does
        not decide that, and where no word begins."""
        labels = np.full((*shape, self.settings.phrase_words), IGNORED)
        for row, (member, built) in enumerate(zip(members, rows, strict=True)):
            positions, words, decided = self._decided(member)
            right = np.zeros(decided.shape, np.int64)
            example = self.examples[member.example]
            held = tuple(map(str.lower, example.words[words[0] : words[-1] + 1])) if len(words) else ()
            for key, place in zip(example.keys, example.places, strict=True):
                if place != ABSENT and len(key) <= self.settings.phrase_words:
                    right[list(places_of(key, held)), len(key) - 1] = 1
            labels[row, built.content + positions] = np.where(decided, right, IGNORED)
        return {"labels": labels}

    def gold(self, example: PhrasesExample) -> Any:
        return None if example.phrases is None else example.keys

    def label_of(self, example: PhrasesExample, option: int) -> str:
        return f"key phrases: {_listed(example.phrases or ())}"

    def marks(self, row: Rows) -> list[Mark]:
        """The key phrases that this window decides; of those that overlap the first, and of these the longest."""
        member = Member(int(row["example"][0]), 0, int(row["window"][0]))
        content, document = self._content(member), self.documents[member.example]
        pieces = document.offsets[document.window(member.window), 0]  # the word of each
        found: list[Mark] = []
        for position in np.flatnonzero((row["labels"][0] == 1).any(-1)).tolist():
            if found and position <= found[-1].last:
                continue
            count = 1 + int(np.flatnonzero(row["labels"][0, position] == 1)[-1])
            last_word = int(pieces[position - content]) + count - 1
            found.append(Mark(position, content + int(np.flatnonzero(pieces == last_word)[-1]), "key phrase"))
        return found

    def decode(self, example: int, outputs: Outputs) -> tuple[Found, ...]:
        """The most probable phrases, the best first, as many as are written or scored. A phrase has the highest
        probability of all its occurrences; of equals the first in the text leads, and the shorter one."""
        logits, words, counts = [], [], []
        for (_, window), values in sorted(outputs.items()):
            member = Member(example, 0, window)
            positions, of_window, decided = self._decided(member)
            place, count = np.nonzero(decided)
            logits.append(values[self._content(member) + positions[place], count])
            words.append(of_window[place])
            counts.append(count + 1)
        if not logits:
            return ()
        scored = np.concatenate(logits)
        first, count = np.concatenate(words), np.concatenate(counts)
        lower = self.examples[example].lower
        best: dict[Phrase, Found] = {}
        for one in np.lexsort((count, first, -scored)).tolist():
            key = lower[first[one] : first[one] + count[one]]
            if key not in best:
                probability = float(1 / (1 + np.exp(-scored[one])))
                best[key] = Found(probability, next(places_of(key, lower)), len(key))
            if len(best) == max(self.settings.phrases, *DEPTHS):
                break
        return tuple(best.values())

    def scored(self, example: int, prediction: tuple[Found, ...]) -> list[Phrase]:
        lower = self.examples[example].lower
        return [lower[one.first : one.first + one.words] for one in prediction]

    def scores(self, predictions: Mapping[int, Any]) -> dict[str, float]:
        return self._scores(predictions)

    def written(self, example: int, prediction: tuple[Found, ...]) -> dict[str, Any]:
        """The phrases, the most probable one first, with the characters [start, end) of their first occurrence."""
        one = self.examples[example]
        phrases = []
        for found in prediction[: self.settings.phrases]:
            start, end = one.span(found.first, found.words)
            values = {"text": one.text[start:end], "start": start, "end": end, "probability": found.probability}
            phrases.append(values)
        return {"phrases": phrases}

    def remarks(self) -> list[str]:
        if any(one.phrases is None for one in self.examples):
            return super().remarks()
        return [*super().remarks(), self._reach()]

    def _reach(self) -> str:
        """How many key phrases cannot be predicted, why, and the resulting highest scores."""
        lost = Counter[str]()
        gold: dict[str, Sequence[Phrase]] = {}
        best: dict[str, Sequence[Phrase]] = {}
        for number, example in enumerate(self.examples):
            reasons = [self._unreachable(number, *one) for one in zip(example.keys, example.places, strict=True)]
            lost.update(filter(None, reasons))
            gold[example.id] = example.keys
            best[example.id] = [key for key, reason in zip(example.keys, reasons, strict=True) if not reason]
        ceiling = scores(self.settings.scored_as, gold, best)
        return reach_line("key phrases", lost, sum(map(len, gold.values())), ceiling)

    def _unreachable(self, number: int, key: Phrase, place: int) -> str:
        """Why a phrase of example `number` cannot be predicted; "" if it can."""
        if place == ABSENT:
            return "that the text does not hold"
        if len(key) > self.settings.phrase_words:
            return f"longer than task.phrase_words={self.settings.phrase_words}"
        document = self.documents[number]
        firsts = np.flatnonzero(document.offsets[:, 1] == 1)  # of each word that is read
        if place + len(key) > len(firsts):  # its first occurrence
            return f"past task.longest={self.settings.longest}"
        for begin in places_of(key, self.examples[number].lower):
            if begin + len(key) > len(firsts):
                break
            owner = int(document.owners[firsts[begin]])
            if firsts[begin + len(key) - 1] < document.window(owner).stop:
                return ""
        return f"in no window of task.sequence_length={self.settings.sequence_length}"

    def mistake(self, index: int, prediction: tuple[Found, ...]) -> Mistake | None:
        """Among as many predicted phrases as there are key phrases are others."""
        example = self.examples[index]
        most = len(example.keys)
        missed = set(example.keys) - set(self.scored(index, prediction)[:most])
        if not missed:
            return None
        guess = [one["text"] for one in self.written(index, prediction)["phrases"][:most]]
        return Mistake(len(missed) / most, example.text[:SHOWN], _listed(example.phrases or ()), _listed(guess))

    def baselines(self, train: Sequence[PhrasesExample]) -> Iterator[tuple[str, Mapping[int, Any]]]:
        tf_idf = TfIdf((one.lower for one in train), self.settings.phrase_words)
        found = {}
        for index, one in enumerate(self.examples):
            best = tf_idf.best(one.lower, max(DEPTHS))
            found[index] = tuple(Found(0.0, first, count) for first, count in best)
        yield "TF-IDF", found


def _listed(phrases: Sequence[str]) -> str:
    return "; ".join(phrases) or "none"
