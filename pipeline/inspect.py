"""`reread inspect`: rows as the model will see them, and what their masks are made of."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count as numbers
from itertools import islice, pairwise

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from rich.text import Text
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel, DecodeStream
from tokenizers.models import WordPiece

from preprocessing.corpus import Corpus
from preprocessing.errors import UserError
from training.config import AnyData, DataSettings, StreamSettings
from training.data.checks import check_masking, han_vocabulary
from training.data.lanes import Lanes, lanes_for
from training.data.masking import IGNORED
from training.data.materialize import MaterializedSamples, is_materialized
from training.data.order import locate
from training.data.packed import Packed
from training.data.samples import Rows, Samples
from training.data.segments import Reading, Segments
from training.data.source import drawn

STATISTICS_ROWS = 4096
STATISTICS_TOKENS = 1 << 21
"""Of long rows fewer are counted."""
LANES = 64
"""That learn at a time, of those whose learning rows are counted."""
MASKED, REPLACED, KEPT = "bold white on red", "bold black on yellow", "bold black on green"


Source = Samples | Packed | MaterializedSamples | Segments


def inspect(data: AnyData, *, samples: int = 3, seed: int = 0, verify: bool = False) -> None:
    """Print `samples` decoded rows of the corpus or materialised folder `data.corpus`, and statistics over more.

    A materialised folder is shown with the settings and the seed it was written with. With `verify` every byte is
    checked first. Raises `UserError` for what cannot be read and, having shown it, for a masking that does nothing.
    """
    console = Console(highlight=False)
    source = _open(data, seed)
    if verify:
        source.verify()
        console.print("every block of the train split has the checksum it was written with")
    if len(source) == 0:
        raise UserError(f"{data.corpus}: no documents in the train split; look at the corpus' report.md")
    vocabulary = source.tokenizer_folder / "tokenizer.json"
    if not vocabulary.exists():
        raise UserError(f"{vocabulary}: not there; run `reread preprocess` again")
    tokenizer = Tokenizer.from_file(str(vocabulary))
    console.print(
        Text.assemble(
            "predicted words are in ‹ ›: ", ("masked", MASKED), " ", ("replaced→by", REPLACED), " ", ("kept=", KEPT)
        )
    )
    shown = _consecutive_segments(source) if isinstance(source, Segments) else _samples(source)
    for title, rows in islice(shown, samples):
        console.print(Text(f"\n{title}", style="bold"))
        text = render({name: values[0] for name, values in rows.items()}, tokenizer, source.special["mask"])
        if isinstance(source, Packed):  # a document a line
            separator = tokenizer.id_to_token(source.special["sep"]) or ""
            text = Text("\n").join(text.split(separator, include_separator=True))
        console.print(text)
    console.print()
    counted = min(STATISTICS_ROWS, max(1, STATISTICS_TOKENS // source.settings.sequence_length))
    console.print(_table(source, count(source, han_vocabulary(source.tokenizer_folder), counted)))
    if not isinstance(source, MaterializedSamples):
        check_masking(source)


def _open(data: AnyData, seed: int) -> Source:
    if isinstance(data, StreamSettings):
        raise UserError(
            f"{data.corpus}: data.kind is stream, unbroken text in which nothing is masked: nothing to show"
        )
    if isinstance(data, DataSettings) and is_materialized(data.corpus):
        return MaterializedSamples(data.corpus, "train")
    return drawn(Corpus(data.corpus, "train"), data, seed)


def _samples(source: Samples | Packed | MaterializedSamples) -> Iterator[tuple[str, Rows]]:
    """Titles and rows [1, L] from the beginning of the stream."""
    for number in numbers():
        yield f"row {number}", source.rows_with_words(np.arange(number, number + 1))


def _consecutive_segments(source: Segments) -> Iterator[tuple[str, Rows]]:
    """Titles and rows [1, L] of one document after the other, of skims only the last segment."""
    for reading in _readings(source):
        title = f"document {reading.document}, copy {reading.copy}"
        if source.settings.reorder_chunks > 1:
            begins = sorted(start for start, _ in reading.chunks)
            order = " ".join(str(begins.index(start)) for start, _ in reading.chunks)
            title += f", chunks in the order {order} (label {reading.label})"
        sequence = [(True, segment) for segment in range(reading.segments)]
        if source.settings.retrospective:
            sequence.insert(0, (False, reading.segments - 1))
        for learns, segment in sequence:
            row = source.rows([reading], [segment], np.array([learns]))
            yield f"{title}: {'learn' if learns else 'skim'}, segment {segment + 1} of {reading.segments}", row


def _readings(source: Segments) -> Iterator[Reading]:
    """Documents from the beginning of the stream, without end."""
    for begin in numbers(step=16):
        passes, documents = locate(np.arange(begin, begin + 16), len(source), source.seed)
        yield from source.read(passes % source.settings.copies, documents)


def render(row: Rows, tokenizer: Tokenizer, mask_id: int) -> Text:
    """One row [L] as text: original words, the predicted ones in ‹ › and in the colour of what was done to them."""
    text = Text()
    fed = row["attention_mask"] == 1
    labels, inputs, continues = (row[name][fed].tolist() for name in ("labels", "input_ids", "continues_word"))
    originals = [given if label == IGNORED else label for label, given in zip(labels, inputs, strict=True)]
    opened = False
    for column, piece in enumerate(_pieces(tokenizer, originals)):
        predicted = labels[column] != IGNORED
        if opened and not (predicted and continues[column]):
            text.append("›")
            opened = False
        if not predicted:
            text.append(piece)
            continue
        if not opened:
            blank, piece = piece[: len(piece) - len(piece.lstrip(" "))], piece.lstrip(" ")  # noqa: PLW2901
            text.append(f"{blank}‹")
            opened = True
        if inputs[column] == mask_id:
            text.append(piece, MASKED)
        elif inputs[column] == originals[column]:
            text.append(f"{piece}=", KEPT)
        else:
            text.append(f"{piece}→{_pieces(tokenizer, [inputs[column]])[0]}", REPLACED)
    return text


def _pieces(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    """The text of each token, with the space before it."""
    if isinstance(tokenizer.decoder, ByteLevel):
        stream = DecodeStream(skip_special_tokens=False)
        return [stream.step(tokenizer, number) or "" for number in ids]  # a cut character comes with its last byte
    names = [tokenizer.id_to_token(number) or "" for number in ids]
    if not isinstance(tokenizer.model, WordPiece):
        return [name.replace("▁", " ") for name in names]
    # WordPiece loses spaces: they are put back between words of letters or digits, not inside Chinese.
    spaced = [
        before[-1:].isascii() and before[-1:].isalnum() and name[:1].isascii() and name[:1].isalnum()
        for before, name in pairwise(["", *names])
    ]
    return [" " * space + name.removeprefix("##") for space, name in zip(spaced, names, strict=True)]


@dataclass
class Counts:
    """What was found in some rows."""

    rows: int = 0
    slots: int = 0
    tokens: int = 0
    predicted: int = 0
    masked: int = 0
    kept: int = 0
    chinese_words: int = 0
    """Words of several Chinese tokens, at least one of them predicted."""
    whole_chinese_words: int = 0
    """Of these, the words of which each token is predicted."""
    pairs: list[NDArray[np.int64]] = field(default_factory=list)
    """[labelled rows, 3] of each batch: tokens of A and of B, next_sentence_label."""
    texts: list[int] = field(default_factory=list)
    """Of each row: the stretches of text that special tokens divide it into."""
    documents: list[Reading] = field(default_factory=list)
    """Of segments: the documents that begin in these rows."""

    def add(self, rows: Rows, is_han: NDArray[np.bool_], special: dict[str, int]) -> None:
        predicted = rows["labels"] != IGNORED
        original = np.where(predicted, rows["labels"], rows["input_ids"])
        attention = rows["attention_mask"] == 1
        self.rows += len(attention)
        self.slots += attention.size
        self.tokens += int(attention.sum())
        self.predicted += int(predicted.sum())
        self.masked += int((rows["input_ids"] == special["mask"])[predicted].sum())
        self.kept += int((rows["input_ids"] == original)[predicted].sum())
        if "next_sentence_label" in rows:
            label, second = rows["next_sentence_label"], rows["token_type_ids"].sum(axis=1)
            table = np.stack([attention.sum(axis=1) - second, second, label], axis=1)
            self.pairs.append(table[label != IGNORED])

        text = attention & ~np.isin(original, [special["cls"], special["sep"]])
        self.texts += (text & ~np.pad(text, ((0, 0), (1, 0)))[:, :-1]).sum(axis=1).tolist()
        begins = text.copy()
        begins[:, 1:] &= ~(rows["continues_word"][:, 1:] & text[:, :-1])
        word = np.cumsum(begins[text]) - 1
        size = np.bincount(word)
        chinese = (size > 1) & (np.bincount(word, is_han[original[text]]) == size)
        hit = np.bincount(word, predicted[text])
        self.chinese_words += int((chinese & (hit > 0)).sum())
        self.whole_chinese_words += int((chinese & (hit == size)).sum())


def count(source: Source, is_han: NDArray[np.bool_], rows: int = STATISTICS_ROWS) -> Counts:
    """Count over the first `rows` of the stream; of segments, over those that learn."""
    counts = Counts()
    if isinstance(source, Segments):
        segments = ((reading, number) for reading in _readings(source) for number in range(reading.segments))
        while batch := list(islice(segments, min(512, rows - counts.rows))):
            readings, places = [reading for reading, _ in batch], [number for _, number in batch]
            counts.add(source.rows(readings, places, np.ones(len(batch), bool)), is_han, source.special)
            counts.documents += [reading for reading, number in batch if number == 0]
        return counts
    for begin in range(0, rows, 512):
        positions = np.arange(begin, min(begin + 512, rows))
        counts.add(source.rows_with_words(positions), is_han, source.special)
    return counts


def _table(source: Source, counts: Counts) -> Table:
    settings = source.settings
    table = Table(title=f"{counts.rows:,} rows, masking {settings.masking.strategy}", show_header=False)
    replaced = counts.predicted - counts.masked - counts.kept
    whole = f"{_share(counts.whole_chinese_words, counts.chinese_words)} of {counts.chinese_words:,}"
    table.add_row("Chinese words of several characters predicted whole", whole)
    table.add_row("predicted tokens", _share(counts.predicted, counts.tokens))
    table.add_row("… masked", _share(counts.masked, counts.predicted))
    table.add_row("… replaced by a random token", _share(replaced, counts.predicted))
    table.add_row("… kept", _share(counts.kept, counts.predicted))
    if isinstance(settings, DataSettings) and settings.next_sentence:
        _add_pairs(table, np.concatenate(counts.pairs), counts.rows)
    table.add_row("slots filled with tokens", _share(counts.tokens, counts.slots))
    if isinstance(source, Segments):
        _add_segments(table, source, counts)
    if isinstance(source, Packed):
        table.add_row("documents a row", f"{np.mean(counts.texts):.1f}, {max(counts.texts):,} at most")
    what = "documents" if isinstance(source, Segments) else "samples"
    table.add_row(f"{what} a pass, copies", f"{len(source):,} x {settings.copies}")
    return table


def _add_pairs(table: Table, pairs: NDArray[np.int64], rows: int) -> None:
    """What is so of sentence pairs alone; pairs [labelled rows, 3] as in `Counts`."""
    first, second, label = pairs.T
    table.add_row("rows with a next-sentence label", _share(len(pairs), rows))
    table.add_row("… of them random", _share(int(label.sum()), len(pairs)))
    if len(pairs) > 1:
        by = {"|A|": first, "|B|": second, "|A|+|B|": first + second}
        guesses = ", ".join(f"{100 * guessed(lengths, label):.1f} % by {name}" for name, lengths in by.items())
        larger = max(label.mean(), 1 - label.mean())
        table.add_row("… guessed from lengths alone", f"{guesses}; {100 * larger:.1f} % are of one kind")


def guessed(lengths: NDArray[np.int64], label: NDArray[np.int64]) -> float:
    """The share of rows whose label (0 or 1) is the commoner one at their length, counted by tenfold cross-validation.

    Well above the share of the larger class, a model can read the label off the length.
    """
    fold = np.arange(len(label)) % min(10, len(label))
    counts = np.zeros((fold.max() + 1, lengths.max() + 1, 2))
    np.add.at(counts, (fold, lengths, label), 1)
    others = (counts.sum(axis=0) - counts)[fold, lengths]
    commoner = np.where(others[:, 0] == others[:, 1], label.mean() >= 0.5, others.argmax(axis=1))
    return float((commoner == label).mean())


def _add_segments(table: Table, source: Segments, counts: Counts) -> None:
    """What is so of documents cut into segments alone."""
    settings, documents = source.settings, counts.documents
    lengths = [reading.segments for reading in documents]
    table.add_row("segments a document", f"{np.mean(lengths):.1f}, {max(lengths):,} at most")
    if settings.reorder_chunks > 1:
        chunks = Counter(len(reading.chunks) for reading in documents)
        for number in sorted(chunks):
            table.add_row(
                f"documents in {number} chunks", f"{_share(chunks[number], len(documents))} of {len(documents):,}"
            )
    if settings.retrospective:
        lanes = lanes_for(settings, LANES)
        learning = [int(rows["learns"].sum()) for rows, _ in islice(Lanes(source, lanes, range(lanes)), 32)]
        table.add_row(
            f"rows of a step that learn, in {lanes} lanes",
            f"{np.mean(learning):.0f}, {min(learning)} to {max(learning)}",
        )


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.2f} %" if whole else "-"
