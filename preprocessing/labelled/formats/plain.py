"""Raw texts without labels: plain text, and JSON lines with nothing but a text.

If a task needs more than a text, such as a question, the same is given to all of them (`Given`).
"""

from collections.abc import Iterator

from reread.preprocessing.errors import UserError
from reread.preprocessing.labelled.examples import Example
from reread.preprocessing.labelled.file import LabelledFile
from reread.preprocessing.labelled.formats.folders import files_in
from reread.preprocessing.labelled.tasks import TASKS


def document_per_line(source: LabelledFile) -> Iterator[Example]:
    """The lines that are not blank; their numbers are their ids."""
    for number, line in source.lines():
        text = source.decode(line, source.location(number)) if line.strip() else None
        if text is not None:
            yield _alone(source, str(number), source.location(number), text)


def document_per_file(source: LabelledFile) -> Iterator[Example]:
    """The whole file, or each text in a folder (no suffix, or .txt); its name is its id."""
    if source.path.is_dir():
        files = sorted(
            (str(name), source.location(str(name)), data) for name, data in files_in(source) if data is not None
        )
    else:
        files = [(source.path.name, source.name, source.data)]
    for name, location, data in files:
        text = source.decode(data, location)
        if text is not None:
            yield _alone(source, name, location, text)


def _alone(source: LabelledFile, identity: str, location: str, text: str) -> Example:
    try:
        return TASKS[source.task].model_validate({"text": text}).example(source, identity, location)
    except ValueError as error:  # the same in all others
        raise UserError(f"{location}: {error}") from None
