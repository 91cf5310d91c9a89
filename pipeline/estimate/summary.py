"""Prints the estimate: memory, time and disk space of the recipe's own arrangement and of the best one."""

import logging
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text
from transformers import PretrainedConfig

from reread.pipeline.estimate.arrangement import Arrangement, Estimator
from reread.pipeline.estimate.disk import corpus_size, has_new_tokens, tokens_read, vocabulary
from reread.pipeline.estimate.hardware import GIB, Cluster
from reread.pipeline.estimate.speed import StepTime
from reread.pipeline.estimate.tuning import task_estimator
from reread.pipeline.estimate.whole import hours_of, hours_table, whole
from reread.pipeline.recipe.load import load_recipe
from reread.pipeline.recipe.phases import phases_of
from reread.pipeline.recipe.schema import Recipe, train_section
from reread.preprocessing.errors import UserError
from reread.training.assembly import NO_CORPUS, check_data, spec_of
from reread.training.config import TrainSettings
from reread.training.models.build import model_config
from reread.training.models.spec import ModelSpec
from reread.training.objectives import objective_of

log = logging.getLogger("reread")

AddRow = Callable[..., None]

BY_BOUND = {
    "products": "matrix products",
    "attention": "attention",
    "memory": "between them, by memory",
}
"""Names of `BOUNDS` in the table."""


def print_estimates(
    recipe: Recipe, cluster: Cluster, flop_share: float | None = None, finetunings: Sequence[Recipe] = ()
) -> None:
    """`print_estimate`, of each phase if the recipe has phases, and then the time of all."""
    if not recipe.phases:
        print_estimate(recipe, cluster, flop_share, finetunings)
        return
    seconds, phases = 0.0, phases_of(recipe)
    ends = [0, *(phase.steps for phase in phases)]
    for number, (phase, (first, last)) in enumerate(zip(phases, pairwise(ends), strict=True), 1):
        own = {"steps": last - first, "init": phases[0].init}
        print(f"phase {number} of {len(phases)}, steps {first + 1:,} to {last:,}:")
        part = {"train": phase.model_copy(update=own), "phases": [], "then": [], "published": []}
        seconds += print_estimate(recipe.model_copy(update=part), cluster, flop_share)
    print(f"all phases, {ends[-1]:,} steps: {_duration(seconds)} as the recipe says, as chosen where it cannot be")
    if recipe.then:
        log.info("the fine-tunings of `then` are not estimated for a recipe with phases")


def print_estimate(
    recipe: Recipe, cluster: Cluster, flop_share: float | None = None, finetunings: Sequence[Recipe] = ()
) -> float:
    """Print the recipe's own arrangement beside the one that would be chosen: memory, time and disk; returns the
    seconds of all steps in the first of these that is possible.

    If the recipe goes on to tasks, also the GPU-hours of all; `finetunings` are the tasks whose data exist.

    Raises `UserError` for a recipe that the cluster cannot train.
    """
    train = train_section(recipe)
    spec = spec_of(train)
    vocab_size = vocabulary(recipe, train)
    config = expected_config(recipe, train, spec, vocab_size)
    estimator = Estimator(train, spec, config, cluster, flop_share)
    rows = f"{train.batch} rows of {train.data.sequence_length:,} tokens"
    console, best, own = _print_arrangements(recipe, estimator, rows)
    console.print(_disk(recipe, train, vocab_size, best), soft_wrap=True)
    if recipe.then or recipe.published:
        console.print(whole(recipe, finetunings, estimator, own or best))
    return estimator.seconds(own or best)


def print_finetuning_estimate(recipe: Recipe, cluster: Cluster, flop_share: float | None = None) -> None:
    """The same for a recipe from `finetune_recipe`; the tokens are those of the windows of its examples.

    Raises `UserError` for a recipe that the cluster cannot train.
    """
    estimator = task_estimator(recipe, cluster, flop_share)
    train, runs = estimator.train, recipe.finetune.runs if recipe.finetune else 1
    mean = estimator.tokens / train.global_batch
    documents = f"{train.global_batch:,} examples of {mean:,.0f} tokens on average"
    console, best, own = _print_arrangements(recipe, estimator, documents)
    hours = runs * train.steps * estimator.time(own or best).total * cluster.gpus / 3600
    console.print(
        f"{len(estimator.examples):,} training examples; {runs} runs of {train.steps:,} steps take "
        f"{hours_of(hours)} GPU-hours\n{_checkpoints(train, best.footprint.checkpoint_bytes)}",
        soft_wrap=True,
    )


def print_suite_estimate(finetunings: Sequence[Recipe], cluster: Cluster, flop_share: float | None = None) -> None:
    """Print the GPU-hours of the fine-tunings of a suite, each on one GPU of the `cluster`, which has one.

    Raises `UserError` for one that does not fit there.
    """
    hours = {}
    for one in finetunings:
        estimator = task_estimator(one, cluster, flop_share)
        runs, steps = one.finetune.runs if one.finetune else 1, estimator.train.steps
        name = f"{one.name}, {f'{runs} runs of ' if runs > 1 else ''}{steps:,} steps"
        hours[name] = runs * steps * estimator.time(estimator.choose()[0]).total / 3600
    Console(highlight=False).print(hours_table(hours, "Each run on one GPU; evaluation is left out."))


def _print_arrangements(
    recipe: Recipe, estimator: Estimator, rows: str
) -> tuple[Console, Arrangement, Arrangement | None]:
    """Print the recipe's own arrangement beside the one that would be chosen, which is returned with it; `rows` are
    those of a step."""
    train = estimator.train
    if estimator.dtype == torch.float32:
        log.info(
            "train.precision: fp32, but the time below is that of half precision; fp32 takes several times as long"
        )
    chosen, reason = estimator.choose()
    own: Arrangement | None = None
    try:
        own = estimator.as_stated()
    except UserError as error:
        log.info("the recipe's own arrangement is not possible here: %s", error)
    console = Console(highlight=False)
    console.print(_heading(recipe, estimator, chosen, rows), soft_wrap=True)
    columns = {"as the recipe says": own, "chosen": chosen}
    console.print(_arrangements(estimator, {name: one for name, one in columns.items() if one is not None}))
    if estimator.flop_share is None:
        console.print(f"a chosen step is bound by {bounds(estimator.time(chosen))}", soft_wrap=True)
    console.print(_assumed(estimator), soft_wrap=True)
    if own and train.automatic:
        console.print(f"auto: {' and '.join(train.automatic)}, as the first column shows", soft_wrap=True)
    console.print(Text(f"chosen: {reason}", style="bold"), soft_wrap=True)
    if way := estimator.instead_of_splitting(chosen):
        console.print(way, soft_wrap=True)
    return console, chosen, own


def expected_config(recipe: Recipe, train: TrainSettings, spec: ModelSpec, vocab_size: int) -> PretrainedConfig:
    """The model's configuration as training will have it.

    If `train.init` does not exist yet, the configuration is made from the keys of this recipe and of the one that
    `start` names, and one line is logged. Raises `UserError` for what training would refuse.
    """
    init, values = train.init, dict(train.model)
    if init is not None and not (init / "config.json").exists():
        values = {**_start_values(recipe, train), **values}
        log.info(
            "train.init: %s does not exist; sizes are taken from train.model, all others are defaults of %s",
            init,
            spec.name,
        )
        config = model_config(spec, values, vocab_size, None, NO_CORPUS)
        longest = spec.longest(config)
        if longest is not None and longest < train.data.sequence_length:
            missing = train.data.sequence_length - longest
            values["max_position_embeddings"] = config.max_position_embeddings + missing
        init = None
    grows = has_new_tokens(recipe, train.data.folder)
    config = model_config(spec, values, vocab_size, init, {} if init else NO_CORPUS, grows=grows)
    check_data(spec, objective_of(train), config, train.data)
    return config


def _start_values(recipe: Recipe, train: TrainSettings) -> dict[str, Any]:
    """Keys of the model that `start` trains and converts."""
    if recipe.start is None:
        return {}
    values: dict[str, Any] = {}
    if recipe.start.recipe is not None:
        other = load_recipe(recipe.start.recipe, recipe.start.overrides, "train").train
        values = {} if other is None or other.model.get("type") != train.model.get("type") else dict(other.model)
    return {**values, **recipe.start.convert.known()}


def _heading(recipe: Recipe, estimator: Estimator, chosen: Arrangement, rows: str) -> str:
    cluster = estimator.cluster
    machines = f"{cluster.nodes} x {cluster.per_node}" if cluster.nodes > 1 else str(cluster.per_node)
    network = f", {cluster.network.name} between machines" if cluster.nodes > 1 else ""
    dtype = str(estimator.dtype).removeprefix("torch.")
    return (
        f"[bold]{recipe.name}[/bold] on {machines} {cluster.gpu.name}{network}: {chosen.footprint.parameters:,} "
        f"parameters, {dtype}, {rows} a step"
    )


def _arrangements(estimator: Estimator, columns: dict[str, Arrangement]) -> Table:
    table = Table()
    table.add_column()
    for name in columns:
        table.add_column(name, justify="right")
    shown = list(columns.values())

    def row(name: str, values: list[str], style: str = "") -> None:
        table.add_row(name, *values, style=style)

    row("tensor x data parallel", [f"{one.footprint.tensor} x {one.data}" for one in shown])
    row("micro-batch x accumulation", [f"{one.footprint.micro_batch} x {one.accumulation}" for one in shown])
    row("activation checkpointing", ["on" if one.footprint.checkpointing else "off" for one in shown])
    table.add_section()
    for name, counted, sizes in _parts(shown):
        if any(sizes):
            texts = [_memory(size) for size in sizes]
            row(name, [text if is_counted else f"({text})" for text, is_counted in zip(texts, counted, strict=True)])
    row("a GPU in all", [_memory(one.bytes) for one in shown], "bold")
    row(
        f"of {shown[0].limit / GIB:.1f} usable",
        ["fits" if one.fits else f"{(one.bytes - one.limit) / GIB:.1f} GiB too much" for one in shown],
        "bold",
    )
    table.add_section()
    _add_times(row, estimator, shown)
    return table


def _add_times(row: AddRow, estimator: Estimator, shown: list[Arrangement]) -> None:
    times = [estimator.time(one) for one in shown]
    train = estimator.train
    tokens = train.rows_before(train.steps) * estimator.tokens / train.global_batch
    if estimator.flop_share:
        row("matrix products and the like", [f"{time.compute:.3f} s" for time in times])
    else:
        for bound, name in BY_BOUND.items():
            row(name, [f"{time.passes[bound]:.3f} s" for time in times])
        row("waiting for the host", [f"{time.host:.3f} s" for time in times])
    if any(time.tensor for time in times):
        row("tensor-parallel all-reduces", [f"{time.tensor:.3f} s" for time in times])
    row("gradients' ring, exposed of all", [f"{time.exposed:.3f} of {time.reduction:.3f} s" for time in times])
    row("optimiser", [f"{time.update:.3f} s" for time in times])
    row("a step", [f"{time.total:.3f} s" for time in times], "bold")
    row("tokens a second", [_count(estimator.tokens / time.total) for time in times])
    row(
        f"{train.steps:,} steps, {_count(tokens)} tokens",
        [_duration(estimator.seconds(one)) for one in shown],
        "bold",
    )


def bounds(time: StepTime) -> str:
    """What a step waits for, in per cent of it, the most first."""
    parts = {**time.passes, "host": time.host, "update": time.update, "network": time.tensor + time.exposed}
    shares = {name: round(100 * seconds / time.total) for name, seconds in parts.items()}
    ordered = sorted(shares.items(), key=lambda one: -one[1])
    return ", ".join(f"{name} {share} %" for name, share in ordered if share)


Part = tuple[str, list[bool], list[float]]
"""Name of a part of the memory, the arrangements whose sum it is counted in, its bytes in each."""


def _parts(shown: list[Arrangement]) -> Iterator[Part]:
    """All parts of the memory. The optimiser's step begins after the micro-batches are freed, so only the larger of the
    two counts."""
    footprints = [one.footprint for one in shown]
    by_update = [footprint.update > footprint.within for footprint in footprints]
    by_rows = [not update for update in by_update]
    always = [True] * len(shown)
    yield "weights", always, [footprint.weights for footprint in footprints]
    yield "fp32 masters", always, [footprint.masters for footprint in footprints]
    yield "moments", always, [footprint.optimizer for footprint in footprints]
    yield "fp32 gradient buckets", always, [footprint.gradients for footprint in footprints]
    yield "their copies in fp16", always, [one.copies for one in shown]
    yield "memory of lanes", always, [one.memories for one in shown]
    yield "CUDA context, NCCL", always, [one.overhead for one in shown]
    yield "activations kept for backward", by_rows, [footprint.activations for footprint in footprints]
    yield "head, logits, losses", by_rows, [footprint.head for footprint in footprints]
    yield "working memory at the peak", by_rows, [footprint.working for footprint in footprints]
    yield "or the optimiser's step", by_update, [footprint.update for footprint in footprints]


def _assumed(estimator: Estimator) -> str:
    cluster, gpu = estimator.cluster, estimator.cluster.gpu
    text = f"assumed: {f'{estimator.flop_share:.0%} of ' if estimator.flop_share else ''}{gpu.peak / 1e12:g} TFLOP/s"
    if estimator.flop_share is None:
        text += f" and {gpu.memory_bandwidth / 1e9:,.0f} GB/s at the shares that one H100 reached (docs/plan.md)"
    if cluster.gpus > 1:
        text += f"; rings of {cluster.gpu.link_bandwidth / 1e9:.0f} GB/s inside a machine"
    if cluster.nodes > 1:
        text += f", {cluster.network.bandwidth / 1e9:.1f} out of it"
    return text + ". Tokens count padding; validation and checkpoints are left out."


def _disk(recipe: Recipe, train: TrainSettings, vocab_size: int, chosen: Arrangement) -> str:
    corpus = corpus_size(recipe, train, vocab_size)
    read = tokens_read(train)
    memories = chosen.footprint.memory_a_lane * train.data.lanes(train.global_batch)
    checkpoint = chosen.footprint.checkpoint_bytes + memories
    times = f"; the run reads {read / max(corpus.tokens, 1):.3g} times as many" if corpus.is_there else ""
    return (
        f"corpus: {_size(corpus.bytes)}, {_count(corpus.tokens)} tokens by {corpus.source}{times}\n"
        f"{_checkpoints(train, checkpoint)}"
    )


def _checkpoints(train: TrainSettings, size: float) -> str:
    keep = train.checkpoint.keep
    return f"checkpoints: {_size(size)} each, {keep} kept and one being written: {_size((keep + 1) * size)}"


def _memory(size: float) -> str:
    return f"{size / GIB:.2f} GiB" if size >= GIB / 10 else f"{size / 2**20:.1f} MiB"


def _count(value: float, units: Sequence[str] = ("", "k", "M", "G", "T", "P")) -> str:
    """Three digits and a unit; each unit is a thousand times the one before."""
    while value >= 999.5 and len(units) > 1:  # would be rounded to 1000
        value, units = value / 1000, units[1:]
    return f"{value:.3g}{units[0]}"


def _size(value: float) -> str:
    return _count(value, (" B", " kB", " MB", " GB", " TB", " PB"))


def _duration(seconds: float) -> str:
    for unit, size in (("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"
