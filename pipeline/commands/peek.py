"""`reread peek`: shows raw text as `reread preprocess` would read, clean and tokenise it."""

import json
import os
import re
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import md5
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console
from rich.table import Table
from rich.text import Text
from tokenizers import Tokenizer as Backend

from reread.pipeline.display.rows import MASKED, pieces_of
from reread.pipeline.display.terminal import Terminal
from reread.pipeline.recipe.layers import available_recipes
from reread.pipeline.recipe.load import apply_overrides, recipe_values
from reread.pipeline.recipe.schema import Recipe, preprocess_section
from reread.preprocessing.config import InputSettings, PreprocessSettings
from reread.preprocessing.corpus import CONTINUES_WORD
from reread.preprocessing.execution.hints import warning_of_unknown
from reread.preprocessing.input.piece import Document, Piece, Problem, most_frequent
from reread.preprocessing.input.read import read
from reread.preprocessing.input.sources import InputFile, find_files
from reread.preprocessing.text.clean import Cleaner
from reread.preprocessing.text.words import WordSegmenter
from reread.preprocessing.text.wrapped import is_wrapped
from reread.preprocessing.tokens.encode import Encoder
from reread.preprocessing.tokens.tokenizer import Tokenizer, load_tokenizer
from reread.training.data.batch import percentage, spread

Item = TypeVar("Item")
MOST_FILES = 50
"""Most files that are read."""
EXCERPT, RAW_EXCERPT = 400, 160
"""Characters that are printed of a cleaned document, and of a raw one."""
LISTED_PROBLEMS = 5
MOST_PROBLEMS = 10_000
"""Problems of a file after which it is read no further: without documents, it would be read to its end."""


class _TooManyProblemsError(Exception):
    """A file has `MOST_PROBLEMS`."""


@dataclass
class Sample:
    """Documents, counts and problems of the files that were read."""

    shown: list[list[tuple[Document, str]]] = field(default_factory=list)
    """For each file its first documents and their cleaned text."""
    counts: Counter[str] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)
    examples: dict[str, Document] = field(default_factory=dict)
    """The first document that is dropped for each reason."""
    seen: set[bytes] = field(default_factory=set)
    """MD5 of each document."""
    problems: list[Problem] = field(default_factory=list)
    given_up: list[str] = field(default_factory=list)
    """Files with `MOST_PROBLEMS`."""
    wrapped: list[str] = field(default_factory=list)
    """Files whose lines are wrapped at an even length."""
    encodings: Counter[str] = field(default_factory=Counter)
    tokens: list[int] = field(default_factory=list)
    """Tokens of each document that is kept."""


def peek(arguments: list[str], documents: int = 3, megabytes: float = 4.0) -> None:
    """Print `documents` documents of the input and counts over `megabytes` of it, read evenly from up to 50 files.

    `arguments` are paths, or a recipe and perhaps paths that replace its own; and `key=value` for `preprocess`.
    """
    console = Terminal(highlight=False)
    settings = _settings(arguments)
    files = find_files(settings.inputs)
    chosen = _evenly(files, MOST_FILES)
    words = WordSegmenter(settings.words)
    path = settings.tokenizer.path
    tokenizer = None if path is None else load_tokenizer(path, settings.tokenizer)
    encoder = None if tokenizer is None else Encoder(tokenizer, words)
    sample = Sample()
    for file in chosen:
        _look(sample, file, settings, encoder, documents, megabytes * 1e6 / len(chosen))
    _print_documents(console, sample, documents, tokenizer, words)
    console.print(_table(sample, encoder, f"{len(chosen):,} of {len(files):,} files"))
    if encoder is not None and tokenizer is not None:
        unknown = encoder.counts["unknown_tokens"]
        characters = [character for character, _ in encoder.unknown_characters.most_common()]
        line = warning_of_unknown(sum(sample.tokens), unknown, characters, settings, tokenizer.describe())
        if line is not None:
            console.print(Text(line), soft_wrap=True)
    if sample.wrapped:
        line = (
            f"lines are cut at an even length in {len(sample.wrapped):,} of {len(chosen):,} files, such as "
            f"{sample.wrapped[0]}, and each would be a paragraph; clean.join_wrapped_lines=true joins those between "
            "blank lines"
        )
        console.print(Text(line), soft_wrap=True)
    for reason, document in sample.examples.items():
        start = " ".join(document.text[:RAW_EXCERPT].split())
        console.print(Text(f"dropped ({reason}): {document.path}:{document.position}: {start}"), soft_wrap=True)
    for problem in sample.problems[:LISTED_PROBLEMS]:
        console.print(Text(f"not read: {problem.path}:{problem.position}: {problem.reason}"), soft_wrap=True)
    if more := len(sample.problems[LISTED_PROBLEMS:]):
        cause = most_frequent(problem.reason for problem in sample.problems)
        console.print(Text(f"not read: and {more:,} more; most often: {cause}"), soft_wrap=True)
    for name in sample.given_up:
        console.print(Text(f"not read: {name}: the rest, after {MOST_PROBLEMS:,} of these"), soft_wrap=True)


def _settings(arguments: list[str]) -> PreprocessSettings:
    overrides = [one for one in arguments if "=" in one and not os.path.exists(one)]
    paths = [one for one in arguments if one not in overrides]
    recipe = paths[0] if paths and _is_recipe(paths[0]) else None
    if recipe is not None:
        given = [] if not paths[1:] else [f"preprocess.input.paths={json.dumps(paths[1:])}"]
        values = recipe_values(recipe, [*given, *overrides], "preprocess")
    else:
        values = {"name": "peek", "preprocess": {"input": {"paths": paths}, "output": ".", "tokenizer": {}}}
        apply_overrides(values, overrides, "preprocess")
        section = values["preprocess"]
        tokenizer = section.get("tokenizer") if isinstance(section, dict) else None
        if isinstance(tokenizer, dict) and "path" not in tokenizer:
            tokenizer.setdefault("train", {})
    return preprocess_section(Recipe.parse({**values, "train": None}, f"recipe {recipe}" if recipe else "peek"))


def _is_recipe(name: str) -> bool:
    return name.endswith((".yaml", ".yml")) or (name in available_recipes() and not os.path.exists(name))


def _evenly(items: list[Item], count: int) -> list[Item]:
    """`count` of the items at even distances, or all of them if there are no more."""
    if len(items) <= count:
        return items
    return [items[number * len(items) // count] for number in range(count)]


def _look(
    sample: Sample, file: InputFile, settings: PreprocessSettings, encoder: Encoder | None, documents: int, room: float
) -> None:
    """Read a file from its beginning until its documents have `room` bytes, or it has `MOST_PROBLEMS`."""
    section: InputSettings = settings.inputs[file.section].model_copy(update={"bad_input": "report"})
    cleaner = Cleaner(settings.clean)
    piece = Piece(file.path, file.format, 0, None, file.bytes, file.changed, file.section)
    shown: list[tuple[Document, str]] = []
    texts: list[str] = []
    for document in _documents(sample, piece, section):
        texts.append(document.text)
        text = cleaner.clean(document.text)
        reason = cleaner.reason_to_drop(text)
        sample.counts.update(documents=1, bytes=len(document.text.encode("utf-8", "surrogatepass")))
        if reason is None and settings.dedup.documents:
            digest = md5(text.encode()).digest()
            reason = "duplicate documents" if digest in sample.seen else None
            sample.seen.add(digest)
        if reason is None:
            sample.counts.update(kept=1, characters=len(text))
            if encoder is not None:
                sample.tokens.append(len(encoder.encode([text])[0][0]))
            if len(shown) < documents:
                shown.append((document, text))
        else:
            sample.dropped[reason] += 1
            sample.examples.setdefault(reason, document)
        room -= len(document.text.encode("utf-8", "surrogatepass"))
        if room <= 0:
            break
    sample.shown.append(shown)
    if not settings.clean.join_wrapped_lines and is_wrapped(texts):
        sample.wrapped.append(file.path)


def _documents(sample: Sample, piece: Piece, section: InputSettings) -> Iterator[Document]:
    before = len(sample.problems)

    def report(problem: Problem) -> None:
        sample.problems.append(problem)
        if len(sample.problems) - before == MOST_PROBLEMS:
            raise _TooManyProblemsError

    try:
        yield from read(piece, section, report, lambda name: sample.encodings.update([name]))
    except _TooManyProblemsError:
        sample.given_up.append(piece.path)


def _print_documents(
    console: Console, sample: Sample, documents: int, tokenizer: Tokenizer | None, words: WordSegmenter
) -> None:
    chosen: list[tuple[Document, str]] = []
    for rank in range(documents):  # the first of each file, then the second ones
        following = [file[rank] for file in sample.shown if rank < len(file)]
        chosen += _evenly(following, documents - len(chosen)) if len(chosen) < documents else []
    if chosen and tokenizer is None:
        console.print("words are separated by |; for tokens, set tokenizer.path=VOCABULARY")
    elif chosen:
        console.print(Text.assemble("words are separated by |, their tokens by ·; ", ("unknown", MASKED)))
    backend = None if tokenizer is None else _backend(tokenizer)
    for document, text in chosen:
        console.print(Text(f"\n{document.path}:{document.position} ({len(text):,} characters)", style="bold"))
        console.print(Text(f"read: {document.text[:RAW_EXCERPT]!r}", style="dim"))
        console.print(render(text[:EXCERPT], words, tokenizer, backend))
    console.print()


def _backend(tokenizer: Tokenizer) -> Backend:
    """The tokenizer in the form in which `inspect` reads it from a corpus."""
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save(Path(folder))
        return Backend.from_file(str(Path(folder) / "tokenizer.json"))


def render(text: str, words: WordSegmenter, tokenizer: Tokenizer | None, backend: Backend | None) -> Text:
    """Cleaned text with | between words and, if there is a tokenizer, · between the tokens of a word."""
    if tokenizer is None or backend is None:
        begins = words.joined_starts(text)
        is_cut = [
            bool(begins[at]) and at > 0 and not re.search(r"\s", text[at - 1 : at + 1]) for at in range(len(text))
        ]
        return Text("".join(f"|{one}" if cut else one for one, cut in zip(text, is_cut, strict=True)))
    rendered = Text()
    for number, line in enumerate(filter(None, text.split("\n"))):
        rendered.append("\n" if number else "")
        ids, flags = Encoder(tokenizer, words).encode([line])[0]
        starts = [*tokenizer.encode(line)[1].tolist(), len(line)]
        for index, piece in enumerate(pieces_of(backend, ids.tolist())):
            is_unknown = ids[index] == tokenizer.special["unk"]
            shown = line[starts[index] : starts[index + 1]].rstrip() if is_unknown else piece
            continues = bool(flags[index] & CONTINUES_WORD)
            rendered.append("" if index == 0 or shown.startswith(" ") else "·" if continues else "|")
            rendered.append(shown, MASKED if is_unknown else "")
    return rendered


def _table(sample: Sample, encoder: Encoder | None, title: str) -> Table:
    counts = sample.counts
    table = Table(title=f"{title}, {counts['bytes'] / 1e6:,.1f} MB of text read", show_header=False)
    rows: list[tuple[str, Any]] = [
        ("documents", f"{counts['documents']:,}"),
        ("kept", percentage(counts["kept"], counts["documents"])),
        *((f"dropped: {reason}", f"{count:,}") for reason, count in sample.dropped.most_common()),
        ("not read", f"{len(sample.problems):,}"),
        ("characters of those kept", f"{counts['characters']:,}"),
    ]
    if sample.encodings:
        rows.append(("encodings of files", ", ".join(f"{name} {n:,}" for name, n in sample.encodings.most_common())))
    if encoder is not None and sample.tokens:
        total, unknown = sum(sample.tokens), encoder.counts["unknown_tokens"]
        rows += [
            ("tokens", f"{total:,}"),
            ("tokens a document", spread(sample.tokens)),
            ("unknown tokens", percentage(unknown, total)),
        ]
        if unknown:
            rows.append(("most often unknown", " ".join(one for one, _ in encoder.unknown_characters.most_common(10))))
    for row in rows:
        table.add_row(*row)
    return table
