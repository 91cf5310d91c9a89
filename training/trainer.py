"""The training loop: one step is one global batch, whatever the processes and the accumulation."""

import logging
import math
import secrets
import signal
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from transformers import PretrainedConfig

from preprocessing.errors import UserError
from training.checkpoint.store import CheckpointStore
from training.config import STOPPED, TrainSettings
from training.data.loader import Loader, Rows
from training.data.source import open_source
from training.metrics import MetricsLog, peak_flops, progress_line
from training.models import ModelSpec, model_spec
from training.models.build import build_model, check_data, check_vocabulary, freeze, model_config
from training.objectives import TASKS, Task
from training.optim.build import build_optimizer, set_steps_taken, steps_taken
from training.optim.precision import LossScale, MasterWeights, resolve_precision
from training.optim.schedule import learning_rate
from training.parallel.gradients import GradientBuckets
from training.parallel.layout import Slice
from training.parallel.mesh import Mesh
from training.parallel.reduce import reducer
from training.parallel.rendezvous import close_mesh, init_mesh
from training.parallel.tensor import layout, parallelise
from training.provenance import corpus_changes, corpus_facts
from training.watchdog import FAULT, Progress, Watchdog, clear_progress

log = logging.getLogger("reread")

MOST_COUNTS = 2
"""That any task has (`Task.counts`)."""
BAD_STEPS_LIMIT = 50
"""Steps in a row whose gradient is not finite before the run gives up."""


def train(settings: TrainSettings, run: Path, prepared: AbstractContextManager[None] | None = None) -> None:
    """Train to `settings.steps`, from the last checkpoint in `run` if there is one.

    `prepared` is entered when all processes have met, and what it refuses ends all of them.
    Raises `UserError` for settings that cannot work, and `SystemExit(STOPPED)` after SIGTERM.
    """
    parallel = settings.parallel
    mesh = init_mesh(parallel.tensor, local_device(), parallel.gradients, settings.watchdog_minutes + 10)
    try:
        with ExitStack() as stack:
            with mesh.together():
                stack.enter_context(prepared or nullcontext())
                if mesh.rank == 0:
                    clear_progress(run)
            _train_watched(settings, run, mesh)
    except RuntimeError as error:
        if not _lost_a_process(error):
            raise
        log.error("process %d of %d: lost the connection to another process; the run stops", mesh.rank, mesh.world)
        raise SystemExit(FAULT) from None
    finally:
        close_mesh()


def _train_watched(settings: TrainSettings, run: Path, mesh: Mesh) -> None:
    progress = Progress()
    attempt = mesh.gather(secrets.randbits(62))[0][0]
    watchdog = Watchdog(run, progress, mesh.rank, mesh.world, 60 * settings.watchdog_minutes, attempt)
    with ExitStack() as stack:
        with mesh.together():
            stack.enter_context(watchdog)
        try:
            with mesh.together():
                trainer = Trainer(settings, run, mesh, progress)
            trainer.train()
        except RuntimeError as error:
            if not _lost_a_process(error):
                raise
            if not progress.stop_asked or watchdog.another_failed():
                watchdog.lost_another()
            log.info("stopped: another process ended first, so the last checkpoint stands; the same command goes on")
            raise SystemExit(STOPPED) from None


class Trainer:
    """The state of a run. Everything but `step` and the loss scale is tensors; both are in the checkpoint."""

    def __init__(self, settings: TrainSettings, run: Path, mesh: Mesh, progress: Progress | None = None) -> None:
        self.settings, self.run, self.mesh = settings, run, mesh
        self.progress = progress or Progress()
        dtype = resolve_precision(settings.precision, mesh.device)
        self.spec = model_spec(settings.model.get("type", ""))
        self.source = open_source(settings.data, settings.seed, "train")
        held_out = open_source(settings.data, settings.seed, "validation")
        if len(held_out) == 0:
            log.info("no validation loss: the corpus holds no documents out (preprocess.validation_share)")
        self.config = model_config(
            self.spec, settings.model, self.source.vocab_size, settings.init, self.source.special
        )
        check_data(self.spec, self.config, settings.data)
        if settings.init:
            check_vocabulary(settings.init, self.source.tokenizer_folder)
        self.model = build_model(self.spec.head(settings.data.kind), self.config, settings.init, settings.seed).train()
        freeze(self.model, settings.trainable, self.spec.copied)
        if settings.activation_checkpointing:
            self.model.gradient_checkpointing_enable({"use_reentrant": False})
        parallelise(self.model, self.spec.tensor_plan, mesh)
        self.model.to(mesh.device)
        self.model.register_forward_hook(self.progress.tick)
        self.masters = MasterWeights(self.model, dtype)
        self.optimizer = build_optimizer(self.masters.learning(), settings.optimizer, mesh)
        reduce = reducer(settings.parallel, mesh)
        self.buckets = GradientBuckets(list(self.model.parameters()), mesh, settings.parallel.bucket_bytes, reduce)
        narrowest = torch.float16 if settings.parallel.gradient_dtype == "fp16" else dtype
        self.scale = LossScale(narrowest, settings.initial_loss_scale)
        self.task = TASKS[settings.data.kind](self.model, settings, mesh, self.source, held_out)
        self.store = CheckpointStore(run / "checkpoints", settings.checkpoint.keep, mesh, self.progress.tick)
        self.step = 0
        self.bad_steps = self.skipped_steps = 0
        self.stopped = False

    def train(self) -> None:
        settings, mesh = self.settings, self.mesh
        self._load_checkpoint()
        if self.step >= settings.steps and self.store.latest() is not None:
            log.info("nothing to do: all %d steps are done", self.step)
            return
        writer = MetricsLog(self.run, self.step) if mesh.rank == 0 else None
        if settings.steps == 0:
            self._validate(writer)
            self._save_checkpoint()
        window = Window(self.spec, self.config, self.task, self.step)
        with self.task.batches(self.step) as loader, self._stoppable():
            while self.step < settings.steps and not self.stopped:
                self.progress.begin_step(self.step)
                with window.waiting_for_data():
                    drawn = _draw(loader)
                rate, norm = self._train_step(drawn, window)
                self.step += 1
                if self.step % settings.log_every == 0 or self.step == settings.steps:
                    values = window.close(self.step, rate, norm, self.scale.value)
                    values["skipped_steps"] = self.skipped_steps
                    if writer:
                        log.info(progress_line(self.step, settings.steps, values, self.task.shown))
                        writer.write(self.step, values)
                if self.step % settings.validate_every == 0 or self.step == settings.steps:
                    with window.not_counted():
                        self._validate(writer)
                self.store.poll()
                if self.stopped or self.step % settings.checkpoint.every_steps == 0 or self.step == settings.steps:
                    self._save_checkpoint()
            self.progress.enter("writing the last checkpoint")
            self.store.wait()  # while SIGTERM still cannot break it off
        if writer:
            writer.close()
        if self.step < settings.steps:
            log.info("stopped: checkpoint saved at step %d; the same command goes on from there", self.step)
            raise SystemExit(STOPPED)
        log.info("done: %d steps", self.step)
        if self.bad_steps > LossScale.BAD_STEPS:  # so many are how the scale of fp16 finds its place
            log.warning(
                "%s: the last %d steps were skipped, gradient not finite: the model has diverged; begin a new run "
                "(name=...) with a lower train.optimizer.learning_rate",
                *(self.run, self.bad_steps),
            )

    def _train_step(self, drawn: Rows | UserError, window: "Window") -> tuple[float, float]:
        """One optimiser step on this rank's rows of the global batch; returns learning rate and gradient norm.

        On all ranks raises the `UserError` that one got instead of its rows.
        """
        self.progress.enter("meeting the others")
        batch, counts = self._agree(drawn)
        self.progress.enter("computing")
        self.buckets.zero()
        for loss, figures, is_last in self.task.losses(batch, counts, self.step):
            if is_last:
                self.buckets.reduce_as_ready()
            if loss is not None:
                (loss * self.scale.value).backward()
            window.add(figures)
        self.progress.enter("reducing gradients")
        self.buckets.finish()
        norm = self.buckets.global_norm() / self.scale.value
        rate = learning_rate(
            self.step, self.settings.schedule, self.settings.optimizer.learning_rate, self.settings.steps
        )
        if counts[0] == 0:
            log.info("step %d updates nothing: no row of it learns, all skim", self.step)
        elif math.isfinite(norm):
            clip = self.settings.optimizer.gradient_clip
            shrink = min(1.0, clip / (norm + 1e-6)) if clip else 1.0
            self.masters.step(self.optimizer, self.buckets, rate, shrink / self.scale.value)
            self.bad_steps = 0
        else:
            self.bad_steps += 1
            self.skipped_steps += 1
            self.progress.skipped_steps = self.skipped_steps
            if self.bad_steps == BAD_STEPS_LIMIT:
                raise self.mesh.reported_once(
                    UserError(
                        f"{self.run}: the gradient was not finite in {BAD_STEPS_LIMIT} steps in a row, up to step "
                        f"{self.step}; lower optimizer.learning_rate, or look at the data with `reread inspect`"
                    )
                )
            log.info(
                "step %d skipped: gradient not finite (loss scale %g); %d skipped so far",
                *(self.step, self.scale.value, self.skipped_steps),
            )
        try:
            self.scale.update(math.isfinite(norm))
        except UserError as error:
            raise self.mesh.reported_once(error) from None
        return rate, norm

    def _agree(self, drawn: Rows | UserError) -> tuple[Rows, list[float]]:
        """The rows, and the counts summed over the global batch; learns whether any process was asked to stop."""
        fault, batch = (drawn, {}) if isinstance(drawn, UserError) else (None, drawn)
        counts = [] if fault else self.task.counts(batch).tolist()
        local = [float(self.progress.stop_asked), float(fault is not None), *counts]
        local += [0.0] * (2 + MOST_COUNTS - len(local))
        if self.mesh.world > 1:
            values = torch.tensor(local, dtype=torch.float64, device=self.mesh.device)
            dist.all_reduce(values)
            local = values.tolist()
        stop, failed, *totals = local
        self.stopped = stop > 0
        if failed:
            with self.mesh.together():
                if fault is not None:
                    raise fault
        # tensor-parallel ranks hold the same rows
        return batch, [total / self.mesh.tensor_size for total in totals[: len(counts)]]

    def _validate(self, writer: MetricsLog | None) -> None:
        """Mean losses over the same held-out text each time, if the corpus holds any out."""
        if len(self.task.held_out) == 0:
            return
        self.progress.enter("validating")
        values = evaluate(self.task, self.settings.validation_batches)
        if writer:
            log.info("held out: " + ", ".join(f"{name} {value:.4f}" for name, value in values.items()))
            writer.write(self.step, {f"validation_{name}": value for name, value in values.items()})

    def _save_checkpoint(self) -> None:
        self.progress.enter("saving a checkpoint")
        with self.mesh.together():
            if not self.masters.finite():
                raise UserError(
                    f"{self.run}: the weights are not finite at step {self.step}, which is not saved; the checkpoint "
                    "before it stays; begin a new run (name=...) with a lower train.optimizer.learning_rate"
                )
        state = {
            "step": self.step,
            "scale": self.scale.state(),
            "samples": self.source.fingerprint,
            "corpus": corpus_facts(self.settings.data.corpus),
            "updates": steps_taken(self.optimizer),
            "bad_steps": self.bad_steps,
            "skipped_steps": self.skipped_steps,
        }
        tensors, slices = self._tensors()
        self.store.save(self.step, tensors, slices, state)

    def _load_checkpoint(self) -> None:
        self.progress.enter("looking for a checkpoint")
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
        self.skipped_steps = state.get("skipped_steps", 0)  # older checkpoints lack it
        log.info("going on from the checkpoint of step %d", self.step)

    def _check_data(self, state: dict[str, Any]) -> None:
        """Raises `UserError` if the checkpoint was trained on other samples than these."""
        corpus = self.settings.data.corpus
        if changes := corpus_changes(state["corpus"], corpus_facts(corpus)):
            raise UserError(
                f"{corpus}: the corpus changed since the run began ({changes}); give the run the old corpus, or begin "
                "a new run with name=..."
            )
        if state["samples"] != self.source.fingerprint:
            raise UserError(f"{self.run}: train.data or train.seed changed since the run began; take it back")

    def _tensors(self) -> tuple[dict[str, Tensor], dict[str, Slice]]:
        """Masters, optimiser state and the task's by name, with each one's place in the logical tensor."""
        slices = layout(self.model, self.mesh)
        tensors, places = self.task.state()
        for name, master in self.masters.named_parameters():
            tensors[f"model.{name}"] = master.data
            places[f"model.{name}"] = slices[name]
        for name, learning in self.masters.learning():
            of_all = learning.shape == self.masters.masters[name].shape
            for key in ("exp_avg", "exp_avg_sq"):
                tensors[f"{key}.{name}"] = self.optimizer.state[learning][key]
                places[f"{key}.{name}"] = slices[name] if of_all else Slice(tuple(learning.shape))
        return tensors, places

    @contextmanager
    def _stoppable(self) -> Iterator[None]:
        """SIGTERM or Ctrl-C asks for a checkpoint at the next step boundary; a second Ctrl-C breaks off at once."""

        def ask(number: int, frame: FrameType | None) -> None:
            self.progress.stop_asked = True
            if number == signal.SIGINT:
                signal.signal(number, signal.default_int_handler)

        previous = {number: signal.signal(number, ask) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)


class Window:
    """Sums figures between two progress lines; nothing waits for the device until the window closes."""

    def __init__(self, spec: ModelSpec, config: PretrainedConfig, task: Task, first_step: int) -> None:
        self.spec, self.config, self.task, self.mesh = spec, config, task, task.mesh
        self.peak = peak_flops(task.settings.peak_tflops, self.mesh.device) * self.mesh.world
        self.sums = task.zeros()
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
        totals, waited = totals_of(self.task, self.sums), self.waited
        seconds = time.perf_counter() - self.begin
        steps = step - self.first_step
        settings = self.task.settings
        flops = self.spec.flops(self.config, settings.data.sequence_length, totals)
        self.sums.zero_()
        self.begin, self.waited, self.first_step = time.perf_counter(), 0.0, step
        return {
            **self.task.summary(totals, steps),
            "learning_rate": rate,
            "gradient_norm": norm,
            "loss_scale": scale,
            "tokens": totals["tokens"],
            "tokens_per_second": totals["tokens"] / seconds,
            "seconds_per_step": seconds / steps,
            "data_wait_share": waited / seconds,
            "mfu": flops / seconds / self.peak,
            "seconds_left": (settings.steps - step) * seconds / steps,
        }


def evaluate(task: Task, limit: int | None) -> dict[str, float]:
    """`Task.summary` of held-out text, the same on all ranks (collective)."""
    task.model.eval()
    sums = task.evaluate(limit)
    task.model.train()
    return task.summary(totals_of(task, sums), 1)


def _draw(loader: Loader) -> Rows | UserError:
    """The next rows, or what the corpus is refused for: other ranks wait, and must learn of it before they end."""
    try:
        return next(loader)
    except UserError as error:
        return error


def totals_of(task: Task, sums: Tensor) -> dict[str, float]:
    """Figures by name, summed over the data-parallel ranks."""
    if task.mesh.data_size > 1:
        sums = sums.clone()
        dist.all_reduce(sums, group=task.mesh.data_group)
    return dict(zip(task.figures, sums.tolist(), strict=True))


def _lost_a_process(error: RuntimeError) -> bool:
    """gloo and NCCL raise this on the ranks that are left when a process dies."""
    return isinstance(error, dist.DistError) or "gloo" in str(error)


def local_device() -> str:
    if torch.cuda.is_available():
        return "cuda"
    log.info("device: CPU, because torch sees no GPU here")
    return "cpu"
