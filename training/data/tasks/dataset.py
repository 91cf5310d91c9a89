"""Labelled documents as windows: which rows a step has, in which forward passes, and what is predicted from them."""

import json
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property, lru_cache
from hashlib import md5
from pathlib import Path
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding, Tokenizer

from preprocessing.errors import UserError
from preprocessing.labelled.examples import Example
from preprocessing.labelled.read import read_examples
from training.data.dataset import Dataset
from training.data.order import locate
from training.data.rows import Rows, share
from training.data.tasks.settings import TaskSettings
from training.data.tasks.windows import Framing, Row, padded, window_count
from training.data.trimming import by_length, micro_batches, pieces
from training.scoring.spans import max_context
from training.scoring.task_scores import scores

AnyTask = TypeVar("AnyTask", bound=TaskSettings)
AnyExample = TypeVar("AnyExample", bound=Example)

Outputs = Mapping[tuple[int, int], NDArray[np.float64]]
"""(option, window) -> the model's output for that row, without padding."""


@dataclass(frozen=True)
class Document:
    """A tokenised example."""

    ids: list[int]
    """The text that is cut into windows."""
    offsets: NDArray[np.int64]
    """[n, 2]: the characters of the text, or the word, that each token comes from."""
    options: list[list[list[int]]]
    """For each option the other parts of its rows; one without parts if the task has no options."""
    room: int
    """Tokens of the text in a window."""
    step: int
    unread: int
    """Tokens that no window shows."""

    @property
    def windows(self) -> int:
        return window_count(len(self.ids), self.room, self.step)

    def window(self, number: int) -> slice:
        begin = number * self.step
        return slice(begin, min(begin + self.room, len(self.ids)))

    @cached_property
    def owners(self) -> NDArray[np.int64]:
        """The window that decides each token [n], where it has most context."""
        windows = [self.window(number) for number in range(self.windows)]
        return max_context([one.start for one in windows], [one.stop - one.start for one in windows])


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


class TaskDataset(Dataset[AnyTask], Generic[AnyTask, AnyExample]):
    """The examples of one file; `len()` is their number."""

    is_question: ClassVar[bool] = False
    """Whether the other part of a row is a question, which stands first."""

    def __init__(self, settings: AnyTask, seed: int, examples: Sequence[AnyExample]) -> None:
        if settings.tokenizer is None:
            raise UserError(f"task {settings.kind}: `reread finetune` trains it, from init=FOLDER")
        self.settings, self.seed, self.examples = settings, seed, examples
        self.tokenizer_folder = settings.tokenizer
        self._tokenizer = Tokenizer.from_file(str(settings.tokenizer / "tokenizer.json"))
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.vocab_size = self._tokenizer.get_vocab_size()
        self.special = special_tokens(settings.tokenizer, self._tokenizer)
        pair = 2 if self._tokenizer.id_to_token(self.special["cls"]) == "<s>" else 1
        self.framing = Framing(settings.frame, self.special["cls"], self.special["sep"], pair)

    @classmethod
    def open(cls, settings: AnyTask, seed: int, split: str) -> "TaskDataset[AnyTask, AnyExample]":
        return cls(settings, seed, examples_of(settings, split))

    def __len__(self) -> int:
        return len(self.examples)

    @property
    def corpus_fingerprint(self) -> str:  # type: ignore[override]
        """A hash of the examples, wherever their file is."""
        digest = md5()
        for example in self.examples:
            values = [getattr(example, name) for name in example.__slots__ if name != "place"]
            digest.update(repr((example.id, values)).encode(errors="surrogatepass"))
        return digest.hexdigest()

    @property
    def fingerprint(self) -> str:
        settings = self.settings.model_dump_json(exclude=set(self.settings.elastic))
        return md5("\n".join([self.corpus_fingerprint, str(self.seed), settings]).encode()).hexdigest()

    def facts(self) -> dict[str, Any]:
        tokenizer = md5((self.tokenizer_folder / "tokenizer.json").read_bytes()).hexdigest()
        return {"fingerprint": self.corpus_fingerprint, "tokenizer": tokenizer, "documents": len(self)}

    def card(self) -> dict[str, Any]:
        return {**self.facts(), "sources": [self.settings.train.name]}

    def verify(self) -> None:
        """Tokenise everything."""
        _ = self.documents

    @cached_property
    def documents(self) -> list[Document]:
        """All examples, tokenised."""
        return self.encode(self.examples)

    @abstractmethod
    def encode(self, examples: Sequence[AnyExample]) -> list[Document]: ...

    @abstractmethod
    def targets(self, members: Sequence[Member], rows: Sequence[Row], shape: tuple[int, int]) -> Rows:
        """What the rows [B, L] of `shape` should predict, without what `learns` leaves out."""

    @abstractmethod
    def gold(self, example: AnyExample) -> Any:
        """The label of an example as its scores take it."""

    @abstractmethod
    def decode(self, example: int, outputs: Outputs) -> Any:
        """The prediction for an example from its rows' outputs."""

    @abstractmethod
    def scored(self, example: int, prediction: Any) -> Any:
        """A prediction as its scores take it."""

    @abstractmethod
    def scores(self, predictions: Mapping[int, Any]) -> dict[str, float]:
        """The scores of predictions by example, in points; the one that chooses the best checkpoint is the first."""

    def _scores(self, predictions: Mapping[int, Any], **given: Any) -> dict[str, float]:
        gold = {one.id: self.gold(one) for one in self.examples}
        predicted = {self.examples[place].id: self.scored(place, one) for place, one in predictions.items()}
        return scores(self.settings.scored_as, gold, predicted, **given)

    @abstractmethod
    def written(self, example: int, prediction: Any) -> dict[str, Any]:
        """A prediction as `reread predict` writes it."""

    def document(
        self, encoding: Encoding | list[int], offsets: NDArray[np.int64], options: list[list[list[int]]]
    ) -> Document:
        """Raises `UserError` if question and option leave no room in a window."""
        ids = encoding if isinstance(encoding, list) else encoding.ids
        limit, settings = self.settings.other_length, self.settings
        unread = sum(max(0, len(part) - limit) for option in options for part in option)
        options = [[part[:limit] for part in option] for option in options]
        taken = max(self.framing.special(len(option)) + sum(map(len, option)) for option in options)
        room = settings.sequence_length - taken
        if room < 1:
            raise UserError(
                f"task.sequence_length: {settings.sequence_length} leaves no room beside {taken} tokens of question, "
                "option and special tokens; raise it, or lower task.other_length"
            )
        longest = len(ids) if settings.longest is None else settings.longest
        unread += max(0, len(ids) - longest)
        step = settings.step or (max(1, room // 2) if settings.overlaps else room)
        return Document(ids[:longest], offsets[:longest], options, room, min(step, room), unread)

    def tokens(self, texts: Sequence[str]) -> list[Encoding]:
        encodings: list[Encoding] = self._tokenizer.encode_batch(list(texts), add_special_tokens=False)
        return encodings

    def words(self, texts: Sequence[Sequence[str]]) -> list[Encoding]:
        """Texts that are words already."""
        encodings: list[Encoding] = self._tokenizer.encode_batch(
            [list(words) for words in texts], is_pretokenized=True, add_special_tokens=False
        )
        return encodings

    def step_passes(
        self, step: int, global_batch: int, micro_batch: int, ranks: int, rank: int
    ) -> Iterator[tuple[int, Rows]]:
        """The forward passes of `rank` out of `ranks` in a step, with the number of their group.

        The examples of a step are sorted by length and cut into groups of at most `micro_batch`, which are dealt to the
        ranks in turn: little is padded, and the passes are the same on any number of ranks.
        """
        positions = np.arange(step * global_batch, (step + 1) * global_batch)
        examples = locate(positions, len(self), self.seed)[1]
        for number, group in enumerate(self.groups(examples, micro_batch)):
            if number % ranks == rank:
                for rows in self.passes(group, micro_batch, training=True):
                    yield number, rows

    def groups(self, examples: NDArray[np.int64], size: int) -> list[list[int]]:
        """`examples`, the shortest first, in groups of at most `size` with little padding."""
        examples = np.sort(examples)
        lengths = np.array([len(self.documents[example].ids) for example in examples.tolist()])
        return [group.tolist() for group in micro_batches(examples, lengths, self.settings.sequence_length, size)]

    def longest(self, size: int) -> Iterator[list[Rows]]:
        """Passes over the `size` longest examples, all of whose windows learn, and so on down to the shortest. No pass
        of a step with groups of `size` examples has more tokens than the largest of the first."""
        every = copy(self)
        every.settings = self.settings.model_copy(update={"learns": "all", "retrospective": False})
        lengths = np.array([len(document.ids) for document in self.documents])
        for group in pieces(by_length(np.arange(len(self)), lengths)[::-1], size):
            yield list(every.passes(group[::-1].tolist(), size, training=True))

    def passes(self, group: Sequence[int], size: int, *, training: bool) -> Iterator[Rows]:
        """The rows of a group of examples in forward passes: input_ids, attention_mask, token_type_ids [B, L]; example,
        option, window [B]; learns [B], whether a row has a loss or is part of a prediction; and targets.

        With memory a pass has one window of every document, in order, `lane` [B] says whose memory a row continues, and
        `lanes` [1] how many there are. Without it a pass has about `size` rows.
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
                rows = self.rows([member for _, member in open_lanes], training)
                rows["lane"] = np.array([lane for lane, _ in open_lanes])
                rows["lanes"] = np.array([len(lanes)])
                if last_only:
                    ends = [window == self.documents[member.example].windows - 1 for _, member in open_lanes]
                    rows["learns"] &= np.array(ends)
                rows["learns"] &= not skims
                yield rows

    def _independent(self, group: Sequence[int], size: int, last_only: bool, training: bool) -> Iterator[Rows]:
        """Windows that know nothing of each other, those of a `unit` in one pass."""
        held: list[Member] = []
        for example in group:
            for unit in self.units(example, last_only):
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
        built = [self._row(member) for member in members]
        rows = padded(built, self.special["pad"], self.settings.frame)
        shape = rows["input_ids"].shape
        for name, values in zip(Member._fields, np.array(members).T, strict=True):
            rows[name] = values
        rows["learns"] = np.ones(len(members), bool)
        return {**rows, **self.targets(members, built, (shape[0], shape[1]))} if training else rows

    def _row(self, member: Member) -> Row:
        document = self.documents[member.example]
        window = document.ids[document.window(member.window)]
        return self.framing.row(window, document.options[member.option], self.is_question)

    def _content(self, member: Member) -> int:
        """The place of the window's first token in its row."""
        return self.framing.row([], self.documents[member.example].options[member.option], self.is_question).content

    def preview(self) -> Iterator[tuple[str, Rows]]:
        """Titles and rows [1, L] with targets: the windows of each example in the order in which they are read."""
        for number, example in enumerate(self.examples):
            for rows in self.passes([number], 1, training=True):
                for row in range(len(rows["learns"])):
                    one = {name: values[row : row + 1] for name, values in rows.items()}
                    yield self._title(example, one), one

    def _title(self, example: AnyExample, row: Rows) -> str:
        document, option = self.documents[int(row["example"][0])], int(row["option"][0])
        title = f"{example.place}, id {example.id}, window {int(row['window'][0]) + 1} of {document.windows}"
        if len(document.options) > 1:
            title += f", option {option + 1} of {len(document.options)}"
        title += f": {self.label_of(example, option)}"
        return title if row["learns"][0] else f"{title}; no loss"

    @abstractmethod
    def label_of(self, example: AnyExample, option: int) -> str:
        """The label of an example, or of one of its options, for people."""

    def marks(self, row: Rows) -> list[Mark]:
        """The tokens of a row [1, L] of `preview` that have a label."""
        return []

    def statistics(self, batches: list[Rows]) -> list[tuple[str, str]]:
        return self.reading()

    def reading(self) -> list[tuple[str, str]]:
        """How much of the text is read, and how often: (name, value)."""
        read = sum(len(document.ids) for document in self.documents)
        unread = sum(document.unread for document in self.documents)
        windows = [document.windows for document in self.documents]
        seen = sum(
            document.window(number).stop - document.window(number).start
            for document in self.documents
            for number in range(document.windows)
        )
        cut = sum(document.unread > 0 for document in self.documents)
        return [
            ("examples", f"{len(self):,}"),
            ("tokens read", f"{share(read, read + unread)} of {read + unread:,}; {cut:,} examples are cut"),
            ("windows an example", f"{np.mean(windows):.2f}, {max(windows):,} at most"),
            ("times a token is read", f"{seen / max(read, 1):.2f}"),
        ]


def examples_of(settings: TaskSettings, split: str) -> list[Any]:
    """The examples of `task.train` (split train) or `task.dev` (any other split); none where there is no file."""
    path = settings.train if split == "train" else settings.dev
    if path is None:
        return []
    columns = tuple(settings.columns.items())
    return _read(path, _stamp(path), settings.kind, settings.format, columns, settings.wrong, settings.label_form)


@lru_cache(maxsize=8)
def _read(path: Path, stamp: Any, kind: Any, format: str | None, columns: Any, wrong: Any, labels: Any) -> list[Any]:
    """Read a file once, though settings, batches and scores all ask for its examples."""
    return read_examples(path, kind, format, columns=dict(columns), wrong=wrong, labels=labels).examples


def _stamp(path: Path) -> tuple[int, int] | None:
    """What changes with a file's content."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


def special_tokens(folder: Path, tokenizer: Tokenizer) -> dict[str, int]:
    """The ids of pad, unk, cls, sep and mask by tokenizer_config.json, as far as they are there."""
    config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    found = {}
    for role in ("pad", "unk", "cls", "sep", "mask"):
        name = config.get(f"{role}_token")
        number = tokenizer.token_to_id(name["content"] if isinstance(name, dict) else name) if name else None
        if number is not None:
            found[role] = number
    if missing := [role for role in ("pad", "cls", "sep") if role not in found]:
        raise UserError(f"init: {folder}: its tokenizer has no token for {', '.join(missing)}")
    return found
