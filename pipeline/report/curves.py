"""The charts of losses, training, speed and time, and the table of attempts."""

from bisect import bisect_left
from collections.abc import Sequence
from datetime import datetime, timezone
from math import isfinite, nan
from typing import Any, NamedTuple

from markupsafe import Markup

from reread.pipeline.report.drawing import Line, Marks, line_chart, short
from reread.pipeline.report.figures import FIGURES, Figure, title_of
from reread.pipeline.report.points import Points
from reread.pipeline.report.runs import HELD_OUT, Run

UNITS = (("days", 86400.0), ("hours", 3600.0), ("minutes", 60.0), ("seconds", 1.0))


class Chart(NamedTuple):
    title: str
    drawing: Markup
    last: list[tuple[int, str]]
    """(number of a run, its last values as text)"""


def loss_charts(runs: Sequence[Run]) -> list[Chart]:
    """A chart for each figure, first the one by which runs are compared. Bits per token would repeat the loss."""
    names = dict.fromkeys([run.headline for run in runs])
    names |= dict.fromkeys(name for run in runs for name in run.figures)
    if "masked_lm_loss" in names:
        names = {name: None for name in names if name not in ("loss", "bits_per_token")}
    quality = [name for name in names if not name.endswith("_rows")]
    return [_chart(runs, name) for name in sorted(quality, key=lambda name: _rank(name, runs[0].headline))]


def _rank(name: str, headline: str) -> int:
    return 0 if name == headline else 1 if name.endswith("loss") else 2


def training_charts(runs: Sequence[Run]) -> list[Chart]:
    """Learning rate and gradient norm; the loss scale and skipped steps if they ever differ from the usual."""
    return _known(runs, _drawn_among("training"))


def speed_charts(runs: Sequence[Run]) -> list[Chart]:
    rows = [name for run in runs for name in run.figures if name.endswith("_rows")]
    return _known(runs, [*_drawn_among("speed"), *dict.fromkeys(rows)])


def _drawn_among(chart: str) -> list[str]:
    return [name for name, figure in FIGURES.items() if figure.chart == chart]


def _known(runs: Sequence[Run], names: Sequence[str]) -> list[Chart]:
    """Charts of those figures that a run has logged and whose values are not all the usual one."""
    usual = {name: FIGURES[name].usual if name in FIGURES else None for name in names}
    drawn = [name for name in names if any(_differs(run.points(name), usual[name]) for run in runs)]
    return [_chart(runs, name) for name in drawn]


def _differs(points: Points | None, usual: float | None) -> bool:
    return points is not None and bool(((points.low != usual) | (points.high != usual)).any())


def _chart(runs: Sequence[Run], name: str) -> Chart:
    lines, last = [], []
    figure = FIGURES.get(name, Figure("none"))
    factor = figure.factor
    for run in runs:
        ends = []
        for key, held_out in ((name, False), (f"{HELD_OUT}{name}", True)):
            points = run.points(key)
            if points and not (held_out and name.endswith("_rows")):
                colour = 1 if held_out and len(runs) == 1 else run.number
                points = points.scaled(factor)
                lines.append(Line(colour, points, held_out, figure.noisy))
                ends.append(f"{'held out ' if held_out else ''}{short(points.last[-1, 1])}")
        if ends:
            last.append((run.number, ", ".join(ends)))
    low, high = min(line.points.low.min() for line in lines), max(line.points.high.max() for line in lines)
    wide = low > 0 and high > 50 * low
    log = wide and (figure.logarithmic or "perplexity" in name)
    return Chart(
        title_of(name),
        line_chart(lines, log=log, marks=[Marks(list(run.borders)) for run in runs if run.borders]),
        last,
    )


def time_chart(runs: Sequence[Run]) -> Chart | None:
    """Steps over the time since each run began, with its attempts and faults; None if no run has logged times."""
    timed = [run for run in runs if run.attempts]
    if not timed:
        return None
    courses = [_course(run) for run in timed]
    longest = max(times[-1] - run.attempts[0].began for run, (times, _) in zip(timed, courses, strict=True))
    unit, seconds = next(one for one in UNITS if longest >= 2 * one[1] or one[1] == 1)
    lines, marks, last = [], [], []
    for run, (times, steps) in zip(timed, courses, strict=True):
        first = run.attempts[0].began
        lines.append(Line(run.number, Points.of([(moment - first) / seconds for moment in times], steps)))
        ended = [(attempt.ended, attempt.last_step) for attempt in run.attempts if attempt.failed]
        faults = [((moment - first) / seconds, float(step or 0)) for moment, step in ended if moment is not None]
        marks.append(Marks([(attempt.began - first) / seconds for attempt in run.attempts[1:]], faults))
        counts = [(len(run.attempts), "attempt"), (len(faults), "fault")]
        last.append((run.number, ", ".join(f"{count} {word}{'s' * (count != 1)}" for count, word in counts)))
    return Chart("steps over time", line_chart(lines, x_label=f"{unit} since the run began", marks=marks), last)


def _course(run: Run) -> tuple[list[float], list[float]]:
    """Times and steps of all attempts of a run, with a gap before each attempt."""
    times, steps = [], []
    timed = run.points("time")
    logged = sorted((moment, step) for step, moment in timed.last.tolist()) if timed else []
    for number, attempt in enumerate(run.attempts):
        after = run.attempts[number + 1].began if number + 1 < len(run.attempts) else float("inf")
        inside = logged[bisect_left(logged, (attempt.began,)) : bisect_left(logged, (after,))]
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
