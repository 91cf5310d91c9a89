"""`wikihop`: WikiHop's and MedHop's questions, answered by one of several candidates (Welbl et al. 2018, QAngaroo)."""

import logging
from collections.abc import Iterator
from itertools import accumulate
from typing import Annotated

from pydantic import ConfigDict, Field

from reread.preprocessing.errors import UserError
from reread.preprocessing.labelled.file import LabelledFile
from reread.preprocessing.labelled.tasks.choose import ChooseExample
from reread.preprocessing.settings import Settings

log = logging.getLogger("reread")


class _Asked(Settings):
    model_config = ConfigDict(extra="ignore")

    id: str
    query: str
    candidates: Annotated[list[str], Field(min_length=1)]
    supports: Annotated[list[str], Field(min_length=1)]
    answer: str | None = None


def read_wikihop(source: LabelledFile) -> Iterator[ChooseExample]:
    """The text is all supports, each a document of its own; blank ones are left out, and so are candidates that repeat
    another one. A question without `answer` is unlabelled."""
    data = source.json()
    if not isinstance(data, list):
        raise UserError(f"{source.path}: no list of questions; is it another format?")
    repeated = 0
    for position, asked in source.parse_each(_Asked, data, "question"):
        location = source.location(f"{position}, {asked.id}")
        options = tuple(dict.fromkeys(asked.candidates))
        repeated += len(options) < len(asked.candidates)
        if asked.answer is not None and asked.answer not in options:
            source.mistake(location, f"the answer `{asked.answer}` is none of its {len(options)} candidates")
            continue
        label = None if asked.answer is None else options.index(asked.answer)
        documents = [f"{one.strip()}\n" for one in asked.supports if one.strip()]
        starts = tuple(accumulate(map(len, documents[:-1])))
        text = "".join(documents).removesuffix("\n")
        yield ChooseExample(asked.id, location, text, asked.query, options, label, starts=starts)
    if repeated:
        log.info(f"{source.path}: {repeated:,} questions have a candidate twice; the copies are left out")
