"""A model that trains by kernels, run by Triton's interpreter on a CPU, learns what it does by torch's operations."""

from pathlib import Path
from typing import Any

import pytest
import torch

from reread.training import assembly as assembled
from reread.training.assembly import Assembly, resolve
from reread.training.config import TrainSettings
from reread.training.data.kinds import open_dataset
from reread.training.models.ran.attention_ran import LARGEST_FUSED
from reread.training.parallel.mesh import Mesh
from tests.conftest import document_values, extra, longformer_values, ran_values, train_values

MODELS = {"nezha": train_values, "ernie_doc": document_values, "ran": ran_values, "longformer": longformer_values}


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("name", list(MODELS))
def test_a_step_gives_the_same_weights(name: str, sample_corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    extra("kernels", "triton")
    values = MODELS[name](sample_corpus)
    values["model"] |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "num_hidden_layers": 1}
    values |= {"global_batch": 2, "micro_batch": 2}
    values["data"]["sequence_length"] = 24  # two windows of RAN's
    if name == "ran":
        values["model"]["head_size"] = LARGEST_FUSED + 2
    settings = TrainSettings.parse(values, "test")
    dataset = open_dataset(settings.data, settings.seed, "train")

    def trained(by_kernels: bool) -> Any:
        monkeypatch.setattr(assembled, "by_kernels", lambda *_: by_kernels)
        resolved = resolve(settings, dataset.vocab_size, None, dataset.special)
        assembly = Assembly(resolved, Mesh(), torch.float32, dataset=dataset)
        with assembly.objective.batches(0) as loader:
            rows = next(loader)
        totals = {one: float(count) for one, count in assembly.objective.counts(rows).items()}
        assembly.buckets.zero()
        for loss, _, _ in assembly.objective.losses(rows, totals, 0):
            if loss is not None:
                loss.backward()
        assembly.update(0.01, 1.0)
        return assembly

    ours, plain = trained(True), trained(False)
    assert ours.masters.model_parameters.keys() == plain.masters.model_parameters.keys()
    assert any("forward" in vars(layer) for layer in ours.model.modules())
    for parameter, expected in zip(ours.model.parameters(), plain.model.parameters(), strict=True):
        torch.testing.assert_close(parameter, expected, rtol=1e-3, atol=1e-5)
