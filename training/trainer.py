"""The training loop: one step is one global batch, whatever the processes and the accumulation."""

import logging
import math
import signal
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor
from transformers import PretrainedConfig

from preprocessing.errors import UserError
from training.checkpoint.store import CheckpointStore, Slice
from training.config import STOPPED, TrainSettings
from training.data import random
from training.data.loader import Loader
from training.data.samples import open_samples
from training.metrics import MetricsLog, peak_flops, progress_line
from training.models import ModelSpec, model_spec
from training.models.build import build_model, check_length, check_vocabulary, model_config
from training.objective import FIGURES, Counts, local_counts, masked_language_model
from training.optim.build import build_optimizer, set_steps_taken, steps_taken
from training.optim.precision import LossScale, MasterWeights, resolve_precision
from training.optim.schedule import learning_rate
from training.parallel.gradients import GradientBuckets
from training.parallel.mesh import Mesh, close_mesh, init_mesh
from training.parallel.tensor import layout, parallelise
from training.provenance import corpus_changes, corpus_facts

Batch = dict[str, NDArray[np.int32]]

log = logging.getLogger("reread")

BAD_STEPS_LIMIT = 50
"""Steps in a row whose gradient is not finite before the run gives up."""


def train(settings: TrainSettings, run: Path, prepared: AbstractContextManager[None] | None = None) -> None:
    """Train to `settings.steps`, from the last checkpoint in `run` if there is one.

    `prepared` is entered when all processes have met, and what it refuses ends all of them.
    Raises `UserError` for settings that cannot work, and `SystemExit(STOPPED)` after SIGTERM.
    """
    mesh = init_mesh(settings.parallel.tensor, _device())
    try:
        with ExitStack() as stack:
            with mesh.together():
                stack.enter_context(prepared or nullcontext())
                trainer = Trainer(settings, run, mesh)
            trainer.train()
    except RuntimeError as error:
        if not _lost_a_process(error):
            raise
        log.error("process %d of %d: lost the connection to another process; the run stops", mesh.rank, mesh.world)
        raise SystemExit(1) from None
    finally:
        close_mesh()


class Trainer:
    """The state of a run. Everything but `step` and the loss scale is tensors; both are in the checkpoint."""

    def __init__(self, settings: TrainSettings, run: Path, mesh: Mesh) -> None:
        self.settings, self.run, self.mesh = settings, run, mesh
        dtype = resolve_precision(settings.precision, mesh.device)
        if settings.global_batch < mesh.data_size:
            raise UserError(
                f"train.global_batch: {settings.global_batch} rows are fewer than the {mesh.data_size} data-parallel "
                "processes; raise it, or start fewer processes"
            )
        self.samples = open_samples(settings.data, settings.seed, "train")
        self.validation = open_samples(settings.data, settings.seed, "validation")
        if len(self.validation) == 0:
            log.info("no validation loss: the corpus holds no documents out (preprocess.validation_share)")
        self.spec = model_spec(settings.model.get("type", ""))
        self.config = model_config(self.spec, settings.model, self.samples.vocab_size, settings.init)
        check_length(self.config, settings.data.sequence_length)
        if settings.init:
            check_vocabulary(settings.init, self.samples.tokenizer_folder)
        self.model = build_model(self.spec, self.config, settings.init, settings.seed).train()
        if settings.activation_checkpointing:
            self.model.gradient_checkpointing_enable({"use_reentrant": False})
        parallelise(self.model, self.spec.tensor_plan, mesh)
        self.model.to(mesh.device)
        self.masters = MasterWeights(self.model, dtype)
        self.optimizer = build_optimizer(self.masters.named_parameters(), settings.optimizer, mesh)
        bucket_bytes = int(settings.parallel.bucket_megabytes * 2**20)
        self.buckets = GradientBuckets(list(self.model.parameters()), mesh, bucket_bytes)
        self.scale = LossScale(dtype, settings.initial_loss_scale)
        self.store = CheckpointStore(run / "checkpoints", settings.checkpoint.keep, mesh)
        self.step = 0
        self.bad_steps = 0
        self.stop_asked = self.stopped = False

    def train(self) -> None:
        settings, mesh = self.settings, self.mesh
        self._load_checkpoint()
        if self.step >= settings.steps:
            log.info("nothing to do: all %d steps are done", self.step)
            return
        lanes = lanes_of(settings.global_batch, mesh)
        writer = MetricsLog(self.run, self.step) if mesh.rank == 0 else None
        window = Window(self.spec, self.config, settings, mesh, self.step)
        with Loader(self.samples, settings.global_batch, lanes, self.step) as loader, self._stoppable():
            while self.step < settings.steps and not self.stopped:
                with window.waiting_for_data():
                    _, batch = next(loader)
                rate, norm = self._train_step(batch, lanes.start, window)
                self.step += 1
                if self.step % settings.log_every == 0 or self.step == settings.steps:
                    values = window.close(self.step, rate, norm, self.scale.value)
                    if writer:
                        log.info(progress_line(self.step, settings.steps, values))
                        writer.write(self.step, values)
                if self.step % settings.validate_every == 0 or self.step == settings.steps:
                    with window.not_counted():
                        self._validate(writer)
                self.store.poll()
                if self.stopped or self.step % settings.checkpoint.every_steps == 0 or self.step == settings.steps:
                    self._save_checkpoint()
            self.store.wait()  # while SIGTERM still cannot break it off
        if writer:
            writer.close()
        if self.step < settings.steps:
            log.info("stopped: checkpoint saved at step %d; the same command goes on from there", self.step)
            raise SystemExit(STOPPED)
        log.info("done: %d steps", self.step)

    def _train_step(self, batch: Batch, first_lane: int, window: "Window") -> tuple[float, float]:
        """One optimiser step on this rank's rows of the global batch; returns learning rate and gradient norm."""
        counts, self.stopped = self._agree(batch)
        rows = self.settings.micro_batch
        micro_batches = [
            {name: values[begin : begin + rows] for name, values in batch.items()}
            for begin in range(0, len(batch["labels"]), rows)
        ]
        self.buckets.zero()
        for number, micro_batch in enumerate(micro_batches):
            # Dropout depends on the rows, not on the rank or the number of steps since the last start.
            seed_dropout(self.settings.seed, self.step, first_lane + number * rows)
            loss, figures = masked_language_model(self.model, micro_batch, counts, self.mesh)
            if number == len(micro_batches) - 1:
                self.buckets.reduce_as_ready()
            (loss * self.scale.value).backward()
            window.add(figures)
        self.buckets.finish()
        norm = self.buckets.global_norm() / self.scale.value
        rate = learning_rate(
            self.step, self.settings.schedule, self.settings.optimizer.learning_rate, self.settings.steps
        )
        if math.isfinite(norm):
            clip = self.settings.optimizer.gradient_clip
            shrink = min(1.0, clip / (norm + 1e-6)) if clip else 1.0
            self.masters.step(self.optimizer, self.buckets, rate, shrink / self.scale.value)
            self.bad_steps = 0
        else:
            self.bad_steps += 1
            if self.bad_steps == BAD_STEPS_LIMIT:
                raise self.mesh.alike(
                    UserError(
                        f"{self.run}: the gradient was not finite in {BAD_STEPS_LIMIT} steps in a row, up to step "
                        f"{self.step}; lower optimizer.learning_rate, or look at the data with `reread inspect`"
                    )
                )
            log.info("step %d skipped: gradient not finite (loss scale %g)", self.step, self.scale.value)
        self.scale.update(math.isfinite(norm))
        return rate, norm

    def _agree(self, batch: Batch) -> tuple[Counts, bool]:
        """Sum the local counts over the global batch, and learn whether any process was asked to stop."""
        values = torch.tensor(
            [*local_counts(batch), float(self.stop_asked)], dtype=torch.float64, device=self.mesh.device
        )
        if self.mesh.world > 1:
            dist.all_reduce(values)
        predicted, rows, _, stop = values.tolist()
        copies = self.mesh.tensor_size  # tensor-parallel ranks hold the same rows
        return Counts(predicted / copies, rows / copies), stop > 0

    @torch.no_grad()
    def _validate(self, writer: MetricsLog | None) -> None:
        """Mean losses over the same held-out rows each time, if the corpus holds any out."""
        if len(self.validation) == 0:
            return
        self.model.eval()
        total = torch.zeros(len(FIGURES), dtype=torch.float64, device=self.mesh.device)
        rows = self.settings.validation_batches * self.settings.global_batch
        lanes = lanes_of(min(rows, len(self.validation)), self.mesh)
        for begin in range(lanes.start, lanes.stop, self.settings.micro_batch):
            positions = np.arange(begin, min(begin + self.settings.micro_batch, lanes.stop))
            batch = self.validation.rows(positions)
            total += masked_language_model(self.model, batch, Counts(1.0, 1.0), self.mesh)[1]
        self.model.train()
        if self.mesh.data_size > 1:
            dist.all_reduce(total, group=self.mesh.data_group)
        if writer:
            values = {f"validation_{name}": value for name, value in losses(total).items()}
            log.info("held out: " + ", ".join(f"{name[11:]} {value:.4f}" for name, value in values.items()))
            writer.write(self.step, values)

    def _save_checkpoint(self) -> None:
        state = {
            "step": self.step,
            "scale": self.scale.state(),
            "samples": self.samples.fingerprint,
            "corpus": corpus_facts(self.settings.data.corpus),
            "updates": steps_taken(self.optimizer),
            "bad_steps": self.bad_steps,
        }
        tensors, slices = self._tensors()
        self.store.save(self.step, tensors, slices, state)

    def _load_checkpoint(self) -> None:
        latest = self.store.latest()
        if latest is None:
            log.info("no checkpoint in %s: starting at step 0", self.run)
            return
        with self.mesh.together():
            state = self.store.state(latest)
            self._check_data(state)
            self.store.load(latest, *self._tensors())
        self.masters.to_model()
        self.scale.load(state["scale"])
        set_steps_taken(self.optimizer, state["updates"])
        self.step, self.bad_steps = state["step"], state["bad_steps"]
        log.info("going on from the checkpoint of step %d", self.step)

    def _check_data(self, state: dict[str, Any]) -> None:
        """Raises `UserError` if the checkpoint was trained on other samples than these."""
        corpus = self.settings.data.corpus
        if changes := corpus_changes(state["corpus"], corpus_facts(corpus)):
            raise UserError(
                f"{corpus}: the corpus changed since the run began ({changes}); give the run the old corpus, or begin "
                "a new run with name=..."
            )
        if state["samples"] != self.samples.fingerprint:
            raise UserError(f"{self.run}: train.data or train.seed changed since the run began; take it back")

    def _tensors(self) -> tuple[dict[str, Tensor], dict[str, Slice]]:
        """Masters and optimiser state by name, with each one's place in the logical tensor."""
        slices = layout(self.model, self.mesh)
        tensors, places = {}, {}
        for name, master in self.masters.named_parameters():
            tensors[f"model.{name}"] = master.data
            places[f"model.{name}"] = slices[name]
            for key in ("exp_avg", "exp_avg_sq"):
                tensors[f"{key}.{name}"] = self.optimizer.state[master][key]
                places[f"{key}.{name}"] = slices[name]
        return tensors, places

    @contextmanager
    def _stoppable(self) -> Iterator[None]:
        """SIGTERM or Ctrl-C asks for a checkpoint at the next step boundary; a second Ctrl-C breaks off at once."""

        def ask(number: int, frame: FrameType | None) -> None:
            self.stop_asked = True
            if number == signal.SIGINT:
                signal.signal(number, previous[signal.SIGINT])

        previous = {number: signal.signal(number, ask) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)


class Window:
    """Sums figures between two progress lines; nothing waits for the device until the window closes."""

    def __init__(
        self, spec: ModelSpec, config: PretrainedConfig, settings: TrainSettings, mesh: Mesh, first_step: int
    ) -> None:
        self.spec, self.config, self.settings, self.mesh = spec, config, settings, mesh
        self.peak = peak_flops(settings.peak_tflops, mesh.device) * mesh.world
        self.sums = torch.zeros(len(FIGURES), dtype=torch.float64, device=mesh.device)
        self.begin = time.perf_counter()
        self.waited = 0.0
        self.first_step = first_step

    def add(self, figures: Tensor) -> None:
        self.sums += figures

    @contextmanager
    def waiting_for_data(self) -> Iterator[None]:
        begin = time.perf_counter()
        yield
        self.waited += time.perf_counter() - begin

    @contextmanager
    def not_counted(self) -> Iterator[None]:
        begin = time.perf_counter()
        yield
        self.begin += time.perf_counter() - begin

    def close(self, step: int, rate: float, norm: float, scale: float) -> dict[str, float]:
        """Figures of the global batches since the last call (collective over the data-parallel group)."""
        sums, waited = self.sums.clone(), self.waited
        if self.mesh.data_size > 1:
            dist.all_reduce(sums, group=self.mesh.data_group)
        seconds = time.perf_counter() - self.begin
        steps = step - self.first_step
        totals = dict(zip(FIGURES, sums.tolist(), strict=True))
        flops = self.spec.flops(self.config, totals["rows"], self.settings.data.sequence_length, totals["predicted"])
        self.sums.zero_()
        self.begin, self.waited, self.first_step = time.perf_counter(), 0.0, step
        return {
            **losses(sums),
            "learning_rate": rate,
            "gradient_norm": norm,
            "loss_scale": scale,
            "tokens": totals["tokens"],
            "tokens_per_second": totals["tokens"] / seconds,
            "seconds_per_step": seconds / steps,
            "data_wait_share": waited / seconds,
            "mfu": flops / seconds / self.peak,
            "seconds_left": (self.settings.steps - step) * seconds / steps,
        }


def losses(sums: Tensor) -> dict[str, float]:
    """Means per predicted token and per row from summed `FIGURES`."""
    values = dict(zip(FIGURES, sums.tolist(), strict=True))
    predicted, rows = max(values["predicted"], 1.0), max(values["rows"], 1.0)
    masked_lm, next_sentence = values["masked_lm_sum"] / predicted, values["next_sentence_sum"] / rows
    return {
        "loss": masked_lm + next_sentence,
        "masked_lm_loss": masked_lm,
        "masked_lm_accuracy": values["correct"] / predicted,
        "next_sentence_loss": next_sentence,
        "next_sentence_accuracy": values["next_sentence_correct"] / rows,
    }


def lanes_of(rows: int, mesh: Mesh) -> range:
    """The rows of a global batch that this data-parallel rank owns; sizes differ by one where it does not divide."""
    return range(rows * mesh.data_rank // mesh.data_size, rows * (mesh.data_rank + 1) // mesh.data_size)


def seed_dropout(seed: int, step: int, lane: int) -> None:
    torch.manual_seed(int(random.key(seed, step, lane, 0)) >> 1)


def _lost_a_process(error: RuntimeError) -> bool:
    """gloo and NCCL raise this on the ranks that are left when a process dies."""
    return isinstance(error, dist.DistError) or "gloo" in str(error)


def _device() -> str:
    if torch.cuda.is_available():
        return "cuda"
    log.info("device: CPU, because torch sees no GPU here")
    return "cpu"
