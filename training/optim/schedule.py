"""The learning rate as a pure function of the step."""

import math

from reread.training.config import ScheduleSettings


def learning_rate(step: int, settings: ScheduleSettings, peak: float, total_steps: int) -> float:
    """The rate of the update after `step` updates (0 for the first of `total_steps`).

    Warm-up over W of T steps: peak (step + 1) / W; NEZHA's code begins at 0, which wastes the first update. Then, with
    x = (T - step) / D, at most 1, for a decay in the last D steps, by default T - W: `linear` peak x, which is NEZHA's
    peak / (1 - W / T) (1 - step / T); `polynomial` peak x^power; `cosine` peak (1 + cos(pi (1 - x))) / 2; `sqrt`
    peak (1 - sqrt(1 - x)); `constant` peak.
    """
    warmup = settings.warmup_steps
    if step < warmup:
        return peak * (step + 1) / warmup
    decay_steps = settings.decay_steps or max(total_steps - warmup, 1)
    left = min(max(total_steps - step, 0) / decay_steps, 1.0)
    match settings.decay:
        case "constant":
            return peak
        case "linear":
            return peak * left
        case "polynomial":
            return peak * left**settings.power
        case "cosine":
            return peak * (1 + math.cos(math.pi * (1 - left))) / 2
        case "sqrt":
            return peak * (1 - math.sqrt(1 - left))
