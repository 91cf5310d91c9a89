"""Coreference: which spans of a document's words name the same thing."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from reread.preprocessing.labelled.examples import Given, Split
from reread.preprocessing.labelled.tasks.coreference import Cluster, CoreferenceExample, Span
from reread.training.data.batch import Rows
from reread.training.data.tasks.dataset import SHOWN, Mark, Member, Mistake, Names, Outputs
from reread.training.data.tasks.documents import TaskDocument
from reread.training.data.tasks.reach import reach_line
from reread.training.data.tasks.settings import TaskSettings
from reread.training.data.tasks.windows import Row
from reread.training.data.tasks.words import WordsDataset, with_blanks
from reread.training.models.head_options import kept_spans
from reread.training.scoring.coreference import SameWords
from reread.training.scoring.task_scores import scores

Clusters = tuple[Cluster, ...]
"""The characters of each mention."""
LinksOf = Callable[[NDArray[np.float64]], tuple[NDArray[np.int64], NDArray[np.int64]]]
"""States of the words of a text [n, D] -> the first and last word of each span that is kept [K, 2], and the number of
its antecedent [K], a span before it, or -1."""


class CoreferenceSettings(TaskSettings):
    """A document and the clusters of its mentions."""

    beside_tokens: ClassVar[frozenset[str]] = TaskSettings.beside_tokens | {
        *("span_words", "spans_per_word", "antecedents", "head_size")
    }

    kind: Literal["coreference"]
    span_words: int = Field(default=30, ge=1, le=256)
    """Words of the longest mention. A Chinese character is a word."""
    spans_per_word: float = Field(default=0.4, gt=0, le=1)
    """Spans that are kept for each word of a document, those with the best mention scores."""
    antecedents: int = Field(default=50, ge=1, le=4096)
    """Number of spans before another that are scored as its antecedents by both, those with the best coarse scores."""
    head_size: int = Field(default=1000, ge=1, le=16384)
    """Size of the head's layers; Joshi et al. 2019 have 3,000."""
    split: Split = "words"
    """Words of a text that is not given as tokens: `words` as in BERT's basic tokenisation, of which each Chinese
    character and each punctuation mark is one, `blanks`, between which words lie, or `characters`."""

    @property
    def given(self) -> Given:
        return Given(split=self.split)


class CoreferenceDataset(WordsDataset[CoreferenceSettings, CoreferenceExample]):
    def encode(self, examples: Sequence[CoreferenceExample]) -> list[TaskDocument]:
        return self.of_words([with_blanks(one.text, one.words, [start for start, _ in one.spans]) for one in examples])

    def units(self, example: int, last_only: bool) -> list[list[Member]]:
        """All windows of a document: their spans are scored together."""
        return [[one for (one,) in super().units(example, last_only)]]

    def passes(self, group: Sequence[int], size: int, *, training: bool) -> Iterator[Rows]:
        """As in `TaskDataset`, a pass for all windows of a document. Those with memory are in several passes, together
        with those of other documents, and the last pass has the loss."""
        if self.settings.frame != "segments":
            for example in group:
                yield from super().passes([example], size, training=training)
            return
        held = list(super().passes(group, size, training=training))
        if training:
            kept = sum(rows["kept"].sum() for rows in held)
            for rows in held:
                rows["kept"][:] = 0
            held[-1]["kept"][0] = kept
        yield from held

    def _learned_words(self, member: Member) -> tuple[int, int]:
        """The first word that the windows of a document decide, and the one behind the last."""
        document = self.documents[member.example]
        first = document.windows - 1 if self.settings.learns == "last" else 0
        decided = [self._decided(member._replace(window=window))[1] for window in {first, document.windows - 1}]
        words = np.sort(np.concatenate(decided))
        return (int(words[0]), int(words[-1]) + 1) if len(words) else (0, 0)

    def _decided(self, member: Member) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """(position in the window, word) of the words that a window decides."""
        positions, words, decided = self.first_pieces(member)
        return positions[decided], words[decided]

    def targets(self, members: Sequence[Member], rows: Sequence[Row], shape: tuple[int, int]) -> Rows:
        """words bool [B, L]: the first pieces of the words that a window decides. In the row of a document's last
        window kept [B], the number of spans that are scored, and mentions int [B, M, 3]: first and last word, counted
        from the first that is decided, and cluster; -1 where there are none."""
        words, kept = np.zeros(shape, bool), np.zeros(len(members), np.int64)
        mentions: list[NDArray[np.int64]] = []
        for row, (member, built) in enumerate(zip(members, rows, strict=True)):
            words[row, built.content + self._decided(member)[0]] = True
            found: list[tuple[int, int, int]] = []
            if member.window == self.documents[member.example].windows - 1:
                begin, end = self._learned_words(member)
                kept[row] = kept_spans(end - begin, self.settings.spans_per_word)
                in_words = self._in_words(self.examples[member.example])
                found = [
                    (first - begin, last - begin, cluster)
                    for (first, last), cluster in in_words.items()
                    if begin <= first and last < end
                ]
            mentions.append(np.array(found, np.int64).reshape(-1, 3))
        table = np.full((len(members), max(map(len, mentions)), 3), -1)
        for row, of_row in enumerate(mentions):
            table[row, : len(of_row)] = of_row
        return {"words": words, "kept": kept, "mentions": table}

    @staticmethod
    def _in_words(example: CoreferenceExample) -> dict[tuple[int, int], int]:
        """(first word, last word) of each mention that words are -> the number of its cluster."""
        starts = {start: number for number, (start, _) in enumerate(example.spans)}
        ends = {end: number for number, (_, end) in enumerate(example.spans)}
        return {
            (starts[start], ends[end]): number
            for number, cluster in enumerate(example.linked)
            for start, end in cluster
            if start in starts and end in ends
        }

    def gold(self, example: CoreferenceExample) -> Any:
        return None if example.clusters is None else example.linked

    def label_of(self, example: CoreferenceExample, option: int) -> str:
        return f"{len(example.linked)} clusters of {sum(map(len, example.linked))} mentions"

    def marks(self, row: Rows) -> list[Mark]:
        """The mentions that lie in this window; of those that overlap the first, and of these the longest."""
        member = Member(int(row["example"][0]), 0, int(row["window"][0]))
        positions, words, _ = self.first_pieces(member)
        pieces = self.documents[member.example].offsets[self.documents[member.example].window(member.window), 0]
        content, place = self._content(member), dict(zip(words.tolist(), positions.tolist(), strict=True))
        found: list[Mark] = []
        in_words = self._in_words(self.examples[member.example])
        for (first, last), cluster in sorted(in_words.items(), key=lambda one: (one[0][0], -one[0][1])):
            if first not in place or last not in place or (found and content + place[first] <= found[-1].last):
                continue
            end = content + int(np.flatnonzero(pieces == last)[-1])
            found.append(Mark(content + place[first], end, str(cluster)))
        return found

    def decode(  # type: ignore[override]  # `CoreferenceObjective.decoded` has the links
        self, example: int, outputs: Outputs, links_of: LinksOf
    ) -> Clusters:
        """The clusters of two mentions or more, in the order of their first ones."""
        states, words = [], []
        for (_, window), values in sorted(outputs.items()):
            member = Member(example, 0, window)
            positions, of_window = self._decided(member)
            states.append(values[self._content(member) + positions])
            words.extend(of_window.tolist())
        if not words:
            return ()
        characters = self.examples[example].spans
        clusters: dict[int, list[Span]] = {}
        for number, ((first, last), antecedent) in enumerate(zip(*links_of(np.concatenate(states)), strict=True)):
            clusters[number] = clusters[int(antecedent)] if antecedent >= 0 else []
            clusters[number].append((characters[words[first]][0], characters[words[last]][1]))
        distinct = {id(one): tuple(one) for one in clusters.values()}
        return tuple(one for one in distinct.values() if len(one) > 1)

    def scored(self, example: int, prediction: Clusters) -> Clusters:
        return prediction

    def scores(self, predictions: Mapping[int, Any]) -> dict[str, float]:
        return self._scores(predictions)

    def written(self, example: int, prediction: Clusters) -> dict[str, Any]:
        """The mentions of each cluster with their text and its characters [start, end)."""
        text = self.examples[example].text
        return {
            "clusters": [
                [{"text": text[start:end], "start": start, "end": end} for start, end in cluster]
                for cluster in prediction
            ]
        }

    def remarks(self) -> list[str]:
        if any(one.clusters is None for one in self.examples):
            return super().remarks()
        return [*super().remarks(), *self._alone(), self._reach()]

    def _alone(self) -> list[str]:
        """The clusters of one mention, which are left out."""
        clusters = sum(len(one.clusters or ()) for one in self.examples)
        alone = clusters - sum(len(one.linked) for one in self.examples)
        if not alone:
            return []
        return [
            f"{alone:,} of {clusters:,} clusters have one mention and are left out, of learning and of gold in scores: "
            "a mention without an antecedent is not told from any other span (OntoNotes has no such clusters)"
        ]

    def _reach(self) -> str:
        """How many mentions cannot be predicted, why, and the resulting highest scores."""
        lost, total = Counter[str](), 0
        gold: dict[str, Clusters] = {}
        best: dict[str, Clusters] = {}
        for number, example in enumerate(self.examples):
            gold[example.id] = example.linked
            total += sum(map(len, example.linked))
            reachable = self._reachable(number, example, lost)
            left = [tuple(one for one in cluster if one in reachable) for cluster in example.linked]
            lost["alone without them"] += sum(len(cluster) == 1 for cluster in left)
            best[example.id] = tuple(cluster for cluster in left if len(cluster) > 1)
        return reach_line("mentions", +lost, total, scores(self.settings.scored_as, gold, best))

    def _reachable(self, number: int, example: CoreferenceExample, lost: Counter[str]) -> set[Span]:
        """The mentions of example `number` that can be predicted; the others are counted in `lost` by the reason."""
        words = int(np.count_nonzero(self.documents[number].offsets[:, 1] == 1))  # that are read
        most = kept_spans(words, self.settings.spans_per_word)
        characters, found = example.spans, list[Span]()
        in_words = self._in_words(example)
        lost["that begin or end within a word"] += sum(map(len, example.linked)) - len(in_words)
        for first, last in in_words:
            if last - first >= self.settings.span_words:
                lost[f"longer than task.span_words={self.settings.span_words}"] += 1
            elif last >= words:
                lost[f"past task.longest={self.settings.longest}"] += 1
            elif len(found) == most:
                lost[f"beyond task.spans_per_word={self.settings.spans_per_word:g}"] += 1
            else:
                found.append((characters[first][0], characters[last][1]))
        return set(found)

    def named(self, index: int, prediction: Clusters) -> tuple[Names, Names]:
        """The mentions, whatever their cluster is."""
        gold, guess = (
            {("mention", *span) for one in clusters for span in one}
            for clusters in (self.examples[index].linked, prediction)
        )
        return gold, guess

    def mistake(self, index: int, prediction: Clusters) -> Mistake | None:
        """The first clusters that differ."""
        example = self.examples[index]
        gold, guess = ({tuple(sorted(one)) for one in clusters} for clusters in (example.linked, prediction))
        if gold == guess:
            return None
        shown = [
            "; ".join(" = ".join(example.text[start:end] for start, end in one) for one in sorted(only))[:SHOWN]
            for only in (gold - guess, guess - gold)
        ]
        return Mistake(len(gold ^ guess), example.text[:SHOWN], shown[0] or "none", shown[1] or "none")

    def baselines(self, train: Sequence[CoreferenceExample]) -> Iterator[tuple[str, Mapping[int, Any]]]:
        texts = [(one.words, [(first, last + 1) for first, last in self._in_words(one)]) for one in train]
        same = SameWords(texts, self.settings.span_words)
        found = {}
        for index, one in enumerate(self.examples):
            spans = one.spans
            found[index] = tuple(
                tuple((spans[first][0], spans[end - 1][1]) for first, end in cluster)
                for cluster in same.clusters(one.words)
            )
        yield "same words", found
