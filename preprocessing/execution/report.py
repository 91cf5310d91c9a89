"""`report.md`, the report of a corpus, made from its manifest."""

from pathlib import Path
from typing import Any

from reread.preprocessing.corpus import Manifest
from reread.preprocessing.files import write_atomically
from reread.preprocessing.tokens.encode import LONGEST_WORD

LONGEST_BAR = 40


def write_report(folder: Path, manifest: Manifest) -> None:
    write_atomically(folder / "report.md", _markdown(manifest).encode())


def _by_length(counts: dict[str, int]) -> list[tuple[int, int]]:
    """(length, count) of the lengths that occur, in increasing order; `counts` has strings as keys, since JSON does."""
    return sorted((int(length), count) for length, count in counts.items() if count)


def _markdown(manifest: Manifest) -> str:
    # The rows of the tables
    statistics = manifest.statistics
    tokens, han = statistics["tokens"], statistics["han_tokens"]
    words = {
        f"{length} or more" if length == LONGEST_WORD else f"{length}": count
        for length, count in _by_length(statistics["word_tokens"])
    }
    documents = {
        f"{length:,} to {2 * length - 1:,}" if length > 1 else "1": count
        for length, count in _by_length(statistics["document_tokens"])
    }
    totals = [
        ("documents read", f"{statistics['documents_read']:,}"),
        ("documents kept", f"{statistics['documents']:,}"),
        ("of them held out", f"{statistics['validation_documents']:,}"),
        ("characters", f"{statistics['characters']:,}"),
        ("tokens", f"{tokens:,}"),
        ("tokens a character", f"{tokens / max(1, statistics['characters']):.3f}"),
        ("of them held out", _share(statistics["validation_tokens"], tokens)),
        ("words", f"{statistics['words']:,}"),
        ("Han tokens in words of several characters", _share(statistics["han_tokens_in_multi_character_words"], han)),
        ("Han tokens in words of several tokens", _share(statistics["han_tokens_in_multi_token_words"], han)),
        ("tokens in words of several tokens", _share(statistics["tokens_in_multi_token_words"], tokens)),
        ("tokens that begin with a Han character", _share(han, tokens)),
        ("unknown tokens", _share(statistics["unknown_tokens"], tokens)),
        ("most frequent unknown characters", " ".join(list(statistics["unknown_characters"])[:10])),
    ]
    dropped = [(reason, f"{count:,}") for reason, count in manifest.dropped.items()] or [("nothing", "0")]
    columns = ("files", "bytes", "documents_read", "documents", "characters", "tokens")
    sources = [
        (source["path"], *(f"{source[column]:,}" for column in columns), f"{sum(source['dropped'].values()):,}")
        for source in manifest.sources
    ]
    # The page
    return "\n".join(
        [
            "# Corpus\n",
            f"Tokenizer: {manifest.tokenizer['type']}, {manifest.tokenizer['vocab_size']:,} tokens. "
            f"Words: {statistics['word_boundaries']}. Fingerprint: `{manifest.fingerprint}`.\n",
            _table(("", "count"), totals),
            "## Dropped\n",
            _table(("reason", "count"), dropped),
            *_cleaned(statistics["cleaned"]),
            *_near_duplicates(statistics.get("near_duplicates")),
            *_evaluation(statistics.get("evaluation", [])),
            "## Sources\n",
            _table(("path", "files", "bytes", "documents read", "kept", "characters", "tokens", "dropped"), sources),
            *(_encodings(source) for source in manifest.sources if "encodings" in source),
            "## Lengths\n",
            _table(("tokens in a word", "words", ""), _with_bars(words)),
            _table(("tokens in a document", "documents", ""), _with_bars(documents)),
        ]
    )


def _cleaned(options: dict[str, dict[str, int]]) -> list[str]:
    rows = [(f"`{name}`", f"{one['documents']:,}", f"{one['characters']:,}") for name, one in options.items()]
    return ["## Cleaned\n", _table(("option of `clean`", "documents", "characters"), rows)] if rows else []


def _near_duplicates(found: dict[str, Any] | None) -> list[str]:
    if found is None:
        return []
    sizes = [(f"{size:,} to {2 * size - 1:,}", f"{count:,}") for size, count in _by_length(found["sizes"])]
    examples = [(f"{one['similarity']:.2f}", _cell(one["kept"]), _cell(one["dropped"])) for one in found["examples"]]
    clusters = sum(found["sizes"].values())
    return [
        "## Near-duplicates\n",
        f"{found['dropped']:,} documents are dropped; one stays of each of {clusters:,} clusters. "
        f"{found['dropped_near_held_out']:,} of those dropped were training documents near a held-out one.\n",
        *([_table(("documents in a cluster", "clusters"), sizes)] if sizes else []),
        *([_table(("similarity", "kept", "dropped"), examples)] if examples else []),
    ]


def _evaluation(files: list[dict[str, Any]]) -> list[str]:
    rows = [
        (
            file["path"],
            *(f"{file[name]:,}" for name in ("texts", "short", "dropped")),
            _cell(" / ".join(file["examples"])),
        )
        for file in files
    ]
    head = ("file", "texts", "too short to be found", "training documents dropped", "examples")
    return ["## Evaluation sets\n", _table(head, rows)] if rows else []


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _encodings(source: dict[str, Any]) -> str:
    counts = ", ".join(f"{name} {files:,}" for name, files in source["encodings"].items())
    return f"Encodings of the files of {source['path']}: {counts}.\n"


def _share(count: int, total: int) -> str:
    return f"{count:,} ({100 * count / total:.2f} %)" if total else "0"


def _table(head: tuple[str, ...], rows: list[Any]) -> str:
    lines = [head, ("---", *("---:" if name else "---" for name in head[1:])), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines) + "\n"


def _with_bars(counts: dict[str, int]) -> list[tuple[str, str, str]]:
    """(name, count, bar) for each name; the bar's length is proportional to the count."""
    scale = LONGEST_BAR / max(counts.values(), default=1)
    return [(name, f"{count:,}", "█" * max(1, round(scale * count))) for name, count in counts.items()]
