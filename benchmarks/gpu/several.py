"""A check of several GPUs, whose table can be pasted into an issue: do they compute what one computes, and how fast?

    make gpus                                        # or: python benchmarks/gpu/several.py --out runs/gpus
    make gpus TOY=1                                  # small sizes, on two CPU processes where two GPUs are not here

- Reduction: the sums of gradients by NCCL (RCCL on AMD's GPUs) and by gloo, with the sum in float64; and by Horovod's
  ring, if it is built here.
- Tensor: steps of a tiny model on two GPUs by tensor parallelism, with those on one.
- Killed: a run on two GPUs by data parallelism, with one that kill -9 ends twice: it goes on by tensor parallelism,
  then by data parallelism again. By data parallelism its optimiser's state is divided, that of the other is not.
- Speed: nezha-base at 1, 2, 4 and 8 processes, as many as there are GPUs. Its figures are not judged.

A sum may differ from that in float64 by what rounding of float32 allows. Losses and norms of gradients may differ by
1e-3 of themselves at any step, tokens not at all. Each part is a set of processes of its own, so one that fails leaves
the others alone; it is ended after some minutes. What they print is in OUT/*.log. The table is printed and in
OUT/table.md. The status is 1 if anything differs or fails, and 2 if nothing can be run.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import json
import os
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple, NoReturn

import torch
import torch.distributed as dist

from benchmarks.gpu.run import ROOT, machine
from benchmarks.harness import parser
from benchmarks.network import launch
from benchmarks.random_corpus import random_corpus
from reread.preprocessing.errors import UserError, one_line
from reread.training.models.nezha import NezhaConfig, NezhaForPreTraining
from reread.training.parallel import horovod
from reread.training.parallel.gradients import GradientBuckets
from reread.training.parallel.reduce import in_torch
from reread.training.parallel.rendezvous import close_mesh, init_mesh
from reread.training.run.metrics import read_metrics

PART_SECONDS = 300.0
"""A set of processes that takes longer is ended."""
TOLERANCE = 1e-3
"""Of losses and norms of gradients, as a share of them."""
STEPS, KILLED_FROM = 60, (15, 35)
"""Steps of the tiny model, and those from which on its run is killed."""
SMALL = (
    "model.hidden_size=64",
    "model.num_hidden_layers=2",
    "model.num_attention_heads=2",
    "model.intermediate_size=128",
    "peak_tflops=1",
)
COMMON = ("activation_checkpointing=false", "schedule.warmup_steps=0")
TINY = (
    *SMALL,
    *COMMON,
    "model.hidden_dropout_prob=0",
    "model.attention_probs_dropout_prob=0",
    "data.corpus=tiny",
    "data.sequence_length=32",
    "precision=fp32",
    "global_batch=8",
    "micro_batch=2",
    "log_every=1",
    "checkpoint.every_steps=5",
    "optimizer.learning_rate=0.003",
)


class FailedError(Exception):
    """A set of processes that did not do its work, with the reason."""


class Outcome(NamedTuple):
    result: Literal["equal", "measured", "left out", "differs", "failed"]
    found: str


@dataclass(frozen=True)
class Place:
    """Where the parts run."""

    work: Path
    """A folder for corpora and runs, removed at the end."""
    out: Path
    """The folder of the table and of what the parts print."""
    gpus: int
    """0: processes compute on CPU."""
    toy: bool

    @property
    def library(self) -> str:
        if not self.gpus:
            return "gloo"
        return "RCCL" if torch.version.hip else "NCCL"

    def run(self, command: list[str], log: str, until: Callable[[], bool] = lambda: False) -> str:
        """What `command` and its children printed. They end by themselves, or by kill -9 once `until` holds.

        Raises `FailedError` if they fail or take too long.
        """
        environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
        environment.setdefault("OMP_NUM_THREADS", "1")
        if not self.gpus:
            environment["CUDA_VISIBLE_DEVICES"] = ""
        deadline, killed = time.monotonic() + PART_SECONDS, False
        path = self.out / f"{log}.log"
        with path.open("a+", encoding="utf-8") as printed:
            process = subprocess.Popen(
                command,
                cwd=self.work,
                env=environment,
                stdout=printed,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                while process.poll() is None and time.monotonic() < deadline and not killed:
                    time.sleep(0.01)
                    killed = until()
                status = process.poll()
            finally:
                with suppress(ProcessLookupError):  # all have ended
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        text = path.read_text(encoding="utf-8")
        lines = text.strip().splitlines() or ["nothing printed"]
        last = next((line for line in reversed(lines) if re.search(r"^reread: |Error\b", line)), lines[-1])[:200]
        if status is None and not killed:
            raise FailedError(f"not done in {PART_SECONDS:.0f} s; {path.name} says: {last}")
        if status:
            raise FailedError(f"status {status}: {last}")
        return text

    def train(self, name: str, *overrides: str, until: Callable[[], bool] = lambda: False) -> list[dict[str, Any]]:
        """The lines of metrics of a run of nezha-base with `overrides`."""
        self.run([sys.executable, "-m", "reread", "train", "nezha-base", f"name={name}", *overrides], name, until)
        return self.metrics(name)

    def train_tiny(self, name: str, *overrides: str, until: Callable[[], bool] = lambda: False) -> list[dict[str, Any]]:
        """The same of the tiny model."""
        return self.train(name, *TINY, f"steps={STEPS}", *overrides, until=until)

    def metrics(self, name: str) -> list[dict[str, Any]]:
        return [line for line in read_metrics(self.work / "runs" / name) if "loss" in line]


def reduction(place: Place, by: str) -> Outcome:
    """The sum of gradients of two processes by `by`, beside gloo's and that in float64."""
    printed = place.run([sys.executable, __file__, "--reduce", by], f"reduction-{by}")
    one = json.loads(next(line for line in reversed(printed.splitlines()) if line.startswith("{")))
    found = (
        f"{one['elements']:,} gradients of 2 processes, the largest sum {one['largest']:.1e}; the largest difference"
    )
    found += f" from float64 {one['library']:.1e}, of gloo's sum {one['gloo']:.1e}"
    return Outcome("equal" if one["equal"] else "differs", found)


def tensor(place: Place) -> Outcome:
    """Tensor parallelism over two processes beside one process."""
    one = place.train_tiny("one", "parallel.processes=1")
    two = place.train_tiny("tensor", "parallel.processes=2", "parallel.tensor=2")
    return compared(two, one, f"{STEPS} steps")


def killed(place: Place) -> Outcome:
    """A run that is killed twice and goes on at other splits, beside one that nothing happened to."""
    whole = place.train_tiny("whole", "parallel.processes=2")
    split, last = ("parallel.processes=2", "parallel.tensor=2"), []
    divided = "parallel.shard_state=true"
    for begin, of in zip(KILLED_FROM, (split[:1], split), strict=True):

        def reached(step: int = begin) -> bool:
            return any(line["step"] >= step for line in place.metrics("killed"))

        last.append(place.train_tiny("killed", divided, *of, until=reached)[-1]["step"])
    if last[-1] >= STEPS:
        raise FailedError(f"the run was at its end before it could be killed (steps {last})")
    moved = place.train_tiny("killed", divided, *split[:1])
    return compared(moved, whole, f"killed at steps {last[0]} and {last[1]} of {STEPS}")


def compared(ours: list[dict[str, Any]], theirs: list[dict[str, Any]], what: str) -> Outcome:
    """Two curves: the same steps and tokens, losses and norms within the tolerance."""
    if [(line["step"], line["tokens"]) for line in ours] != [(line["step"], line["tokens"]) for line in theirs]:
        return Outcome("differs", f"{what}; not the same steps and tokens")
    off = {
        name: [abs(line[name] / other[name] - 1) for line, other in zip(ours, theirs, strict=True)]
        for name in ("loss", "gradient_norm")
    }
    is_equal = len(ours) == STEPS and all(one <= TOLERANCE for each in off.values() for one in each)
    found = f"{what}; largest relative difference of loss {max(off['loss']):.1e}, of the gradient's norm "
    found += f"{max(off['gradient_norm']):.1e}, allowed {TOLERANCE:g}"
    return Outcome("equal" if is_equal else "differs", found)


def speed(place: Place, processes: int) -> dict[str, Any]:
    """The last figures of nezha-base, of which each process has two micro-batches a step."""
    length, rows, steps = (32, 2, 6) if place.toy else (128, 64, 60)
    overrides = [*COMMON, "data.corpus=base", f"data.sequence_length={length}", *(SMALL if place.toy else ())]
    overrides += [f"micro_batch={rows}", f"global_batch={2 * rows * processes}", f"parallel.processes={processes}"]
    overrides += [f"steps={steps}", f"log_every={steps // 3}", f"checkpoint.every_steps={10 * steps}"]
    return place.train(f"speed-{processes}", *overrides)[-1]


def horovod_lacks(place: Place) -> str | None:
    """Why Horovod's ring cannot be checked, or None."""
    try:
        import horovod.torch as hvd
    except (ImportError, OSError):  # not there, or built for another torch
        return "Horovod is not built here (`make horovod`)"
    return "this Horovod was built without NCCL" if place.gpus and not hvd.nccl_built() else None


def check(place: Place) -> bool:
    """Run all parts and write the table; returns whether everything that was compared is equal."""
    length = 32 if place.toy else 128
    random_corpus(place.work / "tiny", 500, [4 * 30] * 64)
    random_corpus(place.work / "base", 500 if place.toy else 21128, [32 * (length - 2)] * (16 if place.toy else 128))
    outcomes: dict[str, Outcome] = {}
    speeds: dict[int, dict[str, Any]] = {}

    def keep(part: str, outcome: Outcome) -> None:
        outcomes[part] = outcome
        print(f"{part}: {outcome.result} ({outcome.found})", flush=True)

    def attempt(part: str, function: Callable[[], Outcome]) -> None:
        try:
            keep(part, function())
        except Exception as error:  # whatever it is, the other parts go on
            keep(part, Outcome("failed", " ".join(f"{type(error).__name__}: {error}".split())))

    def measured(processes: int) -> Outcome:
        speeds[processes] = one = speed(place, processes)
        return Outcome("measured", f"{one['tokens_per_second']:,.0f} tokens/s")

    attempt(f"gradients summed by {place.library}", lambda: reduction(place, "torch"))
    if not place.gpus:
        keep("gradients summed by NCCL", Outcome("left out", "fewer than two GPUs here, so gloo takes its place"))
    if lacks := horovod_lacks(place):
        keep("gradients summed by Horovod", Outcome("left out", lacks))
    else:
        attempt("gradients summed by Horovod", lambda: reduction(place, "horovod"))
    attempt("tensor-parallel 2 as 1", lambda: tensor(place))
    attempt("killed, data-parallel 2 to tensor-parallel 2 and back", lambda: killed(place))
    most = place.gpus or 2
    for processes in (1, 2, 4, 8):
        if processes <= most:
            attempt(f"speed at {processes}", partial(measured, processes))
        else:
            keep(f"speed at {processes}", Outcome("left out", f"{most} {'GPUs' if place.gpus else 'processes'} here"))
    text = table(place, outcomes, speeds)
    (place.out / "table.md").write_text(text, encoding="utf-8")
    print(f"\n{text}", flush=True)
    return not any(outcome.result in ("differs", "failed") for outcome in outcomes.values())


def table(place: Place, outcomes: dict[str, Outcome], speeds: dict[int, dict[str, Any]]) -> str:
    heading = machine(place.gpus) if place.gpus else f"CPU, torch {torch.__version__}"
    if place.gpus:
        heading += f", {place.library} {'.'.join(map(str, torch.cuda.nccl.version()))}"
    lines = [f"{heading}{', toy sizes' if place.toy else ''}", "", "| part | result | |", "|---|---|---|"]
    lines += [
        f"| {part} | {result if result in ('equal', 'left out') else f'**{result}**'} | {found.replace('|', '/')} |"
        for part, (result, found) in outcomes.items()
        if result != "measured"
    ]
    lines += ["", "| processes | s/step | tokens/s | of as many times one | MFU |", "|---:|---:|---:|---:|---:|"]
    for processes, one in speeds.items():
        each = speeds.get(1, {}).get("tokens_per_second")
        share = f"{100 * one['tokens_per_second'] / processes / each:.0f} %" if each else "-"
        mfu = f"{100 * one['mfu']:.1f} %" if "mfu" in one else "-"
        lines.append(
            f"| {processes} | {one['seconds_per_step']:.3f} | {one['tokens_per_second']:,.0f} | {share} | {mfu} |"
        )
    return "\n".join(lines) + "\n"


def as_rank(by: str) -> NoReturn:
    """Sum the gradients of a small model with other rows on each process, and print how far off the sums are."""
    mesh = init_mesh(device="cuda" if torch.cuda.is_available() else "cpu", gradients=by)
    torch.manual_seed(0)
    config = NezhaConfig(vocab_size=500, hidden_size=64, num_hidden_layers=2, num_attention_heads=2)
    model: torch.nn.Module = NezhaForPreTraining(config)
    model.to(mesh.device)
    reduce = horovod.ring if by == "horovod" else in_torch(mesh)
    buckets = GradientBuckets(model.parameters(), mesh, 2**18, reduce)
    torch.manual_seed(1 + mesh.rank)
    ids = torch.randint(500, (4, 32))
    model(input_ids=mesh.put(ids)).prediction_logits.float().logsumexp(-1).mean().backward()
    own = buckets.flat.clone().cpu()
    buckets.finish()
    found = differences(buckets.flat.cpu(), own, mesh.world)
    if mesh.rank == 0:
        print(json.dumps(found), flush=True)
    close_mesh()
    os._exit(0)  # as the command line ends


def differences(summed: torch.Tensor, own: torch.Tensor, world: int) -> dict[str, Any]:
    """How far `summed` and gloo's sum of each process' `own` are from the sum in float64 (collective)."""
    group = dist.new_group(backend="gloo")
    by_gloo = own.clone()
    dist.all_reduce(by_gloo, group=group)
    everyone = [torch.empty_like(own) for _ in range(world)]
    dist.all_gather(everyone, own, group=group)
    each = torch.stack(everyone).double()
    allowed = world * 2.0**-24 * each.abs().sum(0)  # half a unit in the last place, at each addition
    off = {"library": (summed - each.sum(0)).abs(), "gloo": (by_gloo - each.sum(0)).abs()}
    return {
        "equal": all(bool((one <= allowed).all()) for one in off.values()),
        "elements": own.numel(),
        "largest": each.sum(0).abs().max().item(),
        **{name: one.max().item() for name, one in off.items()},
    }


@one_line()
def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--out", type=Path, default=Path("runs/gpus"), help="folder of the table and of the logs")
    arguments.add_argument("--toy", action="store_true", help="small sizes; on two CPU processes without two GPUs")
    arguments.add_argument("--reduce", choices=("torch", "horovod"), help="only the sums of one part, as JSON")
    options = arguments.parse_args()
    if options.reduce and "RANK" in os.environ:
        as_rank(options.reduce)
    if options.reduce:
        print(json.dumps(launch([sys.executable, *sys.argv], 2)))
        return
    seen = torch.cuda.device_count()
    if seen < 2 and not options.toy:
        raise UserError(f"make gpus: torch sees {seen} GPUs here and this compares several; TOY=1 tries it on CPU")
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=options.out.absolute()) as work:
        place = Place(Path(work), options.out.absolute(), seen if seen > 1 else 0, options.toy)
        is_equal = check(place)
    print(f"{options.out}/table.md: paste it into an issue of the kind `A report on several GPUs`, whatever it says")
    sys.exit(0 if is_equal else 1)


if __name__ == "__main__":
    main()
