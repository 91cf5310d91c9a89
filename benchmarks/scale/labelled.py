"""A file of labelled texts: what it costs a process until the rows of a first step are there, by the number of texts.

    python benchmarks/scale/labelled.py --folder /somewhere/with/1/GB

Texts have 160 Chinese characters drawn at random and one of two labels. Each cell is a process of its own: CPU seconds
with imports, and the peak of its anonymous memory (pages that are no file's). What texts cost is the difference to the
first row, which has few; the exponents are those of these differences: 1 is linear.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import math
import random
import tempfile

from benchmarks.harness import heading, measured, parser, row
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


def first_step(path: Path, tokenizer: Path) -> None:
    """Read the file and tokenise it, as the report of what is read and the rehearsal do, and draw a step of 32."""
    from reread.training.data.tasks.classify import ClassifyDataset, ClassifySettings

    labels = ["0", "1"]
    settings = ClassifySettings(
        kind="classify", train=path, labels=labels, tokenizer=tokenizer, sequence_length=CHARACTERS + 2
    )
    dataset = ClassifyDataset.open(settings, 0, "train")
    dataset.coverage()
    next(dataset.longest(32, 32))
    list(dataset.step_passes(0, 32, 32, 1, 0))


@one_line()
def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--folder", type=Path)
    arguments.add_argument("--texts", nargs="+", type=int, default=[100, 10_000, 100_000, 1_000_000])
    options = arguments.parse_args()
    heading("texts", "CPU s", "MB", "exponent of s", "of MB")
    found: list[tuple[int, float, float]] = []
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        write_tokenizer(folder)
        for count in options.texts:
            write_texts(folder / "train.tsv", count)
            cost = measured(first_step, folder / "train.tsv", folder)
            found.append((count, cost.cpu_seconds, cost.anonymous_megabytes))
            exponents = ["", ""]
            if len(found) > 2:
                (_, *least), (before, *less), (_, *more) = found[0], *found[-2:]
                grown = [(b - low) / (a - low) for low, a, b in zip(least, less, more, strict=True)]
                exponents = [f"{math.log(one) / math.log(count / before):.2f}" for one in grown]
            row(f"{count:,}", f"{cost.cpu_seconds:.1f}", f"{cost.anonymous_megabytes:,.0f}", *exponents)


if __name__ == "__main__":
    main()
