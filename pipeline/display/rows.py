"""`reread inspect`: rows as the model will see them, and statistics of their masks."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.table import Table
from rich.text import Text
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel, DecodeStream
from tokenizers.models import WordLevel, WordPiece

from reread.pipeline.display.terminal import Terminal
from reread.preprocessing.errors import UserError
from reread.preprocessing.tokens.base import read_backend
from reread.training.data.batch import IGNORED, Rows, percentage
from reread.training.data.dataset import Dataset
from reread.training.data.kinds import KINDS
from reread.training.data.masking.han import han_vocabulary
from reread.training.data.settings import DataSettings

STATISTICS_ROWS = 4096
STATISTICS_TOKENS = 1 << 21
"""Most tokens that statistics are computed over; of long rows fewer than STATISTICS_ROWS are read."""
MASKED, REPLACED, KEPT = "bold white on red", "bold black on yellow", "bold black on green"


def print_rows(data: DataSettings, *, samples: int = 3, seed: int = 0, verify: bool = False) -> None:
    """Print `samples` decoded rows of the corpus or materialised folder `data.corpus`, and statistics over more.

    A materialised folder is shown with the settings and the seed it was written with. With `verify` every byte is
    checked first. Raises `UserError` for unreadable data and, after the output, for masking without effect.
    """
    console = Terminal(highlight=False)
    dataset = KINDS[data.kind].open(data, seed, "train")
    if verify:
        dataset.verify()
        console.print("every block of the train split has the checksum it was written with")
    if len(dataset) == 0:
        raise UserError(f"{data.location}: no documents in the train split; look at the corpus' report.md")
    shown = samples_of(dataset)
    if data.is_masked:
        console.print(
            Text.assemble(
                "predicted words are in ‹ ›: ", ("masked", MASKED), " ", ("replaced→by", REPLACED), " ", ("kept=", KEPT)
            )
        )
    for title, text in islice(shown, samples):
        console.print(Text(f"\n{title}", style="bold"))
        console.print(text)
    console.print()
    counted = min(STATISTICS_ROWS, max(1, STATISTICS_TOKENS // dataset.settings.sequence_length))
    console.print(_table(dataset, counted))
    dataset.check(dataset.settings, dataset.seed)


def samples_of(dataset: Dataset[Any]) -> Iterator[tuple[str, Text]]:
    """Titles and texts of samples from the beginning of the stream, with masked words marked.

    Raises `UserError` for a corpus without its vocabulary.
    """
    shown, vocabulary = dataset.preview(), dataset.tokenizer_folder / "tokenizer.json"
    if not vocabulary.exists():
        raise UserError(f"{vocabulary}: missing; run `reread preprocess` again")
    tokenizer = read_backend(vocabulary)
    return ((title, _text_of(dataset, rows, tokenizer)) for title, rows in shown)


def _text_of(dataset: Dataset[Any], rows: Rows, tokenizer: Tokenizer) -> Text:
    mask_id = dataset.special.get("mask", IGNORED)
    text = render({name: values[0] for name, values in rows.items()}, tokenizer, mask_id)
    if not dataset.joins_documents:
        return text
    separator = tokenizer.id_to_token(dataset.special["sep"]) or ""
    return Text("\n").join(text.split(separator, include_separator=True))  # a document a line


def render(row: Rows, tokenizer: Tokenizer, mask_id: int) -> Text:
    """One row [L] as text: original words, the predicted ones in ‹ › and coloured by masked, replaced or kept."""
    text = Text()
    fed = row["attention_mask"] == 1
    labels, inputs, continues = (row[name][fed].tolist() for name in ("labels", "input_ids", "continues_word"))
    originals = [given if label == IGNORED else label for label, given in zip(labels, inputs, strict=True)]
    opened = False
    for column, piece in enumerate(pieces_of(tokenizer, originals)):
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
            text.append(f"{piece}→{pieces_of(tokenizer, [inputs[column]])[0]}", REPLACED)
    return text


def pieces_of(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    """The text of each token, with the space before it."""
    if isinstance(tokenizer.decoder, ByteLevel):
        stream = DecodeStream(skip_special_tokens=False)
        return [stream.step(tokenizer, number) or "" for number in ids]  # a cut character comes with its last byte
    names = [tokenizer.id_to_token(number) or "" for number in ids]
    if isinstance(tokenizer.model, WordLevel):
        return [f" {name}" for name in names]
    if not isinstance(tokenizer.model, WordPiece):
        return [name.replace("▁", " ") for name in names]
    # WordPiece drops spaces: restore them between words of letters or digits, not inside Chinese.
    spaced = [
        before[-1:].isascii() and before[-1:].isalnum() and name[:1].isascii() and name[:1].isalnum()
        for before, name in pairwise(["", *names])
    ]
    return [" " * space + name.removeprefix("##") for space, name in zip(spaced, names, strict=True)]


@dataclass
class Counts:
    """Counts over rows."""

    rows: int = 0
    slots: int = 0
    tokens: int = 0
    predicted: int = 0
    masked: int = 0
    kept: int = 0
    words: int = 0
    """Words of several tokens, at least one of them predicted."""
    whole_words: int = 0
    """Of these, those whose tokens are all predicted."""
    chinese_words: int = 0
    """The same of Chinese tokens."""
    whole_chinese_words: int = 0

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

        text = attention & ~np.isin(original, [special["cls"], special["sep"]])
        begins = text.copy()
        begins[:, 1:] &= ~(rows["continues_word"][:, 1:] & text[:, :-1])
        word = np.cumsum(begins[text]) - 1
        size = np.bincount(word)
        hit = np.bincount(word, predicted[text])
        several = (size > 1) & (hit > 0)
        chinese = several & (np.bincount(word, is_han[original[text]]) == size)
        self.words += int(several.sum())
        self.whole_words += int((several & (hit == size)).sum())
        self.chinese_words += int(chinese.sum())
        self.whole_chinese_words += int((chinese & (hit == size)).sum())


def count(dataset: Dataset[Any], batches: list[Rows]) -> Counts:
    """Count over rows of `dataset`."""
    counts, is_han = Counts(), han_vocabulary(dataset.tokenizer_folder)
    for batch in batches:
        counts.add(batch, is_han, dataset.special)
    return counts


def _table(dataset: Dataset[Any], rows: int) -> Table:
    settings = dataset.settings
    if not settings.is_masked:
        return _with_rows(Table(title=str(settings.location), show_header=False), dataset.statistics([]))
    batches = list(dataset.counted(rows))
    counts = count(dataset, batches)
    table = Table(title=f"{counts.rows:,} rows, masking {settings.masking.strategy}", show_header=False)
    replaced = counts.predicted - counts.masked - counts.kept
    for kind, whole, several in (
        ("Chinese words of several characters", counts.whole_chinese_words, counts.chinese_words),
        ("all words of several tokens", counts.whole_words, counts.words),
    ):
        table.add_row(f"{kind} predicted whole", f"{percentage(whole, several)} of {several:,}")
    table.add_row("predicted tokens", percentage(counts.predicted, counts.tokens))
    table.add_row("… masked", percentage(counts.masked, counts.predicted))
    table.add_row("… replaced by a random token", percentage(replaced, counts.predicted))
    table.add_row("… kept", percentage(counts.kept, counts.predicted))
    table.add_row("slots filled with tokens", percentage(counts.tokens, counts.slots))
    return _with_rows(table, dataset.statistics(batches))


def _with_rows(table: Table, rows: list[tuple[str, str]]) -> Table:
    for row in rows:
        table.add_row(*row)
    return table
