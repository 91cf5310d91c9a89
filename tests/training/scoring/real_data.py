"""Loaders of the labelled data in ../shared/data, kept apart from the project's own readers, which they may check."""

import json
import lzma
from typing import Any, NamedTuple

from tests.conftest import shared


class Question(NamedTuple):
    id: str
    context: str
    question: str
    answers: list[str]


def text_of(path: str) -> str:
    return lzma.decompress(shared(path).read_bytes()).decode("utf-8")


def questions(path: str) -> list[Question]:
    data: dict[str, Any] = json.loads(text_of(path))
    return [
        Question(str(asked["id"]), paragraph["context"], asked["question"], [one["text"] for one in asked["answers"]])
        for article in data["data"]
        for paragraph in article["paragraphs"]
        for asked in paragraph["qas"]
    ]


def rows(path: str) -> list[tuple[str, str]]:
    """(label, text) of ChnSentiCorp's rows."""
    return [(line.split("\t")[0], line.split("\t")[1]) for line in text_of(path).split("\n")[1:] if line]


def c3(path: str) -> list[tuple[str, list[str], int]]:
    """(document, options, place of the answer) of each question."""
    return [
        ("\n".join(lines), asked["choice"], asked["choice"].index(asked["answer"]))
        for lines, asked_of, _ in json.loads(text_of(path))
        for asked in asked_of
    ]


def peoples_daily() -> list[tuple[list[str], list[str]]]:
    sentences = []
    for block in text_of("zh_peopledaily_ner/train.txt.xz").split("\n\n"):
        lines = [line.split(" ") for line in block.split("\n") if line]
        if lines:
            sentences.append(([line[0] for line in lines], [line[1] for line in lines]))
    return sentences
