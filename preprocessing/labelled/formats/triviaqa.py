"""`triviaqa`: TriviaQA's questions, whose documents lie in files of their own (Joshi et al. 2017)."""

import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from pydantic import ConfigDict

from reread.preprocessing.errors import UserError
from reread.preprocessing.files import open_file
from reread.preprocessing.labelled.file import LabelledFile
from reread.preprocessing.labelled.tasks.answer import ELSEWHERE, Answer, AnswerExample
from reread.preprocessing.settings import Settings


class _Published(Settings):
    """A part of a published file; other fields are ignored."""

    model_config = ConfigDict(extra="ignore")


class _Page(_Published):
    Filename: str


class _Aliases(_Published):
    Aliases: list[str] = []
    NormalizedAliases: list[str]
    HumanAnswers: list[str] = []


class _Asked(_Published):
    QuestionId: str
    Question: str
    Answer: _Aliases | None = None
    EntityPages: list[_Page] = []
    SearchResults: list[_Page] = []


def read_triviaqa(source: LabelledFile) -> Iterator[AnswerExample]:
    """An example for each document of a question, under evidence/ beside the file or its folder, as the owner's archive
    has them. Questions of the domain Wikipedia have one answer from all their documents; in the domain Web each
    document has its own, as in the owner's script.

    The answers to learn are all places of all aliases that are whole words there, in any case of letters. A question
    without `Answer` is unlabelled.
    """
    values = source.json()
    data = values.get("Data") if isinstance(values, dict) else None
    if not isinstance(data, list):
        raise UserError(f"{source.path}: no list under `Data` at the top; is it another format?")
    is_web, evidence = str(values.get("Domain")) == "Web", _evidence(source)
    for position, asked in source.parse_each(_Asked, data, "question"):
        pages = [("wikipedia", page.Filename) for page in asked.EntityPages]
        pages += [("web", page.Filename) for page in asked.SearchResults] if is_web else []
        if not pages:
            source.mistake(source.location(position), f"{asked.QuestionId} names no document")
        for domain, name in pages:
            location = source.location(f"{position}, {name}")
            text = _document(source, evidence / domain, name, location)
            if text is not None:
                group = None if is_web else asked.QuestionId
                answers = _answers(text, asked.Answer)
                yield AnswerExample(f"{asked.QuestionId}--{name}", location, text, asked.Question, answers, group)


def _evidence(source: LabelledFile) -> Path:
    """The folder of documents. Raises `UserError` if it is not there."""
    folders = [folder / "evidence" for folder in (source.path.parent, source.path.parent.parent)]
    found = next((folder for folder in folders if folder.is_dir()), None)
    if found is None:
        raise UserError(f"{source.path}: its documents are not there; put TriviaQA's folder evidence/ at {folders[1]}")
    return found


def _document(source: LabelledFile, folder: Path, name: str, location: str) -> str | None:
    """The text of a document; None, with a mistake recorded, if it cannot be read."""
    parts = PurePosixPath(name)
    if parts.is_absolute() or ".." in parts.parts:
        source.mistake(location, "leads out of the folder of documents")
        return None
    try:
        with open_file(folder / name) as file:
            return source.decode(file.read(), location)
    except (OSError, ValueError) as error:
        source.mistake(location, f"cannot be read in {folder} ({getattr(error, 'strerror', None) or error})")
        return None


def _answers(text: str, given: _Aliases | None) -> tuple[Answer, ...] | None:
    """All places of the aliases in a text, and what the owner's script counts as right."""
    if given is None:
        return None
    names = {*given.Aliases, *given.NormalizedAliases, *given.HumanAnswers} - {""}
    aliases = sorted(names, key=lambda one: (-len(one), one))
    pattern = rf"(?<!\w)(?:{'|'.join(map(re.escape, aliases))})(?!\w)"
    found: Any = re.finditer(pattern, text, re.IGNORECASE) if aliases else ()
    placed = [Answer(one.start(), one[0]) for one in found]
    right = dict.fromkeys(filter(str.strip, [*given.NormalizedAliases, *given.HumanAnswers]))
    return (*placed, *(Answer(ELSEWHERE, one) for one in right))
