"""The table of all results."""

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import heading, read_results, row


def table(path: Path) -> None:
    """Means of all results, with standard errors over folds and seeds, and differences from the Trainer's of the same
    repeats."""
    found: dict[tuple[str, str], dict[int, dict[str, Any]]] = {}
    for line in read_results(path):
        found.setdefault((line["part"], line["side"]), {})[line["repeat"]] = line
    heading("", "side", "folds or seeds", "loss", "accuracy", "macro-F1", "accuracy less the Trainer's", "seconds each")
    for (part, side), by_repeat in sorted(found.items()):
        lines = by_repeat.values()
        cells = [_mean([one[name] for one in lines if name in one]) for name in ("loss", "accuracy", "macro-f1")]
        rival = found.get((part, "trainer"), {}) if side != "trainer" else {}
        cells.append(_mean([one["accuracy"] - rival[n]["accuracy"] for n, one in by_repeat.items() if n in rival]))
        row(part, side, len(lines), *cells, f"{statistics.fmean(one['seconds'] for one in lines):.0f}")


def _mean(values: Sequence[float]) -> str:
    """With its standard error."""
    if not values:
        return "-"
    error = f" ± {statistics.stdev(values) / len(values) ** 0.5:.2f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.2f}{error}"
