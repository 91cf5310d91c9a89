"""Tables of a report: the runs, how their recipes differ, and the scores of evaluation and fine-tuning."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from reread.pipeline.display.grid import is_chosen, read_grid
from reread.pipeline.display.scores import means, read_scores, repeats_of
from reread.pipeline.recipe.values import read_values
from reread.pipeline.report.curves import duration
from reread.pipeline.report.drawing import short
from reread.pipeline.report.figures import title_of
from reread.pipeline.report.runs import HELD_OUT, Run
from reread.preprocessing.errors import UserError
from reread.training.run.files import RunFile
from reread.training.scoring.task_scores import formatted


class Scores(NamedTuple):
    """A row of a table of scores."""

    name: str
    detail: str
    scores: dict[str, str]


def summary(run: Run) -> list[tuple[str, str]]:
    """The first row of facts about a run."""
    train = run.train
    chosen = train.best_by or run.headline
    last, held_out = run.last(run.headline), run.last(f"{HELD_OUT}{chosen}")
    facts = [
        ("model", str(train.model.get("type", "as its init"))),
        ("data", train.data.kind),
        ("steps", f"{run.steps:,} of {train.steps:,}"),
        ("tokens read", short(run.tokens) if run.tokens is not None else ""),
        ("time", duration(run.seconds) if run.attempts else ""),
        (title_of(run.headline).removesuffix(", nats"), short(last) if last is not None else ""),
        (
            "held out" if chosen == run.headline else f"{chosen}, held out",
            short(held_out) if held_out is not None else "",
        ),
        ("state", run.state),
    ]
    return [(name, value) for name, value in facts if value]


def recipe_differences(runs: Sequence[Run]) -> list[tuple[str, list[str]]]:
    """Settings that differ between the runs, with the value of each; "" where a run has no such setting."""
    settings = [_leaves(run.settings) for run in runs]
    keys = [key for key in dict.fromkeys(key for one in settings for key in one) if key not in ("name", "description")]
    rows = [(key, [one.get(key, "") for one in settings]) for key in keys]
    return [(key, values) for key, values in rows if len(set(values)) > 1]


def _leaves(values: Any, path: str = "") -> dict[str, str]:
    if isinstance(values, dict):
        inner = [_leaves(value, f"{path}.{key}" if path else key) for key, value in values.items()]
        return {key: value for one in inner for key, value in one.items()}
    return {path: json.dumps(values, ensure_ascii=False)}


def evaluations(runs: Sequence[Run]) -> list[Scores]:
    """The results of `reread evaluate` in the run folders."""
    return [
        Scores(
            f"{run.name}, step {one['step']:,}",
            " ".join([one["held_out"], *one["overrides"]]),
            {
                title_of(name).removesuffix(", nats"): f"{one['figures'][name]:.4f}"
                for name in _distinct(one["figures"])
            },
        )
        for run in runs
        for one in run.evaluations
    ]


def _distinct(figures: dict[str, float]) -> list[str]:
    """The names of figures without `loss` where it is that of masked tokens."""
    return [name for name in figures if name != "loss" or "masked_lm_loss" not in figures]


def finetunings(runs: Sequence[Run]) -> list[Scores]:
    """Scores of fine-tunings: of these runs, and of the runs beside them that started from their exports."""
    folders = [run.folder.resolve() for run in runs]
    rows = []
    for parent in dict.fromkeys(folder.parent for folder in folders):
        for name in dict.fromkeys(
            re.sub(r"(-fold\d+)?(-point\d+)?(-seed\d+)?$", "", path.parent.name)
            for path in sorted(parent.glob(f"*/{RunFile.SCORES.path}"))
        ):
            children, splits = read_scores(parent, name)
            started = _start(children[0]) if children else None
            if started in folders or any(child in folders for child in children):
                rows += [_row(name, split, seeds, started, children) for split, seeds in splits.items()]
                rows += _points(parent, name)
    return rows


def _points(parent: Path, name: str) -> list[Scores]:
    """The points of the grid of a fine-tuning, or of its folds' grids, with their scores on dev."""
    found = []
    for path in sorted(parent.glob(f"{name}*-grid.json")):
        fold = path.name.removesuffix("-grid.json")
        if re.fullmatch(rf"{re.escape(name)}(-fold\d+)?", fold):
            grid = read_grid(parent, fold)
            for point in grid.points:
                chosen = ", chosen" if is_chosen(grid, point) else ""
                shown = {score: formatted(score, value) for score, value in point.scores.items()}
                found.append(Scores(f"{point.run} (grid, dev)", f"{' '.join(point.settings)}{chosen}", shown))
    return found


def _start(child: Path) -> Path | None:
    """The folder of the run whose export `child` started from."""
    try:
        recipe = RunFile.RECIPE.of(child)
        init = Path(read_values(recipe.read_text(encoding="utf-8"), str(recipe))["train"]["init"])
    except (OSError, UserError, UnicodeDecodeError, KeyError, TypeError):
        return None
    locations = [init, child.parents[1] / init]  # as stated there: relative to where the command was started
    found = next((location for location in locations if location.exists()), init).resolve()
    return found.parent if found.name == RunFile.EXPORT.path else found


def _row(
    name: str, split: str, measured: list[dict[str, float]], started: Path | None, children: Sequence[Path]
) -> Scores:
    seeds = repeats_of(children)
    name = name if split == "dev" else f"{name} ({split})"
    return Scores(name, f"{seeds}, from {started.name}" if started else seeds, means(measured))
