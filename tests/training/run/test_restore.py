"""`--average`: weights averaged over checkpoints of a run, exported and evaluated."""

import json
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from reread.preprocessing.errors import UserError
from reread.training.checkpoint.store import CheckpointStore
from reread.training.config import TrainSettings
from reread.training.evaluation import evaluate_run
from reread.training.exchange.run_export import export_run
from reread.training.parallel.mesh import Mesh
from reread.training.run.metrics import read_evaluations
from reread.training.run.model import read_run_model
from reread.training.run.restore import averaged_steps, restore_model
from reread.training.trainer import train
from tests.conftest import train_values


def test_weights_are_the_mean_over_checkpoints_and_the_export_says_so(sample_corpus: Path, tmp_path: Path) -> None:
    """The mean in float64, rounded once, is theirs but for the rounding of two sums and a division."""
    values = train_values(sample_corpus, steps=4, checkpoint={"every_steps": 1, "keep": 3})
    settings = TrainSettings.parse({**values, "validate_every": 9}, "test")
    train(settings, tmp_path)
    kept, store = read_run_model(tmp_path, settings), CheckpointStore(tmp_path / "checkpoints", 3, Mesh())
    model, step = restore_model(tmp_path, kept, averaged=averaged_steps(tmp_path, "3"))
    each = [store.read_full(one, "model.") for one in (2, 3, 4)]
    assert step == 4
    for name, parameter in model.named_parameters():
        mean = torch.stack([one[name] for one in each]).double().mean(0)
        torch.testing.assert_close(parameter.double(), mean, rtol=2e-7, atol=1e-9)
        assert "bias" in name or not torch.equal(parameter, each[-1][name])
    assert averaged_steps(tmp_path, "2", 3) == [2, 3] and averaged_steps(tmp_path, "4,2") == [2, 4]
    figures = evaluate_run(tmp_path, settings, average="2")
    assert figures["loss"] != evaluate_run(tmp_path, settings)["loss"]
    assert [one["overrides"] for one in read_evaluations(tmp_path)] == [["average=3,4"], []]
    export_run(tmp_path, tmp_path / "two", settings, [], average="3,4")
    card = (tmp_path / "two" / "README.md").read_text()
    assert json.loads((tmp_path / "two" / "config.json").read_text())["averaged_steps"] == [3, 4]
    assert "Its weights are the average of those at steps 3, 4." in card and f"{figures['loss']:.4f}"[:5] in card
    embeddings = "nezha.embeddings.word_embeddings.weight"
    exported = load_file(tmp_path / "two" / "model.safetensors")[embeddings]
    assert torch.equal(exported, ((each[1][embeddings] + each[2][embeddings]) / 2)[: len(exported)])

    def refused(average: str, line: str) -> None:
        with pytest.raises(UserError, match=re.escape(line)) as caught:
            export_run(tmp_path, tmp_path / "no", settings, [], average=average)
        assert "\n" not in str(caught.value)

    refused("4", "checkpoints holds 3 checkpoints (2, 3, 4); a run keeps the last train.checkpoint.keep of them")
    refused("1", "average 1: a number of checkpoints from 2 on, or their steps: 1000,2000,3000")
    refused("two", "average two: a number of checkpoints")
    refused("1,4", "no step 1; there are 2, 3, 4")
    part = next((tmp_path / "checkpoints" / "step-00000003").glob("*.safetensors"))
    part.write_bytes(part.read_bytes()[:-1])
    refused("2", "step 3 is damaged")
