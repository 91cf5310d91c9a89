"""Begins a run with the state of another run: `train.from_run`."""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

from reread.preprocessing.corpus.facts import corpus_changes
from reread.preprocessing.errors import UserError
from reread.training.assembly import Assembly
from reread.training.checkpoint.store import CheckpointStore
from reread.training.config import TrainSettings, origin_of
from reread.training.data.dataset import Dataset
from reread.training.optim.build import set_steps_taken
from reread.training.parallel.mesh import Mesh
from reread.training.run.files import RunFile
from reread.training.run.model import RunModel, leaves_pooler, read_run_model
from reread.training.run.state import RunState, run_state

log = logging.getLogger("reread")


def continued_model(settings: TrainSettings, dataset: Dataset[Any]) -> RunModel:
    """The model of `settings.from_run`, for a run that learns from `dataset`.

    Raises `UserError` if that run has no model, or a model with another vocabulary.
    """
    assert settings.from_run is not None
    run, _ = origin_of(settings.from_run)
    if not RunFile.MODEL.of(run).exists():
        raise UserError(f"train.from_run: {run} holds no model; is it a run folder with a checkpoint?")
    kept = read_run_model(run, settings)
    if kept.corpus["tokenizer"] != dataset.facts()["tokenizer"]:
        raise UserError(
            f"{settings.data.location}: made with another vocabulary than the model of {run}; preprocess it with "
            f"tokenizer.path={RunFile.MODEL.of(run)}"
        )
    return replace(kept, corpus=dataset.card(), untrained_pooler=kept.untrained_pooler and leaves_pooler(kept))


def continue_run(settings: TrainSettings, assembly: Assembly, dataset: Dataset[Any], mesh: Mesh) -> RunState:
    """Fill the weights and the optimiser from `settings.from_run`; returns the state of that checkpoint.

    The data is read on from where that run stopped, with other masks, too. Other data, or data in other lanes, is read
    from its beginning, with empty memories. The moments of parameters that did not learn in that run are zero. Raises
    `UserError` if there is no such checkpoint, if it does not fit the model, or if no step is left.
    """
    assert settings.from_run is not None
    run, wanted = origin_of(settings.from_run)
    store = CheckpointStore(RunFile.CHECKPOINTS.of(run), 1, mesh)
    latest = store.latest() if wanted is None else wanted
    # Load the tensors that both runs have.
    with mesh.together():
        step = _intact(store, run, latest)
        state, objective = run_state(store, step), assembly.objective
        if settings.steps <= step:
            raise UserError(
                f"train.steps: {settings.steps}, but {run} is at step {step}, and its steps count; give more than "
                f"{step}"
            )
        if settings.schedule.restart and (fault := settings.too_long_for(settings.schedule_ends - step)):
            raise UserError(f"train: {fault}")
        tensors, slices = assembly.weights()
        lanes, of_lanes = objective.state()
        same_corpus = not corpus_changes(state["corpus"], dataset.facts())
        same_data = same_corpus and not dataset.changes_since(state, masks=False)
        goes_on = same_data and store.fits(step, of_lanes)
        if goes_on:
            tensors, slices = tensors | lanes, slices | of_lanes
        fresh = [
            name for name in tensors if not name.startswith("model.") and not store.fits(step, {name: slices[name]})
        ]
    store.load(step, {name: tensor for name, tensor in tensors.items() if name not in fresh}, slices)
    # Say what begins anew, and go on at that run's row of the data.
    if fresh:
        log.info("did not learn in %s, so the optimiser begins anew with it: %s", run, ", ".join(_parameters(fresh)))
    assembly.masters.to_model()
    set_steps_taken(assembly.optimizer, state["updates"])
    begins = step if settings.schedule.restart else state.get("schedule_begins", 0)
    objective.go_on(step, state["position"] if goes_on else 0, begins)
    data = (
        "the data goes on from there"
        if goes_on
        else f"the data is read from its beginning, since {'the lanes differ' if same_data else 'it is other data'}"
    )
    log.info("continuing %s from step %d, with its weights and optimiser; %s", run, step, data)
    return state


def _parameters(moments: list[str]) -> list[str]:
    """The names of the parameters to which the optimiser's tensors `moments` belong."""
    return list(dict.fromkeys(name.partition(".")[2] for name in moments))


def _intact(store: CheckpointStore, run: Path, step: int | None) -> int:
    """`step`. Raises `UserError` if it has no checkpoint, or if this rank's share of that is damaged."""
    steps = store.steps()
    if step is None or step not in steps:
        there = f"no step {step}; there are {', '.join(map(str, steps))}" if steps else "no checkpoint"
        raise UserError(f"train.from_run: {run} has {there}")
    if fault := store.fault(step):
        raise UserError(f"train.from_run: step {step} of {run} is damaged ({fault}); name another by RUN@STEP")
    return step
