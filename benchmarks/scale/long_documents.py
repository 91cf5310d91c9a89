"""One document in a file: what it costs a process until the last of its windows is there, by the document's length.

    python benchmarks/scale/long_documents.py --folder /somewhere/with/1/GB

The text is Chinese characters drawn at random, 3 bytes each, read in segments of 512 tokens as ERNIE-Doc does, without
a model. Each cell is a process of its own: CPU seconds, and the peak of its anonymous memory (pages that are no file's)
above what it has after the imports. `one copy` is the text as Python holds it. `first` reads the file, tokenises it and
keeps both (`training/data/tasks/kept.py`), or holds them if it is small; `next` maps what is kept. `table` is a row of
classify, `text` a file of raw text as `reread embed` takes it, `answers` a question in JSON, whose tokens need their
characters.

Where `datasets` can be imported (PYTHONPATH may name its folder) its side is there, too, up to a few megabytes, each of
which takes 240 MB: the text loaded, and mapped by the same tokenizer into windows, as its documentation does.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import json
import os
import random
import shutil
import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

from benchmarks.harness import Measured, exponent, heading, measured, parser, row
from benchmarks.scale.labelled import AS_OURS, HAN, loaded, transformers_tokenizer, write_tokenizer
from reread.preprocessing.errors import one_line

LENGTH = 512
"""Tokens of a window."""
FORMATS = {"table": "tsv", "text": "document-per-file", "answers": "jsonl"}
SUFFIXES = {"table": "tsv", "text": "txt", "answers": "jsonl"}


def write_document(folder: Path, form: str, megabytes: int) -> Path:
    part = "".join(random.Random(0).choices(HAN, k=10_000))
    text = part * (megabytes * 1_000_000 // 30_000)
    path = folder / f"document.{SUFFIXES[form]}"
    values = {"question": part[:20], "text": text, "answers": [{"start": 50, "text": part[50:60]}]}
    contents = {"table": f"label\ttext\n0\t{text}\n", "text": text, "answers": json.dumps(values, ensure_ascii=False)}
    path.write_text(contents[form], encoding="utf-8")
    return path


def imported() -> None:
    from reread.training.data.kinds import KINDS

    for kind in ("classify", "answer"):
        KINDS[kind].task(None)  # type: ignore[misc]


def windows(path: Path, tokenizer: Path, form: str) -> int:
    """All windows of a document, as `reread predict` reads them."""
    from reread.training.data.kinds import KINDS, open_task

    os.chdir(path.parent)
    kind = "answer" if form == "answers" else "classify"
    values = {"train": path, "tokenizer": tokenizer, "sequence_length": LENGTH, "frame": "segments"}
    values |= {"kind": kind, "format": FORMATS[form]} | ({} if kind == "answer" else {"labels": ["0", "1"]})
    settings: Any = KINDS[kind].settings.parse(values, "benchmark")
    data = open_task(settings, 0, "predict")
    return sum(1 for _ in data.passes([0], 32, training=False))


def windows_of_datasets(path: Path, tokenizer: Path, form: str) -> int:
    reads = transformers_tokenizer(tokenizer)
    data = loaded(path, "text", sample_by="document") if form == "text" else loaded(path, "csv", **AS_OURS)

    def cut(rows: Any) -> Any:
        return reads(rows["text"], truncation=True, max_length=LENGTH, return_overflowing_tokens=True)

    return sum(1 for _ in data.map(cut, batched=True, remove_columns=data.column_names))


def cells(side: Callable[..., int], path: Path, tokenizer: Path, form: str, base: float) -> list[tuple[float, float]]:
    def cost(one: Measured) -> tuple[float, float]:
        return one.cpu_seconds, one.anonymous_megabytes - base

    found = [cost(measured(side, path, tokenizer, form)) for _ in range(2)]
    for name in ("runs", "cache"):
        shutil.rmtree(path.parent / name, ignore_errors=True)
    return found


@one_line()
def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--folder", type=Path)
    arguments.add_argument("--megabytes", nargs="+", type=int, default=[4, 16, 64])
    arguments.add_argument("--peer-megabytes", nargs="+", type=int, default=[1, 2, 4])
    arguments.add_argument("--forms", nargs="+", choices=FORMATS, default=[*FORMATS])
    options = arguments.parse_args()
    sides: dict[str, Callable[..., int]] = {"ours": windows}
    if find_spec("datasets"):
        sides["datasets"] = windows_of_datasets
    heading("form", "side", "MB", "one copy, MB", "first: CPU s", "MB above", "next: CPU s", "MB above")
    base = measured(imported).anonymous_megabytes
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        write_tokenizer(folder)
        for form in options.forms:
            for side, function in sides.items():
                if side == "datasets" and form == "answers":
                    continue
                sizes = options.megabytes if side == "ours" else options.peer_megabytes
                found: list[list[float]] = []
                for megabytes in sizes:
                    path = write_document(folder, form, megabytes)
                    costs = cells(function, path, folder, form, base)
                    found.append([value for cost in costs for value in cost])
                    row(form, side, megabytes, f"{megabytes * 2 / 3:.0f}", *(f"{value:.1f}" for value in found[-1]))
                grown = zip(zip(*found, strict=True), (0.3, 3, 0.3, 3), strict=True)
                row(form, side, "exponent", 1, *(exponent(sizes, *one) for one in grown))


if __name__ == "__main__":
    main()
