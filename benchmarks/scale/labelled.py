"""A file of labelled texts: what it costs a process until the rows of a first step are there, by the number of texts.

    python benchmarks/scale/labelled.py --folder /somewhere/with/3/GB

Texts have 160 Chinese characters drawn at random and one of two labels. Each cell is a process of its own: CPU seconds
with imports, and the peak of its anonymous memory (pages that are no file's). `in memory` is a process that holds all
examples and tokens; `first start` one that reads, tokenises and keeps them (`training/data/tasks/kept.py`); `next
start` one that maps what is kept, as do the ranks behind a launcher; `two ranks` are two of a first start without a
launcher, with their sums.

Where `datasets` can be imported (PYTHONPATH may name its folder) its side is there, too: the table loaded and mapped by
the same tokenizer, as its documentation does, up to a padded batch of 32; its next start finds both in its cache.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import math
import os
import random
import shutil
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from typing import Any

from benchmarks.harness import Measured, exponent, heading, measured, parser, row
from reread.preprocessing.errors import one_line

CHARACTERS = 160
HAN = [chr(0x4E00 + number) for number in range(3000)]


def write_texts(path: Path, count: int) -> None:
    draw = random.Random(0)
    with path.open("w", encoding="utf-8") as file:
        file.write("label\ttext\n")
        for number in range(count):
            file.write(f"{number % 2}\t{''.join(draw.choices(HAN, k=CHARACTERS))}\n")


def write_tokenizer(folder: Path) -> None:
    from reread.preprocessing.tokens.wordpiece import WordPiece

    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *HAN]
    (folder / "vocab.txt").write_text("\n".join(tokens), encoding="utf-8")
    WordPiece(folder / "vocab.txt", tokens, True).save(folder)


def first_step(path: Path, tokenizer: Path, large: float) -> None:
    """Read the file and tokenise it, as the report of what is read and the rehearsal do, and draw a step of 32. A file
    of `large` bytes is kept."""
    from reread.training.data.tasks import kept
    from reread.training.data.tasks.classify import ClassifyDataset, ClassifySettings

    os.chdir(path.parent)
    kept.LARGE = large  # type: ignore[assignment]
    labels = ["0", "1"]
    settings = ClassifySettings(
        kind="classify", train=path, labels=labels, tokenizer=tokenizer, sequence_length=CHARACTERS + 2
    )
    dataset = ClassifyDataset.open(settings, 0, "train")
    dataset.coverage()
    next(dataset.longest(32, 32))
    list(dataset.step_passes(0, 32, 32, 1, 0))


AS_OURS: dict[str, Any] = {"delimiter": "\t", "quoting": 3}
"""How the csv loader of `datasets` reads our tables."""


def transformers_tokenizer(folder: Path) -> Any:
    from transformers import PreTrainedTokenizerFast

    special = {"pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]", "unk_token": "[UNK]"}
    return PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"), **special)


def loaded(path: Path, builder: str, **how: Any) -> Any:
    """A file as `datasets` loads it, with a cache beside it."""
    import datasets

    datasets.disable_progress_bars()
    cache = str(path.parent / "cache")
    return datasets.load_dataset(builder, data_files=str(path), split="train", cache_dir=cache, **how)


def first_step_of_datasets(path: Path, tokenizer: Path) -> None:
    reads = transformers_tokenizer(tokenizer)

    def encode(rows: Any) -> Any:
        return reads(rows["text"], truncation=True, max_length=CHARACTERS + 2)

    data = loaded(path, "csv", **AS_OURS).map(encode, batched=True, remove_columns=["text"]).shuffle(0)
    reads.pad([data[number] for number in range(32)], return_tensors="np")


def cells(path: Path, tokenizer: Path) -> Iterator[tuple[float, float]]:
    """CPU seconds and MB of each column."""

    def forget() -> None:
        for name in ("runs", "cache"):
            shutil.rmtree(path.parent / name, ignore_errors=True)

    def cell(*costs: Measured) -> tuple[float, float]:
        return sum(one.cpu_seconds for one in costs), sum(one.anonymous_megabytes for one in costs)

    yield cell(measured(first_step, path, tokenizer, math.inf))
    forget()
    yield cell(measured(first_step, path, tokenizer, 0))
    yield cell(measured(first_step, path, tokenizer, 0))
    forget()
    with ThreadPoolExecutor(2) as both:
        ranks = [both.submit(measured, first_step, path, tokenizer, 0) for _ in range(2)]
        yield cell(*(one.result() for one in ranks))
    forget()
    if find_spec("datasets"):
        yield cell(measured(first_step_of_datasets, path, tokenizer))
        yield cell(measured(first_step_of_datasets, path, tokenizer))
        forget()


@one_line()
def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--folder", type=Path)
    arguments.add_argument("--texts", nargs="+", type=int, default=[10_000, 100_000, 1_000_000])
    options = arguments.parse_args()
    peer = ["datasets: first start", "next start"] if find_spec("datasets") else []
    heading("texts", "in memory", "first start", "next start", "two ranks", *peer)
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        write_tokenizer(folder)
        found: list[list[tuple[float, float]]] = []
        for count in options.texts:
            write_texts(folder / "train.tsv", count)
            found.append([*cells(folder / "train.tsv", folder)])
            row(f"{count:,}", *(f"{seconds:.1f} s, {megabytes:,.0f} MB" for seconds, megabytes in found[-1]))
        pairs = [zip(*column, strict=True) for column in zip(*found, strict=True)]
        both = ((exponent(options.texts, costs), exponent(options.texts, most, 3)) for costs, most in pairs)
        row("exponent", *(f"{cpu}, {memory}" for cpu, memory in both))


if __name__ == "__main__":
    main()
