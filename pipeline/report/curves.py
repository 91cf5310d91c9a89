"""The charts of losses, training, speed and time, and the table of attempts."""

from collections.abc import Sequence
from datetime import datetime, timezone
from math import isfinite, nan
from typing import Any, NamedTuple

from markupsafe import Markup

from pipeline.report.charts import Line, Marks, line_chart, short
from pipeline.report.runs import HELD_OUT, Run

TITLES = {
    "masked_lm_loss": "masked-token loss, nats",
    "masked_lm_accuracy": "masked-token accuracy",
    "loss": "loss, nats",
    "mfu": "MFU, %",
    "data_wait_share": "time spent waiting for data, %",
    "tokens_per_second": "tokens per second",
    "seconds_per_step": "seconds per step",
    "total_tokens": "tokens read",
}
"""Titles of figures whose name with blanks is not enough."""
PERCENT = {"mfu", "data_wait_share"}
EXACT = {"learning_rate", "loss_scale", "skipped_steps"}
"""Figures that are not noisy."""
LOGARITHMIC = {"gradient_norm", "loss_scale"}
UNITS = (("days", 86400.0), ("hours", 3600.0), ("minutes", 60.0), ("seconds", 1.0))
SPEED = ("tokens_per_second", "mfu", "data_wait_share", "seconds_per_step")


class Chart(NamedTuple):
    title: str
    drawing: Markup
    last: list[tuple[int, str]]
    """For each run its number and its last values."""


def title_of(name: str) -> str:
    return TITLES.get(name, name.replace("_", " "))


def loss_charts(runs: Sequence[Run]) -> list[Chart]:
    """A chart for each figure, that by which runs are compared first; bits per token are the same curve again."""
    names = dict.fromkeys([run.headline for run in runs])
    names |= dict.fromkeys(name for run in runs for name in run.figures)
    if "masked_lm_loss" in names:
        names = {name: None for name in names if name not in ("loss", "bits_per_token")}
    quality = [name for name in names if not name.endswith("_rows")]
    return [_chart(runs, name) for name in sorted(quality, key=lambda name: _rank(name, runs[0].headline))]


def _rank(name: str, headline: str) -> int:
    return 0 if name == headline else 1 if name.endswith("loss") else 2


def training_charts(runs: Sequence[Run]) -> list[Chart]:
    """Learning rate and gradient norm; the loss scale and skipped steps where there are any."""
    names = ["learning_rate", "gradient_norm"]
    for name, usual in (("loss_scale", 1.0), ("skipped_steps", 0.0)):
        if any(value != usual for run in runs for value in run.points(name)[1]):
            names.append(name)
    return _known(runs, names)


def speed_charts(runs: Sequence[Run]) -> list[Chart]:
    rows = [name for run in runs for name in run.figures if name.endswith("_rows")]
    return _known(runs, [*SPEED, *dict.fromkeys(rows)])


def _known(runs: Sequence[Run], names: Sequence[str]) -> list[Chart]:
    return [_chart(runs, name) for name in names if any(run.points(name)[0] for run in runs)]


def _chart(runs: Sequence[Run], name: str) -> Chart:
    lines, last = [], []
    factor = 100.0 if name in PERCENT else 1.0
    for run in runs:
        ends = []
        for key, held_out in ((name, False), (f"{HELD_OUT}{name}", True)):
            x, y = run.points(key)
            if x and not (held_out and name.endswith("_rows")):
                colour = 1 if held_out and len(runs) == 1 else run.number
                lines.append(Line(colour, x, [factor * value for value in y], held_out, name not in EXACT))
                ends.append(f"{'held out ' if held_out else ''}{short(factor * y[-1])}")
        if ends:
            last.append((run.number, ", ".join(ends)))
    values = [value for line in lines for value in line.y]
    wide = min(values) > 0 and max(values) > 50 * min(values)
    log = wide and (name in LOGARITHMIC or "perplexity" in name)
    return Chart(title_of(name), line_chart(lines, log=log), last)


def time_chart(runs: Sequence[Run]) -> Chart | None:
    """Steps over the time since each run began, with its attempts and faults; None if no run kept the times."""
    timed = [run for run in runs if run.attempts]
    if not timed:
        return None
    courses = [_course(run) for run in timed]
    longest = max(times[-1] - run.attempts[0].began for run, (times, _) in zip(timed, courses, strict=True))
    unit, seconds = next(one for one in UNITS if longest >= 2 * one[1] or one[1] == 1)
    lines, marks, last = [], [], []
    for run, (times, steps) in zip(timed, courses, strict=True):
        first = run.attempts[0].began
        lines.append(Line(run.number, [(moment - first) / seconds for moment in times], steps))
        ended = [(attempt.ended, attempt.last_step) for attempt in run.attempts if attempt.failed]
        faults = [((moment - first) / seconds, float(step or 0)) for moment, step in ended if moment is not None]
        marks.append(Marks([(attempt.began - first) / seconds for attempt in run.attempts[1:]], faults))
        counts = [(len(run.attempts), "attempt"), (len(faults), "fault")]
        last.append((run.number, ", ".join(f"{count} {word}{'s' * (count != 1)}" for count, word in counts)))
    return Chart("steps over time", line_chart(lines, x_label=f"{unit} since the run began", marks=marks), last)


def _course(run: Run) -> tuple[list[float], list[float]]:
    """Times and steps of an attempt after the other, a gap before each."""
    times, steps = [], []
    logged = list(zip(*run.points("step", over="time"), strict=True))
    for number, attempt in enumerate(run.attempts):
        after = run.attempts[number + 1].began if number + 1 < len(run.attempts) else float("inf")
        inside = [(moment, step) for moment, step in logged if attempt.began <= moment < after]
        if attempt.ended is not None and attempt.last_step is not None and isfinite(attempt.ended):
            inside.append((attempt.ended, float(attempt.last_step)))
        course = [(attempt.began, nan), (attempt.began, float(attempt.first_step)), *sorted(inside)]
        times += [moment for moment, _ in course]
        steps += [step for _, step in course]
    return times, steps


def attempt_rows(run: Run) -> list[dict[str, Any]]:
    """The attempts at a run for a table."""
    return [
        {
            "began": datetime.fromtimestamp(one.began, timezone.utc).strftime("%Y-%m-%d %H:%M"),
            "time": duration(one.ended - one.began) if one.ended is not None else "",
            "processes": one.processes,
            "steps": f"{one.first_step:,} to {one.last_step:,}" if one.last_step is not None else one.first_step,
            "how": one.how,
            "failed": one.failed,
        }
        for one in run.attempts
    ]


def duration(seconds: float) -> str:
    """`3:05:20`, hours, minutes and seconds."""
    whole = round(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"
