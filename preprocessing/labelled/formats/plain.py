"""Raw texts without labels: plain text, and JSON lines with nothing but a text.

If a task needs more than a text, such as a question, the same is given to all of them (`Given`).
"""

from collections.abc import Iterator

from reread.preprocessing.errors import UserError
from reread.preprocessing.labelled.examples import Example
from reread.preprocessing.labelled.file import LabelledFile
from reread.preprocessing.labelled.formats.folders import content, files_in
from reread.preprocessing.labelled.tasks import TASKS


def document_per_line(source: LabelledFile) -> Iterator[Example]:
    """The lines that are not blank; their numbers are their ids."""
    for number, cells in source.visible_rows():
        yield _alone(source, str(number), source.location(number), cells.pop())


def document_per_file(source: LabelledFile) -> Iterator[Example]:
    """The whole file, or each text in a folder (no suffix, or .txt); its name is its id."""
    if not source.path.is_dir():
        text = source.text()
        if text is not None:
            yield _alone(source, source.path.name, source.name, text)
        return
    for name, path in sorted((str(name), path) for name, path in files_in(source) if path is not None):
        text = source.decode(content(path), source.location(name))
        if text is not None:
            yield _alone(source, name, source.location(name), text)


def _alone(source: LabelledFile, identity: str, location: str, text: str) -> Example:
    try:
        return TASKS[source.task].model_validate({"text": text}).example(source, identity, location)
    except ValueError as error:  # the same in all others
        raise UserError(f"{location}: {error}") from None
