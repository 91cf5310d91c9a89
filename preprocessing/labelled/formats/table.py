"""The formats of labelled data: which tasks each is for, how it is read, and how it is recognised."""

import json
from collections.abc import Callable, Iterator
from typing import NamedTuple

from reread.preprocessing.errors import UserError
from reread.preprocessing.input.formats.table import looks_like, table_like
from reread.preprocessing.input.streams import split_name
from reread.preprocessing.labelled.columns import NAMES, Columns
from reread.preprocessing.labelled.examples import Example
from reread.preprocessing.labelled.file import LabelledFile
from reread.preprocessing.labelled.formats.arxiv import read_arxiv
from reread.preprocessing.labelled.formats.beir import is_qrels, read_beir
from reread.preprocessing.labelled.formats.clue import read_both_c3, read_chid, read_wsc
from reread.preprocessing.labelled.formats.conll import is_conll, read_conll
from reread.preprocessing.labelled.formats.delimited import read_clue, read_csv, read_tsv
from reread.preprocessing.labelled.formats.folders import read_folders
from reread.preprocessing.labelled.formats.hotpotqa import read_hotpotqa, read_sentences
from reread.preprocessing.labelled.formats.jsonl import read_jsonl
from reread.preprocessing.labelled.formats.mentions import read_mentions
from reread.preprocessing.labelled.formats.ontonotes import BEGIN, read_ontonotes
from reread.preprocessing.labelled.formats.plain import document_per_file, document_per_line
from reread.preprocessing.labelled.formats.questions import read_c3, read_cail, read_cmrc2019, read_squad
from reread.preprocessing.labelled.formats.semeval import read_semeval
from reread.preprocessing.labelled.formats.triviaqa import read_triviaqa
from reread.preprocessing.labelled.formats.wikihop import read_wikihop
from reread.preprocessing.labelled.tasks import TASKS

_NOT_JSON = "the task is tag, and it is not JSON"


class LabelledFormat(NamedTuple):
    tasks: tuple[str, ...]
    read: Callable[[LabelledFile], Iterator[Example]]
    looks: str
    """A description of its form, for messages and documentation."""
    columns: tuple[str, ...] = ()
    """The fields that `columns` may name; `jsonl`: those of the task's line."""
    labels: tuple[str, ...] = ("one",)
    """The labels that a text to classify may have: one label, a set of labels, a number."""
    takes_any: bool = False
    """Whether every file could be read so; therefore its first bytes must not look like another format."""

    beside: bool = False
    """Whether other files beside it are read, too."""


def _read_conll_2012(source: LabelledFile) -> Iterator[Example]:
    return read_mentions(source) if source.task == "coreference" else read_ontonotes(source)


_ALONE = tuple(task for task, line in TASKS.items() if "text" in line.model_fields)
_TABLES = tuple(task for task, line in TASKS.items() if line.cells)
_NAMED, _LABELS = tuple(NAMES), ("one", "set", "number")
FORMATS: dict[str, LabelledFormat] = {
    "jsonl": LabelledFormat(
        tuple(TASKS),
        read_jsonl,
        "a JSON object a line, or a list of them, with the fields of the task's example",
        (),
        _LABELS,
    ),
    "tsv": LabelledFormat(_TABLES, read_tsv, "a header, then texts and labels between tabs, unquoted", _NAMED, _LABELS),
    "csv": LabelledFormat(_TABLES, read_csv, "a header, then texts and labels between commas", _NAMED, _LABELS),
    "clue": LabelledFormat(
        ("classify",), read_clue, 'lines such as {"sentence": .., "label": ..} (CLUE)', _NAMED, _LABELS
    ),
    "squad": LabelledFormat(("answer",), read_squad, '{"data": [{"paragraphs": [{"context": .., "qas": [..]}]}]}'),
    "triviaqa": LabelledFormat(
        ("answer",),
        read_triviaqa,
        '{"Data": [{"Question": .., "EntityPages": [..]}]}, documents in evidence/',
        beside=True,
    ),
    "hotpotqa": LabelledFormat(
        ("answer", "rank"), read_hotpotqa, '[{"_id": .., "question": .., "context": [[title, [sentences]]]}]'
    ),
    "hotpotqa-sentences": LabelledFormat(
        ("rank",), read_sentences, "a file of hotpotqa, whose sentences are the passages; it has to be named"
    ),
    "c3": LabelledFormat(("choose",), read_c3, '[[lines], [{"question": .., "choice": [..], "answer": ..}], id]'),
    "clue-c3": LabelledFormat(
        ("choose",), read_both_c3, "m-NAME.json and d-NAME.json of C3, both read; it has to be named", beside=True
    ),
    "clue-chid": LabelledFormat(
        ("choose",),
        read_chid,
        'lines such as {"content": ["..#idiom000001#.."], "candidates": [..]}, NAME_answer.json beside it (CLUE)',
        beside=True,
    ),
    "clue-wsc": LabelledFormat(
        ("classify",), read_wsc, 'lines such as {"text": .., "target": {"span1_text": ..}, "label": "true"} (CLUE)'
    ),
    "cmrc2019": LabelledFormat(
        ("choose",), read_cmrc2019, '{"data": [{"context_id": .., "context": ".. [BLANK1] .."}]}'
    ),
    "wikihop": LabelledFormat(
        ("choose",), read_wikihop, '[{"id": .., "query": .., "candidates": [..], "supports": [..], "answer": ..}]'
    ),
    "arxiv": LabelledFormat(
        ("generate",), read_arxiv, 'lines such as {"article_id": .., "article_text": [..], "abstract_text": [..]}'
    ),
    "conll": LabelledFormat(
        ("tag",),
        read_conll,
        "a word or character and its tag a line, a blank line after each sentence",
        takes_any=True,
    ),
    "conll-2012": LabelledFormat(
        ("tag", "coreference"),
        _read_conll_2012,
        "OntoNotes' columns a word, in brackets entities in the eleventh, and coreference in the last",
    ),
    "document-per-line": LabelledFormat(
        _ALONE, document_per_line, "a text a line, without labels", (), _LABELS, takes_any=True
    ),
    "document-per-file": LabelledFormat(
        _ALONE, document_per_file, "a text a file, without a label", (), _LABELS, takes_any=True
    ),
    "folders": LabelledFormat(
        ("classify",), read_folders, "a folder or tar archive with a folder a class, a file a text"
    ),
    "cail": LabelledFormat(
        ("choose",), read_cail, 'lines such as {"A": .., "B": .., "C": .., "label": "B"} (CAIL2019-SCM)'
    ),
    "beir": LabelledFormat(
        ("embed",),
        read_beir,
        "qrels (query-id, corpus-id, score), with corpus.jsonl and queries.jsonl (BEIR)",
        beside=True,
    ),
    "semeval": LabelledFormat(
        ("classify",), read_semeval, "XML of articles, ground truth beside it", ("text", "second")
    ),
}


_FIELDS = {("A", "B", "C"): "cail", ("content", "candidates"): "clue-chid", ("text", "target"): "clue-wsc"}
"""Fields of a line of JSON by which a format is recognised."""


def check_form(source: LabelledFile, name: str) -> None:
    """Raises `UserError` if the first bytes of a file that is read as `name` look like another format."""
    if not FORMATS[name].takes_any or source.path.is_dir():
        return
    head = source.head
    looks = looks_like(head) or table_like(head)
    if name != "conll":
        looks = "conll" if is_conll(head) else looks
    elif looks == "tsv":  # a word, a tab and a tag
        looks = None
    if looks is not None:
        raise UserError(f"{source.location(1)}: looks like {looks}, not like {FORMATS[name].looks}")


def recognise(source: LabelledFile) -> tuple[str, str]:
    """The format of a file and the reason, from its name and its first bytes; raises `UserError` if none fits."""
    name = split_name(str(source.path))[0]
    if source.path.is_dir():
        return "beir" if source.task == "embed" else "folders", "it is a folder"
    if source.task == "embed" and is_qrels(source.head):
        return "beir", "its first line names query-id and corpus-id"
    for suffix, format in ((".tar", "folders"), (".xml", "semeval"), (".tsv", "tsv"), (".csv", "csv")):
        if name.endswith(suffix):
            return format, f"by the name *{suffix}"
    head = source.head.lstrip()
    if head.startswith(b"{"):
        return _recognise_object(source, head)
    if head.startswith(b"["):
        return _recognise_list(source, head)
    if not head:
        raise UserError(f"{source.name}: is empty; give a file with examples")
    return _recognise_lines(source, head)


def _recognise_lines(source: LabelledFile, head: bytes) -> tuple[str, str]:
    if source.task in ("tag", "coreference") and head.startswith(BEGIN):
        return "conll-2012", f"it begins with {BEGIN.decode()}"
    if source.task == "tag":
        return "conll", _NOT_JSON
    if b"\t" in head.partition(b"\n")[0]:
        return "tsv", "its first line has tabs"
    known = "; ".join(f"{name}: {format.looks}" for name, format in FORMATS.items() if source.task in format.tasks)
    raise UserError(f"{source.name}: of no known format; name it by `task.format` ({known})")


def _recognise_list(source: LabelledFile, head: bytes) -> tuple[str, str]:
    if not head[1:].lstrip().startswith(b"{"):
        return "c3", "JSON that begins with a list"
    fields = {b'"candidates"': "wikihop", b'"supports"': "wikihop", b'"context"': "hotpotqa"}
    of_objects = (format for field, format in fields.items() if field in head)
    found = next((format for format in of_objects if source.task in FORMATS[format].tasks), None)
    if found:
        return found, "JSON that begins with a list"
    first = next((values for _, values in source.json_lines()), {})
    source.mistakes.clear()  # the reader describes them
    return _recognise_fields(source, set(first), "the first member of its list")


_OBJECTS = {"squad": ("data", "paragraphs"), "triviaqa": ("Data", "QuestionId"), "cmrc2019": ("data", "context_id")}
"""Formats of a file that is one object -> two names in its first bytes."""


def _recognise_object(source: LabelledFile, head: bytes) -> tuple[str, str]:
    for format, names in _OBJECTS.items():
        if all(f'"{name}"'.encode() in head for name in names):
            return format, 'JSON with "{}" and "{}"'.format(*names)
    known = len(source.mistakes)
    try:
        fields = set(json.loads(next(source.visible_rows())[1].pop()))
    except (ValueError, RecursionError, StopIteration):  # the reader describes the mistake
        fields = set()
    del source.mistakes[known:]
    return _recognise_fields(source, fields, "its first line")


def _recognise_fields(source: LabelledFile, fields: set[str], where: str) -> tuple[str, str]:
    for wanted, format in _FIELDS.items():
        if fields >= {*wanted} and source.task in FORMATS[format].tasks:
            return format, f"{where} has the fields {', '.join(wanted[:-1])} and {wanted[-1]}"
    if source.task == "generate" and "article_text" in fields:
        return "arxiv", f"{where} has the field article_text"
    found = sorted(fields & {*NAMES["text"], *Columns(source.columns, source.join).roots(fields)})
    # With our own name of the text it is our own format, in which a misspelt field is an error.
    if source.task == "classify" and found and ("text" not in fields or source.columns):
        return "clue", f"{where} has the field {found[0]}"
    return "jsonl", f"{where} is a JSON object"
