"""The estimate of a fine-tuning: its examples are there, so their windows are counted."""

from functools import cached_property
from typing import Any

import numpy as np

from reread.pipeline.estimate.arrangement import Arrangement, Estimator
from reread.pipeline.estimate.hardware import Cluster
from reread.pipeline.recipe.schema import Recipe, task_section, train_section
from reread.training.assembly import resolve
from reread.training.config import TrainSettings
from reread.training.data.kinds import open_task
from reread.training.data.tasks.dataset import TaskDataset


class TaskEstimator(Estimator):
    """Arrangements of a fine-tuning: memory by its longest examples, time by the mean of all."""

    def __init__(
        self, train: TrainSettings, cluster: Cluster, flop_share: float | None, examples: TaskDataset[Any, Any]
    ) -> None:
        # beside the tokenizer, as `train.init` may be an export that is not made yet
        resolved = resolve(train, examples.vocab_size, examples.tokenizer_folder, examples.special)
        resolved.check()
        super().__init__(train, resolved.spec, resolved.config, cluster, flop_share, dataset=examples)
        self.examples = examples

    def micro_batches(self, arrangement: Arrangement) -> float:
        """By their tokens, as the rehearsed one has the longest examples."""
        return self.tokens * arrangement.rows / self.train.global_batch / arrangement.footprint.slots

    @cached_property
    def tokens(self) -> float:
        return self.train.global_batch * float(np.mean(self.examples.row_tokens))

    @cached_property
    def flops(self) -> float:
        rows = self.tokens / self.train.data.sequence_length
        skimmed = rows if self.examples.settings.retrospective else 0.0
        return self.spec.flops(
            self.config, self.train.data.sequence_length, {"rows": rows, "skimmed": skimmed, "predicted": 0.0}
        )


def task_estimator(recipe: Recipe, cluster: Cluster, flop_share: float | None) -> TaskEstimator:
    """The estimator of a recipe from `finetune_recipe`. Raises `UserError` for what training would refuse."""
    train = train_section(recipe)
    examples = open_task(task_section(recipe), train.seed, "train")
    return TaskEstimator(train, cluster, flop_share, examples)
