"""`folders`: a folder for each class and a text in each file, on disk or in a tar archive (aclImdb, 20 Newsgroups)."""

import logging
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import PurePosixPath

from reread.preprocessing.errors import UserError
from reread.preprocessing.files import open_file
from reread.preprocessing.input.archives import entries
from reread.preprocessing.labelled.file import DAMAGE, LabelledFile
from reread.preprocessing.labelled.tasks.classify import ClassifyExample

log = logging.getLogger("reread")
UNLABELLED = "unsup"
"""The folder of aclImdb with texts that have no label."""


def read_folders(source: LabelledFile) -> Iterator[ClassifyExample]:
    """The files `CLASS/NAME` or `CLASS/NAME.txt` at the deepest level; raises `UserError` for classes of two splits."""
    files = files_in(source) if source.path.is_dir() else _in_archive(source)
    texts = {name: data for name, data in files if name.suffix in ("", ".txt")}
    depth = max((len(name.parts) for name in texts), default=0)
    if depth < 2:
        raise UserError(
            f"{source.path}: no file CLASS/NAME.txt in it; give the folder that has a folder for each class"
        )
    classes = {name: data for name, data in texts.items() if len(name.parts) == depth}
    splits = sorted({str(name.parent.parent) for name in classes})
    if len(splits) > 1:
        raise UserError(f"{source.path}: folders of classes in {splits[0]} and in {splits[1]}; give one of them")
    left_out = Counter(
        f"in {name.parent.name}/" if name in classes else "above"
        for name in texts
        if name not in classes or name.parent.name == UNLABELLED
    )
    if left_out:
        found = ", ".join(f"{count:,} {where}" for where, count in sorted(left_out.items()))
        log.info(f"{source.path}: files that are in no class are left out: {found}")
    for name in sorted(classes):
        folder = name.parent.name
        identity = f"{folder}/{name.name}"
        text = source.decode(classes[name], source.location(identity)) if folder != UNLABELLED else None
        if text is not None:
            yield ClassifyExample(identity, source.location(identity), text, label=folder)


def files_in(source: LabelledFile) -> Iterator[tuple[PurePosixPath, bytes]]:
    """The files NAME and NAME.txt in a folder and its subfolders, except hidden ones."""

    def refuse(error: OSError) -> None:
        raise error

    for folder, folders, names in os.walk(source.path, onerror=refuse):
        folders[:] = [name for name in folders if not name.startswith(".")]
        here = PurePosixPath(os.path.relpath(folder, source.path))
        for name in names:
            if not name.startswith(".") and PurePosixPath(name).suffix in ("", ".txt"):
                with open_file(os.path.join(folder, name)) as file:
                    yield here / name, file.read()


def _in_archive(source: LabelledFile) -> Iterator[tuple[PurePosixPath, bytes]]:
    try:
        with source.open() as stream:
            for entry in entries(stream, DAMAGE):
                if entry.file is not None:
                    yield PurePosixPath(entry.name), entry.file.read()
    except DAMAGE as error:
        raise source.damaged(error) from None
