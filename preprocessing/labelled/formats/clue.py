"""CLUE's files of forms of their own: `clue-wsc`, `clue-chid` and `clue-c3` (Xu et al. 2020)."""

import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, Field

from reread.preprocessing.errors import UserError
from reread.preprocessing.labelled.file import LabelledFile
from reread.preprocessing.labelled.formats.questions import read_c3
from reread.preprocessing.labelled.tasks.choose import ChooseExample
from reread.preprocessing.labelled.tasks.classify import ClassifyExample
from reread.preprocessing.settings import Settings

log = logging.getLogger("reread")

_IDIOM = re.compile(r"#idiom\d+#")
_ANSWERS = "{}_answer.json"


class _Published(Settings):
    """A part of a published file; other fields are ignored."""

    model_config = ConfigDict(extra="ignore")


class _Spans(_Published):
    span1_text: str
    span1_index: int = Field(ge=0)
    span2_text: str
    span2_index: int = Field(ge=0)


class _Winograd(_Published):
    text: str
    target: dict[str, Any]
    label: str | bool | None = None
    id: str | int | None = None


class _Cloze(_Published):
    content: list[str]
    candidates: list[str]


def read_wsc(source: LabelledFile) -> Iterator[ClassifyExample]:
    """CLUEWSC2020: does the pronoun (`span2`) mean the noun (`span1`)? The noun stands between `_`, the pronoun in
    brackets, as CLUE's baseline marks them."""
    for number, values in source.json_lines():
        location = source.location(number)
        line = source.parse(_Winograd, values, location)
        spans = None if line is None else source.parse(_Spans, line.target, f"{location}: target")
        if line is None or spans is None:
            continue
        marked, wrong = line.text, None
        noun = spans.span1_index, spans.span1_text, "_", "_"
        pronoun = spans.span2_index, spans.span2_text, "[", "]"
        for begin, text, opens, closes in sorted([noun, pronoun], reverse=True):  # from the right, so that places stay
            end = begin + len(text)
            if line.text[begin:end] != text:
                wrong = f"`{text}` is not at character {begin} of its text"
            marked = f"{marked[:begin]}{opens}{text}{closes}{marked[end:]}"
        if wrong:
            source.mistake(location, wrong)
            continue
        identity = str(number if line.id is None else line.id)
        yield ClassifyExample(identity, location, marked, None, source.label(line.label))


def read_chid(source: LabelledFile) -> Iterator[ChooseExample]:
    """ChID: passages with blanks for idioms, and the candidates of all passages of a line; an example a blank.

    The answers are in another file: TRAIN.json has those of TRAIN_answer.json beside it. Without that the file is
    unlabelled. A passage's blanks become [BLANK1], [BLANK2], ...
    """
    answers = _answers(source)
    for number, values in source.json_lines():
        location = source.location(number)
        line = source.parse(_Cloze, values, location)
        if line is None:
            continue
        options = tuple(line.candidates)
        for passage in line.content:
            blanks = _IDIOM.findall(passage)
            if len(set(blanks)) < len(blanks):
                source.mistake(location, f"the blank {blanks[0]} stands twice in a passage")
                continue
            text = passage
            for order, blank in enumerate(blanks, 1):
                text = text.replace(blank, f"[BLANK{order}]")
            for order, blank in enumerate(blanks, 1):
                label = None if answers is None else answers.get(blank)
                if answers is not None and not _is_index(label, options):
                    source.mistake(location, f"{blank} has no answer among its {len(options)} candidates")
                    continue
                name = blank.strip("#")
                yield ChooseExample(name, f"{location}, {name}", text, f"[BLANK{order}]", options, label)


def _is_index(label: Any, options: tuple[str, ...]) -> bool:
    return isinstance(label, int) and 0 <= label < len(options)


def _answers(source: LabelledFile) -> dict[str, Any] | None:
    """Blank -> the number of its answer, from the file beside it; None if there is none."""
    path = source.path.with_name(_ANSWERS.format(source.path.name.partition(".")[0]))
    if not path.exists():
        log.info("%s: not there, so %s is read without answers", path, source.path)
        return None
    found = LabelledFile(path, source.task).json()
    if not isinstance(found, dict):
        raise UserError(f"{path}: has to be one object, as #idiom000001#: 3")
    return found


def read_both_c3(source: LabelledFile) -> Iterator[ChooseExample]:
    """C3 as CLUE ships it: `m-train.json`, texts, and `d-train.json`, dialogues; of either file both are read."""
    kind, dash, rest = source.path.name.partition("-")
    if not dash or kind not in ("m", "d"):
        raise UserError(f"{source.path}: clue-c3 reads m-NAME.json and d-NAME.json; name one of the two, or use c3")
    for one in ("m", "d"):
        path = source.path.with_name(f"{one}-{rest}")
        other = source if path == source.path else LabelledFile(path, source.task, mistakes=source.mistakes)
        if not path.exists():
            raise UserError(f"{path}: not there; C3 has it beside {source.path.name}")
        for example in read_c3(other):
            yield ChooseExample(f"{one}-{example.id}", *_after_id(example, one))


def _after_id(example: ChooseExample, kind: str) -> tuple[Any, ...]:
    """The fields of an example but its id, with the `kind` before its group."""
    group = None if example.group is None else f"{kind}-{example.group}"
    return example.location, example.text, example.question, example.options, example.label, group


def beside(path: Path) -> list[Path]:
    """The files that belong to a file of CLUE."""
    kind, _, rest = path.name.partition("-")
    other = {"m": "d", "d": "m"}.get(kind)
    names = [_ANSWERS.format(path.name.partition(".")[0]), *([f"{other}-{rest}"] if other and rest else [])]
    return [path.with_name(name) for name in names]
