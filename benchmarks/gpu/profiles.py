"""Where a step's time on the GPU goes: kernels by kind, launches, idle time by phase, and waits of the host."""

import json
import re
import tempfile
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, record_function

KINDS = {
    "attention": "fmha|flash|sdpa|mha|attention|attn_fwd|bwd_kernel_d[kq]",
    "products": "gemm|nvjet|cutlass|cublas|xmma|splitk|^cijk_",
    "compiled": "^triton_",
    "our kernels": r"^_\w+$",  # functions of training/kernels
    "optimiser": "multi_tensor|lpnorm|foreach",
    "norms": "layer_norm|layernorm|gammabeta",
    "softmax": "softmax|nll",
    "tables": "embedding|index|gather|scatter|sort|radix",
    "copies": "copy|memcpy|memset|cat|fill",
    "dropout": "dropout",
    "sums": "reduce",
    "elementwise": "elementwise",
}
"""Patterns of kernels' names by kind, of ROCm too; the first that fits counts."""
WAITS = re.compile("(?:cuda|hip)(?:Stream|Device|Event)Synchronize")


def profiled(step: Callable[[], object], is_gpu: bool) -> dict[str, Any]:
    """Figures of one step.

    `attention`: backends that scaled_dot_product_attention chose; on a GPU also `kernels`, its kernels, backward too;
    `milliseconds` and `launches` of kernels by kind (`KINDS` and others); `idle`, milliseconds by phase in which no
    kernel ran; `waits` of the host for the GPU; `longest`, the kernels that took most, and `host`, the operations that
    kept the host busy longest, with their milliseconds.
    """
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if is_gpu else [])]
    with profile(activities=activities) as profiler, marked_backward():
        step()
        if is_gpu:
            torch.cuda.synchronize()
    events = profiler.key_averages()
    pattern = r"aten::_scaled_dot_product_(?:attention_)?(\w+?)(?:_attention)?(?:_for_cpu)?"
    names = {event.key for event in events}
    chosen = {found[1] for name in names if (found := re.fullmatch(pattern, name)) and "backward" not in name}
    if not is_gpu:
        return {"attention": sorted(chosen)}
    on_device = [event for event in events if event.device_type == DeviceType.CUDA and not event.is_user_annotation]
    taken, by_name, launches = Counter[str](), Counter[str](), Counter[str]()
    for event in on_device:
        launches[_kind(event.key)] += event.count
        taken[_kind(event.key)] += event.self_device_time_total / 1000
        by_name[_short(event.key)] += event.self_device_time_total / 1000
    on_host = Counter({event.key: event.self_cpu_time_total for event in events if event not in on_device})
    return {
        "attention": sorted(chosen),
        "kernels": sorted({_short(event.key) for event in on_device if _kind(event.key) == "attention"}),
        "milliseconds": {kind: round(time, 3) for kind, time in taken.most_common()},
        "launches": dict(launches.most_common()),
        "idle": {phase: round(time, 3) for phase, time in idle(_trace(profiler)).items()},
        "waits": sum(event.count for event in events if WAITS.fullmatch(event.key)) - 1,  # our own
        "longest": {name: round(time, 3) for name, time in by_name.most_common(40)},
        "host": {name: round(time / 1000, 3) for name, time in on_host.most_common(40)},
    }


BACKWARD = "a backward pass"


@contextmanager
def marked_backward() -> Iterator[None]:
    """Within this context a profile has each backward pass by name."""
    backward = Tensor.backward

    def marked(*given: Any, **named: Any) -> None:
        with record_function(BACKWARD):
            backward(*given, **named)

    with patch.object(Tensor, "backward", marked):
        yield


def _trace(profiler: profile) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        events: list[dict[str, Any]] = json.loads(path.read_text())["traceEvents"]
        return events


def idle(events: list[dict[str, Any]]) -> dict[str, float]:
    """Milliseconds of a step in which no kernel ran, by the phase that launched the next one: `forward`, `backward` or
    `update`, all that follows the last backward pass. `events` are those of a trace in Chrome's format."""
    timed = [one for one in events if one.get("ph") == "X"]
    launched = {
        one["args"]["correlation"]: one["ts"]
        for one in timed
        if one.get("cat") in ("cuda_runtime", "cuda_driver") and "correlation" in one.get("args", {})
    }
    passes = sorted(
        (one["ts"], one["ts"] + one["dur"])
        for one in timed
        if one["name"] == BACKWARD and one.get("cat") == "user_annotation"
    )
    begins = [begin for begin, _ in passes]

    def phase(kernel: dict[str, Any]) -> str:
        at = launched.get(kernel["args"].get("correlation"), kernel["ts"])
        found = bisect_right(begins, at)
        if found and at <= passes[found - 1][1]:
            return "backward"
        return "update" if found == len(passes) else "forward"

    waited = dict.fromkeys(("forward", "backward", "update"), 0.0)
    kernels = [one for one in timed if one.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    end = None
    for kernel in sorted(kernels, key=lambda one: one["ts"]):
        if end is not None and kernel["ts"] > end:
            waited[phase(kernel)] += (kernel["ts"] - end) / 1000
        end = max(end or 0.0, kernel["ts"] + kernel["dur"])
    return waited


def _kind(kernel: str) -> str:
    return next((kind for kind, known in KINDS.items() if re.search(known, kernel, re.IGNORECASE)), "others")


def _short(kernel: str) -> str:
    """A kernel's name without what it returns; of templates the start, which has the operation."""
    return re.sub(r"\(anonymous namespace\)::|at::native::|void ", "", kernel)[:110]
