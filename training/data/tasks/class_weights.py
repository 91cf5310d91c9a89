"""The weight of each class in the loss (`task.class_weights`)."""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from reread.preprocessing.errors import UserError
from reread.training.data.tasks.settings import TaskSettings

ClassWeights = Literal["balanced"] | list[Annotated[float, Field(ge=0, le=1_000_000)]] | None


def class_weights(settings: TaskSettings, counts: Mapping[str, int], examples: int) -> list[float]:
    """The weights in the order of `settings.labels`; empty if all classes weigh the same.

    `counts` are the training examples (or tokens) of each label, `examples` the number of all. Balanced weights are
    those of scikit-learn: all / (classes * count), so that each class has the same share of the loss; of a set of
    labels those of the examples with a label, (all - count) / count, as torch's `pos_weight`. A class without examples
    weighs 1.
    """
    stated = getattr(settings, "class_weights", None)
    if stated != "balanced":
        return stated or []
    if settings.label_form == "set":
        return [(examples - counts.get(label, 0)) / (counts.get(label, 0) or examples) for label in settings.labels]
    known = [counts[label] for label in settings.labels if counts.get(label)]
    mean = sum(known) / len(known)
    return [mean / (counts.get(label, 0) or mean) for label in settings.labels]


def check_class_weights(settings: TaskSettings) -> None:
    """Raises `UserError` for weights that do not fit the task or its labels."""
    stated = getattr(settings, "class_weights", None)
    if stated is None:
        return
    if settings.label_form == "number":
        raise UserError("task.class_weights: numbers to predict have no classes; leave it out")
    if getattr(settings, "crf", False):
        raise UserError("task.class_weights: not with task.crf, whose loss is that of a whole chain; leave one out")
    if isinstance(stated, list) and settings.labels and len(stated) != len(settings.labels):
        raise UserError(
            f"task.class_weights: {len(stated)} weights for {len(settings.labels)} classes; give one for each of "
            f"{', '.join(settings.labels[:20])}{', ...' * (len(settings.labels) > 20)}, in this order"
        )
    if isinstance(stated, list) and not any(stated):
        raise UserError("task.class_weights: all of them are 0, so nothing would be learned")
