"""`reread plan` against the trainer on this CPU: memory and time of a step.

    python benchmarks/estimate/trainer.py [--part memory] [--only ran]

memory: what torch allocates in the trainer, as its allocator reports it to the profiler: the state once the trainer is
assembled, and the most that a training step takes beside it. The rehearsal on the meta device uses a CPU's kernels.
time: the share of the peak is taken from the first model and predicts the steps of the others.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import statistics
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch

from benchmarks.estimate.published import settings_of
from benchmarks.harness import allocated, heading, in_turns, parser, row, seconds
from benchmarks.random_corpus import random_corpus
from benchmarks.trainer_steps import TrainerSteps
from reread.pipeline.estimate.rehearsal import Footprint, rehearse, step_totals
from reread.preprocessing.errors import one_line
from reread.training.config import TrainSettings
from reread.training.models import model_spec
from reread.training.models.build import model_config

VOCABULARY = 21128
MIB = 2**20
FUSED = {"attention_probs_dropout_prob": 0.0}
"""With dropout of probabilities a CPU has no fused attention."""


def memory_cases(corpus: Path) -> list[tuple[str, TrainSettings]]:
    """Each model at several widths, lengths and micro-batches, by LAMB and by Adam, with checkpointing and without."""
    cases: list[tuple[str, TrainSettings]] = []

    def add(name: str, model: dict[str, Any], data: dict[str, Any], rows: int, **others: Any) -> None:
        settings = settings_of(corpus, {"type": name, **model}, data, rows, **others)
        optimizer = "adam" if settings.optimizer.name == "adam" else "lamb"
        checkpointing = ", checkpointing" if settings.activation_checkpointing else ""
        width, layers = model["hidden_size"], model["num_hidden_layers"]
        shape = f"{layers} x {width}, {rows} x {data['sequence_length']}, {optimizer}{checkpointing}"
        cases.append((f"{name} {shape}", settings))

    def sizes(width: int, layers: int, **others: Any) -> dict[str, Any]:
        return {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": width // 32, **others}

    others: dict[str, Any]
    adam: dict[str, Any] = {"optimizer": {"name": "adam", "learning_rate": 1e-4}}
    for rows, length, others in (
        (8, 128, {}),
        (32, 128, adam),
        (4, 512, {}),
        (4, 512, {"activation_checkpointing": True}),
    ):
        nezha = sizes(256, 4, intermediate_size=1024, max_relative_position=None, **FUSED)
        add("nezha", nezha, {"sequence_length": length}, rows, **others)
    clipped = sizes(256, 2, intermediate_size=1024, max_relative_position=64)
    add("nezha", clipped, {"sequence_length": 256}, 8)
    for rows, length, others in ((4, 128, {}), (8, 256, adam), (8, 256, {"activation_checkpointing": True})):
        ernie = sizes(256, 3, intermediate_size=1024, max_position_embeddings=512, memory_length=64)
        add("ernie_doc", ernie, {"kind": "segments", "sequence_length": length}, rows, **others)
    for rows, length, others in ((4, 256, adam), (8, 512, adam), (8, 512, adam | {"activation_checkpointing": True})):
        ran = sizes(256, 2, head_size=64, window_size=64, **FUSED)
        data = {"sequence_length": length, "next_sentence": False, "special_tokens": False}
        add("ran", ran, data, rows, **others)
    for rows, length, others in ((2, 512, adam), (4, 1024, adam), (4, 1024, adam | {"activation_checkpointing": True})):
        longformer = sizes(256, 2, intermediate_size=1024, attention_window=128, max_position_embeddings=1026)
        longformer |= FUSED
        add("longformer", longformer, {"kind": "packed", "sequence_length": length}, rows, **others)
    return cases


def measured(settings: TrainSettings) -> tuple[int, int]:
    """Bytes of the trainer's state, and the most that a step takes beside it."""
    with tempfile.TemporaryDirectory() as run:
        state, _, steps = allocated(lambda: TrainerSteps(settings, Path(run)))
        state += steps.lane_memory()
        with steps.batches as batches:
            window = steps.window()
            steps.step(next(batches), window)  # optimiser state and the like are made once
            _, most, _ = allocated(lambda: steps.step(next(batches), window))
    return state, most


def config_of(settings: TrainSettings) -> Any:
    return model_config(model_spec(settings.model["type"]), settings.model, VOCABULARY, None)


def predicted(settings: TrainSettings) -> Footprint:
    return rehearse(
        settings,
        config_of(settings),
        torch.float32,
        tensor=1,
        micro_batch=settings.micro_batch,
        checkpointing=settings.activation_checkpointing,
        kernels="cpu",
    )


def memory(cases: list[tuple[str, TrainSettings]]) -> None:
    heading("trainer on CPU, fp32", "state MiB", "predicted", "step MiB", "predicted", "predicted / measured")
    errors = []
    for name, settings in cases:
        state, most = measured(settings)
        footprint = predicted(settings)
        lanes = settings.global_batch * (2 if settings.data.kind == "segments" else 1)
        held = footprint.state + footprint.memory_a_lane * lanes
        errors.append(footprint.passing / most)
        row(name, *(f"{size / MIB:.1f}" for size in (state, held, most, footprint.passing)), f"{errors[-1]:.3f}")
    print(f"\npredicted / measured: {spread(errors)}")


def spread(ratios: list[float]) -> str:
    return f"{min(ratios):.3f} to {max(ratios):.3f}, median {statistics.median(ratios):.3f}"


def cpu_rates() -> tuple[float, float]:
    """FLOP/s of a 1024^3 product and bytes/s of a large sum, on one thread."""
    a, b = torch.ones(1024, 1024), torch.ones(1024, 1024)
    c, d = torch.ones(1 << 25), torch.ones(1 << 25)

    def best(action: Callable[[], Any]) -> float:
        return min(seconds(action) for _ in range(7))

    return 2 * 1024**3 / best(lambda: a @ b), 3 * c.nbytes / best(lambda: torch.add(c, d, out=c))


def time_cases(corpus: Path) -> list[tuple[str, TrainSettings]]:
    """The first gives the share of the peak."""
    cases = []
    for width, layers, rows, length, others in (
        (384, 4, 16, 128, {}),
        (384, 4, 4, 512, {}),
        (384, 8, 16, 128, {}),
        (768, 2, 8, 128, {}),
        (768, 2, 2, 512, {}),
        (384, 4, 16, 128, {"activation_checkpointing": True}),
    ):
        sizes = {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": width // 64}
        model: dict[str, Any] = {"type": "nezha", **sizes, "intermediate_size": 4 * width}
        model |= {"max_relative_position": None, **FUSED}
        name = f"nezha {layers} x {width}, {rows} x {length}{', checkpointing' if others else ''}"
        cases.append((name, settings_of(corpus, model, {"sequence_length": length}, rows, **others)))
    small = {"hidden_size": 384, "num_hidden_layers": 4, "num_attention_heads": 6, **FUSED}
    ernie = {"type": "ernie_doc", **small, "intermediate_size": 1536, "memory_length": 128}
    ernie["attention_probs_dropout_prob"] = 0.1  # without, it has an attention of its own for CPUs
    cases.append(
        (
            "ernie_doc 4 x 384, 4 x 512",
            settings_of(corpus, ernie, {"kind": "segments", "sequence_length": 512, "retrospective": False}, 4),
        )
    )
    ran = {"type": "ran", **small, "num_hidden_layers": 2, "head_size": 128, "window_size": 128}
    plain = {"sequence_length": 512, "next_sentence": False, "special_tokens": False}
    cases.append(("ran 2 x 384, 4 x 512", settings_of(corpus, ran, plain, 4)))
    long = {"type": "longformer", **small, "num_hidden_layers": 2, "intermediate_size": 1536, "attention_window": 256}
    long |= {"max_position_embeddings": 2050}
    cases.append(
        ("longformer 2 x 384, 1 x 2048", settings_of(corpus, long, {"kind": "packed", "sequence_length": 2048}, 1))
    )
    return cases


def step_seconds(cases: list[TrainSettings], rounds: int) -> list[float]:
    """CPU seconds of the trainers' steps, the best of several; they take turns."""
    with ExitStack() as stack:
        sides = {}
        for number, settings in enumerate(cases):
            steps = TrainerSteps(settings, Path(stack.enter_context(tempfile.TemporaryDirectory())))
            batches = stack.enter_context(steps.batches)
            step = partial(lambda s, w, b: s.step(next(b), w), steps, steps.window(), batches)
            step()
            sides[str(number)] = partial(seconds, step)
        return [min(taken) for taken in in_turns(sides, rounds).values()]


def time(cases: list[tuple[str, TrainSettings]], rounds: int = 5) -> None:
    peak, bandwidth = cpu_rates()
    print(f"one thread: {peak / 1e9:.0f} GFLOP/s, {bandwidth / 1e9:.1f} GB/s\n")
    heading("step of the trainer, CPU seconds", "measured", "predicted", "predicted / measured")
    share, errors = 0.0, []
    found = step_seconds([settings for _, settings in cases], rounds)
    for (name, settings), taken in zip(cases, found, strict=True):
        totals = step_totals(settings.data, settings.global_batch)
        again = 4 / 3 if settings.activation_checkpointing else 1.0
        flops = model_spec(settings.model["type"]).flops(config_of(settings), settings.data.sequence_length, totals)
        work, update = again * flops / peak, predicted(settings).update_work.bytes / bandwidth
        share = share or work / (taken - update)
        expected = work / share + update
        errors.append(expected / taken)
        row(name, f"{taken:.3f}", f"{expected:.3f}", f"{errors[-1]:.2f}")
    print(f"\nshare of the peak from the first: {share:.2f}")
    print(f"predicted / measured of the others: {spread(errors[1:] or errors)}")


@one_line()
def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--part", choices=("memory", "time"), help="default: both")
    arguments.add_argument("--only", default="", help="cases whose name holds this, for example ran")
    options = arguments.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        corpus = random_corpus(Path(folder), VOCABULARY, [2000] * 400)
        for part, cases in ((memory, memory_cases(corpus)), (time, time_cases(corpus))):
            if options.part in (None, part.__name__):
                part([case for case in cases if options.only in case[0]])
                print()


if __name__ == "__main__":
    main()
