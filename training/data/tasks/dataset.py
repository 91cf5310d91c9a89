"""Labelled documents as windows: the rows of a step and of each forward pass, and the predictions made from them."""

import logging
import math
from abc import abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from copy import copy
from functools import cached_property
from hashlib import md5
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from reread.preprocessing.errors import UserError
from reread.preprocessing.labelled.examples import Example
from reread.preprocessing.labelled.mapped import fingerprint_of
from reread.preprocessing.tokens.base import read_backend, read_config, with_tokens
from reread.preprocessing.tokens.long_text import grouped
from reread.training.data.batch import Rows, percentage, spread
from reread.training.data.dataset import Dataset
from reread.training.data.order.order import locate
from reread.training.data.rows.trimming import PASS_SHARE, by_length, micro_batches, pieces
from reread.training.data.tasks.documents import Documents, TaskDocument, Tokens
from reread.training.data.tasks.encoder import NO_OFFSETS, TextEncoder
from reread.training.data.tasks.examples import examples_of
from reread.training.data.tasks.kept import documents_of
from reread.training.data.tasks.settings import TaskSettings
from reread.training.data.tasks.windows import Framing, Row, longest_of, padded, room_beside
from reread.training.scoring.task_scores import scores

log = logging.getLogger("reread")

AnyTask = TypeVar("AnyTask", bound=TaskSettings)
AnyExample = TypeVar("AnyExample", bound=Example)
AnyRow = TypeVar("AnyRow")

LITTLE = 0.9
"""If a smaller share of the text is read, a line of the log says so."""

Outputs = Mapping[tuple[int, int], NDArray[np.float64]]
"""(option, window) -> the model's output for that row, without padding."""


class Member(NamedTuple):
    """One row of a forward pass."""

    example: int
    option: int
    window: int


class Mark(NamedTuple):
    """Tokens `first` to `last` of a row that should be predicted as `name`."""

    first: int
    last: int
    name: str


class Mistake(NamedTuple):
    """A wrong prediction, for people."""

    weight: float
    """How wrong it is, compared with others of the same kind of task."""
    text: str
    gold: str
    predicted: str


Names = Collection[tuple[Any, ...]]
ENCODED_AT_ONCE, _CHARACTERS = 1000, 1 << 20
"""Examples that are encoded together at most, and the characters at which no further ones are."""
SHOWN = 400
"""Characters of a text in a list of mistakes."""


class TaskDataset(Dataset[AnyTask], Generic[AnyTask, AnyExample]):
    """The examples of one file; `len()` is their number."""

    is_question: ClassVar[bool] = False
    """Whether the other part of a row is a question, which is put first."""

    splits_options: ClassVar[bool] = False
    """Whether the options of an example, of which there may be many, may be predicted in several forward passes."""

    def __init__(self, settings: AnyTask, seed: int, examples: Sequence[AnyExample]) -> None:
        if settings.tokenizer is None:
            raise UserError(f"task {settings.kind}: starts from a model; run `reread finetune` with init=FOLDER")
        self.settings, self.seed, self.examples = settings, seed, examples
        self.tokenizer_folder = settings.tokenizer
        self._tokenizer = read_backend(settings.tokenizer / "tokenizer.json")
        self.own_tokens = with_tokens(self._tokenizer, settings.own_tokens)
        """The ids of `settings.own_tokens`, which a text that spells them does not get (`unmarked`)."""
        vocabulary = self._tokenizer.get_vocab()
        self.vocab_size = len(vocabulary)
        self.embeddings = max(vocabulary.values(), default=-1) + 1
        """Rows that a model's embedding needs: ids may leave out numbers."""
        self.special = special_tokens(settings.tokenizer, vocabulary)
        pair = 2 if self._tokenizer.id_to_token(self.special["cls"]) == "<s>" else 1
        self.framing = Framing(settings.frame, self.special["cls"], self.special["sep"], pair)
        self.encoder = TextEncoder(self._tokenizer, settings.tokenizer, examples)

    @classmethod
    def open(cls, settings: AnyTask, seed: int, split: str) -> "TaskDataset[AnyTask, AnyExample]":
        return cls(settings, seed, examples_of(settings, split))

    def __len__(self) -> int:
        return len(self.examples)

    @cached_property
    def corpus_fingerprint(self) -> str:  # type: ignore[override]
        return fingerprint_of(self.examples)

    @cached_property
    def compared(self) -> dict[str, str]:
        splits = self.settings.splits.items()
        return {f"task.{name}": fingerprint_of(examples_of(one, "validation")) for name, one in splits}

    @property
    def fingerprint(self) -> str:
        settings = self.settings.model_dump_json(exclude=set(self.settings.may_change))
        return md5("\n".join([self.corpus_fingerprint, str(self.seed), settings]).encode()).hexdigest()

    def facts(self) -> dict[str, Any]:
        # With tokens of the task's own, as a run keeps it; else the file itself, whose checksum older runs have
        kept = self._tokenizer.to_str().encode() if self.own_tokens else None
        tokenizer = md5(kept or (self.tokenizer_folder / "tokenizer.json").read_bytes()).hexdigest()
        return {"fingerprint": self.corpus_fingerprint, "tokenizer": tokenizer, "documents": len(self)}

    def card(self) -> dict[str, Any]:
        return {**self.facts(), "sources": [self.settings.train.name]}

    def verify(self) -> None:
        """Tokenise everything."""
        _ = self.documents

    @cached_property
    def documents(self) -> Documents:
        """All examples, tokenised."""
        found = chain.from_iterable(map(self.encode, grouped(self.examples, _size, _CHARACTERS)))
        return documents_of(self.examples, found, self._tokens_depend_on)

    def _tokens_depend_on(self) -> tuple[str, ...]:
        """All that decides `documents`."""
        files = sorted(self.tokenizer_folder.glob("tokenizer*.json"))
        settings = self.settings.model_dump_json(exclude=set(self.settings.beside_tokens))
        return self.corpus_fingerprint, settings, *(md5(one.read_bytes()).hexdigest() for one in files)

    @abstractmethod
    def encode(self, examples: Sequence[AnyExample]) -> list[TaskDocument]: ...

    @abstractmethod
    def targets(self, members: Sequence[Member], rows: Sequence[Row], shape: tuple[int, int]) -> Rows:
        """The targets of the rows [B, L] of `shape`; rows that do not learn (`learns`) have some, too."""

    @abstractmethod
    def gold(self, example: AnyExample) -> Any:
        """The label of an example in the form that its scores take."""

    def keep(self, outputs: dict[tuple[int, int], NDArray[np.float64]], row: Any, output: NDArray[np.float64]) -> None:
        """Add the output of a row, (option, window), to those that `decode` gets."""
        outputs[row] = output

    @abstractmethod
    def decode(self, example: int, outputs: Outputs) -> Any:
        """The prediction for an example from its rows' outputs."""

    @abstractmethod
    def scored(self, example: int, prediction: Any) -> Any:
        """A prediction in the form that its scores take."""

    @abstractmethod
    def scores(self, predictions: Mapping[int, Any]) -> dict[str, float]:
        """The scores of predictions by example, in points; the one that chooses the best checkpoint is the first."""

    def _scores(self, predictions: Mapping[int, Any], **given: Any) -> dict[str, float]:
        gold = {one.id: self.gold(one) for one in self.examples}
        predicted = {self.examples[index].id: self.scored(index, one) for index, one in predictions.items()}
        return scores(self.settings.scored_as, gold, predicted, **given)

    @abstractmethod
    def written(self, example: int, prediction: Any) -> dict[str, Any]:
        """A prediction as `reread predict` writes it."""

    @property
    def lines(self) -> Sequence[Sequence[int]] | None:
        """The examples of each line that `reread predict` writes; None: each example has a line of its own."""
        return None

    def best_of(self, members: Sequence[int], predictions: Mapping[int, Any]) -> int:
        """Which of the examples of one line it shows."""
        return members[0]

    @abstractmethod
    def mistake(self, index: int, prediction: Any) -> Mistake | None:
        """The mistake in the prediction for an example; None if it is right."""

    @property
    def has_confusion(self) -> bool:
        """Whether each example has exactly one class, so that a table of confusion makes sense."""
        return False

    def named(self, index: int, prediction: Any) -> tuple[Names, Names]:
        """The labels, or entities with their positions, of gold and of the prediction, each as (class, ...)."""
        return (), ()

    @abstractmethod
    def baselines(self, train: Sequence[AnyExample]) -> Iterator[tuple[str, Mapping[int, Any]]]:
        """(name, predictions) of baselines without a neural network, made from the training examples."""

    def check_predicted(self) -> None:
        """Raise `UserError` for examples that can be read, but are of another kind than the model learned from."""

    def document(
        self,
        ids: Sequence[int] | Tokens,
        options: list[list[Any]],
        offsets: Sequence[tuple[int, int]] | NDArray[np.int32] = (),
    ) -> TaskDocument:
        """Raises `UserError` if question and option leave no room in a window."""
        settings = self.settings
        longest = len(ids) if settings.longest is None else settings.longest
        unread = max(0, len(ids) - longest)
        if any(options):
            shown = [self._shown(option, min(len(ids), longest)) for option in options]
            unread += _tokens(options) - _tokens(shown)
            occupied = max(self.framing.special(len(option)) + sum(map(len, option)) for option in shown)
        else:  # a text alone, as most are
            shown, occupied = options, self.framing.special(0)
        room = settings.sequence_length - occupied
        if room < 1:
            raise UserError(
                f"task.sequence_length: {settings.sequence_length} leaves no room beside {occupied} tokens of "
                "question, option and special tokens; raise it, or lower task.other_length"
            )
        step = settings.step or (max(1, room // 2) if settings.overlaps else room)
        return TaskDocument(
            np.asarray(ids[:longest], np.int32),
            np.asarray(offsets[:longest], np.int32).reshape(-1, 2) if len(offsets) else NO_OFFSETS,
            [[np.array(part, np.int32) for part in option] for option in shown],
            *(room, min(step, room), unread),
        )

    def _shown(self, parts: list[Sequence[int]], text: int) -> list[Sequence[int]]:
        """Each part cut to the room beside a window of `text` tokens."""
        if not parts:
            return parts
        limit = self.settings.other_length
        if limit is None:
            room = self.settings.sequence_length - self.framing.special(len(parts))
            limit = longest_of([len(part) for part in parts], room_beside(text, room))
        return [part[:limit] for part in parts]

    def step_passes(
        self, step: int, global_batch: int, micro_batch: int, ranks: int, rank: int, pass_share: float = PASS_SHARE
    ) -> Iterator[tuple[int, Rows]]:
        """(number of its group, rows) of each forward pass of `rank` out of `ranks` in a step.

        The examples of a step are sorted by length and cut into groups of at most `micro_batch`, which are dealt to the
        ranks in turn: little is padded, and the passes are the same on any number of ranks.
        """
        positions = np.arange(step * global_batch, (step + 1) * global_batch)
        epochs, examples = locate(positions, len(self), self.seed)
        read = self.in_epochs(dict(zip(examples.tolist(), epochs.tolist(), strict=True)))
        for number, group in enumerate(self.groups(examples, micro_batch, pass_share)):
            if number % ranks == rank:
                for rows in read.passes(group, micro_batch, training=True):
                    yield number, rows

    def in_epochs(self, epochs: Mapping[int, int]) -> "TaskDataset[AnyTask, AnyExample]":
        """The dataset as it is read for training: each example in its epoch."""
        return self

    def groups(self, examples: NDArray[np.int64], size: int, pass_share: float = PASS_SHARE) -> list[list[int]]:
        """`examples`, the shortest first, in groups of at most `size` of the least cost (trimming.py)."""
        examples = np.sort(examples)
        lengths, columns = self.documents.lengths[examples], self.settings.sequence_length
        return [group.tolist() for group in micro_batches(examples, lengths, columns, size, pass_share)]

    def longest(self, size: int, global_batch: int) -> Iterator[list[Rows]]:
        """The forward passes over the `size` longest examples, all of whose windows learn, then over the next shorter
        ones. No pass of a step of `global_batch` examples in groups of `size` has more tokens than the largest of the
        first group: an example is in it as often as a step can hold it."""
        documents = self.documents
        every = copy(self)
        every.settings = self.settings.model_copy(update={"learns": "all", "retrospective": False})
        lengths = documents.lengths + documents.longest_others
        # The first of a step's examples has any position of an epoch that is a multiple of this.
        start = math.gcd(global_batch, len(self))
        epochs = 1 + (len(self) - start + global_batch - 1) // len(self)  # that one step can reach into
        longest_first = np.repeat(by_length(np.arange(len(self)), lengths)[::-1], epochs)
        for group in pieces(longest_first, size):
            yield list(every.passes(group[::-1].tolist(), size, training=True))

    def passes(self, group: Sequence[int], size: int, *, training: bool) -> Iterator[Rows]:
        """The rows of a group of examples in forward passes: input_ids, attention_mask, token_type_ids [B, L]; example,
        option, window [B]; learns [B], whether a row has a loss or is part of a prediction; and targets.

        With memory a pass has one window of every document, in order, `lane` [B] says whose memory a row continues,
        `lanes` [1] how many there are, `windows` [1] how many the longest document has, and `skims` [1] whether the
        pass is for memory alone. Without it a pass has about `size` rows.
        """
        last_only = (self.settings.learns if training else self.settings.predict) == "last"
        if self.settings.frame != "segments":
            yield from self._independent(group, size, last_only, training)
            return
        lanes = [(example, option) for example in group for option in range(len(self.documents[example].options))]
        most = max(self.documents[example].windows for example in group)
        for skims in [True, False] if self.settings.retrospective else [False]:
            for window in range(most):
                open_lanes = [
                    (lane, Member(example, option, window))
                    for lane, (example, option) in enumerate(lanes)
                    if window < self.documents[example].windows
                ]
                for together in self._divided(open_lanes, size, training):
                    rows = self.rows([member for _, member in together], training)
                    rows["lane"] = np.array([lane for lane, _ in together])
                    rows["lanes"] = np.array([len(lanes)])
                    rows["windows"], rows["skims"] = np.array([most]), np.array([skims])
                    if last_only:
                        ends = [window == self.documents[member.example].windows - 1 for _, member in together]
                        rows["learns"] &= np.array(ends)
                    rows["learns"] &= not skims
                    yield rows

    def _divided(self, rows: list[AnyRow], size: int, training: bool) -> list[list[AnyRow]]:
        """Rows that would be read in one pass, in several with at most `size` if a prediction allows it."""
        most = size if self.splits_options and not training else max(1, len(rows))
        return [rows[begin : begin + most] for begin in range(0, len(rows), most)]

    def _independent(self, group: Sequence[int], size: int, last_only: bool, training: bool) -> Iterator[Rows]:
        """Windows of models without memory; those of a `unit` are in one pass."""
        held: list[Member] = []
        for example in group:
            whole = self.units(example, last_only)
            for unit in (part for one in whole for part in self._divided(one, size, training)):
                if held and len(held) + len(unit) > size:
                    yield self.rows(held, training)
                    held = []
                held += unit
        if held:
            yield self.rows(held, training)

    def units(self, example: int, last_only: bool) -> list[list[Member]]:
        """The rows of an example; those in one list share a softmax, and so a forward pass."""
        document = self.documents[example]
        windows = range(document.windows - 1 if last_only else 0, document.windows)
        return [[Member(example, option, window) for option in range(len(document.options))] for window in windows]

    def rows(self, members: Sequence[Member], training: bool) -> Rows:
        built = [self._row(member, training) for member in members]
        rows = padded(built, self.special["pad"], self.settings.frame)
        shape = rows["input_ids"].shape
        for name, values in zip(Member._fields, np.array(members).T, strict=True):
            rows[name] = values
        rows["learns"] = np.ones(len(members), bool)
        return {**rows, **self.targets(members, built, (shape[0], shape[1]))} if training else rows

    def _row(self, member: Member, training: bool) -> Row:
        document = self.documents[member.example]
        window = document.ids[document.window(member.window)].tolist()
        others = [part.tolist() for part in document.options[member.option]]
        return self.framing.row(window, others, self.is_question)

    def _content(self, member: Member) -> int:
        """The position of the window's first token in its row."""
        others = [part.tolist() for part in self.documents[member.example].options[member.option]]
        return self.framing.row([], others, self.is_question).content

    def preview(self) -> Iterator[tuple[str, Rows]]:
        """Titles and rows [1, L] with targets: the windows of each example as they are read in the first epoch."""
        for number, example in enumerate(self.examples):
            for rows in self.in_epochs({number: 0}).passes([number], 1, training=True):
                for row in range(len(rows["learns"])):
                    one = {name: values[row : row + 1] for name, values in rows.items()}
                    yield self._title(example, one), one

    def _title(self, example: AnyExample, row: Rows) -> str:
        document, option = self.documents[int(row["example"][0])], int(row["option"][0])
        title = f"{example.location}, id {example.id}, window {int(row['window'][0]) + 1} of {document.windows}"
        if len(document.options) > 1:
            title += f", option {option + 1} of {len(document.options)}"
        title += f": {self.label_of(example, option)}"
        return title if row["learns"][0] else f"{title}; no loss"

    @abstractmethod
    def label_of(self, example: AnyExample, option: int) -> str:
        """The label of an example, or of one of its options, in words."""

    def marks(self, row: Rows) -> list[Mark]:
        """The tokens of a row [1, L] of `preview` that have a label."""
        return []

    def remarks(self) -> list[str]:
        """Lines on text of the examples that is not read, and the settings that would read it."""
        read, unread = self._read()
        if read >= LITTLE * (read + unread):
            return []
        limits = {name: getattr(self.settings, name) for name in ("longest", "other_length")}
        ways = [f"task.{name} ({value} now, null for no limit)" for name, value in limits.items() if value is not None]
        ways.append(f"task.sequence_length ({self.settings.sequence_length} now)")
        return [f"only {percentage(read, read + unread)} of the text is read; to read more, raise {' or '.join(ways)}"]

    def _read(self) -> tuple[int, int]:
        """The numbers of tokens of all examples that are in rows, and that are in none."""
        return int(self.documents.lengths.sum()) + self.documents.others, int(self.documents.unread.sum())

    def statistics(self, batches: list[Rows]) -> list[tuple[str, str]]:
        lengths = [(f"tokens {name}", spread(values)) for name, values in self.lengths().items() if len(values)]
        return [*self.coverage(), *lengths]

    def lengths(self) -> dict[str, NDArray[np.int64]]:
        """The tokens of the examples' texts, with what is cut of other parts, and the most beside them in a row."""
        documents = self.documents
        beside = {"beside a text": documents.longest_others} if documents.others else {}
        return {"of a text": documents.lengths + documents.unread, **beside}

    def _lengths(self, texts: Sequence[str]) -> NDArray[np.int64]:
        """Tokens of each text."""
        return np.array([len(ids) for ids in self.encoder.ids(texts)], np.int64)

    def unmarked(self, ids: Tokens) -> NDArray[np.bool_]:
        """Which of ids [n] are none of the task's own tokens, bool [n]."""
        return ~np.isin(ids, self.own_tokens)

    @property
    def row_tokens(self) -> NDArray[np.int64]:
        """Tokens of all rows of each example, with special tokens, question and option, once for each option."""
        return self.documents.row_tokens(self.framing.special)

    def coverage(self) -> list[tuple[str, str]]:
        """(name, value) of figures on how much of the text is read, and how often."""
        read, unread = self._read()
        documents, windows = self.documents, self.documents.windows
        texts, cut = int(documents.lengths.sum()), np.count_nonzero(documents.unread)
        return [
            ("examples", f"{len(self):,}"),
            ("tokens read", f"{percentage(read, read + unread)} of {read + unread:,}; {cut:,} examples are cut"),
            ("windows an example", f"{np.mean(windows):.2f}, {windows.max():,} at most"),
            ("times a token is read", f"{documents.shown.sum() / max(texts, 1):.2f}"),
        ]


def _size(example: Example) -> int:
    """Characters; a short example counts as more, so that no more than `ENCODED_AT_ONCE` are encoded together."""
    return max(_CHARACTERS // ENCODED_AT_ONCE, sum(map(len, example.texts.values())))


def _tokens(options: list[list[Sequence[int]]]) -> int:
    return sum(len(part) for option in options for part in option)


def special_tokens(folder: Path, vocabulary: dict[str, int]) -> dict[str, int]:
    """The ids of pad, unk, cls, sep and mask, as far as tokenizer_config.json names them.

    Raises `UserError` if it cannot be read, or names no pad, cls or sep.
    """
    config, found = read_config(folder), {}
    for role in ("pad", "unk", "cls", "sep", "mask"):
        name = config.get(f"{role}_token")
        name = name.get("content") if isinstance(name, dict) else name
        if isinstance(name, str) and name in vocabulary:
            found[role] = vocabulary[name]
    if missing := [role for role in ("pad", "cls", "sep") if role not in found]:
        raise UserError(f"init: {folder}: its tokenizer has no token for {', '.join(missing)}")
    return found
