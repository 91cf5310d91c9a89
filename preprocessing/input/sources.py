"""Finding input files and dividing them into parts."""

import glob
import logging
import os
import re
import stat
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

from preprocessing.config import InputSettings
from preprocessing.errors import UserError
from preprocessing.input.streams import split_name

log = logging.getLogger("reread")


class Source(NamedTuple):
    """An input file."""

    path: str
    format: str
    bytes: int
    """Size as stored."""
    changed: int
    """Time of the last change in nanoseconds."""


@dataclass(frozen=True)
class Piece:
    """A file, or the byte range [start, end) of an uncompressed line-based file.

    `bytes` and `changed` are those of the file when it was found; None is not compared.
    """

    path: str
    format: str
    start: int = 0
    end: int | None = None
    bytes: int | None = None
    changed: int | None = None


_LINE_BASED = ("blank-line", "document-per-line", "jsonl")
_BY_NAME = (
    ("tar", re.compile(r"\.tar$"), "*.tar, an archive: each member is read by its own name"),
    ("jsonl", re.compile(r"\.(jsonl|ndjson)$"), "*.jsonl or *.ndjson"),
    ("parquet", re.compile(r"\.(parquet|pq)$"), "*.parquet"),
    ("mediawiki", re.compile(r"\.xml(-p\w+)?$"), "*.xml"),
    ("wikiextractor", re.compile(r"(^|[/_])wiki_\d+$"), "wiki_00, wiki_01, ..."),
)
_KINDS = {stat.S_IFIFO: "a named pipe", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}


def find_files(settings: InputSettings, output: Path | None = None) -> list[Source]:
    """Every input file once, with its format, in the order of `paths` and `validation_paths`, sorted within each.

    Folders are walked; hidden files in them are skipped, and so are files in `output`. Raises `UserError` for a path
    that matches nothing or is not a regular file.
    """
    real_output = os.path.realpath(output) if output is not None else None

    @cache
    def is_output(folder: str) -> bool:
        real = os.path.realpath(folder)
        return real_output is not None and os.path.commonpath((real, real_output)) == real_output

    patterns = [*settings.paths, *settings.validation_paths]
    found = dict.fromkeys(path for pattern in patterns for path in _expand(pattern))
    paths = [path for path in found if not is_output(os.path.dirname(path))]
    if not paths:
        raise UserError(
            f"output: all of the input lies in {output}; choose a folder for the corpus that holds no input"
        )
    if len(paths) < len(found):
        log.info("input: %d files in the output folder %s are not read", len(found) - len(paths), output)
    sources = [_source(path, settings.format) for path in paths]
    if settings.format == "auto":
        reasons = {name: f"by the name {reason}" for name, _, reason in _BY_NAME}
        for name, count in Counter(source.format for source in sources).items():
            log.info("input: %d files read as %s (%s)", count, name, reasons.get(name, "no other format by the name"))
    return sources


def _source(path: str, stated_format: str) -> Source:
    try:
        status = os.stat(path)
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); repair it or take it out of `paths`") from None
    if not stat.S_ISREG(status.st_mode):
        kind = _KINDS.get(stat.S_IFMT(status.st_mode), "not a regular file")
        raise UserError(f"{path}: is {kind}, which cannot be read twice; write it to a file, or take it out of `paths`")
    return Source(path, format_of(path, stated_format), status.st_size, status.st_mtime_ns)


def _expand(pattern: str) -> list[str]:
    pattern = os.path.expanduser(pattern)
    matches = [pattern] if os.path.exists(pattern) else sorted(glob.glob(pattern, recursive=True))
    files = [file for path in matches for file in (_walk(path) if os.path.isdir(path) else [path])]
    if not files:
        raise UserError(f"input.paths: `{pattern}` matches no file; check the path (or glob) and the folder you run in")
    return files


def _walk(folder: str) -> list[str]:
    def fail(error: OSError) -> None:
        raise UserError(f"{error.filename}: cannot be read ({error.strerror}); repair it or take it out of `paths`")

    files, seen = [], set()
    for here, folders, names in os.walk(folder, onerror=fail, followlinks=True):
        real = os.path.realpath(here)
        folders[:] = [] if real in seen else [name for name in folders if not name.startswith(".")]
        if real not in seen:  # a link to a parent folder would never end
            files += [os.path.join(here, name) for name in names if not name.startswith(".")]
        seen.add(real)
    return sorted(files)


def format_of(path: str, stated: str) -> str:
    """The stated format, or for `auto` the one that the name of the file (or archive member) implies."""
    name, _ = split_name(path)
    if stated != "auto":
        return "tar" if name.endswith(".tar") else stated
    return next((known for known, pattern, _ in _BY_NAME if pattern.search(name)), "document-per-file")


def plan_parts(files: list[Source], part_bytes: int) -> list[list[Piece]]:
    """The parts in source order: small files together, large uncompressed line-based files cut into byte ranges.

    They depend on names, formats, sizes and `part_bytes` alone.
    """
    parts: list[list[Piece]] = []
    room = -1
    for file in files:
        cuts = 1
        if file.format in _LINE_BASED and split_name(file.path)[1] is None:
            cuts = max(1, -(-file.bytes // part_bytes))
        bounds = [file.bytes * index // cuts for index in range(cuts)]
        ends = [*bounds[1:], None]
        pieces = [
            Piece(file.path, file.format, *bound, file.bytes, file.changed) for bound in zip(bounds, ends, strict=True)
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
