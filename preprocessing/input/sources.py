"""Finds the input files and divides them into parts."""

import glob
import logging
import os
import stat
from collections import Counter
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from reread.preprocessing.config import InputSettings
from reread.preprocessing.corpus.index import INDEX
from reread.preprocessing.errors import UserError
from reread.preprocessing.files import special_kind
from reread.preprocessing.input.dataset_folders import data_files
from reread.preprocessing.input.formats.table import FORMATS, PROSE, format_of
from reread.preprocessing.input.piece import Piece
from reread.preprocessing.input.streams import split_name

log = logging.getLogger("reread")


class InputPath(NamedTuple):
    """One of `paths` or `validation_paths` of a section of `input`."""

    path: str
    section: int
    is_held_out: bool


class InputFile(NamedTuple):
    """An input file."""

    path: str
    format: str
    bytes: int
    """Size as stored."""
    changed: int
    """Time of the last change in nanoseconds."""
    section: int = 0
    """The number of the section of `input` whose settings apply: the first one that names the file."""
    entry: int = 0
    """The number of the entry that the file counts for: the first one of `validation_paths` that names it, or else the
    first one of `paths`."""


def entries_of(inputs: Sequence[InputSettings]) -> list[InputPath]:
    """The entries of all sections of `input`: first all `paths`, then all `validation_paths`."""
    given = [InputPath(path, number, False) for number, section in enumerate(inputs) for path in section.paths]
    held_out = [
        InputPath(path, number, True) for number, section in enumerate(inputs) for path in section.validation_paths
    ]
    return given + held_out


def find_files(inputs: Sequence[InputSettings], output: Path | None = None) -> list[InputFile]:
    """Every input file once, with its format, in the order of `entries_of` and sorted within each entry.

    The files of `validation_paths` come first, however, since of equal texts the first one stays. Folders are walked;
    hidden files in them are skipped, and so are files in `output`. Raises `UserError` for a path that matches nothing
    or is not a regular file.
    """
    real_output = os.path.realpath(output) if output is not None else None

    @cache
    def is_output(folder: str) -> bool:
        real = os.path.realpath(folder)
        return real_output is not None and os.path.commonpath((real, real_output)) == real_output

    # For each path the first entry that names it, and the entry that it counts for
    named: dict[str, list[int]] = {}
    entries = entries_of(inputs)
    for number, entry in enumerate(entries):
        for path in _expand(entry.path):
            found = named.setdefault(path, [number, number])
            if entry.is_held_out and not entries[found[1]].is_held_out:
                found[1] = number
    # Leave out files in the output folder.
    paths = [path for path in named if not is_output(os.path.dirname(path))]
    if not paths:
        raise UserError(
            f"output: all of the input lies in {output}; choose a folder for the corpus that holds no input"
        )
    if len(paths) < len(named):
        log.info("input: %d files in the output folder %s are not read", len(named) - len(paths), output)
    # Look at each file, and put held-out ones first.
    sources = []
    for path in paths:
        section = entries[named[path][0]].section
        sources.append(_source(path, inputs[section].format, section, named[path][1]))
    sources.sort(key=lambda source: not entries[source.entry].is_held_out)
    automatic = [source.format for source in sources if inputs[source.section].format == "auto"]
    for name, count in Counter(automatic).items():
        by_name = "" if name == PROSE else "by the name "
        log.info("input: %d files read as %s (%s%s)", count, name, by_name, FORMATS[name].shown)
    return sources


def _source(path: str, stated_format: str, section: int, entry: int) -> InputFile:
    try:
        status = os.stat(path)
    except OSError as error:
        raise UserError(
            f"{path}: cannot be read ({error.strerror}); repair it or take it out of `paths`", error
        ) from None
    if not stat.S_ISREG(status.st_mode):
        kind = special_kind(status) or "not a regular file"
        raise UserError(
            f"{path}: is {kind}, which cannot be read twice; write its content to a file, or take it out of `paths`"
        )
    return InputFile(path, format_of(path, stated_format), status.st_size, status.st_mtime_ns, section, entry)


def _expand(pattern: str) -> list[str]:
    pattern = os.path.expanduser(pattern)
    matches = [pattern] if os.path.exists(pattern) else sorted(glob.glob(pattern, recursive=True))
    files = [file for path in matches for file in (_walk(path) if os.path.isdir(path) else [path])]
    if not files:
        hint = "; a list is [one,two], and in it a path with brackets, braces or commas is quoted"
        raise UserError(
            f"input.paths: `{pattern}` matches no file; check the path (or glob) and the folder you run in"
            + (hint if "," in pattern or pattern.startswith("[") else "")
        )
    return files


def _walk(folder: str) -> list[str]:
    def fail(error: OSError) -> None:
        raise UserError(f"{error.filename}: cannot be read ({error.strerror}); repair it or take it out of `paths`")

    files, seen = [], set()
    for here, folders, names in os.walk(folder, onerror=fail, followlinks=True):
        real = os.path.realpath(here)
        is_seen = real in seen  # following a link to a parent folder would never end
        is_corpus = "manifest.json" in names and INDEX in names
        if is_corpus and not is_seen:
            log.info("input: %s: a corpus made by `reread preprocess`, which is not read as text", here)
        folders[:] = [] if is_seen or is_corpus else [name for name in folders if not name.startswith(".")]
        if not is_seen and not is_corpus:
            names = [name for name in names if not name.startswith(".")]  # noqa: PLW2901
            files += [os.path.join(here, name) for name in data_files(here, names)]
        seen.add(real)
    return sorted(files)


def plan_parts(files: list[InputFile], part_bytes: int) -> list[list[Piece]]:
    """The parts in source order: small files are put together, large line-based files are cut into byte ranges.

    Compressed files are not cut. The parts depend on names, formats, sizes and `part_bytes` alone.
    """
    parts: list[list[Piece]] = []
    room = -1
    for file in files:
        cuts = 1
        if FORMATS[file.format].is_lines and split_name(file.path)[1] is None:
            cuts = max(1, -(-file.bytes // part_bytes))
        bounds = [file.bytes * index // cuts for index in range(cuts)]
        ends = [*bounds[1:], None]
        pieces = [
            Piece(file.path, file.format, *bound, file.bytes, file.changed, file.section)
            for bound in zip(bounds, ends, strict=True)
        ]
        if cuts > 1:
            parts += [[piece] for piece in pieces]
            room = -1
            continue
        if file.bytes > room:
            parts.append([])
            room = part_bytes
        parts[-1] += pieces
        room -= file.bytes
    return parts
