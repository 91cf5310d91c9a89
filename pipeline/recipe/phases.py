"""`phases` of a recipe: parts of pretraining, one after another in one run, each with settings of its own.

A phase is what `from=RUN@STEP` makes of the run so far. In a recipe it is a mapping of the settings of `train` that
differ in it, with `steps` of its own (or `tokens`, which become steps); `train.steps` is their sum.
"""

import logging
import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

from reread.pipeline.recipe.layers import merge
from reread.pipeline.recipe.schema import Recipe, train_section
from reread.preprocessing.corpus import Manifest
from reread.preprocessing.errors import UserError
from reread.training.config import TrainSettings, given_in_tokens
from reread.training.run.files import RUNS

log = logging.getLogger("reread")

FIXED = ("init", "from_run", "patience", "parallel.tensor", "parallel.processes", "parallel.gradients")
"""Settings of `train` that belong to the whole run."""


def with_phases(values: dict[str, Any], where: str) -> dict[str, Any]:
    """The values of a recipe, in which each phase states all that differs in it, and `train.steps` is their sum.

    Raises `UserError` with the number of the phase for a setting that is unknown, wrong, or of the whole run, for
    `steps` that are not the sum, and for a length in tokens outside the phases, whose steps have different ones.
    """
    stated, train = values.get("phases"), values.get("train")
    if not stated:
        return values
    if not isinstance(train, dict) or not isinstance(stated, list) or not all(isinstance(one, dict) for one in stated):
        raise UserError(
            f"{where}: phases: a list of settings of `train`, beside that section: "
            "[{steps: 900}, {steps: 100, data: {sequence_length: 512}}]"
        )
    Recipe.check_keys({**values, "phases": []}, where)
    for path, becomes, _ in given_in_tokens(train):
        if becomes != "global_batch":
            name = ".".join(path)
            raise UserError(f"{where}: train.{name}: how many tokens a step has is up to the phase; give {name} there")
    stated = [*stated[:1], *(_after_others(one, train, f"{where}: phase {n}") for n, one in enumerate(stated[1:], 2))]
    lengths = [_steps_of(phase, train, f"{where}: phase {number}") for number, phase in enumerate(stated, 1)]
    steps = sum(lengths)
    if train.get("steps") not in (None, steps):
        raise UserError(
            f"{where}: train.steps is {train['steps']}, but the phases have {steps} together; leave it out, or change "
            "them: phases.1.steps=..."
        )
    base = _checked({**train, "steps": steps}, where)
    if base.patience is not None or base.from_run is not None:
        raise UserError(
            f"{where}: a recipe with phases begins at step 0 and takes all its steps; leave out train.from_run and "
            "train.patience"
        )
    read, phases = base.model_dump(mode="json"), []
    for number, (phase, own) in enumerate(zip(stated, lengths, strict=True), 1):
        of_run = {**phase, "steps": steps, "tokens": None}
        settings = _checked(merge(train, of_run, "train"), f"{where}: phase {number}")
        say_counts(f"phases.{number}", phase, settings.model_copy(update={"steps": own}))
        phases.append({**_unlike(read, settings.model_dump(mode="json")), "steps": own})
    return {**values, "train": {**train, "steps": steps}, "phases": phases}


def say_counts(where: str, stated: dict[str, Any], read: TrainSettings) -> None:
    """Log the rows and steps that became of the tokens in `stated` values of `train`."""
    for path, becomes, tokens in given_in_tokens(stated):
        owner = read if len(path) == 1 else getattr(read, path[0])
        of_step = f"{read.batch} rows of {read.data.sequence_length:,} tokens"
        count = of_step if becomes == "global_batch" else f"{getattr(owner, becomes):,} steps of {of_step}"
        section = ".".join((where, *path[:-1]))
        _say(f"{section}.{becomes}", count, f"{section}.{path[-1]}", f"{math.ceil(float(tokens)):,}")


@lru_cache
def _say(*texts: str) -> None:
    log.info("%s: %s, as %s is %s", *texts)


def phases_of(recipe: Recipe) -> list[TrainSettings]:
    """The settings of each phase, as of runs that go on from one another: `steps` counts those before, and a schedule
    ends where the next restarts. Without phases those of `train`. Raises `UserError` for what cannot follow."""
    train = train_section(recipe)
    if not recipe.phases:
        return [train]
    read = train.model_dump(mode="json")
    stated = [merge(read, phase, "train") for phase in recipe.phases]
    borders = [0, *accumulate(phase["steps"] for phase in stated)]
    restarts = [first for first, one in zip(borders, stated, strict=False) if one["schedule"]["restart"]]
    phases = []
    for number, (values, (first, last)) in enumerate(zip(stated, pairwise(borders), strict=True), 1):
        ends = min((one for one in restarts if one > first), default=borders[-1])
        beginning = {"init": None, "from_run": f"{RUNS / recipe.name}@{first}"} if first else {}
        schedule = {**values["schedule"], "ends": values["schedule"]["ends"] or (ends if ends > last else None)}
        where = f"recipe {recipe.name}: phase {number}"
        phase = _checked({**values, **beginning, "steps": last, "schedule": schedule}, where)
        if phase.schedule.restart and (fault := phase.too_long_for(phase.schedule_ends - first)):
            raise UserError(f"{where}: {fault}")
        phases.append(phase)
    return phases


def phase_at(recipe: Recipe, step: int) -> TrainSettings:
    """The settings with which a run made its checkpoint of `step`, as of a run of its own."""
    phases = phases_of(recipe)
    found = next((one for one in phases if step <= one.steps), phases[-1])
    return found.model_copy(update={"from_run": train_section(recipe).from_run})


def check_vocabularies(recipe: Recipe) -> None:
    """Raises `UserError` if the corpora of the phases, as far as they are folders here, have several vocabularies."""
    first: tuple[str, Path] | None = None
    for phase in phases_of(recipe) if recipe.phases else ():
        for folder in (part.corpus for part in phase.data.parts):
            if not isinstance(folder, Path) or not (folder / "manifest.json").exists():
                continue
            vocabulary = str(Manifest.read(folder).tokenizer["fingerprint"])
            first = first or (vocabulary, folder)
            if vocabulary != first[0]:
                raise UserError(
                    f"recipe {recipe.name}: the corpora of its phases, {first[1]} and {folder}, have different "
                    "vocabularies, and a model has one; preprocess one of them with the tokenizer of the other"
                )


def _after_others(phase: dict[str, Any], train: dict[str, Any], where: str) -> dict[str, Any]:
    """A later phase: its batch has grown already, unless its schedule restarts. Raises `UserError` if it is to grow."""
    if value_at(merge(train, phase, "train"), ("schedule", "restart")):
        return phase
    if phase.get("batch_warmup") is not None:
        raise UserError(
            f"{where}: batch_warmup: a batch grows as a schedule begins; set schedule.restart: true in this phase, or "
            "give batch_warmup in the first"
        )
    return phase if train.get("batch_warmup") is None else {**phase, "batch_warmup": None}


def _steps_of(phase: dict[str, Any], train: dict[str, Any], where: str) -> int:
    """The steps of a phase. Raises `UserError` for what it cannot set, and without their number."""
    Recipe.check_keys({"name": "phase", "train": merge(train, phase, "train")}, where)
    steps = phase.get("steps")
    if phase.get("tokens") is not None:  # the schedule is of the whole run
        steps = _checked({**merge(train, phase, "train"), "schedule": {"warmup_steps": 1}}, where).steps
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise UserError(f"{where}: steps: give the phase its own number of steps, from 1 on (got {steps!r})")
    for name in FIXED:
        path = name.split(".")
        if (value := value_at(phase, path)) is not None and value != value_at(train, path):
            raise UserError(f"{where}: {name} is the same for all phases; set it in train.{name}")
    model, of_run = phase.get("model"), train.get("model")
    if isinstance(model, dict) and isinstance(of_run, dict):
        if missing := next((key for key in model if key not in of_run), None):
            raise UserError(f"{where}: model.{missing}: state it in train.model, too, for the other phases")
        if model.get("type", of_run.get("type")) != of_run.get("type"):
            raise UserError(f"{where}: model.type is the same for all phases; `reread convert` makes another model")
    return steps


def _checked(values: dict[str, Any], where: str) -> TrainSettings:
    return TrainSettings.parse(values, where)


def value_at(values: Any, path: Sequence[str]) -> Any:
    """The value at a path in nested mappings; None if there is none."""
    for key in path:
        values = values.get(key) if isinstance(values, dict) else None
    return values


def _unlike(base: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    """The entries of `values` that differ; sections of another kind as a whole."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict) and isinstance(base.get(key), dict) and value.get("kind") == base[key].get("kind"):
            if inner := _unlike(base[key], value):
                found[key] = inner
        elif key not in base or value != base[key]:
            found[key] = value
    return found
