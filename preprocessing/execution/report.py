"""The report of a corpus, made from its manifest: `report.md` and two histograms."""

from pathlib import Path
from typing import Any

from preprocessing.corpus import Manifest
from preprocessing.files import write_atomically
from preprocessing.tokens.encode import LONGEST_WORD

WORDS_IMAGE, DOCUMENTS_IMAGE = "word-lengths.png", "document-lengths.png"


def write_report(folder: Path, manifest: Manifest) -> None:
    statistics = manifest.statistics
    words = {int(length): count for length, count in statistics["word_tokens"].items()}
    documents = {int(length): count for length, count in statistics["document_tokens"].items()}
    bars = {str(length): words.get(length, 0) for length in range(1, max(words) + 1)}
    if LONGEST_WORD in words:
        bars[f"{LONGEST_WORD} or more"] = bars.pop(str(LONGEST_WORD))
    _histogram(folder / WORDS_IMAGE, bars, "tokens in a word", "words")
    bars = {f"{length:,}": documents.get(length, 0) for length in _powers(min(documents), max(documents))}
    _histogram(folder / DOCUMENTS_IMAGE, bars, "tokens in a document, at least", "documents")
    write_atomically(folder / "report.md", _markdown(manifest).encode())


def _markdown(manifest: Manifest) -> str:
    statistics = manifest.statistics
    tokens, han = statistics["tokens"], statistics["han_tokens"]
    totals = [
        ("documents read", f"{statistics['documents_read']:,}"),
        ("documents kept", f"{statistics['documents']:,}"),
        ("of them held out", f"{statistics['validation_documents']:,}"),
        ("characters", f"{statistics['characters']:,}"),
        ("tokens", f"{tokens:,}"),
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
    return "\n".join(
        [
            "# Corpus\n",
            f"Tokenizer: {manifest.tokenizer['type']}, {manifest.tokenizer['vocab_size']:,} tokens. "
            f"Words: {statistics['word_boundaries']}. Fingerprint: `{manifest.fingerprint}`.\n",
            _table(("", "count"), totals),
            "## Dropped\n",
            _table(("reason", "count"), dropped),
            "## Sources\n",
            _table(("path", "files", "bytes", "documents read", "kept", "characters", "tokens", "dropped"), sources),
            *(_encodings(source) for source in manifest.sources if "encodings" in source),
            "## Lengths\n",
            f"![Words by their length in tokens]({WORDS_IMAGE})\n",
            f"![Documents by their length in tokens]({DOCUMENTS_IMAGE})\n",
        ]
    )


def _encodings(source: dict[str, Any]) -> str:
    counts = ", ".join(f"{name} {files:,}" for name, files in source["encodings"].items())
    return f"Encodings of the files of {source['path']}: {counts}.\n"


def _share(count: int, total: int) -> str:
    return f"{count:,} ({100 * count / total:.2f} %)" if total else "0"


def _table(head: tuple[str, ...], rows: list[Any]) -> str:
    lines = [head, ("---",) + ("---:",) * (len(head) - 1), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines) + "\n"


def _powers(low: int, high: int) -> list[int]:
    return [1 << power for power in range(low.bit_length() - 1, high.bit_length())]


def _histogram(path: Path, bars: dict[str, int], label: str, counted: str) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4))
    figure.subplots_adjust(left=0.12, right=0.98, bottom=0.24, top=0.93)
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    drawn = axes.bar(range(len(bars)), list(bars.values()), color="#3b6ea5")
    axes.set_xticks(range(len(bars)), list(bars), rotation=30, ha="right")
    axes.set_xlabel(label)
    axes.set_ylabel(counted)
    axes.bar_label(drawn, fmt=lambda value: f"{value:,.0f}", fontsize=7)
    figure.savefig(path, dpi=120, metadata={"Software": None})
