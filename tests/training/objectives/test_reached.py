"""Which parameters learn: all that a loss depends on; the others keep their values."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from reread.training.assembly import Assembly, resolved_with
from reread.training.config import TrainSettings
from reread.training.data.batch import IGNORED
from reread.training.models import model_spec
from reread.training.models.build import model_config
from reread.training.parallel.mesh import Mesh
from reread.training.trainer import Trainer
from tests.conftest import (
    document_values,
    longformer_values,
    ran_stream_values,
    ran_values,
    span_values,
    stream_values,
    train_values,
)


def assembled(values: dict[str, Any]) -> Assembly:
    settings = TrainSettings.parse({**values, "global_batch": values["micro_batch"]}, "test")
    config = model_config(model_spec(settings.model["type"]), settings.model, 5000, None)
    return Assembly(resolved_with(settings, config), Mesh(), torch.float32)


def without(values: dict[str, Any], section: str, **changes: Any) -> dict[str, Any]:
    return {**values, section: {**values[section], **changes}}


def packed() -> dict[str, Any]:
    return {**train_values(Path("x")), "data": {"kind": "packed", "corpus": "x", "sequence_length": 48}}


CASES = {
    "pairs": lambda: train_values(Path("x")),
    "no pairs": lambda: without(train_values(Path("x")), "data", next_sentence=False),
    "packed": packed,
    "spans": lambda: span_values(Path("x")),
    "documents": lambda: document_values(Path("x")),
    "one chunk": lambda: without(document_values(Path("x")), "data", reorder_chunks=1),
    "stream": lambda: stream_values(Path("x")),
    "windows": lambda: ran_values(Path("x")),
    "windows of a stream": lambda: ran_stream_values(Path("x")),
    "sliding windows": lambda: without(longformer_values(Path("x")), "data", sequence_length=47),
}
FROZEN = {
    "no pairs": {"pooler", "seq_relationship"},
    "packed": {"pooler", "seq_relationship"},
    "documents": {"token_type"},
    "one chunk": {"token_type", "pooler", "segment_reorder"},
    "sliding windows": {"query_global", "key_global", "value_global"},
}


SELDOM = (".initial.", ".cell.residual.")
"""Of RAN: some layers' first cells, and what later windows reach."""


@pytest.mark.parametrize("case", list(CASES))
def test_a_loss_depends_on_every_parameter_that_learns(case: str) -> None:
    one = assembled(CASES[case]())
    batch = dict(one.objective.largest())
    shape, generator = batch["input_ids"].shape, torch.Generator().manual_seed(0)
    batch["input_ids"] = torch.randint(5000, shape, generator=generator).numpy()
    if "stream" in case:
        batch["labels"] = batch["input_ids"]
    if case == "one chunk":  # as it is drawn
        batch["reorder_label"] = np.full_like(batch["reorder_label"], IGNORED)
    one.buckets.zero()
    for loss, _, _ in one.objective.losses(batch, dict.fromkeys(one.objective.counted, 1.0), 0):
        if loss is not None:
            loss.backward()
    learning = {name: parameter for name, parameter in one.model.named_parameters() if parameter.requires_grad}
    still = {name for name, parameter in learning.items() if not one.buckets.grad_of(parameter).any()}
    assert {name for name in still if not any(part in name for part in SELDOM)} == set()
    frozen = {name for name, parameter in one.model.named_parameters() if not parameter.requires_grad}
    assert all(any(part in name for part in FROZEN.get(case, ())) for name in frozen)
    assert all(any(part in name for name in frozen) for part in FROZEN.get(case, ()))


def test_what_nothing_depends_on_keeps_its_values(sample_corpus: Path, tmp_path: Path) -> None:
    """Weight decay alone would take a pooler to nothing, by a standard LAMB within thirty steps at this rate."""
    optimizer = {"name": "lamb", "variant": "standard", "learning_rate": 0.1, "weight_decay": 0.1}
    values = train_values(sample_corpus, optimizer=optimizer, steps=3, schedule={"decay": "constant"})
    values["data"]["next_sentence"] = False
    trainer = Trainer(TrainSettings.parse(values, "test"), tmp_path, Mesh())
    model = trainer.assembly.model
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    trainer.train()
    changed = {name for name, parameter in model.named_parameters() if not torch.equal(parameter, before[name])}
    assert {name for name in before if name not in changed} == {
        f"{module}.{kind}" for module in ("nezha.pooler.dense", "cls.seq_relationship") for kind in ("weight", "bias")
    }
