"""The table of the figures that the log of every run has: the chart of each, and how it is drawn.

All other names in a run's log are figures of its objective (`Objective.summary`) and are drawn among the losses.
"""

from typing import Literal, NamedTuple


class Figure(NamedTuple):
    """A figure of the log that no objective computes."""

    chart: Literal["training", "speed", "none"]
    """The charts among which it is drawn; `none`: it is not drawn."""
    title: str = ""
    """Title of the chart; empty: the figure's name with blanks."""
    factor: float = 1.0
    """Factor from the logged value to the drawn one."""
    noisy: bool = True
    """Whether a moving average is drawn over the values."""
    logarithmic: bool = False
    """Whether the axis is logarithmic if the values differ by more than a factor of 50."""
    usual: float | None = None
    """The chart is left out if every run has this value at all steps."""


FIGURES = {
    "step": Figure("none"),
    "time": Figure("none"),
    "learning_rate": Figure("training", noisy=False),
    "gradient_norm": Figure("training", logarithmic=True),
    "loss_scale": Figure("training", noisy=False, logarithmic=True, usual=1.0),
    "skipped_steps": Figure("training", noisy=False, usual=0.0),
    "tokens_per_second": Figure("speed"),
    "mfu": Figure("speed", "MFU, %", 100.0),
    "data_wait_share": Figure("speed", "time spent waiting for data, %", 100.0),
    "seconds_per_step": Figure("speed"),
    "tokens": Figure("none"),
    "total_tokens": Figure("none", "tokens read"),
    "seconds_left": Figure("none"),
}
"""Name in metrics.jsonl -> how it is drawn, in the order of the charts."""
TITLES = {
    "masked_lm_loss": "masked-token loss, nats",
    "masked_lm_accuracy": "masked-token accuracy",
    "loss": "loss, nats",
}
"""Titles of figures of objectives whose name with blanks does not say enough."""


def title_of(name: str) -> str:
    """The title of a figure's chart, and its name in tables."""
    listed = FIGURES[name].title if name in FIGURES else TITLES.get(name, "")
    return listed or name.replace("_", " ")
