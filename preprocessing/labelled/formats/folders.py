"""`folders`: a folder for each class and a text in each file, on disk or in a tar archive (aclImdb, 20 Newsgroups)."""

import logging
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from reread.preprocessing.errors import UserError
from reread.preprocessing.files import open_file
from reread.preprocessing.input.archives import entries
from reread.preprocessing.labelled.checks import FEW
from reread.preprocessing.labelled.file import DAMAGE, LabelledFile
from reread.preprocessing.labelled.tasks.classify import ClassifyExample

log = logging.getLogger("reread")
UNLABELLED = "unsup"
"""The folder of aclImdb with texts that have no label."""

_ABOUT = ("README", "LICENSE", "LICENCE", "COPYING")
"""Beginnings of the names, in capitals, of files about a data set. However small it is, nobody need allow them: beside
twenty texts a README is 5 % of the files. Any other name, such as aclImdb's `urls_pos.txt`, may be that of a text
in the wrong place; beside the thousands of texts there such files are few enough."""


def read_folders(source: LabelledFile) -> Iterator[ClassifyExample]:
    """The files `CLASS/NAME` or `CLASS/NAME.txt` at the deepest level.

    Others are left out. If those that are neither in `UNLABELLED` nor named as in `_ABOUT` are more than `FEW` of all
    files, each is a mistake. Raises `UserError` for classes of two splits.
    """
    files: dict[PurePosixPath, Path | bytes | None]
    files = dict(files_in(source)) if source.path.is_dir() else dict(_in_archive(source))
    texts = {name: data for name, data in files.items() if data is not None}
    depth = max((len(name.parts) for name in texts), default=0)
    if depth < 2:
        raise UserError(
            f"{source.path}: no file CLASS/NAME.txt in it; give the folder that has a folder for each class"
        )
    classes = {name: data for name, data in texts.items() if len(name.parts) == depth}
    splits = sorted({str(name.parent.parent) for name in classes})
    if len(splits) > 1:
        raise UserError(f"{source.path}: folders of classes in {splits[0]} and in {splits[1]}; give one of them")
    unlabelled = {name for name in files if name.parent.name == UNLABELLED}
    stray = sorted(files.keys() - classes.keys() - unlabelled)
    if unlabelled or stray:
        kinds = Counter("above" if name in texts else f"*{name.suffix}" for name in stray)
        kinds[f"in {UNLABELLED}/"] = len(unlabelled)
        found = ", ".join(f"{count:,} {kind}" for kind, count in sorted(kinds.items()) if count)
        log.info(f"{source.path}: files that are in no class are left out: {found}")
    wrong = [name for name in stray if not name.name.upper().startswith(_ABOUT)]
    if len(wrong) > FEW * len(files):
        count = f"{len(wrong):,} of {len(files):,} files ({len(wrong) / len(files):.2%}) are in none"
        for name in wrong:
            reason = "it is above the folders of classes" if name in texts else "a text is *.txt or without a suffix"
            source.mistake(source.location(str(name)), f"in no class, since {reason}; {count}")
    for name in sorted(classes.keys() - unlabelled):
        identity = f"{name.parent.name}/{name.name}"
        text = source.decode(content(classes[name]), source.location(identity))
        if text is not None:
            yield ClassifyExample(identity, source.location(identity), text, label=name.parent.name)


def content(file: Path | bytes) -> bytes:
    """The bytes of a file; those of an archive are there already."""
    if isinstance(file, bytes):
        return file
    with open_file(file) as stream:
        return stream.read()


def files_in(source: LabelledFile) -> Iterator[tuple[PurePosixPath, Path | None]]:
    """The files in a folder and its subfolders, except hidden ones; None for a file that is not NAME or NAME.txt."""

    def refuse(error: OSError) -> None:
        raise error

    for folder, folders, names in os.walk(source.path, onerror=refuse):
        folders[:] = [name for name in folders if not name.startswith(".")]
        here = PurePosixPath(os.path.relpath(folder, source.path))
        for name in names:
            if name.startswith("."):
                continue
            yield here / name, Path(folder, name) if _is_text(here / name) else None


def _in_archive(source: LabelledFile) -> Iterator[tuple[PurePosixPath, bytes | None]]:
    """The files of an archive; None for one that is not NAME or NAME.txt."""
    try:
        with source.open() as stream:
            for entry in entries(stream, DAMAGE):
                name = PurePosixPath(entry.name)
                if entry.file is None:
                    source.mistake(source.location(entry.name), entry.reason)
                else:
                    yield name, entry.file.read() if _is_text(name) else None
    except DAMAGE as error:
        raise source.damaged(error) from None


def _is_text(name: PurePosixPath) -> bool:
    return name.suffix in ("", ".txt")
