"""One case of `make gpu`, in the process that `run.py` starts for it: a line for each side goes to FOLDER/lines.jsonl.

python benchmarks/gpu/measure.py "steps 512" FOLDER --seconds 45 [--tokens 16384] [--toy] [--without gelu]
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import json
import time
from collections.abc import Iterator

import torch

from benchmarks.gpu.cases import CASES, Case
from benchmarks.gpu.models import TOKENS
from benchmarks.gpu.sides import Figures, Place, compare
from benchmarks.gpu.without import KERNELS
from benchmarks.harness import parser

ENOUGH = 0.6
"""Share of a case's time after which there are no more turns than are needed."""


def precision_of(case: Case) -> str:
    """The precision of a case on this device."""
    if not torch.cuda.is_available():
        return "fp32"
    has_bf16 = torch.version.hip or torch.cuda.get_device_capability() >= (8, 0)
    return "bf16" if has_bf16 and case.precision == "best" else "fp16"


def measure(case: Case, place: Place, deadline: float) -> Iterator[Figures]:
    """A line for each side of the case's comparisons; after `deadline` no other comparison is begun."""
    for comparison in case.comparisons(place):
        if time.monotonic() > deadline:
            yield {"case": case.name, "comparison": comparison.name, "error": "left out: the case's time was up"}
            continue
        for figures in compare(comparison, place, deadline):
            yield {"case": case.name, "precision": place.precision, **figures}


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("case", choices=[case.name for case in CASES])
    arguments.add_argument("folder", type=Path)
    arguments.add_argument("--seconds", type=float, required=True)
    arguments.add_argument("--tokens", type=int, default=TOKENS)
    arguments.add_argument("--toy", action="store_true")
    arguments.add_argument("--without", nargs="+", choices=[*KERNELS, "all"], default=[])
    options = arguments.parse_args()
    case = next(case for case in CASES if case.name == options.case)
    device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    tokens = 64 if options.toy else options.tokens
    place = Place(options.folder, device, precision_of(case), tokens, options.toy, tuple(options.without))
    with (options.folder / "lines.jsonl").open("a") as file:
        for figures in measure(case, place, time.monotonic() + ENOUGH * options.seconds):
            file.write(json.dumps(figures) + "\n")
            file.flush()


if __name__ == "__main__":
    main()
