"""What `reread train` can be told: the sections of a recipe from `data` to `logging`. Imports no torch."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, ValidationInfo, field_validator, model_validator

from preprocessing.settings import Settings

STOPPED = 75
"""Exit status after SIGTERM: a checkpoint is saved, the same command goes on (EX_TEMPFAIL)."""
LONGEST = 1 << 20
"""Tokens of a row, a segment or a memory."""
MOST_STEPS = 1 << 40
MOST_ROWS = 1 << 24
MOST_PROCESSES = 1 << 16


class MaskingSettings(Settings):
    """Which tokens are predicted: BERT's 15 % x 80/10/10 (Devlin et al. 2019, section 3.1)."""

    strategy: Literal["token", "whole-word", "span"] = "whole-word"
    probability: float = Field(default=0.15, gt=0, lt=1)
    mask_share: float = Field(default=0.8, ge=0, le=1)
    random_share: float = Field(default=0.1, ge=0, le=1)
    """The rest of the chosen tokens keep their id."""
    span_geometric: float = Field(default=0.2, gt=0, lt=1)
    """`span`: parameter of the geometric distribution of span lengths, in words (SpanBERT, section 3.1)."""
    span_maximum: int = Field(default=10, ge=1, le=1000)
    """Words of the longest span; the distribution is truncated there and renormalised."""

    @model_validator(mode="after")
    def _shares(self) -> "MaskingSettings":
        if self.mask_share + self.random_share > 1:
            raise ValueError("mask_share + random_share is above 1")
        return self


class DataSettings(Settings):
    """Corpus -> rows that know nothing of each other, as BERT reads them."""

    kind: Literal["rows"] = "rows"
    corpus: Path
    """A corpus folder, or one written with `--materialize`."""
    sequence_length: int = Field(default=128, ge=8, le=LONGEST)
    copies: int = Field(default=10, ge=1, le=1_000_000)
    """Each pass over the corpus is one copy, masked and paired anew; after the last copy the first comes again."""
    next_sentence: bool = True
    """BERT's sentence pairs, in equal lengths (training.data.pairs); without, one stretch of text a row."""
    special_tokens: bool = True
    """[CLS] and [SEP] around the text; without, a row is text alone, as RAN reads it (only without pairs)."""
    short_sequence_probability: float = Field(default=0.1, ge=0, le=1)
    """Share of rows cut to a random shorter length (BERT)."""
    masking: MaskingSettings = MaskingSettings()

    @field_validator("special_tokens")
    @classmethod
    def _told_apart(cls, value: bool, info: ValidationInfo) -> bool:
        if not value and info.data.get("next_sentence"):
            raise ValueError("false needs next_sentence: false, for nothing else tells the pair's sides apart")
        return value


class PackedSettings(Settings):
    """Corpus -> full rows cut from one stream of documents (RoBERTa's FULL-SENTENCES, Liu et al. 2019, section 4.2),
    as Longformer's pretraining goes on."""

    kind: Literal["packed"]
    corpus: Path
    sequence_length: int = Field(default=4096, ge=8, le=LONGEST)
    """Of each row, [CLS] and [SEP] counted."""
    copies: int = Field(default=10, ge=1, le=1_000_000)
    """Each pass over the corpus is one copy, cut at other places and masked anew; after the last copy the first comes
    again."""
    masking: MaskingSettings = MaskingSettings()


class SegmentSettings(Settings):
    """Corpus -> lanes of documents cut into segments, for models with memory (ERNIE-Doc)."""

    kind: Literal["segments"]
    corpus: Path
    sequence_length: int = Field(default=512, ge=8, le=LONGEST)
    """Of a segment, [SEP] and [CLS] counted."""
    copies: int = Field(default=10, ge=1, le=1_000_000)
    """Each pass over the corpus is one copy, masked and reordered anew; after the last copy the first comes again."""
    retrospective: bool = True
    """Each document is read twice: a skim without loss, then the pass that learns (ERNIE-Doc, section 3.2)."""
    reorder_chunks: int = Field(default=4, ge=1, le=6)
    """m of the segment-reordering task (section 3.4): a document is cut into 1 to m chunks and permuted; 1 turns it
    off."""
    masking: MaskingSettings = MaskingSettings()


class StreamSettings(Settings):
    """Corpus -> lanes of unbroken text, for language models with memory (Transformer-XL)."""

    kind: Literal["stream"]
    corpus: Path
    sequence_length: int = Field(default=150, ge=2, le=LONGEST)
    """Tokens a lane reads in a step."""
    evaluation_length: int = Field(default=64, ge=1, le=LONGEST)
    """The same for held-out text."""
    evaluation_memory: int = Field(default=640, ge=0, le=LONGEST)
    """Tokens of memory for held-out text (Transformer-XL); in training, and in other models, it is the model's own."""
    evaluation_lanes: int = Field(default=1, ge=1, le=1_000_000)
    """Into how many stretches `reread evaluate` cuts the held-out text, to read them at once. Each begins without
    memory, so more give a slightly higher perplexity: papers' figures are of one. That takes a forward pass of a single
    row for each `evaluation_length` tokens, one after the other."""


DATA: dict[str, type[DataSettings] | type[PackedSettings] | type[SegmentSettings] | type[StreamSettings]] = {
    "rows": DataSettings,
    "packed": PackedSettings,
    "segments": SegmentSettings,
    "stream": StreamSettings,
}
"""By `kind`."""


def _kind(data: Any) -> str | None:
    if isinstance(data, dict):
        return str(data.get("kind", "rows"))
    return getattr(data, "kind", None)


AnyData = Annotated[
    Annotated[DataSettings, Tag("rows")]
    | Annotated[PackedSettings, Tag("packed")]
    | Annotated[SegmentSettings, Tag("segments")]
    | Annotated[StreamSettings, Tag("stream")],
    Discriminator(
        _kind, custom_error_type="kind", custom_error_message=f"a section whose `kind` is one of {', '.join(DATA)}"
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
