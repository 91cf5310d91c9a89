"""The table of claims judged by fine-tuning, made from results."""

import json
from pathlib import Path

from benchmarks.claims.table import PAGE, Results
from benchmarks.claims.tuned_experiment import Tuned, difference
from benchmarks.claims.tuned_far import FAR
from benchmarks.claims.tuned_long import LONG
from benchmarks.claims.tuned_table1 import TABLE1
from benchmarks.claims.tuned_table5 import TABLE5
from benchmarks.harness import put_between

TUNED: tuple[Tuned, ...] = (FAR, TABLE5, TABLE1, LONG)
RESULTS = Path(__file__).with_name("tuned_results.jsonl")
BEGIN, END = "<!-- tuned: made by `python benchmarks/claims/tuned.py --publish` -->\n", "<!-- /tuned -->"
Figures = dict[tuple[str, str], dict[int, list[float]]]


def by_row(experiment: Tuned, results: Results) -> Figures:
    """(row, task) -> seed -> scores of the blocks of the test texts."""
    found: Figures = {}
    for one in results:
        if one["experiment"] == experiment.name:
            found.setdefault((one["row"], one["task"]), {})[one["seed"]] = one["scores"]
    return found


def table(results: Results) -> str:
    lines = ["| claim | paper | by | better − worse: points | verdict |", "|---|---|---|---|---|"]
    for experiment in TUNED:
        figures = by_row(experiment, results)
        for claim in experiment.claims if figures else ():
            found = difference(claim, figures)
            by = f"[{experiment.name}](#{experiment.name}), {claim.task}"
            rows = f"{claim.better} − {claim.worse}: {found or '-'}"
            lines.append(
                f"| {claim.text} | {claim.paper} | {by} | {rows} | **{found.verdict if found else 'undecided'}** |"
            )
    return "\n".join(lines) + "\n"


def scores(experiment: Tuned, results: Results) -> str:
    """Each row's scores with each seed."""
    figures = by_row(experiment, results)
    lines = [f"| | {' | '.join(experiment.tasks)} |", "|---|" + "---:|" * len(experiment.tasks)]
    for row in experiment.rows:
        cells = [figures.get((row.name, task), {}) for task in experiment.tasks]
        shown = [", ".join(f"{sum(one[seed]) / len(one[seed]):.1f}" for seed in sorted(one)) or "-" for one in cells]
        lines.append(f"| {row.name} | {' | '.join(shown)} |")
    return "\n".join(lines) + "\n"


def page(results: Results) -> str:
    """What stands between the markers of docs/claims.md."""
    seconds = sum(one["cpu_seconds"] for one in results)
    parts = [table(results), f"{seconds / 60:.1f} CPU minutes.\n"]
    for experiment in TUNED:
        if by_row(experiment, results):
            parts.append(f"### {experiment.name}\n\n{experiment.about}.\n\n{scores(experiment, results)}")
    return "\n".join(parts)


def publish(results: Results) -> None:
    """Write the page, and the results that it is made from."""
    RESULTS.write_text("".join(json.dumps(one) + "\n" for one in results))
    put_between(PAGE, BEGIN, END, page(results))
