"""The corpora that runs were trained on: sources, what was dropped and why, lengths, unknown characters."""

import json
from collections.abc import Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from markupsafe import Markup

from reread.pipeline.report.drawing import bar_chart, short
from reread.pipeline.report.runs import Run
from reread.preprocessing.corpus import Manifest
from reread.preprocessing.tokens.encode import LONGEST_WORD

EXAMPLES = 5
SOURCE_COLUMNS = ("files", "bytes", "documents_read", "documents", "characters", "tokens")


class CorpusView(NamedTuple):
    title: str
    runs: list[int]
    """Numbers of the runs that were trained on the corpus."""
    facts: list[tuple[str, str]]
    sources: list[tuple[str, ...]]
    dropped: list[tuple[str, int, float]]
    """(reason, documents, documents as a share of those of the most frequent reason)"""
    cleaned: list[tuple[str, int, int]]
    """(option of `clean`, documents and characters that it changed)"""
    examples: list[tuple[str, str]]
    """(reason, an example of what was dropped)"""
    charts: list[tuple[str, Markup]]
    unknown: list[tuple[str, int]]


def corpus_views(runs: Sequence[Run]) -> tuple[list[CorpusView], list[tuple[int, str, dict[str, str]]]]:
    """A view of each corpus; and for each run whose corpus is not shown its number, the reason, and the facts about its
    data that the run keeps."""
    found: dict[str, tuple[Manifest, Path, list[int]]] = {}
    missing = []
    for run in runs:
        for one in run.manifests:
            if isinstance(one, str):
                missing.append((run.number, one, run.corpus_facts))
            else:
                folder, manifest = one
                found.setdefault(manifest.fingerprint, (manifest, folder, []))[2].append(run.number)
    return [_view(manifest, folder, numbers) for manifest, folder, numbers in found.values()], missing


def _view(manifest: Manifest, folder: Path, runs: list[int]) -> CorpusView:
    statistics = manifest.statistics
    held_out = sum(shard.tokens for shard in manifest.shards if shard.split == "validation")
    tokens = sum(shard.tokens for shard in manifest.shards)
    facts = [
        ("documents read", _count(statistics.get("documents_read"))),
        ("documents kept", _count(sum(shard.documents for shard in manifest.shards))),
        ("tokens", _count(tokens)),
        ("held out", f"{_count(statistics.get('validation_documents'))} documents, {_share(held_out, tokens)}"),
        ("unknown tokens", _share(statistics.get("unknown_tokens", 0), tokens)),
        ("vocabulary", f"{manifest.tokenizer['vocab_size']:,} tokens, {manifest.tokenizer['type']}"),
        ("words", str(statistics.get("word_boundaries", "not marked"))),
    ]
    dropped = sorted(manifest.dropped.items(), key=lambda one: -one[1])
    most = max((count for _, count in dropped), default=1)
    return CorpusView(
        str(folder),
        runs,
        facts,
        [_source(source) for source in manifest.sources],
        [(reason, count, count / most) for reason, count in dropped],
        [(name, one["documents"], one["characters"]) for name, one in statistics.get("cleaned", {}).items()],
        [*_problems(folder), *_duplicates(statistics), *_of_evaluation(statistics)],
        _charts(statistics),
        list(statistics.get("unknown_characters", {}).items()),
    )


def _source(source: dict[str, Any]) -> tuple[str, ...]:
    dropped = sum(source.get("dropped", {}).values())
    encodings = ", ".join(f"{name} {files:,}" for name, files in source.get("encodings", {}).items())
    path = f"{source['path']} ({encodings})" if encodings else source["path"]
    return (path, *(short(source[name]) if name in source else "" for name in SOURCE_COLUMNS), short(dropped))


def _duplicates(statistics: dict[str, Any]) -> list[tuple[str, str]]:
    near = statistics.get("near_duplicates") or {}
    return [
        (f"near-duplicate, similarity {one['similarity']:.2f}", f"{one['dropped']} (kept: {one['kept']})")
        for one in near.get("examples", [])[:EXAMPLES]
    ]


def _of_evaluation(statistics: dict[str, Any]) -> list[tuple[str, str]]:
    files = statistics.get("evaluation") or []
    return [(f"holds text of {file['path']}", text) for file in files for text in file["examples"][:EXAMPLES]]


def _problems(folder: Path) -> list[tuple[str, str]]:
    """The first inputs that could not be read, as preprocessing listed them."""
    found: list[tuple[str, str]] = []
    with suppress(OSError, ValueError, KeyError, TypeError), (folder / "problems.jsonl").open(encoding="utf-8") as file:
        for line in islice(file, EXAMPLES):
            problem = json.loads(line)
            found.append((f"unreadable: {problem['reason']}", f"{problem['path']}:{problem['position']}"))
    return found


def _charts(statistics: dict[str, Any]) -> list[tuple[str, Markup]]:
    charts = []
    documents = _numbers(statistics.get("document_tokens"))
    if documents:
        powers = [1 << power for power in range(min(documents).bit_length() - 1, max(documents).bit_length())]
        bars = [(_power(power), float(documents.get(power, 0))) for power in powers]
        charts.append(("documents by length", bar_chart(bars, "tokens in a document, at least")))
    words = _numbers(statistics.get("word_tokens"))
    if words:
        lengths = range(1, max(words) + 1)
        bars = [(f"{one}+" if one == LONGEST_WORD else str(one), float(words.get(one, 0))) for one in lengths]
        charts.append(("words by length", bar_chart(bars, "tokens in a word")))
    return charts


def _power(number: int) -> str:
    return str(number) if number < 1 << 10 else f"{number >> 10}Ki" if number < 1 << 20 else f"{number >> 20}Mi"


def _numbers(counts: Any) -> dict[int, int]:
    return {int(length): count for length, count in (counts or {}).items() if count}


def _count(number: Any) -> str:
    return f"{number:,}" if isinstance(number, int) else "not counted"


def _share(count: int, total: int) -> str:
    return f"{count:,} ({100 * count / total:.2f} %)" if total else "0"
