"""The table of claims and a picture of each experiment, made from results."""

import json
from pathlib import Path
from typing import Any

from benchmarks.claims.experiment import Claim, Condition, Experiment, Figures, signs
from benchmarks.claims.order import ORDER
from benchmarks.claims.positions import POSITIONS, TYPES
from benchmarks.claims.recurrence import HYBRID, REACH, SKIM
from benchmarks.claims.review import PARTS, REVIEW, WINDOWS
from benchmarks.claims.text import TEXT
from benchmarks.claims.words import WHOLE_WORDS
from benchmarks.harness import put_between

EXPERIMENTS = (REACH, SKIM, ORDER, POSITIONS, WHOLE_WORDS, REVIEW, TEXT, TYPES, PARTS, WINDOWS, HYBRID)
ROOT = Path(__file__).resolve().parents[2]
PAGE, PICTURES = ROOT / "docs" / "claims.md", ROOT / "docs" / "images" / "claims"
RESULTS = Path(__file__).with_name("results.jsonl")
BEGIN, END = "<!-- claims: made by `python benchmarks/claims/run.py --publish` -->\n", "<!-- /claims -->"
Results = list[dict[str, Any]]
ROWS_OF_A_PICTURE = 2


def by_seed(experiment: Experiment, results: Results) -> dict[int, dict[str, Figures]]:
    """Seed -> side -> figures, of the seeds with which every side was run."""
    found: dict[int, dict[str, Figures]] = {}
    for one in results:
        if one["experiment"] == experiment.name:
            found.setdefault(one["seed"], {})[one["side"]] = one["figures"]
    return {seed: sides for seed, sides in sorted(found.items()) if sides.keys() == experiment.sides.keys()}


def verdict(claim: Claim, seeds: dict[int, dict[str, Figures]]) -> str:
    decided = [signs([condition.margin(figures) for figures in seeds.values()]) for condition in claim.conditions]
    return "does not hold" if -1 in decided else "undecided" if 0 in decided else "holds"


def found(condition: Condition, seeds: dict[int, dict[str, Figures]]) -> str:
    """A condition, in how many seeds it is met, and its values: mean, least and greatest."""
    values = [condition.value(figures) for figures in seeds.values()]
    met = sum(condition.margin(figures) > 0 for figures in seeds.values())
    spread = f"{sum(values) / len(values):.2f} ({min(values):.2f} to {max(values):.2f})" if values else "-"
    return f"{condition}: {met} of {len(values)}; {spread}"


def table(results: Results) -> str:
    lines = [
        "| claim | paper | experiment | seeds | prediction: met in, mean (range) | verdict |",
        "|---|---|---|---:|---|---|",
    ]
    for experiment in EXPERIMENTS:
        seeds = by_seed(experiment, results)
        if not seeds and not experiment.by_default:
            continue
        for claim in experiment.claims:
            conditions = "<br>".join(found(condition, seeds) for condition in claim.conditions)
            cells = (claim.text, claim.paper, f"[{experiment.name}](#{experiment.name})", len(seeds), conditions)
            lines.append(f"| {' | '.join(map(str, cells))} | **{verdict(claim, seeds)}** |")
    return "\n".join(lines) + "\n"


def page(results: Results) -> str:
    """What stands between the markers of docs/claims.md: the table, then each experiment with its figures."""
    by_default = {one.name for one in EXPERIMENTS if one.by_default}
    base = sum(one["cpu_seconds"] for one in results if one["experiment"] in by_default)
    more = sum(one["cpu_seconds"] for one in results) - base
    names = ", ".join(f"`{one.name}`" for one in EXPERIMENTS if not one.by_default)
    texts = sorted({one["text"] for one in results if one["text"]})
    spent = f"{base / 60:.1f} CPU minutes, and {more / 60:.1f} for what only `--only` runs ({names})."
    parts = [table(results), f"{spent} Natural text: {', '.join(texts) or 'none'}.\n"]
    for experiment in EXPERIMENTS:
        if by_seed(experiment, results):
            parts.append(f"### {experiment.name}\n\n{experiment.about}.\n\n{picture_or_figures(experiment, results)}")
    return "\n".join(parts)


def picture_or_figures(experiment: Experiment, results: Results) -> str:
    """The link to the picture of an experiment with several points; of one with a single point, its figures."""
    seeds = by_seed(experiment, results)
    if len(experiment.points) > ROWS_OF_A_PICTURE:
        return f"![{experiment.name}](images/claims/{experiment.name}.svg)\n"
    label = next(iter(experiment.points))
    lines = [f"| | {label} |", "|---|---|"]
    for side in experiment.sides:
        lines.append(f"| {side} | {', '.join(f'{figures[side][label]:.3f}' for figures in seeds.values())} |")
    return "\n".join(lines) + "\n"


def draw(experiment: Experiment, results: Results, path: Path) -> None:
    """A line for each side: the mean of its figure at each point, and the range over seeds."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    seeds, labels = by_seed(experiment, results), [label for label in experiment.points if label != "any distance"]
    pyplot.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": experiment.name, "font.size": 9})
    figure, axes = pyplot.subplots(figsize=(5.6, 2.8), layout="constrained")
    for number, side in enumerate(experiment.sides):
        values = [[figures[side][label] for figures in seeds.values()] for label in labels]
        means = [sum(one) / len(one) for one in values]
        axes.plot(labels, means, "osD^vP"[number % 6] + "-", label=side, markersize=4)
        axes.fill_between(labels, [min(one) for one in values], [max(one) for one in values], alpha=0.2)
    axes.set_xlabel(experiment.axis)
    axes.set_ylabel("loss" if experiment.points[labels[0]].startswith("loss") else "accuracy")
    axes.legend(fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
    path.write_text("\n".join(line.rstrip() for line in path.read_text().splitlines()) + "\n")


def publish(results: Results) -> None:
    """Write the page, the pictures and the results that they are made from."""
    RESULTS.write_text("".join(json.dumps(one) + "\n" for one in results))
    for experiment in EXPERIMENTS:
        if by_seed(experiment, results) and len(experiment.points) > ROWS_OF_A_PICTURE:
            draw(experiment, results, PICTURES / f"{experiment.name}.svg")
    put_between(PAGE, BEGIN, END, page(results))
