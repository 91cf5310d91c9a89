"""Charts of a report: matplotlib's SVG, whose colours are variables of the page's style sheet.

A chart is as wide as a phone, so that its text is never made smaller; on a wide screen several stand side by side.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from io import StringIO
from itertools import count
from typing import Any

import numpy as np
from markupsafe import Markup

from reread.pipeline.report.points import Points

MOST_POINTS = 240
"""Most points of a line. A longer one is drawn as the means of equal stretches, within the range of their values."""
SMOOTHED = 45
"""The fewest points of a line that is drawn with a moving average."""
COLOURS = 8
"""Number of colours of runs in the style sheet; further runs use them again."""
_INK, _LINE, _GRID, _BAD = "#0a0b01", "#0a0b02", "#0a0b03", "#0a0b04"
_RUN = "#0a0c{:02x}"
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "font.size": 10.5,
    "text.color": _INK,
    "axes.edgecolor": _LINE,
    "axes.facecolor": "none",
    "axes.labelcolor": _INK,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": _GRID,
    "grid.linewidth": 0.8,
    "xtick.color": _LINE,
    "ytick.color": _LINE,
    "xtick.labelcolor": _INK,
    "ytick.labelcolor": _INK,
    "lines.solid_capstyle": "round",
}


@dataclass
class Line:
    """A curve of one run."""

    colour: int
    points: Points
    held_out: bool = False
    smooth: bool = False
    """Whether the values are drawn pale below their moving average."""


@dataclass
class Marks:
    """Moments on the time axis of one run."""

    starts: list[float] = field(default_factory=list)
    faults: list[tuple[float, float]] = field(default_factory=list)
    """(x, y)"""


def line_chart(lines: Sequence[Line], x_label: str = "step", log: bool = False, marks: Sequence[Marks] = ()) -> Markup:
    """Curves over `x_label`: thin for training, with dots for held-out text; faults are crosses."""

    def draw(axes: Any) -> None:
        for line in lines:
            _draw_line(axes, line)
        for one in marks:
            _draw_moments(axes, one.starts, _LINE, ":")
            _draw_moments(axes, [x for x, _ in one.faults], _BAD, "--")
            axes.plot(*zip(*one.faults, strict=True), color=_BAD, linestyle="", marker="x", markersize=8, mew=2)
        if log:
            axes.set_yscale("log")
        axes.set_xlabel(x_label)
        axes.yaxis.set_major_formatter(lambda value, _: short(value))
        axes.yaxis.set_minor_formatter(lambda value, _: "")
        axes.xaxis.set_major_formatter(lambda value, _: short(value))
        axes.margins(x=0.02)

    return _drawn(draw)


def bar_chart(bars: Sequence[tuple[str, float]], x_label: str) -> Markup:
    """A bar for each (label, count). All labels are shown if there is room, else every second one, and so on."""

    def draw(axes: Any) -> None:
        positions = range(len(bars))
        axes.bar(positions, [value for _, value in bars], color=_RUN.format(0), width=0.8)
        step = -(-sum(len(label) + 2 for label, _ in bars) // 44)  # 44 digits fit side by side
        axes.set_xticks(positions[::step], [label for label, _ in bars][::step])
        axes.tick_params(axis="x", length=0)
        axes.grid(visible=False, axis="x")
        axes.set_xlabel(x_label)
        axes.yaxis.set_major_formatter(lambda value, _: short(value))

    return _drawn(draw)


def short(value: float) -> str:
    """`12.5k`, `3M`, `0.0001`: a number as text for an axis or a table."""
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.4g}{letter}"
    return f"{value:.4g}"


def _draw_line(axes: Any, line: Line) -> None:
    colour = _RUN.format(line.colour % COLOURS)
    x, y = line.points.x, line.points.y
    if len(x) > MOST_POINTS and not np.isnan(y).any():
        drawn = thinned(line.points)
        x, y = drawn.x, drawn.y
        axes.fill_between(x, drawn.low, drawn.high, color=colour, alpha=0.18, linewidth=0)
    if line.held_out:
        axes.plot(x, y, color=colour, linewidth=1.8, marker="o", markersize=4, linestyle=(0, (4, 2)))
    elif line.smooth and len(x) >= SMOOTHED:
        axes.plot(x, y, color=colour, linewidth=1, alpha=0.3)
        axes.plot(x, moving_average(y, len(y) // 15), color=colour, linewidth=1.6)
    else:
        axes.plot(x, y, color=colour, linewidth=1.6, marker="o" if len(x) == 1 else None, markersize=4)


def _draw_moments(axes: Any, moments: Sequence[float], colour: str, style: str) -> None:
    """Lines from bottom to top. They are one path: thousands of lines of their own take half a minute to draw."""
    x, y = np.repeat(moments, 3), np.tile([0, 1, np.nan], len(moments))
    axes.plot(x, y, transform=axes.get_xaxis_transform(), color=colour, linewidth=0.8, linestyle=style)


def moving_average(values: Any, width: int) -> Any:
    """The mean of each value and its neighbours, `width` in all; fewer at the ends."""
    window = np.ones(width)
    return np.convolve(values, window, "same") / np.convolve(np.ones(len(values)), window, "same")


def thinned(points: Points) -> Points:
    """MOST_POINTS stretches of about equal numbers of points."""
    return points.joined(np.unique(np.linspace(0, len(points.x), MOST_POINTS, endpoint=False).astype(int)))


_salts = count()


def _drawn(draw: Callable[[Any], None]) -> Markup:
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    salt = f"chart{next(_salts)}"  # ids of a chart must not be those of another on the page
    with matplotlib.rc_context({**_STYLE, "svg.hashsalt": salt}):
        figure = Figure(figsize=(5.0, 2.9), layout="constrained")
        FigureCanvasSVG(figure)
        draw(figure.add_subplot())
        written = StringIO()
        figure.savefig(written, format="svg", transparent=True, metadata={"Date": None})
    return Markup(_themed(written.getvalue()))


def _themed(svg: str) -> str:
    """The `svg` element with the colours of the page, and without the parts that only a separate file needs."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", svg, flags=re.DOTALL)
    svg = re.sub(r' id="[A-Za-z][\w.]*_\d+"', "", svg)
    svg = re.sub(r'<svg [^>]*viewBox="([^"]*)"[^>]*>', r'<svg viewBox="\1" role="img">', svg, count=1)
    svg = re.sub(r"font: ([\d.]+)px[^;\"]*", r"font-size: \1px", svg)
    names = {_INK: "ink", _LINE: "line", _GRID: "grid", _BAD: "bad"}
    names |= {_RUN.format(number): f"run-{number}" for number in range(COLOURS)}
    for colour, name in names.items():
        svg = svg.replace(colour, f"var(--{name})")
    svg = re.sub(r' (d|x|y|transform)="[^"]*"', lambda found: re.sub(r"(\d\.\d)\d+", r"\1", found[0]), svg)
    return re.sub(r"\n\s*", "\n", svg)
