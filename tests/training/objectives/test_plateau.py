"""A masked language model that has learned no context says so."""

import logging
import math
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from reread.training.config import TrainSettings
from reread.training.data.masking.masking import mask
from reread.training.data.settings import MaskingSettings
from reread.training.objectives.plateau import Plateau, context_free_loss
from reread.training.parallel.mesh import Mesh
from reread.training.trainer import Trainer
from tests.conftest import train_values

FORMS = [{}, {"mask_share": 1.0, "random_share": 0.0}, {"mask_share": 0.5, "random_share": 0.0}, {"mask_share": 0.0}]
MASK = -1


def seen_and_true(share: list[float], masking: MaskingSettings) -> dict[tuple[int, int], float]:
    """The probability of each pair of what is seen, `MASK` or a token, and the true token."""
    kept = 1 - masking.mask_share - masking.random_share
    joint = {(MASK, token): masking.mask_share * p for token, p in enumerate(share)}
    for token, other in product(range(len(share)), repeat=2):
        seen = kept * (token == other) + masking.random_share / len(share)
        joint[other, token] = share[token] * seen
    return joint


@pytest.mark.parametrize("form", FORMS)
def test_without_context_the_least_loss_is_that_of_the_true_posterior(form: dict[str, float]) -> None:
    """By all pairs of what is seen and what is true; without tokens that are seen it is the unigram entropy."""
    masking, counts = MaskingSettings(**form), np.array([7.0, 2.0, 1.0, 0.0, 5.0])
    share = (counts / counts.sum()).tolist()
    joint = seen_and_true(share, masking)
    expected = 0.0
    for (seen, _), p in joint.items():
        if p:
            expected -= p * math.log(p / sum(q for (other, _), q in joint.items() if other == seen))
    assert context_free_loss(counts, masking) == pytest.approx(expected, rel=1e-12)
    if masking.mask_share == 1:
        assert expected == pytest.approx(-sum(p * math.log(p) for p in share if p), rel=1e-12)


def test_it_is_the_loss_on_rows_as_they_are_masked() -> None:
    """Of independent tokens, whose best prediction is the posterior, on 30,000 places: 0.01 is two standard errors."""
    generator, masking = np.random.default_rng(0), MaskingSettings(strategy="token")
    share = np.array([1 / (rank + 1) for rank in range(20)])
    share /= share.sum()
    ids = generator.choice(20, (2000, 100), p=share).astype(np.int32)
    labels = mask(
        ids,
        np.zeros(ids.shape, bool),
        np.ones(ids.shape, bool),
        lengths=np.full(2000, 100),
        keys=generator.integers(0, 1 << 63, 2000, dtype=np.uint64),
        settings=masking,
        replacements=np.arange(20),
        mask_id=20,
        unknown_id=21,
    )
    joint = seen_and_true(share.tolist(), masking)
    places = labels >= 0
    losses = []
    for seen, true in zip(np.where(ids == 20, MASK, ids)[places].tolist(), labels[places].tolist(), strict=True):
        losses.append(-math.log(joint[seen, true] / sum(joint[seen, token] for token in range(20))))
    assert len(losses) == 30000
    assert context_free_loss(share, masking) == pytest.approx(np.mean(losses), abs=0.01)


class Masked:
    """An objective whose other rank has the same targets."""

    mesh = Mesh()
    data = SimpleNamespace(masking=MaskingSettings())
    optimizer = SimpleNamespace(name="adam")
    settings = SimpleNamespace(steps=100, schedule=SimpleNamespace(warmup_steps=10), optimizer=optimizer)

    def targets(self, batch: Any) -> Any:
        return np.array(batch, np.int64)

    def summed(self, counts: torch.Tensor) -> torch.Tensor:
        return 2 * counts


def test_the_line_comes_once_after_the_warm_up_and_again_at_the_end(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "reread")
    plateau = Plateau(Masked(), 5)  # type: ignore[arg-type]
    least = context_free_loss(np.array([2.0, 1, 1, 0, 0]), MaskingSettings())

    def lines(step: int, loss: float) -> int:
        caplog.clear()
        plateau.loss = loss
        plateau.check(step)
        return len(caplog.records)

    assert lines(20, 9.0) == 0  # nothing was to be predicted yet
    plateau.add([0, 1, 2, 0])
    assert [lines(10, 9.0), lines(20, math.nan), lines(20, least - 1e-9)] == [0, 0, 0]
    assert [lines(30, least), lines(40, 9.0), lines(100, 9.0), lines(100, least - 1e-9)] == [1, 0, 1, 0]
    assert f"not below {least:.2f}, which frequencies" in (lines(100, 9.0), caplog.text)[1]


def test_a_run_that_learns_nothing_says_so(
    sample_corpus: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "reread")
    values = train_values(sample_corpus, steps=4, validate_every=2, log_every=2)
    values["optimizer"] |= {"learning_rate": 1e-30}
    values["schedule"] = {"warmup_steps": 1}
    trainer = Trainer(TrainSettings.parse(values, "test"), tmp_path, Mesh())
    trainer.train()
    said = [record.getMessage() for record in caplog.records if "uses no context yet" in record.getMessage()]
    assert [line.partition(":")[0] for line in said] == ["step 2", "step 4"]
    rows = trainer.settings.global_batch * trainer.settings.steps
    labels = trainer.dataset.rows(np.arange(rows))["labels"]
    counts = np.bincount(labels[labels >= 0], minlength=trainer.dataset.vocab_size)
    assert np.array_equal(trainer.plateau.counts, counts)
