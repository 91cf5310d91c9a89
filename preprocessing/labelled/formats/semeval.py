"""`semeval`: the articles of SemEval 2019 task 4 (Hyperpartisan), with the ground truth in a file beside them."""

import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from reread.preprocessing.errors import UserError, first_line
from reread.preprocessing.labelled.file import DAMAGE, LabelledFile
from reread.preprocessing.labelled.tasks.classify import ClassifyExample

log = logging.getLogger("reread")
_INLINE = frozenset(
    ("a", "abbr", "b", "cite", "code", "em", "font", "i", "q", "small", "span", "strong", "sub", "sup", "u")
)
_BLANKS = re.compile(r"[ \t\r\n\f]+")
PARTS = ("body", "title", "title+body")
"""The values that `columns` may have for `text` and `second`."""


def read_semeval(source: LabelledFile) -> Iterator[ClassifyExample]:
    """The articles, labelled `true` or `false`; without a ground truth beside the file they are unlabelled."""
    if source.path.name.startswith("ground-truth"):
        raise UserError(f"{source.path}: the ground truth; give the file of the articles beside it")
    columns = {"text": "body", **source.columns}
    for field, part in columns.items():
        if field not in ("text", "second") or part not in PARTS:
            raise UserError(f"columns: {field}={part}: `text` and `second` may be {', '.join(PARTS)}")
    labels = _ground_truth(source)
    for number, article in enumerate(_articles(source), 1):
        identity = article.get("id", "")
        location = source.location(f"article {number}, id {identity}")
        if labels and identity not in labels:
            source.mistake(location, "the ground truth has no such id")
            continue
        title = " ".join(article.get("title", "").split())
        body = body_text(article)
        parts = {"body": body, "title": title, "title+body": f"{title}\n{body}".strip()}
        second = parts[columns["second"]] if "second" in columns else None
        yield ClassifyExample(identity, location, parts[columns["text"]], second, labels[identity] if labels else None)


def body_text(article: ElementTree.Element) -> str:
    """The text without markup, a line for each paragraph; blanks are joined as a browser does."""
    pieces: list[str] = []
    left: list[ElementTree.Element | str] = [article]
    while left:
        found = left.pop()
        if isinstance(found, str):
            pieces.append(found)
            continue
        inner: list[ElementTree.Element | str] = [_BLANKS.sub(" ", found.text or "")]
        for child in found:
            around = "" if child.tag in _INLINE else "\n"
            inner += [around, child, around + _BLANKS.sub(" ", child.tail or "")]
        left += reversed(inner)
    lines = (_BLANKS.sub(" ", line).strip() for line in "".join(pieces).split("\n"))
    return "\n".join(line for line in lines if line)


def _articles(source: LabelledFile) -> Iterator[ElementTree.Element]:
    """Each <article>, dropped from memory when the next one is read."""
    try:
        with source.open() as stream:
            parser: Any = ElementTree.iterparse(stream, events=("start", "end"))
            _, root = next(parser)
            for event, element in parser:
                if event == "end" and element.tag == "article":
                    yield element
                    root.clear()
    except ElementTree.ParseError as error:
        raise UserError(f"{source.path}: not XML ({first_line(error)}); fetch it again") from None
    except (LookupError, ValueError):
        raise UserError(
            f"{source.path}: its first line states an encoding that cannot be read; convert it to UTF-8"
        ) from None
    except DAMAGE as error:
        raise source.damaged(error) from None


def _ground_truth(source: LabelledFile) -> dict[str, str]:
    """Article id -> the attribute `hyperpartisan`, from the file whose name has `ground-truth` for `articles`.

    Empty if there is no such file.
    """
    name = source.path.name.replace("articles", "ground-truth", 1)
    stem = name.partition(".xml")[0] + ".xml"
    found = [path for path in sorted(source.path.parent.glob(f"{stem}*")) if path.name != source.path.name]
    if not found:
        log.info(f"{source.path}: no {stem} beside it, so its articles are unlabelled")
        return {}
    truth = LabelledFile(Path(found[0]), source.task)
    labels: dict[str, str] = {}
    for element in _articles(truth):
        identity, label = element.get("id", ""), element.get("hyperpartisan")
        if label is None or identity in labels:
            problem = "stands twice" if identity in labels else "has no attribute `hyperpartisan`"
            raise UserError(f"{truth.path}: article {identity} {problem}; fetch it again")
        labels[identity] = label
    return labels
