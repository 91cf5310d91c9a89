"""What torch allocates on a CPU."""

import gc
from collections.abc import Callable
from itertools import accumulate

import torch
from torch.profiler import ProfilerActivity, profile


def allocated(step: Callable[[], None]) -> int:
    """The most bytes that the second run of `step` holds at once, beside what was there, on one thread: kernels take
    working memory for each."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        step()
        gc.collect()
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as watched:
            step()
    finally:
        torch.set_num_threads(threads)
    events = watched.profiler.kineto_results.events()
    return int(max(accumulate(event.nbytes() for event in events if event.name() == "[memory]")))
