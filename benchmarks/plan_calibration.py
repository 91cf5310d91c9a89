"""`reread plan` against what is measured here, and against published figures.

    python benchmarks/plan_calibration.py [memory] [time] [ring] [published]

memory: what torch allocates in the real trainer on CPU, as its allocator reports it to the profiler: the state once the
trainer stands, and the most that a training step takes beside it. The rehearsal on the meta device is told to use a
CPU's kernels. time: the share of the peak is taken from one model and the others' steps are predicted with it. ring and
published: see plan_ring.py and plan_published.py.
"""

import argparse
import gc
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from nezha_training import VOCABULARY, random_corpus
from plan_published import published, settings_of
from plan_ring import ring
from torch.profiler import ProfilerActivity, profile

from pipeline.estimate.rehearsal import Footprint, rehearse, step_totals
from training.config import TrainSettings
from training.models import model_spec
from training.models.build import model_config
from training.parallel.mesh import Mesh
from training.trainer import Trainer
from training.window import Window

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

    adam = {"optimizer": {"name": "adam", "learning_rate": 1e-4}}
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


def allocated(action: Callable[[], Any]) -> tuple[int, int, Any]:
    """Bytes that `action` allocated in the end and at most, and what it gave."""
    gc.collect()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as watched:
        result = action()
        gc.collect()
    events = watched.profiler.kineto_results.events()  # type: ignore[union-attr]
    sums = list(accumulate(event.nbytes() for event in events if event.name() == "[memory]"))
    return sums[-1], max(sums), result


def measured(settings: TrainSettings) -> tuple[int, int]:
    """Bytes of the trainer's state, and the most that a step takes beside it."""
    with tempfile.TemporaryDirectory() as run:
        state, _, trainer = allocated(lambda: Trainer(settings, Path(run), Mesh()))
        window = Window(trainer.assembly.spec, trainer.assembly.config, trainer.objective, 0)
        if hasattr(trainer.objective, "memory"):
            state += sum(tensor.nbytes for tensor in trainer.objective.memory.mems)
        with trainer.objective.batches(0) as loader:
            batch = next(loader)
            trainer._train_step(batch, window)  # what is made once
            _, most, _ = allocated(lambda: trainer._train_step(next(loader), window))
    return state, most


def planned(settings: TrainSettings) -> Any:
    return model_config(model_spec(settings.model["type"]), settings.model, VOCABULARY, None)


def predicted(settings: TrainSettings) -> Footprint:
    return rehearse(
        settings,
        model_spec(settings.model["type"]),
        planned(settings),
        torch.float32,
        tensor=1,
        micro_batch=settings.micro_batch,
        checkpointing=settings.activation_checkpointing,
        kernels="cpu",
    )


def memory(corpus: Path) -> None:
    print("| trainer on CPU, fp32 | state MiB | predicted | step MiB | predicted | predicted / measured |")
    print("|---|---:|---:|---:|---:|---:|")
    errors = []
    for name, settings in memory_cases(corpus):
        state, most = measured(settings)
        footprint = predicted(settings)
        lanes = settings.global_batch * (2 if settings.data.kind == "segments" else 1)
        held = footprint.state + footprint.memory_a_lane * lanes
        errors.append(footprint.passing / most)
        print(
            f"| {name} | {state / MIB:.1f} | {held / MIB:.1f} | {most / MIB:.1f} | {footprint.passing / MIB:.1f} "
            f"| {errors[-1]:.3f} |",
            flush=True,
        )
    print(
        f"\nsteps: {min(errors):.3f} to {max(errors):.3f} of what was measured, median {statistics.median(errors):.3f}"
    )


def cpu_rates() -> tuple[float, float]:
    """FLOP/s of a 1024^3 product and bytes/s of a large sum, on one thread, by CPU seconds: others are at work here."""
    a, b = torch.ones(1024, 1024), torch.ones(1024, 1024)
    c, d = torch.ones(1 << 25), torch.ones(1 << 25)

    def best(action: Callable[[], Any]) -> float:
        return min(cpu_seconds(action) for _ in range(7))

    return 2 * 1024**3 / best(lambda: a @ b), 3 * c.nbytes / best(lambda: torch.add(c, d, out=c))


def cpu_seconds(action: Callable[[], Any]) -> float:
    begin = time.process_time()
    action()
    return time.process_time() - begin


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
        model = {"type": "nezha", **sizes, "intermediate_size": 4 * width, "max_relative_position": None}
        model |= FUSED
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


def step_seconds(cases: list[TrainSettings], rounds: int = 5) -> list[float]:
    """CPU seconds of the trainers' steps, the least of some: they take turns, and neighbours only ever add."""
    taken: list[list[float]] = [[] for _ in cases]
    with ExitStack() as stack:
        steps = []
        for settings in cases:
            trainer = Trainer(settings, Path(stack.enter_context(tempfile.TemporaryDirectory())), Mesh())
            window = Window(trainer.assembly.spec, trainer.assembly.config, trainer.objective, 0)
            loader = stack.enter_context(trainer.objective.batches(0))
            steps.append(lambda t=trainer, w=window, batches=loader: t._train_step(next(batches), w))
        for _ in range(rounds + 1):
            for times, step in zip(taken, steps, strict=True):
                times.append(cpu_seconds(step))
    return [min(times[1:]) for times in taken]


def speed(corpus: Path) -> None:
    peak, bandwidth = cpu_rates()
    print(f"one thread: {peak / 1e9:.0f} GFLOP/s, {bandwidth / 1e9:.1f} GB/s\n")
    print("| step of the trainer, CPU seconds | measured | predicted | predicted / measured |")
    print("|---|---:|---:|---:|")
    share, errors = 0.0, []
    cases = time_cases(corpus)
    measured_seconds = step_seconds([settings for _, settings in cases])
    for (name, settings), seconds in zip(cases, measured_seconds, strict=True):
        footprint = predicted(settings)
        spec = model_spec(settings.model["type"])
        config = planned(settings)
        totals = step_totals(settings.data, settings.global_batch)
        again = 4 / 3 if settings.activation_checkpointing else 1.0
        work = again * spec.flops(config, settings.data.sequence_length, totals) / peak
        update = footprint.update_traffic / bandwidth
        share = share or work / (seconds - update)
        expected = work / share + update
        errors.append(expected / seconds)
        print(f"| {name} | {seconds:.3f} | {expected:.3f} | {errors[-1]:.2f} |", flush=True)
    others = errors[1:]
    print(
        f"\nshare of the peak from the first: {share:.2f}; the others {min(others):.2f} to {max(others):.2f}, median "
        f"{statistics.median(others):.2f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = {"memory": memory, "time": speed, "ring": ring, "published": published}
    parser.add_argument("part", nargs="*", help="default: all four")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        corpus = Path(folder)
        random_corpus(corpus)
        for part in options.part or parts:
            parts[part](corpus)
            print()


if __name__ == "__main__":
    main()
