"""What `reread train` can be told: the sections of a recipe from `data` to `logging`. Imports no torch."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union

from pydantic import Discriminator, Field, Tag

from preprocessing.settings import Settings
from training.data.kinds import KINDS
from training.data.settings import DataSettings

STOPPED = 75
"""Exit status after SIGTERM: a checkpoint is saved, the same command goes on (EX_TEMPFAIL)."""
MOST_STEPS = 1 << 40
MOST_ROWS = 1 << 24
MOST_PROCESSES = 1 << 16


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


Share = Annotated[float, Field(ge=0, lt=1)]


class OptimizerSettings(Settings):
    name: Literal["lamb", "adam"] = "lamb"
    variant: Literal["nezha", "standard"] = "nezha"
    """`lamb` only: as NEZHA trained, or You et al. 2020 (what apex's FusedLAMB computes)."""
    learning_rate: float = Field(gt=0, le=100)
    betas: tuple[Share, Share] = (0.9, 0.999)
    eps: float = Field(default=1e-6, gt=0, le=1)
    weight_decay: float = Field(default=0.01, ge=0, le=100)
    """Not applied to biases and layer norms."""
    gradient_clip: float | None = Field(default=1.0, gt=0)
    """Largest global norm of the averaged gradient."""


class ScheduleSettings(Settings):
    warmup_steps: int = Field(default=0, ge=0, le=MOST_STEPS)
    decay: Literal["linear", "polynomial", "constant", "cosine"] = "linear"
    power: float = Field(default=1.0, gt=0, le=100)
    """`polynomial` only."""


class ParallelSettings(Settings):
    tensor: int = Field(default=1, ge=1, le=MOST_PROCESSES)
    """Tensor-parallel size; the data-parallel size is what is left of the processes."""
    processes: int = Field(default=0, ge=0, le=1024)
    """Processes `reread train` starts when nothing else did (torchrun, srun, horovodrun); 0 is one a GPU, or one."""
    gradients: Literal["torch", "nccl-ring", "horovod"] = "torch"
    """Who sums gradients over data-parallel ranks: torch.distributed (NCCL by the algorithm it chooses; gloo's ring on
    CPU), the same with NCCL's ring pinned, or Horovod's ring."""
    gradient_dtype: Literal["fp32", "fp16"] = "fp32"
    """In which type they travel. With fp16 the loss scale is in use at every `precision`."""
    bucket_megabytes: float = Field(default=25.0, gt=0, le=1 << 20)
    """Gradients are reduced in buckets of this size while the backward pass goes on."""

    @property
    def bucket_bytes(self) -> int:
        return int(self.bucket_megabytes * 2**20)


class CheckpointSettings(Settings):
    every_steps: int = Field(default=1000, ge=1, le=MOST_STEPS)
    keep: int = Field(default=3, ge=1, le=MOST_STEPS)


class TrainSettings(Settings):
    """Everything a run is; with the corpus' fingerprint it determines each number the run prints."""

    seed: int = Field(default=0, ge=0, lt=1 << 63)
    model: dict[str, Any]
    """`type` (nezha, ernie_doc, transformer_xl, ran, longformer) and the keys of its configuration."""
    init: Path | None = None
    """Folder made by `reread convert` or `reread export` to start from; null starts from random weights."""
    data: AnyData
    objective: str | None = None
    """What is learned (training/objectives); null: what `data.kind` is for."""
    steps: int = Field(ge=0, le=MOST_STEPS)
    """Updates; with 0 the weights that the run starts with are saved and evaluated."""
    trainable: list[str] | None = None
    """Globs of the parameters that learn, the rest stays as `init` has it; null: all learn. `[n:]` after a glob: of its
    rows those from n on."""
    global_batch: int = Field(ge=1, le=MOST_ROWS)
    """Rows a step that are learned from, over all processes and accumulation."""
    micro_batch: int = Field(ge=1, le=MOST_ROWS)
    """Rows of one forward pass on one process."""
    optimizer: OptimizerSettings
    schedule: ScheduleSettings = ScheduleSettings()
    precision: Literal["auto", "fp32", "fp16", "bf16"] = "auto"
    """`auto`: fp32 on CPU, bf16 from compute capability 8.0, else fp16 (V100). fp16 and bf16 keep fp32 masters."""
    initial_loss_scale: float = Field(default=2.0**16, gt=0, le=2.0**64)
    """Of fp16 gradients, computed or sent: doubled after 1000 good steps in a row, halved after 2 bad ones, in a row or
    not (the rule NEZHA trained with)."""
    activation_checkpointing: bool = False
    parallel: ParallelSettings = ParallelSettings()
    checkpoint: CheckpointSettings = CheckpointSettings()
    log_every: int = Field(default=10, ge=1, le=MOST_STEPS)
    validate_every: int = Field(default=1000, ge=1, le=MOST_STEPS)
    validation_batches: int = Field(default=8, ge=1, le=MOST_STEPS)
    """Global batches of held-out text a validation: rows from all over it, documents until they have so many segments
    (`Segments.sample`), or so many steps of lanes that begin all over it. `reread evaluate` reads all."""
    watchdog_minutes: float = Field(default=30.0, gt=0, le=1_000_000)
    """The run ends, and names the process to blame, when nothing has moved for so long: no step, no forward pass of a
    validation, no part of a checkpoint; keep it above the time that one checkpoint takes to write."""
    peak_tflops: float | None = Field(default=None, gt=0, le=1_000_000)
    """Of one device, for MFU; null: by the device's name, or measured on CPU."""
