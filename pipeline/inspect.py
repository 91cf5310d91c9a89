"""`reread inspect`: rows as the model will see them, and what their masks are made of."""

from dataclasses import dataclass
from itertools import pairwise

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
from training.config import DataSettings
from training.data.checks import check_masking, han_vocabulary
from training.data.masking import IGNORED
from training.data.materialize import MaterializedSamples, is_materialized
from training.data.samples import Rows, Samples

STATISTICS_ROWS = 4096
MASKED, REPLACED, KEPT = "bold white on red", "bold black on yellow", "bold black on green"


def inspect(data: DataSettings, *, samples: int = 3, seed: int = 0, verify: bool = False) -> None:
    """Print `samples` decoded rows of the corpus or materialised folder `data.corpus`, and statistics over more.

    A materialised folder is shown with the settings and the seed it was written with. With `verify` every byte is
    checked first. Raises `UserError` for what cannot be read and, having shown it, for a masking that does nothing.
    """
    console = Console(highlight=False)
    source: Samples | MaterializedSamples
    if is_materialized(data.corpus):
        source = MaterializedSamples(data.corpus, "train")
    else:
        source = Samples(Corpus(data.corpus, "train"), data, seed)
    if verify:
        source.verify()
        console.print("every block of the train split has the checksum it was written with")
    if len(source) == 0:
        raise UserError(f"{data.corpus}: no documents in the train split; look at the corpus' report.md")
    vocabulary = source.tokenizer_folder / "tokenizer.json"
    if not vocabulary.exists():
        raise UserError(f"{vocabulary}: not there; run `reread preprocess` again")
    tokenizer = Tokenizer.from_file(str(vocabulary))
    mask_id = source.special["mask"]
    console.print(
        Text.assemble(
            "predicted words are in ‹ ›: ", ("masked", MASKED), " ", ("replaced→by", REPLACED), " ", ("kept=", KEPT)
        )
    )
    for number in range(samples):
        row = source.rows_with_words(np.arange(number, number + 1))
        console.print(Text(f"\nrow {number}", style="bold"))
        console.print(render({name: values[0] for name, values in row.items()}, tokenizer, mask_id))
    console.print()
    console.print(_table(source, count(source, han_vocabulary(source.tokenizer_folder))))
    if isinstance(source, Samples):
        check_masking(source)


def render(row: Rows, tokenizer: Tokenizer, mask_id: int) -> Text:
    """One row [L] as text: original words, the predicted ones in ‹ › and in the colour of what was done to them."""
    text = Text()
    length = int(row["attention_mask"].sum())
    labels, inputs, continues = (row[name][:length].tolist() for name in ("labels", "input_ids", "continues_word"))
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
    random_next: int = 0

    def add(self, rows: Rows, is_han: NDArray[np.bool_], mask_id: int) -> None:
        predicted = rows["labels"] != IGNORED
        original = np.where(predicted, rows["labels"], rows["input_ids"])
        attention = rows["attention_mask"] == 1
        self.rows += len(attention)
        self.slots += attention.size
        self.tokens += int(attention.sum())
        self.predicted += int(predicted.sum())
        self.masked += int((rows["input_ids"] == mask_id)[predicted].sum())
        self.kept += int((rows["input_ids"] == original)[predicted].sum())
        self.random_next += int(rows.get("next_sentence_label", np.zeros(1)).sum())

        # The last token of each segment is [SEP], the first of the row [CLS]: a word ends there.
        text = attention.copy()
        text[:, :-1] &= attention[:, 1:] & (rows["token_type_ids"][:, 1:] == rows["token_type_ids"][:, :-1])
        text[:, [0, -1]] = False
        begins = text.copy()
        begins[:, 1:] &= ~(rows["continues_word"][:, 1:] & text[:, :-1])
        word = np.cumsum(begins[text]) - 1
        size = np.bincount(word)
        chinese = (size > 1) & (np.bincount(word, is_han[original[text]]) == size)
        hit = np.bincount(word, predicted[text])
        self.chinese_words += int((chinese & (hit > 0)).sum())
        self.whole_chinese_words += int((chinese & (hit == size)).sum())


def count(source: Samples | MaterializedSamples, is_han: NDArray[np.bool_], rows: int = STATISTICS_ROWS) -> Counts:
    """Count over the first `rows` of the stream."""
    counts = Counts()
    for begin in range(0, rows, 512):
        positions = np.arange(begin, min(begin + 512, rows))
        counts.add(source.rows_with_words(positions), is_han, source.special["mask"])
    return counts


def _table(source: Samples | MaterializedSamples, counts: Counts) -> Table:
    def share(part: int, whole: int) -> str:
        return f"{100 * part / whole:.2f} %" if whole else "-"

    settings = source.settings
    table = Table(title=f"{counts.rows:,} rows, masking {settings.masking.strategy}", show_header=False)
    replaced = counts.predicted - counts.masked - counts.kept
    whole = f"{share(counts.whole_chinese_words, counts.chinese_words)} of {counts.chinese_words:,}"
    table.add_row("Chinese words of several characters predicted whole", whole)
    table.add_row("predicted tokens", share(counts.predicted, counts.tokens))
    table.add_row("… masked", share(counts.masked, counts.predicted))
    table.add_row("… replaced by a random token", share(replaced, counts.predicted))
    table.add_row("… kept", share(counts.kept, counts.predicted))
    if settings.next_sentence:
        table.add_row("rows with a random next sentence", share(counts.random_next, counts.rows))
    table.add_row("slots filled with tokens", share(counts.tokens, counts.slots))
    table.add_row("samples a pass, copies", f"{len(source):,} x {settings.copies}")
    return table
