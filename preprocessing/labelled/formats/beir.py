"""`beir`: a corpus, queries and which documents answer them, as BEIR ships them (Thakur et al. 2021).

A file of qrels, such as `qrels/test.tsv`, has a header and a row for each judged document: query-id, corpus-id, score.
`corpus.jsonl` ({"_id", "title", "text"}) and `queries.jsonl` ({"_id", "text"}) lie beside it or in the folder above.
"""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from reread.preprocessing.errors import UserError
from reread.preprocessing.labelled.examples import Example
from reread.preprocessing.labelled.file import LabelledFile
from reread.preprocessing.labelled.tasks.embed import EmbedExample

CORPUS, QUERIES, QRELS = "corpus.jsonl", "queries.jsonl", "qrels"
HEADER = ("query-id", "corpus-id", "score")


def beside(qrels: Path) -> list[Path]:
    """The corpus and the queries of a file of qrels, as far as they are there."""
    folders = (qrels.parent, qrels.parent.parent)
    found = (next((folder / name for folder in folders if (folder / name).is_file()), None) for name in _BOTH)
    return [one for one in found if one is not None]


_BOTH = (CORPUS, QUERIES)


def is_qrels(head: bytes) -> bool:
    """Whether a file that begins so has the header of qrels."""
    return head.partition(b"\n")[0].strip().split(b"\t")[:2] == [b"query-id", b"corpus-id"]


def read_beir(source: LabelledFile) -> Iterator[Example]:
    """The documents of the corpus that are not judged, then each query with those that are.

    Raises `UserError` for a folder with several files of qrels, and where corpus or queries are missing."""
    qrels = _qrels(source)
    found = beside(qrels)
    if missing := [name for name in _BOTH if name not in {one.name for one in found}]:
        raise UserError(
            f"{qrels}: rows of query and document ids (BEIR's qrels), but no {' and no '.join(missing)} beside it or "
            "in the folder above"
        )
    corpus, queries = (LabelledFile(one, source.task) for one in found)
    judged = _judged(source, LabelledFile(qrels, source.task))
    wanted = {document: "" for grades in judged.values() for document in grades}
    for number, values in corpus.json_lines():
        identity, text = _text(corpus, number, values)
        if identity in wanted:
            wanted[identity] = text
        elif identity:
            yield EmbedExample(f"document {identity}", corpus.location(number), text, document=True)
    for number, values in queries.json_lines():
        identity, text = _text(queries, number, values)
        grades = _known(source, queries.location(number), identity, judged.pop(identity, {}), wanted)
        if grades:
            yield _asked(queries.location(number), identity, text, grades, wanted)
    for identity in judged:
        source.mistake(qrels.name, f"query `{identity}` is not in {queries.path}; delete its rows, or add it")
    source.mistakes += [*corpus.mistakes, *queries.mistakes]


def _known(
    source: LabelledFile, location: str, query: str, grades: dict[str, float], texts: dict[str, str]
) -> dict[str, float]:
    """The grades of documents that have a text."""
    for document in [one for one in grades if not texts[one].strip()]:
        source.mistake(location, f"document `{document}`, which query `{query}` names, is not in {CORPUS}, or is empty")
    return {document: grade for document, grade in grades.items() if texts[document].strip()}


def _asked(location: str, identity: str, text: str, grades: dict[str, float], texts: dict[str, str]) -> EmbedExample:
    right = [one for one, grade in grades.items() if grade > 0]
    wrong = [one for one, grade in grades.items() if grade <= 0]
    return EmbedExample(
        *(identity, location, text),
        positives=tuple(texts[one] for one in right),
        negatives=tuple(texts[one] for one in wrong),
        grades=tuple(grades[one] for one in right),
        ids=(*right, *wrong),
    )


def _qrels(source: LabelledFile) -> Path:
    """The file of qrels that a path names, or the only one in its folder."""
    if not source.path.is_dir():
        return source.path
    files = sorted((source.path / QRELS).glob("*.tsv"))
    if not files and not (source.path / CORPUS).exists():
        raise UserError(
            f"{source.path}: a folder without {CORPUS} and {QRELS}/ (BEIR); a folder with a text a file is read by "
            "task.format=document-per-file"
        )
    if len(files) != 1:
        known = ", ".join(one.name for one in files) or "none"
        raise UserError(f"{source.path}: name a file of qrels, as {source.path / QRELS / 'test.tsv'} ({known} there)")
    return files[0]


def _judged(source: LabelledFile, qrels: LabelledFile) -> dict[str, dict[str, float]]:
    """Query -> document -> grade. Raises `UserError` for a file without the header of qrels."""
    found: dict[str, dict[str, float]] = {}
    if not is_qrels(qrels.head):
        raise UserError(f"{qrels.location(1)}: its first line is not {' '.join(HEADER)} between tabs (BEIR's qrels)")
    for number, line in qrels.lines():
        if number == 1 or not line.strip():
            continue
        cells = (qrels.decode(line, qrels.location(number)) or "").split("\t")
        try:
            query, document, grade = cells[0], cells[1], float(cells[2])
            if len(cells) != len(HEADER) or not math.isfinite(grade):
                raise ValueError
        except (ValueError, IndexError):
            source.mistake(qrels.location(number), f"not {', '.join(HEADER)} with a number last, between tabs")
            continue
        found.setdefault(query, {})[document] = grade
    return found


def _text(source: LabelledFile, number: int, values: dict[str, Any]) -> tuple[str, str]:
    """The id and the text of a line, its title first; both empty if it is wrong."""
    identity, title, text = values.get("_id"), values.get("title") or "", values.get("text")
    if not isinstance(identity, str | int) or not isinstance(text, str) or not isinstance(title, str):
        source.mistake(source.location(number), 'not as {"_id": "..", "title": "..", "text": ".."}')
        return "", ""
    return str(identity), f"{title} {text}".strip()
