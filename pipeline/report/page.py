"""`reread report`: one HTML file about one or several runs, which loads nothing from anywhere."""

import importlib.resources
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import yaml

from reread.pipeline.display.terminal import print_wide
from reread.pipeline.report import curves, tables
from reread.pipeline.report.corpus import SOURCE_COLUMNS, corpus_views
from reread.pipeline.report.figures import title_of
from reread.pipeline.report.mistakes import baseline_rows, task_views
from reread.pipeline.report.papers import as_text, paper_table
from reread.pipeline.report.runs import HELD_OUT, Run, read_run
from reread.pipeline.report.samples import Fill, fills, samples
from reread.pipeline.run_folder.folder import version_of
from reread.preprocessing.errors import UserError, escaped
from reread.preprocessing.files import write_atomically
from reread.training.run.files import RunFile


def report(folders: Sequence[Path], out: Path | None = None) -> dict[int, dict[str, Fill]]:
    """Write the page as `write_report` does, and print the last figures.

    `out` is a file, or a folder for report.html. Returns what the first run's model fills in at each checkpoint. Raises
    `UserError` for a folder that is no run's.
    """
    runs, filled = write_report(folders, out)
    print_figures(runs)
    return filled[0]


def write_report(
    folders: Sequence[Path], out: Path | None = None
) -> tuple[list[Run], list[dict[int, dict[str, Fill]]]]:
    """Write the page, by default to RUN/report.html, of several runs to report.html.

    Returns the runs, and what each one's model fills in at each checkpoint. Raises `UserError` for a folder that is no
    run's.
    """
    runs = [read_run(folder, number) for number, folder in enumerate(folders)]
    location = out or (folders[0] if len(folders) == 1 else Path())
    path = RunFile.REPORT.of(location) if location.is_dir() else location
    filled = [fills(run) for run in runs]
    page = _page(runs, filled).encode(errors="backslashreplace")  # a value may hold half of a surrogate pair
    write_atomically(path, page)
    print(escaped(f"report: {path}"))
    return runs, filled


def print_papers(runs: Sequence[Run]) -> None:
    """Print the papers' tables beside ours."""
    for run in runs:
        if table := paper_table(run):
            print_wide(as_text(table, f"{run.name} | papers"))
            print("\n".join(table.notes))


def _page(runs: Sequence[Run], filled: Sequence[dict[int, dict[str, Fill]]]) -> str:
    import jinja2

    views, without_corpus = corpus_views(runs)
    files = importlib.resources.files("reread.pipeline.report")
    loader = jinja2.FunctionLoader(lambda name: (files / name).read_text(encoding="utf-8"))
    page = jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    tasks = task_views(runs)
    return page.get_template("page.html.j2").render(
        runs=runs,
        title=" · ".join(run.name for run in runs),
        written=datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        version=version_of("reread"),
        summaries=[tables.summary(run) for run in runs],
        differences=tables.recipe_differences(runs) if len(runs) > 1 else [],
        losses=curves.loss_charts(runs),
        training=curves.training_charts(runs),
        speed=curves.speed_charts(runs),
        course=curves.time_chart(runs),
        attempts=[curves.attempt_rows(run) for run in runs],
        corpora=views,
        without_corpus=without_corpus,
        source_columns=[name.replace("_", " ") for name in SOURCE_COLUMNS],
        samples=[_samples(run) for run in runs],
        fills=[_by_example(run, one) for run, one in zip(runs, filled, strict=True)],
        evaluations=tables.evaluations(runs),
        finetunings=[*tables.finetunings(runs), *baseline_rows(tasks)],
        tasks=tasks,
        papers=[paper_table(run) for run in runs],
        recipes=[_yaml(run.settings) for run in runs],
    )


def _samples(run: Run) -> dict[str, Any]:
    try:
        return {"texts": samples(run), "missing": ""}
    except (UserError, OSError) as error:
        return {"texts": [], "missing": str(error)}


def _by_example(run: Run, filled: dict[int, dict[str, Fill]]) -> list[tuple[str, list[tuple[int, Fill]]]]:
    """Each example of the recipe with (step, words that the model fills in), the earliest checkpoint first."""
    found = [(text, [(step, one[text]) for step, one in filled.items() if text in one]) for text in run.recipe.examples]
    return [(text, at_steps) for text, at_steps in found if at_steps]


def _yaml(values: Any) -> str:
    return yaml.safe_dump(values, allow_unicode=True, sort_keys=False)


def print_figures(runs: Sequence[Run]) -> None:
    """Print the first and last figures of training, and the last ones of held-out text."""
    for run in runs:
        _print_figures(run)


def _print_figures(run: Run) -> None:
    changes, held_out = [], []
    for name in run.figures:
        points = run.points(name)
        is_loss = name.endswith("loss")
        if name == "loss" and run.headline != "loss":
            continue
        if points and (is_loss or name.endswith(("accuracy", "perplexity"))):
            ends = [
                f"{value:.3f}" + (f" at step {step:.0f}" if is_loss else "")
                for step, value in (points.first[0], points.last[-1])
            ]
            changes.append(f"{_label(name)} {' -> '.join(ends)}")
        last = run.last(f"{HELD_OUT}{name}")
        if last is not None and not name.endswith(("_rows", "bits_per_token")):
            held_out.append(f"{_label(name)} {last:.3f}")
    if changes:  # a run of no steps has held-out figures alone
        print(escaped(f"{run.folder}: {', '.join(changes)}"))
    if held_out:
        print(escaped(f"{run.folder}, held out: {', '.join(held_out)}"))


def _label(name: str) -> str:
    return title_of(name).removesuffix(", nats")
