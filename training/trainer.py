"""The training loop. A step is a global batch, however many processes and micro-batches share it."""

import gc
import logging
import math
import secrets
import signal
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from itertools import accumulate
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from reread.preprocessing.corpus.facts import corpus_changes
from reread.preprocessing.errors import UserError, nearest, writing
from reread.training.assembly import Assembly
from reread.training.checkpoint.store import CheckpointStore
from reread.training.config import STOPPED, TrainSettings
from reread.training.data.batch import Rows
from reread.training.data.loader import Loader
from reread.training.kernels.choice import settle_kernels
from reread.training.kernels.layers import check_layers
from reread.training.models.build import check_vocabulary
from reread.training.objectives.plateau import Plateau
from reread.training.optim.build import set_steps_taken, steps_taken
from reread.training.optim.flat import check_update
from reread.training.optim.precision import LossScale, resolve_precision
from reread.training.optim.schedule import learning_rate
from reread.training.parallel.mesh import Mesh
from reread.training.parallel.rendezvous import close_mesh, init_mesh
from reread.training.run.auto import AutoSettings, ChooseAuto, keep_auto, settings_of_run, smallest_memory
from reread.training.run.continuation import continue_run, continued_model
from reread.training.run.data import RunData, open_data, open_together
from reread.training.run.files import RunFile
from reread.training.run.history import close_attempt
from reread.training.run.metrics import MetricsLog, progress_line
from reread.training.run.model import RunModel, new_run_model, read_run_model, write_run_model
from reread.training.run.passes import ChooseShare, pass_share
from reread.training.run.progress import ProgressFigures
from reread.training.run.state import Best, RunState, run_state
from reread.training.run.threads import use_threads
from reread.training.run.watchdog import FAULT, Progress, Watchdog
from reread.training.run.writers import open_writers
from reread.training.scoring.task_scores import SCORES

log = logging.getLogger("reread")

LOWER_IS_BETTER = (
    *("loss", "perplexity", "bits_per_token"),
    *(name for table in SCORES.values() for name, score in table.items() if not score.higher_is_better),
)
"""Endings of the names of figures of which the lowest is best."""
BAD_STEPS_LIMIT = 50
"""Steps in a row whose gradient is not finite before the run gives up."""


def train(
    settings: TrainSettings,
    run: Path,
    prepared: AbstractContextManager[None] | None = None,
    choose_auto: ChooseAuto | None = None,
    choose_share: ChooseShare | None = None,
    before: Sequence[TrainSettings] = (),
) -> None:
    """Train to `settings.steps`, from the last checkpoint in `run` if there is one.

    `before` are the settings of the phases before the last, whose own `settings` are. A phase but the first has this
    run as its `from_run`, and begins where the one before it ended.

    `prepared` is entered when all processes have joined; a `UserError` from it ends all of them. `choose_auto` gives
    values to the settings that are `auto`, `choose_share` the cost of a pass by which a new run cuts micro-batches.

    Raises `UserError` for settings that cannot work or do not fit into memory, and `SystemExit(STOPPED)` after SIGTERM.
    """
    parallel = settings.parallel
    mesh = init_mesh(parallel.tensor, local_device(), parallel.gradients, settings.watchdog_minutes + 10)
    try:
        with ExitStack() as stack:
            with mesh.together():
                stack.enter_context(prepared or nullcontext())
                if mesh.rank == 0:
                    close_attempt(run)
            _train_phases([*before, settings], run, mesh, choose_auto, choose_share)
    except RuntimeError as error:
        if not _lost_a_process(error):
            raise
        log.error("process %d of %d: lost the connection to another process; the run stops", mesh.rank, mesh.world)
        raise SystemExit(FAULT) from None
    finally:
        close_mesh()


def _train_phases(
    phases: Sequence[TrainSettings],
    run: Path,
    mesh: Mesh,
    choose_auto: ChooseAuto | None,
    choose_share: ChooseShare | None,
) -> None:
    """Train the phases that the last intact checkpoint leaves to do."""
    if len(phases) == 1:
        _train_watched(phases[0], run, mesh, choose_auto, choose_share)
        return
    there = CheckpointStore(RunFile.CHECKPOINTS.of(run), 1, mesh).latest() or 0
    borders = [0, *(phase.steps for phase in phases)]
    first = min(bisect_right(borders, there), len(phases))
    for number, phase in enumerate(phases[first - 1 :], first):
        log.info("phase %d of %d: steps %d to %d", number, len(phases), borders[number - 1] + 1, phase.steps)
        if number > first:
            gc.collect()  # the model and buffers of the phase before are held by cycles
            with mesh.together():
                if mesh.rank == 0:
                    close_attempt(run)
        begun = there > borders[number - 1]
        _train_watched(phase, run, mesh, choose_auto, choose_share, begun if number > 1 else None)


def _train_watched(
    settings: TrainSettings,
    run: Path,
    mesh: Mesh,
    choose_auto: ChooseAuto | None,
    choose_share: ChooseShare | None,
    begun: bool | None = None,
) -> None:
    progress = Progress()
    auto = AutoSettings(choose_auto, smallest_memory(mesh)) if choose_auto and settings.automatic else None
    attempt = mesh.gather(secrets.randbits(62))[0][0]
    watchdog = Watchdog(run, progress, mesh.rank, mesh.world, 60 * settings.watchdog_minutes, attempt)
    settings = settle_kernels(settings, mesh, (check_layers, check_update))
    with ExitStack() as stack:
        with mesh.together():
            stack.enter_context(watchdog)
        try:
            data = open_together(settings, run, mesh)
            with mesh.together():
                trainer = Trainer(settings, run, mesh, progress, auto, data, begun)
            chosen: dict[str, dict[str, Any]] = {"threads": use_threads(settings, run, trainer.begun, mesh)}
            if trainer.objective.cuts_by_length:
                share = pass_share(run, trainer.begun, mesh, trainer.share_by(choose_share))
                trainer.objective.pass_share = share
                chosen["passes"] = {"share": share}
            with mesh.together():
                if mesh.rank == 0:
                    with writing(run):
                        keep_auto(run, **chosen)
            trainer.train()
        except RuntimeError as error:
            if _out_of_memory(error):
                raise UserError(_too_large(settings, mesh, progress.step)) from None
            if not _lost_a_process(error):
                raise
            if not progress.stop_asked or watchdog.another_failed():
                watchdog.lost_another()
            log.info("stopped: another process ended first; the same command continues from the last checkpoint")
            raise SystemExit(STOPPED) from None


class Drawn(NamedTuple):
    """The rows of a step on this rank, and the counts that all ranks must know before they compute."""

    rows: Any
    """The batch, as the objective draws it; None if there is a `fault`."""
    fault: UserError | None
    """Why there are no rows."""
    local: list[float]
    """Whether this process was asked to stop, whether it has a fault, and the counts of its rows."""
    summed: Tensor
    """`local` summed over all processes, on the device; without elements if there is one process."""


class Step(NamedTuple):
    """The values that the host reads after a step."""

    rate: float
    norm: float
    """Of the gradient; not finite if the step was skipped."""
    sums: list[float]
    """The figures since the last progress line, summed over all ranks; empty unless the step has such a line."""
    following: Drawn | None
    agreed: list[float]
    """`following.local` summed over all processes."""


class Trainer:
    """A run. Its state is tensors, the step and the loss scale, all of which are in a checkpoint."""

    def __init__(
        self,
        settings: TrainSettings,
        run: Path,
        mesh: Mesh,
        progress: Progress | None = None,
        auto: AutoSettings | None = None,
        data: RunData | None = None,
        begun: bool | None = None,
    ) -> None:
        """`data` is that of `open_together`, where several processes open it; `begun` says whether a phase but the
        first has an intact checkpoint of its own."""
        # Open the data and the checkpoints.
        self.run, self.mesh = run, mesh
        self.progress = progress or Progress()
        dtype = resolve_precision(settings.precision, mesh.device)
        self.dataset, held_out = data or open_data(settings)
        if len(held_out) == 0:
            log.info("no validation: nothing is held out (%s)", settings.data.held_out_by)
        self.store = CheckpointStore(RunFile.CHECKPOINTS.of(run), settings.checkpoint.keep, mesh, self.progress.tick)
        # Resolve the model, and choose values for settings that are `auto`.
        self.begun = bool(self.store.steps()) if begun is None else begun
        self._begins_phase = begun is False
        self.kept = self._model(settings)
        self.kept.check()
        init = None if self.begun else settings.init  # a checkpoint holds every weight
        if init:
            check_vocabulary(init, self.dataset.tokenizer_folder, self.dataset.new_rows)
        self.stated, self.auto = settings, auto
        if auto:
            settings = auto.settings(settings, run, self.begun, self.kept.config, mesh, dtype, self.dataset)
        self.settings = settings = settings_of_run(settings, run)
        # Assemble the model with its optimiser and objective.
        resolved = replace(self.kept, settings=settings)
        self.assembly = Assembly(resolved, mesh, dtype, init=init, dataset=self.dataset, held_out=held_out)
        self.objective = self.assembly.objective
        self.plateau = Plateau(self.objective, self.dataset.vocab_size)
        self.assembly.model.register_forward_hook(self.progress.tick)
        narrowest = torch.float16 if settings.parallel.gradient_dtype == "fp16" else dtype
        self.scale = LossScale(narrowest, settings.initial_loss_scale)
        self.step = 0
        self.bad_steps = self.skipped_steps = 0
        self.tokens = 0.0
        """The number of tokens read up to the last progress line, or the checkpoint after it."""
        self.stopped = False
        self.best: Best | None = None

    def _model(self, settings: TrainSettings) -> RunModel:
        if self.begun and RunFile.MODEL.of(self.run).exists():
            return read_run_model(self.run, settings)
        return continued_model(settings, self.dataset) if settings.from_run else new_run_model(settings, self.dataset)

    def share_by(self, choose: ChooseShare | None) -> Callable[[], float] | None:
        """What chooses the cost of a pass of this run."""
        if choose is None:
            return None
        dtype = resolve_precision(self.settings.precision, self.mesh.device)
        return partial(choose, self.settings, self.kept.config, self.mesh, dtype, self.dataset)

    def train(self) -> None:
        # Begin the run, or go on from its last checkpoint.
        settings, mesh = self.settings, self.mesh
        self._load_checkpoint()
        with mesh.together():
            if mesh.rank == 0 and not (self.begun and RunFile.MODEL.of(self.run).exists()):
                write_run_model(self.run, self.kept)
            if mesh.rank == 0 and self.auto:
                self.auto.keep(self.stated, settings, self.run, mesh)
        if self._finished() and self.store.latest() is not None:
            log.info("nothing to do: all %d steps are done", self.step)
            return
        with mesh.together():
            writer = self._open_log() if mesh.rank == 0 else None
        line = ProgressFigures(self.assembly.spec, self.assembly.config, self.objective, self.step)
        if settings.steps <= self.step:  # with 0 steps
            self._validate(writer)
            self._save_checkpoint(line.sums)
        # A step computes on the rows of `drawn`, while those of the next step are drawn.
        with self.objective.batches(self.step) as loader, self._stoppable():
            drawn = self._draw(loader, line, self.step)
            agreed = _read(drawn.summed)[0] or drawn.local
            while not self._finished() and not self.stopped:
                done = self._train_step(drawn, agreed, line, loader)  # raises the error of drawing the rows
                self.plateau.add(drawn.rows)
                drawn, agreed = done.following or drawn, done.agreed
                self.step += 1
                # A progress line
                if done.sums:
                    values = line.close(self.step, done.rate, done.norm, self.scale.value, done.sums)
                    self.tokens += values["tokens"]
                    self.plateau.loss = values.get("loss", math.nan)
                    values |= {"total_tokens": self.tokens, "skipped_steps": self.skipped_steps}
                    if writer:
                        log.info(progress_line(self.step, settings.steps, values, self.objective.shown))
                        writer.write(self.step, values)
                # A validation, and a checkpoint
                is_best = False
                if self.step % settings.validate_every == 0 or self.step == settings.steps:
                    with line.not_counted():
                        self.plateau.check(self.step)
                        is_best = self._validate(writer)
                self.store.poll()
                due = self.step % settings.checkpoint.every_steps == 0
                if self.stopped or due or is_best or self._finished():
                    self._save_checkpoint(line.sums)
            self.progress.enter("writing the last checkpoint")
            self.store.wait()  # while SIGTERM still cannot interrupt it
        # The end, or a stop on request
        if writer:
            writer.close()
        if not self._finished():
            log.info("stopped: checkpoint saved at step %d; the same command continues from there", self.step)
            raise SystemExit(STOPPED)
        log.info("done: %d steps", self.step)
        if self.bad_steps > LossScale.BAD_STEPS:  # fewer are normal while fp16's scale settles
            log.warning(
                "%s: the last %d steps were skipped, gradient not finite: the model has diverged; begin a new run "
                "(name=...) with a lower train.optimizer.learning_rate",
                *(self.run, self.bad_steps),
            )

    def _train_step(
        self, drawn: Drawn, agreed: list[float], line: ProgressFigures, loader: Loader | None = None
    ) -> Step:
        """One optimiser step on this rank's rows of the global batch; sets `stopped` if any process was asked to stop.

        `agreed` is `drawn.local` summed over all processes. The host waits for the device only once, before the update,
        and then reads everything: the norm, the figures of a progress line, and the sums for the next step, whose rows
        are drawn from `loader` while the device computes. Raises on all ranks the `UserError` by which one of them has
        no rows.
        """
        totals = self._totals(drawn, agreed)
        self.progress.enter("computing")
        buckets = self.assembly.buckets
        buckets.zero()
        for loss, figures, is_last in self.objective.losses(drawn.rows, totals, self.step):
            if is_last:
                buckets.reduce_as_ready()
            if loss is not None:
                (loss * self.scale.value).backward()
            line.add(figures)
        self.progress.enter("reducing gradients")
        buckets.finish()
        squares = buckets.squared_norm()
        has_line = (self.step + 1) % self.settings.log_every == 0 or self.step + 1 == self.settings.steps
        sums = self.objective.summed(line.sums) if has_line else line.sums[:0]
        following = self._draw(loader, line, self.step + 1) if loader else None
        (squared,), sums_here, agreed = _read(squares, sums, following.summed if following else line.sums[:0])
        if following:
            agreed = agreed or following.local
            self.stopped = agreed[0] > 0
        norm = math.sqrt(squared) / self.scale.value
        return Step(self._update(norm, any(totals.values())), norm, sums_here, following, agreed)

    def _update(self, norm: float, learns: bool) -> float:
        """Update the weights unless the gradient's `norm` is not finite or no row `learns`; returns the rate."""
        settings, begins = self.settings, self.objective.schedule_begins
        peak, steps = settings.optimizer.learning_rate, settings.schedule_ends - begins
        rate = learning_rate(self.step - begins, settings.schedule, peak, steps)
        # Nothing to learn from, an update, or a step that is skipped
        if not learns:
            log.info("step %d updates nothing: all its rows are skimmed", self.step)
        elif math.isfinite(norm):
            clip = self.settings.optimizer.gradient_clip
            shrink = min(1.0, clip / (norm + 1e-6)) if clip else 1.0
            factor = shrink / self.scale.value
            self.assembly.update(rate, factor)
            self.bad_steps = 0
        else:
            self.bad_steps += 1
            self.skipped_steps += 1
            self.progress.skipped_steps = self.skipped_steps
            if self.bad_steps == BAD_STEPS_LIMIT:
                raise self.mesh.reported_once(
                    UserError(
                        f"{self.run}: the gradient was not finite in {BAD_STEPS_LIMIT} steps in a row, up to step "
                        f"{self.step}; lower train.optimizer.learning_rate, or look at the data with `reread inspect`"
                    )
                )
            log.info(
                "step %d skipped: gradient not finite (loss scale %g); %d skipped so far",
                *(self.step, self.scale.value, self.skipped_steps),
            )
        # The loss scale counts good and bad steps.
        try:
            self.scale.update(math.isfinite(norm))
        except UserError as error:
            raise self.mesh.reported_once(error) from None
        return rate

    def _draw(self, loader: Loader, line: ProgressFigures, step: int) -> Drawn:
        """The rows of `step`, with the sums of their counts; on a GPU that sum is only begun."""
        self.progress.begin_step(step)
        rows: Rows | None = None
        fault = None
        with line.waiting_for_data():
            try:
                rows = next(loader)
            except UserError as error:  # raised later, on all ranks: the others wait and must be informed first
                fault = error
        self.progress.enter("summing counts")
        return self._counted(rows, fault)

    def _counted(self, rows: Any, fault: UserError | None = None) -> Drawn:
        """The rows with their counts summed over all processes, or the `fault` because of which there are none."""
        counts = {} if fault else self.objective.counts(rows)
        of_rows = [float(counts.get(name, 0)) for name in self.objective.counted]
        local = [float(self.progress.stop_asked), float(fault is not None), *of_rows]
        summed = torch.tensor(local if self.mesh.world > 1 else [], dtype=torch.float64)
        if self.mesh.world > 1:
            summed = self.mesh.put(summed)
            dist.all_reduce(summed)
        return Drawn(rows, fault, local, summed)

    def _totals(self, drawn: Drawn, agreed: list[float]) -> dict[str, float]:
        """The counts of the global batch by name."""
        _, failed, *totals = agreed
        if failed:
            with self.mesh.together():
                if drawn.fault is not None:
                    raise drawn.fault
        names = self.objective.counted
        # tensor-parallel ranks hold the same rows
        return {name: total / self.mesh.tensor_size for name, total in zip(names, totals, strict=True)}

    def _open_log(self) -> MetricsLog:
        return MetricsLog(self.run, self.step, self.mesh.world, open_writers(self.settings, self.run, self.step))

    def _finished(self) -> bool:
        """Whether all steps are done, or `train.patience` evaluations in a row were no better than the best."""
        patience = self.settings.patience
        if self.step >= self.settings.steps:
            return True
        return patience is not None and self.best is not None and self.best["since"] >= patience

    def _validate(self, writer: MetricsLog | None) -> bool:
        """Log figures of held-out text, the same text each time; returns whether they are the best so far."""
        if len(self.objective.held_out) == 0:
            return False
        self.progress.enter("validating")
        values = self.objective.held_out_summary(self.settings.validation_batches)
        if writer:
            corpora = self.objective.held_out.mixed
            hidden = {
                name for name in values for one in corpora if name.startswith(f"{one}_") and name != f"{one}_loss"
            }
            shown = [f"{name} {value:.4f}" for name, value in values.items() if name not in hidden]
            log.info("held out: " + ", ".join(shown))
            writer.write(self.step, {f"validation_{name}": value for name, value in values.items()})
        return self.settings.best_by is not None and self._is_best(self.settings.best_by, values)

    def _is_best(self, name: str, values: dict[str, float]) -> bool:
        """Compare with the best evaluation so far. Of equal ones the first is best, and NaN is never best.

        Raises `UserError` if there is no such figure.
        """
        if name not in values:
            raise self.mesh.reported_once(
                UserError(f"train.best_by: {nearest(name, values, 'is one of')} (got {name})")
            )
        score = -values[name] if name.endswith(LOWER_IS_BETTER) else values[name]
        best: Best = self.best or {"step": None, "score": -math.inf, "since": 0}
        is_better = math.isfinite(score) and score > best["score"]
        if self.mesh.gather(int(is_better))[0][0]:  # sums may differ by rounding between ranks, so rank 0 decides
            self.best = {"step": self.step, "score": score, "since": 0}
            return True
        self.best = {**best, "since": best["since"] + 1}
        if self._finished() and self.step < self.settings.steps:
            better = "finite " + name if best["step"] is None else f"better {name} than step {best['step']}"
            log.info(
                "stopped early: %d evaluations in a row had no %s; train.patience sets how many",
                *(self.best["since"], better),
            )
        return False

    def _save_checkpoint(self, since_line: Tensor) -> None:
        """Save the run; `since_line` has the figures since the last progress line (collective)."""
        self.progress.enter("saving a checkpoint")
        with self.mesh.together():
            if not self.assembly.masters.finite():
                raise UserError(
                    f"{self.run}: the weights are not finite at step {self.step}, which is not saved; the last "
                    "checkpoint stays; begin a new run (name=...) with a lower train.optimizer.learning_rate"
                )
        state: RunState = {
            "step": self.step,
            "scale": self.scale.state(),
            "samples": self.dataset.fingerprint,  # for programs that know no `drawn_by`
            "drawn_by": self.dataset.drawn_by,
            "position": self.objective.position(self.step),
            "corpus": self.dataset.facts(),
            "compared": dict(self.dataset.compared),
            "updates": steps_taken(self.assembly.optimizer),
            "tokens": self.tokens + self.objective.totals_of(since_line)["tokens"],
            "bad_steps": self.bad_steps,
            "skipped_steps": self.skipped_steps,
            "best": self.best,
            "schedule_begins": self.objective.schedule_begins,
        }
        self.store.save(self.step, *self.assembly.tensors(), {**state})

    def _load_checkpoint(self) -> None:
        self.progress.enter("looking for a checkpoint")
        settings = self.settings
        latest = None if self._begins_phase else self.store.latest()
        if latest is None and settings.from_run is None:
            log.info("no checkpoint in %s: starting at step 0", self.run)
            return
        if latest is None:
            state = continue_run(settings, self.assembly, self.dataset, self.mesh)
            self.skipped_steps = state["skipped_steps"] if self._begins_phase else 0
        else:
            with self.mesh.together():
                state = run_state(self.store, latest)
                self._check_data(state)
            self.store.load(latest, *self.assembly.tensors())
            self.assembly.masters.to_model()
            set_steps_taken(self.assembly.optimizer, state["updates"])
            self.bad_steps, self.best, self.skipped_steps = state["bad_steps"], state["best"], state["skipped_steps"]
            self.objective.go_on(latest, state["position"], state.get("schedule_begins", 0))
        self.scale.load(state["scale"])
        self.step = state["step"]
        self.tokens = state["tokens"]
        if latest is not None:
            log.info("continuing from the checkpoint of step %d", self.step)

    def _check_data(self, state: RunState) -> None:
        """Raise `UserError` if the run would now read other samples than those before the checkpoint."""
        if changes := corpus_changes(state["corpus"], self.dataset.facts()):
            raise UserError(
                f"{self.settings.data.location}: the corpus changed since the run began ({changes}); give the run the "
                "old corpus, or begin a new run with name=..."
            )
        for name, fingerprint in self.dataset.compared.items():
            if state["compared"].get(name, fingerprint) != fingerprint:
                raise UserError(
                    f"{name}: its examples changed since the run began, so earlier and later scores would not compare; "
                    "give the run the old file, or begin a new run with name=..."
                )
        if changes := self.dataset.changes_since(state):
            raise UserError(
                f"{self.run}: its samples would differ from those that it began with ({changes}); revert that, or "
                "begin a new run with name=..."
            )

    @contextmanager
    def _stoppable(self) -> Iterator[None]:
        """SIGTERM or Ctrl-C asks for a checkpoint at the next step boundary; a second Ctrl-C ends it at once."""

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


def _read(*tensors: Tensor) -> list[list[float]]:
    """The values of float64 tensors; the host waits for the device once."""
    sizes = [tensor.numel() for tensor in tensors]
    values = torch.cat([tensor.flatten() for tensor in tensors if tensor.numel()] or [torch.empty(0)]).tolist()
    ends = list(accumulate(sizes))
    return [values[end - size : end] for size, end in zip(sizes, ends, strict=True)]


def _out_of_memory(error: RuntimeError) -> bool:
    """Whether torch raised `error` because a GPU, or the machine of a CPU, gave no more memory."""
    return isinstance(error, torch.OutOfMemoryError) or "DefaultCPUAllocator: can't allocate memory" in str(error)


def _too_large(settings: TrainSettings, mesh: Mesh, step: int) -> str:
    """The line for a run whose step does not fit into memory, with the ways out."""
    micro_batch, recomputes = settings.micro_batch, settings.activation_checkpointing
    ways = ["a smaller train.micro_batch" if micro_batch != 1 else "a smaller train.data.sequence_length"]
    ways += ["train.micro_batch=auto"] if "micro_batch" not in settings.automatic else []
    ways += ["train.activation_checkpointing=true"] if recomputes is not True else []
    divides = settings.parallel.shard_state or mesh.data_size == 1
    ways += [] if divides else ["train.parallel.shard_state=true"]
    where = f"process {mesh.rank} of {mesh.world} ran out of memory at step {step}"
    return f"{where} with train.micro_batch={micro_batch}; set {' or '.join(ways)}"


def _lost_a_process(error: RuntimeError) -> bool:
    """Whether gloo or NCCL raised `error` because another process died."""
    return isinstance(error, dist.DistError) or "gloo" in str(error)


def local_device() -> str:
    if torch.cuda.is_available():
        return "cuda"
    log.info("device: CPU, because torch sees no GPU here")
    return "cpu"
