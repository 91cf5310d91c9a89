"""The settings of `reread train`: the `train` section of a recipe. Imports no torch."""

import math
import os
from bisect import bisect_left
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union

from pydantic import (
    Discriminator,
    Field,
    PlainSerializer,
    Tag,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)

from reread.preprocessing.settings import Settings
from reread.training.data.kinds import KINDS
from reread.training.data.settings import LONGEST, DataSettings

STOPPED = 75
"""Exit status after SIGTERM, when a checkpoint is saved and the same command resumes (EX_TEMPFAIL)."""
MOST_STEPS = 1 << 40
MOST_ROWS = 1 << 24
MOST_PROCESSES = 1 << 16
MOST_THREADS = 1024


def _kind(data: Any) -> str | None:
    if isinstance(data, dict):
        return str(data.get("kind", "rows"))
    return getattr(data, "kind", None)


if TYPE_CHECKING:
    AnyData = DataSettings
else:
    AnyData = Annotated[
        Union[tuple(Annotated[kind.settings, Tag(name)] for name, kind in KINDS.items())],  # noqa: UP007
        Discriminator(
            _kind, custom_error_type="kind", custom_error_message=f"a section whose `kind` is one of {', '.join(KINDS)}"
        ),
    ]


Rate = Annotated[float, Field(ge=0, lt=1)]


AUTOMATIC = ("micro_batch", "activation_checkpointing")
"""Fields of `train` that may be `auto`, which is replaced before the model is built (`reread.training.run.auto`)."""


IN_TOKENS = {
    ("train", "batch_tokens"): "global_batch",
    ("batch_warmup", "tokens"): "steps",
    ("train", "tokens"): "steps",
    ("schedule", "warmup_tokens"): "warmup_steps",
    ("schedule", "decay_tokens"): "decay_steps",
}
"""(section, field in tokens) -> the field in rows or steps that it becomes when a recipe is read. The batch is first:
the others are counted in its rows."""


def given_in_tokens(train: dict[str, Any]) -> Iterator[tuple[tuple[str, ...], str, Any]]:
    """Of each field in tokens that has a value in `train`: (the section below `train` and its name, what it becomes,
    the value)."""
    for (section, name), becomes in IN_TOKENS.items():
        below = () if section == "train" else (section,)
        values = train.get(section) if below else train
        if isinstance(values, dict) and values.get(name) is not None:
            yield (*below, name), becomes, values[name]


def _or_auto(value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
    if isinstance(value, str) and value != "auto":
        raise ValueError("is a value or `auto`")
    return value if value == "auto" else handler(value)


_OR_AUTO, _AS_IT_IS = WrapValidator(_or_auto), PlainSerializer(lambda value: value, return_type=Any)


def origin_of(text: str) -> tuple[Path, int | None]:
    """Run and step of `train.from_run`, RUN or RUN@STEP; None: its last checkpoint."""
    text = os.path.expanduser(text)
    run, at, step = text.rpartition("@")
    return (Path(run), int(step)) if at and step.isdecimal() else (Path(text), None)


class OptimizerSettings(Settings):
    """The optimiser, which updates the weights by the gradients."""

    name: Literal["lamb", "adam", "stable_adamw", "muon"] = "lamb"
    """The optimiser: LAMB for large batches, AdamW, AdamW with updates clipped by tensor (StableAdamW, of ModernBERT),
    or Muon for the matrices of the layers and AdamW for all else (not with `parallel.tensor`)."""
    variant: Literal["nezha", "standard"] = "nezha"
    """`lamb` only: as NEZHA trained, or You et al. 2020 (what apex's FusedLAMB computes)."""
    learning_rate: float = Field(gt=0, le=100)
    """The peak of the learning rate, after the warm-up."""
    betas: tuple[Rate, Rate] = (0.9, 0.999)
    """Decay rates of the averages of the gradient and of its square."""
    momentum: Rate = 0.95
    """`muon` only: decay rate of the average of a matrix' gradient. Its updates are scaled so that AdamW's rate and
    weight decay suit them (Liu et al. 2025)."""
    eps: float = Field(default=1e-6, gt=0, le=1)
    """Number added to the root of the averaged square."""
    weight_decay: float = Field(default=0.01, ge=0, le=100)
    """Weight decay, as a factor of the learning rate; not applied to biases and layer norms."""
    layer_decay: float = Field(default=1.0, gt=0, le=1)
    """Factor on the learning rate from a layer to the one below: r for the top layer, r^n for the lowest of n, r^(n+1)
    for embeddings, 1 for heads and poolers (ERNIE-Doc, appendix A.5)."""
    head_learning_rate: float | None = Field(default=None, gt=0, le=100)
    """The peak of the learning rate of heads and poolers, on top of the layers; null: `learning_rate`."""
    gradient_clip: float | None = Field(default=1.0, gt=0)
    """Largest global norm of the averaged gradient."""


class ScheduleSettings(Settings):
    """The learning rate over the steps: a warm-up from 0 to its peak, then a decay to 0."""

    warmup_steps: int = Field(default=0, ge=0, le=MOST_STEPS)
    """Steps in which the learning rate rises from 0 to its peak."""
    warmup_tokens: float | None = Field(default=None, ge=1)
    """Instead of `warmup_steps`, as `tokens` instead of `steps`."""
    decay: Literal["linear", "polynomial", "constant", "cosine", "sqrt"] = "linear"
    """How the learning rate falls from its peak to 0 at the last step; `constant`: it does not. `sqrt`: by 1 - sqrt(x)
    of the share x of the decay that is done, as ModernBERT (Hägele et al. 2024)."""
    decay_steps: int | None = Field(default=None, ge=1, le=MOST_STEPS)
    """Steps in which the learning rate falls, the last of the schedule; before them it stays at its peak (WSD: warm-up,
    stable, decay). The decay can begin at any checkpoint at the peak: `from=RUN@STEP steps=STEP+N
    schedule.decay_steps=N`. null: all steps after the warm-up."""
    decay_tokens: float | None = Field(default=None, ge=1)
    """Instead of `decay_steps`, as `tokens` instead of `steps`."""
    power: float = Field(default=1.0, gt=0, le=100)
    """Exponent of the `polynomial` decay."""
    ends: int | None = Field(default=None, ge=1, le=MOST_STEPS)
    """The step at which the schedule ends, counted as `steps`, for a run that stops before; null: at `steps`."""
    restart: bool = False
    """Whether the schedule of a run that begins with another (`from_run`), or of a phase, begins anew with it: it warms
    up, and decays over the steps that are left. False: it counts the steps of that run, too."""

    @model_validator(mode="after")
    def _has_a_decay(self) -> "ScheduleSettings":
        if self.decay == "constant" and self.decay_steps is not None:
            raise ValueError("decay is constant, so decay_steps has nothing to say; set one of them to another value")
        return self

    def longer_than(self, steps: int) -> str | None:
        """A sentence if warm-up and decay take more than `steps`, all of the schedule; else None."""
        if self.decay_steps is None or self.warmup_steps + self.decay_steps <= steps:
            return None
        return (
            f"schedule.warmup_steps and schedule.decay_steps are {self.warmup_steps:,} and {self.decay_steps:,}, more "
            f"than the schedule's {steps:,} steps; lower one of them"
        )


class BatchWarmup(Settings):
    """A batch that grows over the first steps (ModernBERT, Warner et al. 2024, section 2.2.2)."""

    first: int = Field(ge=1, le=MOST_ROWS)
    """Rows of the first step."""
    steps: int | None = Field(default=None, ge=1, le=MOST_STEPS)
    """Steps in which the batch grows to `global_batch`, linearly; they begin with the learning rate's schedule."""
    tokens: float | None = Field(default=None, ge=1)
    """Instead of `steps`, as `train.tokens` instead of `train.steps`."""

    @model_validator(mode="after")
    def _has_a_length(self) -> "BatchWarmup":
        if self.steps is None and self.tokens is None:
            raise ValueError("give `steps`, in which the batch grows, or `tokens`")
        return self

    def rows_before(self, step: int, rows: int) -> int:
        """The rows of the first `step` steps of a batch that grows to `rows`; step t of n has about
        first + (rows - first) t / n."""
        steps = self.steps or 0
        within = min(step, steps)
        grown = (rows - self.first) * within * (within - 1) // (2 * max(steps, 1))
        return self.first * within + grown + rows * (step - within)


class ParallelSettings(Settings):
    """Processes, and how they share the work and exchange gradients."""

    tensor: int = Field(default=1, ge=1, le=MOST_PROCESSES)
    """Tensor-parallel size; the data-parallel size is the number of processes divided by it."""
    processes: int = Field(default=0, ge=0, le=1024)
    """Processes to start unless a launcher (torchrun, srun, horovodrun) started them; 0: one per GPU, one on CPU."""
    gradients: Literal["torch", "nccl-ring", "horovod"] = "torch"
    """Backend of the gradient sum over data-parallel ranks: torch.distributed (NCCL with the algorithm it chooses;
    gloo's ring on CPU), the same with NCCL's ring pinned, or Horovod's ring."""
    gradient_dtype: Literal["fp32", "fp16"] = "fp32"
    """Type in which gradients are sent. With fp16 the loss scale is used at every `precision`."""
    shard_state: bool = False
    """Whether the optimiser's moments and the fp32 master weights are divided over the data-parallel processes (stage 1
    of ZeRO): each updates its share of the weights, which all then receive. Results differ by rounding."""
    bucket_megabytes: float = Field(default=25.0, gt=0, le=1 << 20)
    """Gradients are reduced in buckets of this size while the backward pass goes on."""

    @property
    def bucket_bytes(self) -> int:
        return int(self.bucket_megabytes * 2**20)


class CheckpointSettings(Settings):
    """When checkpoints are written, and how many are kept."""

    every_steps: int = Field(default=1000, ge=1, le=MOST_STEPS)
    """Steps between two checkpoints."""
    keep: int = Field(default=3, ge=1, le=MOST_STEPS)
    """The number of last checkpoints that are kept, beside the best."""


class TrainSettings(Settings):
    """All settings of a run; with the corpus' fingerprint they determine each number that the run prints."""

    seed: int = Field(default=0, ge=0, lt=1 << 63)
    """Number that determines initial weights, order of the samples, masks and dropout."""
    model: dict[str, Any]
    """`type`, the name of a model, and the keys of its configuration: `reread settings model` lists both."""
    init: Path | None = None
    """Folder made by `reread convert` or `reread export` to start from; null starts from random weights. OWNER/NAME or
    OWNER/NAME@REVISION is a model of the Hugging Face Hub, which is fetched and converted once, into models/."""
    from_run: str | None = Field(default=None, min_length=1)
    """A run, or RUN@STEP, with whose weights, optimiser and position in the data this run begins (`from=RUN@STEP` on
    the command line). Steps are counted on, so `steps` includes those of that run, and so does the schedule unless it
    restarts (`schedule.restart`)."""
    data: AnyData
    objective: str | None = None
    """Name of the objective (training/objectives); null: the default of `data.kind`."""
    steps: int = Field(ge=0, le=MOST_STEPS)
    """Number of updates; with 0 the initial weights are saved and evaluated."""
    tokens: float | None = Field(default=None, ge=1)
    """For pretraining, instead of `steps`: tokens of all steps, with padding (1.5e11). They become the least number of
    steps of `global_batch` rows of `data.sequence_length` tokens that hold them when the recipe is read, and the run
    keeps the number of steps alone."""
    trainable: list[str] | None = None
    """Globs of the parameters that learn, the others keep their values from `init`; null: all learn. `[n:]` after a
    glob restricts it to the rows from n on."""
    global_batch: int = Field(ge=1, le=MOST_ROWS)
    """Rows with a loss in each step, over all processes and accumulation."""
    batch_tokens: int | None = Field(default=None, ge=1, le=MOST_ROWS * LONGEST)
    """For pretraining, instead of `global_batch`: tokens of a step, with padding. They become as many whole rows of
    `data.sequence_length` tokens when the recipe is read, and the run keeps the number of rows alone."""
    batch_warmup: BatchWarmup | None = None
    """A smaller batch in the first steps, for `data.kind` rows and packed; null: `global_batch` from the beginning."""
    micro_batch: Annotated[int, Field(ge=1, le=MOST_ROWS), _OR_AUTO, _AS_IT_IS] = "auto"  # type: ignore[assignment]
    """The most rows of one forward pass on one process; rows of similar length go together. `auto`: the most that
    `reread plan` estimates to fit on the run's smallest GPU, of at most 32,768 tokens; on CPU at most 1,024 tokens.
    Fine-tuning counts documents."""
    optimizer: OptimizerSettings
    schedule: ScheduleSettings = ScheduleSettings()
    precision: Literal["auto", "fp32", "fp16", "bf16"] = "auto"
    """`auto`: fp32 on CPU, bf16 from compute capability 8.0 and on AMD's GPUs, else fp16 (V100). Master weights are
    always fp32."""
    initial_loss_scale: float = Field(default=2.0**16, gt=0, le=2.0**64)
    """Initial scale of fp16 gradients, computed or sent: doubled after 1000 good steps in a row, halved after 2 bad
    ones, in a row or not (NEZHA's rule)."""
    activation_checkpointing: Annotated[bool, _OR_AUTO, _AS_IT_IS] = False
    """`auto`, the default of fine-tuning: only if no micro-batch fits without it, or only one so small that steps would
    take longer."""
    threads: Annotated[int, Field(ge=1, le=MOST_THREADS), _OR_AUTO, _AS_IT_IS] = "auto"  # type: ignore[assignment]
    """Threads of a process for computing on CPU. `auto`: OMP_NUM_THREADS, or the cores of the machine that other
    programs do not use, divided by the processes there; a run goes on with the number that it began with. Results
    differ by rounding."""
    compile: bool = False
    """Whether torch.compile compiles NEZHA's layers, in place of `kernels`, which does the same for all models without
    compiling at the start. Not with `parallel.tensor`. Results differ by rounding."""
    kernels: Literal["auto", "plain"] = "auto"
    """How a GPU computes: by kernels of our own if all processes can run them (`auto`; a line says which), or by
    torch's operations. A CPU always computes by torch's operations. Results differ by rounding and dropout."""
    parallel: ParallelSettings = ParallelSettings()
    checkpoint: CheckpointSettings = CheckpointSettings()
    log_every: int = Field(default=10, ge=1, le=MOST_STEPS)
    """Steps between two progress lines."""
    writers: list[Literal["tensorboard", "wandb", "mlflow"]] = ["tensorboard"]
    """Where figures are written in addition to metrics.jsonl. Weights & Biases and MLflow are configured by their own
    environment variables and need `pip install 'reread[wandb]'` or `'reread[mlflow]'`."""
    validate_every: int = Field(default=1000, ge=1, le=MOST_STEPS)
    """Steps between two validations on held-out text or examples."""
    validation_batches: int = Field(default=8, ge=1, le=MOST_STEPS)
    """Global batches of held-out text in a validation: that many rows, documents with that many segments
    (`Segments.sample`), or that many steps of lanes, from all over the text. `reread evaluate` reads all of it."""
    watchdog_minutes: float = Field(default=30.0, gt=0, le=1_000_000)
    """The run ends and names the hung process after this time without progress: no step, no forward pass in validation,
    no part of a checkpoint. It must exceed the time in which one checkpoint is written."""
    best_by: str | None = None
    """Figure of held-out text or examples by which the best checkpoint is chosen, which is kept and later exported and
    evaluated; null: the last one is. The highest figure is best, of losses and perplexities the lowest."""
    patience: int | None = Field(default=None, ge=1, le=MOST_STEPS)
    """Evaluations in a row without a better `best_by` that end the run; null: it takes all its steps."""
    peak_tflops: float | None = Field(default=None, gt=0, le=1_000_000)
    """Peak of one device, for MFU; null: looked up by the device's name, or measured on CPU."""

    @property
    def schedule_ends(self) -> int:
        """The step at which the schedule ends."""
        return self.schedule.ends or self.steps

    @property
    def smallest_batch(self) -> int:
        """Rows of the smallest batch of all steps."""
        return self.batch_warmup.first if self.batch_warmup else self.global_batch

    def rows_before(self, step: int) -> int:
        """Rows of the first `step` steps of the schedule."""
        warmup = self.batch_warmup
        return warmup.rows_before(step, self.global_batch) if warmup else step * self.global_batch

    def rows_at(self, step: int) -> int:
        """Rows of step `step` of the schedule, from 0 on."""
        return self.rows_before(step + 1) - self.rows_before(step)

    @property
    def batch(self) -> str:
        """The number of rows of a step, for people."""
        first = f"{self.smallest_batch:,} to " if self.batch_warmup else ""
        return f"{first}{self.global_batch:,}"

    def too_long_for(self, steps: int) -> str | None:
        """A sentence if a part of the schedule takes more than `steps`, all that it has; else None."""
        warmup = self.batch_warmup.steps if self.batch_warmup else None
        if warmup and warmup > steps:
            return f"batch_warmup.steps is {warmup:,}, more than the schedule's {steps:,} steps; lower it"
        return self.schedule.longer_than(steps)

    @property
    def automatic(self) -> list[str]:
        """The fields that are `auto`."""
        return [name for name in AUTOMATIC if getattr(self, name) == "auto"]

    @model_validator(mode="wrap")
    @classmethod
    def _without_tokens(cls, values: Any, handler: Callable[[Any], "TrainSettings"]) -> "TrainSettings":
        """Replaces what is given in tokens by rows and steps (`IN_TOKENS`)."""
        given = list(given_in_tokens(values)) if isinstance(values, dict) else []
        if not given:
            return handler(values)
        counted = {**values, "steps": 0} | ({"global_batch": 1} if values.get("batch_tokens") is not None else {})
        read = handler(counted)  # with any number in place of those that follow
        length, found = read.data.sequence_length, dict(values)
        for path, becomes, _ in given:
            _check_in_tokens(path, becomes, values, KINDS[read.data.kind].task is not None)
            owner = read if len(path) == 1 else getattr(read, path[0])
            name, tokens = path[-1], getattr(owner, path[-1])
            of_batch = becomes == "global_batch"
            count = _rows(tokens, length) if of_batch else _steps(".".join(path), tokens, length, read)
            replaced = {name: None, becomes: count}
            if owner is read:
                found |= replaced
                read = read.model_copy(update=replaced)
            else:
                found |= {path[0]: {**found[path[0]], **replaced}}
                read = read.model_copy(update={path[0]: owner.model_copy(update=replaced)})
        return handler(found)

    @model_validator(mode="after")
    def _one_beginning(self) -> "TrainSettings":
        if self.from_run is not None and self.init is not None:
            raise ValueError(
                "from_run and init are both given; a run begins with one of them, so set the other to null"
            )
        if self.from_run is not None and self.data.is_task:
            raise ValueError("from_run is for pretraining; fine-tuning starts from init")
        return self

    @model_validator(mode="after")
    def _a_schedule_for_all_steps(self) -> "TrainSettings":
        ends = self.schedule_ends
        if ends < self.steps:
            raise ValueError(f"schedule.ends is {ends:,}, before the last of {self.steps:,} steps; raise it")
        if ends and (fault := self.too_long_for(ends)):
            raise ValueError(fault)
        return self

    @model_validator(mode="after")
    def _a_schedule_of_independent_rows(self) -> "TrainSettings":
        warmup, masking = self.batch_warmup, getattr(self.data, "masking", None)
        if warmup and not self.data.independent_rows:
            raise ValueError(
                "batch_warmup is for pretraining with data.kind rows or packed: other rows go on with those of the "
                "step before, or are labelled examples; leave it out"
            )
        if warmup and self.steps and warmup.first > self.global_batch:
            raise ValueError(
                f"batch_warmup.first is {warmup.first:,} rows, more than global_batch, {self.global_batch:,}; lower it"
            )
        if masking and masking.first_probability is not None and self.steps and not self.schedule.warmup_steps:
            raise ValueError(
                "data.masking.first_probability becomes probability in the warm-up of the learning rate, and there is "
                "none; give schedule.warmup_steps, or leave it out"
            )
        return self


def _check_in_tokens(path: tuple[str, ...], becomes: str, train: dict[str, Any], is_task: bool) -> None:
    """Raises ValueError if the field in tokens at `path` has no meaning, or if what it becomes is given, too."""
    name, other = ".".join(path), ".".join((*path[:-1], becomes))
    if is_task:
        raise ValueError(
            f"{name} is for pretraining; a step of fine-tuning has global_batch documents, and there are as many steps "
            "as finetune.epochs or steps say"
        )
    section = train if len(path) == 1 else train[path[0]]
    if section.get(becomes) is not None:
        raise ValueError(f"{other} and {name} are both given; set one of them to null")


def _rows(tokens: int, length: int) -> int:
    """The whole rows of `length` tokens in `tokens`. Raises ValueError unless they make a batch."""
    rows = tokens // length
    if not 1 <= rows <= MOST_ROWS:
        raise ValueError(
            f"batch_tokens is {tokens}, {rows} whole rows of data.sequence_length ({length} tokens); "
            f"give from {length:,} to {MOST_ROWS * length:,}"
        )
    return rows


def _steps(name: str, tokens: float, length: int, train: TrainSettings) -> int:
    """The least number of steps that hold `tokens` in rows of `length` tokens: of the first steps, but a decay's are
    the last, with the whole batch. Raises ValueError for less than one step, and for more than `MOST_STEPS`."""
    rows, warmup = train.global_batch, train.batch_warmup
    needed = -(-math.ceil(tokens) // length)

    def before(steps: int) -> int:
        if name == "batch_warmup.tokens" and warmup:
            return warmup.model_copy(update={"steps": steps}).rows_before(steps, rows)
        return steps * rows if name == "schedule.decay_tokens" else train.rows_before(steps)

    steps = bisect_left(range(MOST_STEPS + 1), needed, key=before)
    if tokens < before(1) * length or steps > MOST_STEPS:
        raise ValueError(
            f"{name} is {tokens:,.0f}, and a step has {before(1) * length:,} tokens ({before(1):,} rows of "
            f"{length:,}); give from that to {MOST_STEPS:,} steps"
        )
    return steps
