"""Reads evaluation sets, so that training documents which contain their text are dropped (`dedup.evaluation`)."""

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from reread.preprocessing.config import InputSettings
from reread.preprocessing.errors import UserError
from reread.preprocessing.execution.task_file import TaskWriter
from reread.preprocessing.execution.work import Work
from reread.preprocessing.input.formats.table import format_of
from reread.preprocessing.input.piece import Piece, Problem
from reread.preprocessing.input.read import read
from reread.preprocessing.input.sources import InputFile, find_files
from reread.preprocessing.input.streams import split_name
from reread.preprocessing.labelled.file import LabelledFile
from reread.preprocessing.text.overlap import RUN, Match, collect

EXAMPLES = 3
"""The most examples that are listed for a part."""
_TAGGED = re.compile(r"\S+[ \t]+(?:O|[BIMESLU]-\S+)\s")


class Contaminated:
    """Counts the documents of a part that contain text of evaluation sets."""

    def __init__(self) -> None:
        self.files: Counter[int] = Counter()
        """The number of documents by evaluation file; a document counts for the file of the first run found in it."""
        self.examples: list[tuple[int, str]] = []
        """(evaluation file, excerpt of the document)."""

    def count(self, match: Match) -> None:
        self.files[match.file] += 1
        if len(self.examples) < EXAMPLES:
            self.examples.append((match.file, match.excerpt))


def find_evaluation_files(paths: list[str]) -> list[InputFile]:
    """The files of `dedup.evaluation`; raises `UserError` for a path that matches no regular file."""
    if not paths:
        return []
    try:
        return find_files([InputSettings(paths=paths, format="document-per-file")])
    except UserError as error:
        raise UserError(str(error).replace("input.paths:", "dedup.evaluation:")) from None


def collect_runs(work: Work, number: int, writer: TaskWriter) -> dict[str, Any]:
    """Save the runs of text in all evaluation sets; raises `UserError` for a file without any."""
    runs, files, cleaner = [np.empty(0, RUN)], [], work.new_cleaner()
    for file, source in enumerate(find_evaluation_files(work.settings.dedup.evaluation)):
        texts = [cleaner.clean(text) for text in texts_of(source.path)]
        hashes, short = collect(texts, work.run_lengths)
        if not len(hashes):
            raise UserError(
                f"{source.path}: has no text of {work.run_lengths.words} words or {work.run_lengths.characters} "
                "characters in a row to search for; take it out of `dedup.evaluation`, or lower "
                "`dedup.evaluation_words` and `dedup.evaluation_characters`"
            )
        own = np.empty(len(hashes), RUN)
        own["hash"], own["file"] = hashes, file
        runs.append(own)
        files.append({"path": source.path, "texts": len(texts), "short": short})
    table = np.concatenate(runs)
    table = table[np.argsort(table["hash"], kind="stable")]  # of equal ones, that of the first file is the first
    first = np.ones(len(table), bool)
    first[1:] = table["hash"][1:] != table["hash"][:-1]
    writer.save("runs", table[first])
    return {"files": files}


def texts_of(path: str) -> Iterator[str]:
    """The texts of an evaluation file.

    These are all strings in JSON, the lines of a table, the sentences of a file with a word and its tag a line, and
    the documents of any other file.
    """
    name = split_name(path)[0]
    if name.endswith((".json", ".jsonl", ".ndjson")):
        yield from _strings_of_file(LabelledFile(Path(path), "classify"))
    elif name.endswith((".tsv", ".csv")):
        yield from _decoded(LabelledFile(Path(path), "classify")).split("\n")
    else:
        yield from _documents(path)


def _documents(path: str) -> Iterator[str]:
    def refuse(problem: Problem) -> None:
        raise UserError(
            f"{problem.path}:{problem.position}: {problem.reason}; correct it, or take the file out of "
            "`dedup.evaluation`"
        )

    for document in read(Piece(path, format_of(path, "auto")), InputSettings(paths=[path]), refuse):
        if _TAGGED.match(document.text):  # a word and its tag a line, a blank line after each sentence
            for sentence in re.split(r"\n\s*\n", document.text):
                yield " ".join(line.split()[0] for line in sentence.split("\n") if line.strip())
        else:
            yield document.text


def _decoded(file: LabelledFile) -> str:
    try:
        return file.data.decode()
    except UnicodeDecodeError:
        raise UserError(f"{file.path}: not UTF-8; convert it, or take it out of `dedup.evaluation`") from None


def _strings_of_file(file: LabelledFile) -> Iterator[str]:
    text = _decoded(file)
    try:
        values = [json.loads(text)]
    except (ValueError, RecursionError):
        try:
            values = [json.loads(line) for line in text.split("\n") if line.strip()]
        except (ValueError, RecursionError) as error:
            raise UserError(
                f"{file.path}: not JSON ({error}); correct it, or take it out of `dedup.evaluation`"
            ) from None
    yield from _strings(values)


def _strings(values: Any) -> Iterator[str]:
    """Every string in a JSON value; a list that holds only strings (lines, tokens) is one text."""
    if isinstance(values, str):
        yield values
    elif isinstance(values, list) and values and all(isinstance(value, str) for value in values):
        yield " ".join(values)
    elif isinstance(values, list | dict):
        for value in values.values() if isinstance(values, dict) else values:
            yield from _strings(value)
