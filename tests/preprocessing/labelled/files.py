"""Small files of labelled data for tests."""

import io
import json
import tarfile
from pathlib import Path
from typing import Any

REVIEWS = {
    "README": "about",
    "train/readme.md": "about the reviews",
    "train/neg/0_3.txt": "bad",
    "train/neg/1_1.txt": "worse\n<br />",
    "train/pos/0_9.txt": "good",
    "train/unsup/0_0.txt": "unknown",
    "train/.hidden/0_0.txt": "hidden",
}
"""The files of a data set in the form of aclImdb."""


def write(path: Path, content: str | bytes | list[Any]) -> Path:
    """A file of text, of bytes, or of a JSON value a line."""
    if isinstance(content, list):
        content = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in content)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def squad(*questions: dict[str, Any], context: str = "水在山下，山下有人。") -> list[Any]:
    """The one line of a file in SQuAD form, with one article of one paragraph."""
    return [{"version": "1", "data": [{"title": "t", "id": 1, "paragraphs": [{"context": context, "qas": questions}]}]}]


def question(name: str, *documents: str, aliases: tuple[str, ...] = ("Austen", "Jane Austen")) -> dict[str, Any]:
    """A question as TriviaQA has it."""
    pages = [{"Filename": one, "Title": one, "DocSource": "TagMe"} for one in documents]
    answer = {"Aliases": aliases, "NormalizedAliases": [one.lower() for one in aliases], "Value": aliases[0]}
    return {"QuestionId": name, "Question": "Who?", "Answer": answer, "EntityPages": pages, "SearchResults": []}


def tar(path: Path, files: dict[str, str], mode: Any = "w:xz") -> Path:
    """An archive with `files` in the folder aclImdb."""
    with tarfile.open(path, mode) as archive:
        for name, text in files.items():
            member = tarfile.TarInfo("aclImdb/" + name)
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))
    return path
