"""Files and bytes that lie in the folder of a corpus while it is made, by the number of parts.

    python benchmarks/scale/preprocessing.py --folder /somewhere/with/1/GB
    python benchmarks/scale/preprocessing.py --text TEXTS --vocabulary FILE --part-bytes 1000000

Documents are those of a folder, or words drawn at random, the frequent ones often, so that they compress as English
text does. The folder is measured whenever a task has put a file into it, in a run of its own: the most files of the
work folder for a part, and the most bytes of the whole folder for a byte of corpus. More than 16 MB of keys are also in
files without a name while a task compares them, at most 335 MB a worker, which are not counted. CPU seconds with
imports, and the peak of anonymous memory, are those of another process. `exact` finds equal documents alone, `all` also
near-duplicates and equal paragraphs.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import random
import tempfile
from itertools import accumulate
from typing import Any, NamedTuple
from unittest.mock import patch

from benchmarks.harness import exponent, heading, in_process, measured, parser, row
from reread.preprocessing.errors import one_line

WORDS, PART = 20_000, 40_000
"""Different words, and bytes of a part of drawn text."""
DEDUP: dict[str, dict[str, Any]] = {"exact": {}, "all": {"near": {}, "paragraphs": True}}


class Text(NamedTuple):
    path: Path
    form: str
    vocabulary: Path
    part_bytes: int


def drawn_text(folder: Path, parts: int) -> Text:
    """A document a line for `parts` parts, and a vocabulary that has each word."""
    draw = random.Random(0)
    letters = "etaoinshrdlucmfwypvbgkjqxz", range(26, 0, -1)
    words = ["".join(draw.choices(*letters, k=draw.randint(2, 8))) for _ in range(WORDS)]
    weights = list(accumulate(1 / rank for rank in range(1, WORDS + 1)))
    with (folder / "text.txt").open("w", encoding="utf-8") as file:
        for _ in range(parts * PART // 1000):
            file.write(" ".join(draw.choices(words, cum_weights=weights, k=200)) + "\n")
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *dict.fromkeys(words)]
    (folder / "vocab.txt").write_text("\n".join(tokens), encoding="utf-8")
    return Text(folder / "text.txt", "document-per-line", folder / "vocab.txt", PART)


def made(text: Text, output: Path, dedup: dict[str, Any]) -> list[list[int]]:
    """Make the corpus; returns the bytes of its training shards, of which each part has one, and of the others."""
    from reread.preprocessing.config import PreprocessSettings
    from reread.preprocessing.execution.build import build

    values = {
        "input": {"paths": [str(text.path)], "format": text.form},
        "output": str(output),
        "tokenizer": {"path": str(text.vocabulary)},
        "dedup": dedup,
        "part_bytes": text.part_bytes,
        "validation_share": 0.1,
        "workers": 1,
    }
    shards = build(PreprocessSettings.parse(values, "benchmark")).shards
    return [[shard.bytes for shard in shards if shard.split == split] for split in ("train", "validation")]


def most(text: Text, output: Path, dedup: dict[str, Any]) -> tuple[int, float, float]:
    """The parts, the most files of the work folder for one, and the most bytes in all for a byte of the corpus."""
    from reread.preprocessing.execution import tasks

    files, size = [0], [0]
    move = tasks.move

    def seen(path: Path, target: Path) -> None:
        move(path, target)
        found = [one for one in output.rglob("*") if one.is_file()]
        files.append(sum(".work" in one.parts for one in found))
        size.append(sum(one.stat().st_size for one in found))

    with patch.object(tasks, "move", seen):
        training, held_out = made(text, output, dedup)
    return len(training), max(files) / len(training), max(size) / sum(training + held_out)


@one_line()
def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--folder", type=Path)
    arguments.add_argument("--parts", nargs="+", type=int, default=[10, 30, 100])
    arguments.add_argument("--text", type=Path, help="a folder of documents instead of drawn ones")
    arguments.add_argument("--vocabulary", type=Path)
    arguments.add_argument("--part-bytes", type=int, default=1_000_000)
    options = arguments.parse_args()
    given = options.text and Text(options.text, "auto", options.vocabulary, options.part_bytes)
    found: dict[str, list[tuple[int, float, float]]] = {name: [] for name in DEDUP}
    heading("parts", "duplicates", "files a part", "bytes a byte of corpus", "CPU s", "MB")
    for parts in [0] if given else options.parts:
        for name, dedup in DEDUP.items():
            with tempfile.TemporaryDirectory(dir=options.folder) as folder:
                text = given or drawn_text(Path(folder), parts)
                count, files, size = in_process(most, text, Path(folder) / "seen", dedup)
                cost = measured(made, text, Path(folder) / "corpus", dedup)
            cells = f"{files:.1f}", f"{size:.2f}", f"{cost.cpu_seconds:.1f}", f"{cost.anonymous_megabytes:.0f}"
            row(count, name, *cells)
            found[name].append((count, cost.cpu_seconds, cost.anonymous_megabytes))
    for name, costs in found.items() if not given else ():
        sizes, cpu, memory = zip(*costs, strict=True)
        row("exponent", name, "", "", exponent(sizes, cpu), exponent(sizes, memory, 3))


if __name__ == "__main__":
    main()
