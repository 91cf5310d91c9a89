"""The state of a run that a checkpoint holds in addition to its tensors."""

from functools import cache
from typing import Any

from pydantic import TypeAdapter, ValidationError
from typing_extensions import NotRequired, TypedDict

from reread.preprocessing.corpus.manifest import Count
from reread.preprocessing.errors import UserError
from reread.training.checkpoint.store import CheckpointStore
from reread.training.optim.precision import Scale


class Best(TypedDict):
    """The best evaluation (`train.best_by`)."""

    step: Count | None
    """None if all scores were not finite."""
    score: float
    since: Count
    """The number of evaluations since."""


class RunState(TypedDict):
    """The state that `Trainer` saves in a checkpoint."""

    step: Count
    scale: Scale
    samples: str
    """Fingerprint of the samples from which the run learns."""
    drawn_by: NotRequired[dict[str, Any]]
    """`Dataset.drawn_by`; checkpoints of unreleased versions lack it."""
    corpus: dict[str, Any]
    """`Dataset.facts`"""
    updates: Count
    """Steps whose gradient was finite."""
    bad_steps: Count
    position: Count
    """The row of the endless stream of data with which the next step begins."""
    compared: dict[str, str]
    """`Dataset.compared`"""
    tokens: float
    skipped_steps: Count
    best: Best | None
    schedule_begins: NotRequired[Count]
    """`Objective.schedule_begins`; checkpoints of earlier versions lack it, since no schedule restarted."""


def run_state(store: CheckpointStore, step: int) -> RunState:
    """The state of a run at `step`. Raises `UserError` if the checkpoint holds another one."""
    try:
        return _parser().validate_python(store.state(step))
    except ValidationError as error:
        problem = error.errors()[0]
        if problem["type"] == "missing":
            raise UserError(
                f"{store.folder}: step {step} was made by an unreleased version (its state has no "
                f"`{problem['loc'][-1]}`); begin a new run with name=..."
            ) from None
        raise UserError(
            f"{store.folder}: step {step}: state.{'.'.join(map(str, problem['loc']))}: {problem['msg']}; move this "
            "checkpoint away to continue from the one before it"
        ) from None


@cache
def _parser() -> TypeAdapter[RunState]:
    return TypeAdapter(RunState)
