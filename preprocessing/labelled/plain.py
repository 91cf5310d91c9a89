"""`document-per-line` and `document-per-file`: plain text to predict for. Which of them a file is, nothing shows."""

from collections.abc import Iterator

from preprocessing.labelled.examples import ClassifyExample
from preprocessing.labelled.source import Source


def document_per_line(source: Source) -> Iterator[ClassifyExample]:
    """The lines that are not blank; their numbers are their ids."""
    for number, line in source.lines():
        text = source.decode(line, source.place(number)) if line.strip() else None
        if text is not None:
            yield ClassifyExample(str(number), source.place(number), text)


def document_per_file(source: Source) -> Iterator[ClassifyExample]:
    """The whole file; its name is its id."""
    text = source.decode(source.data, str(source.path))
    if text is not None:
        yield ClassifyExample(source.path.name, str(source.path), text)
