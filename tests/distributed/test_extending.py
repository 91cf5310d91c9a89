"""An objective is added from outside the source tree by the steps of docs/extending.md."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch.nn.functional as F
from torch import Tensor, nn

from reread.training.config import TrainSettings
from reread.training.data.batch import IGNORED, Rows
from reread.training.exchange.run_export import export_run
from reread.training.models import model_spec
from reread.training.models.nezha import NezhaConfig, NezhaModel
from reread.training.models.nezha.modeling_nezha import NezhaPreTrainedModel
from reread.training.objectives import OBJECTIVES
from reread.training.objectives.objective import Card
from reread.training.objectives.rows import RowObjective
from reread.training.run.metrics import read_metrics
from tests.conftest import train_values


class NezhaForReplacedTokens(NezhaPreTrainedModel):
    def __init__(self, config: NezhaConfig) -> None:
        super().__init__(config)
        self.nezha = NezhaModel(config, add_pooling_layer=False)
        self.replaced = nn.Linear(config.hidden_size, 1)
        self.post_init()

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return self.replaced(self.nezha(input_ids, attention_mask).last_hidden_state).squeeze(-1)


class ReplacedTokenObjective(RowObjective):
    """Predict which tokens were replaced (ELECTRA's discriminator, Clark et al. 2020, section 2). Replaced and other
    tokens have separate means, so there are three counts."""

    name = "replaced_token"
    kinds = ("rows",)
    card = Card("AutoModel", "feature-extraction", "replaced-token-detection")
    counted = ("replaced", "kept", "tokens")
    figures = ("loss_sum", "correct", "rows", "tokens", "predicted")
    shown = {"acc": "replaced_accuracy"}

    def counts(self, batch: Rows) -> dict[str, int]:
        replaced, is_token = _replaced(batch), batch["attention_mask"] == 1
        return {
            "replaced": int(replaced.sum()),
            "kept": int((is_token & ~replaced).sum()),
            "tokens": int(is_token.sum()),
        }

    @staticmethod
    def summary(totals: Mapping[str, float], steps: int) -> dict[str, float]:
        tokens = max(totals["tokens"], 1.0)
        return {"loss": totals["loss_sum"] / tokens, "replaced_accuracy": totals["correct"] / tokens}

    def loss(self, batch: Rows, totals: Mapping[str, float]) -> tuple[Tensor, Tensor]:
        replaced, is_token = self.put(_replaced(batch)), self.put(batch["attention_mask"] == 1)
        logits = self.model(self.put(batch["input_ids"]), self.put(batch["attention_mask"]))
        losses = F.binary_cross_entropy_with_logits(logits, replaced.to(logits.dtype), reduction="none") * is_token
        loss = losses[replaced].sum() / totals["replaced"] + losses[~replaced].sum() / totals["kept"]
        correct = (((logits.detach() > 0) == replaced) & is_token).sum()
        counts = self.counts(batch)
        sums = {"loss_sum": losses.detach().sum(), "correct": correct, "predicted": counts["tokens"]}
        return loss, self.sums(rows=len(logits), tokens=counts["tokens"], **sums)


def _replaced(batch: Rows) -> Any:
    return (batch["labels"] != IGNORED) & (batch["labels"] != batch["input_ids"])


def values_of(corpus: Path, **changes: Any) -> dict[str, Any]:
    values = train_values(corpus, objective="replaced_token", steps=3, **changes)
    values["data"]["next_sentence"] = False
    values["model"] |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return values


def train_toy(values: dict[str, Any], run: Path) -> None:
    """Do the work of the two lines in training/objectives/__init__.py and training/models/nezha/spec.py, and train."""
    from reread.training.trainer import train

    OBJECTIVES["replaced_token"] = ReplacedTokenObjective
    model_spec("nezha").heads["replaced_token"] = NezhaForReplacedTokens  # type: ignore[index]
    train(TrainSettings.parse(values, "test"), run)


def test_an_objective_from_outside_the_tree_trains_the_same_at_every_split(
    ranks_in_float64,
    sample_corpus,
    tmp_path,
) -> None:
    """It has a third count, its own head and its own figures, at 1x1 and 2x2 (tensor x data)."""
    curves = {}
    for tensor, processes in ((1, 1), (2, 4)):
        run = tmp_path / str(processes)
        run.mkdir()
        ranks_in_float64(processes, train_toy, values_of(sample_corpus, parallel={"tensor": tensor}), run)
        lines = read_metrics(run)
        curves[processes] = [line[name] for line in lines for name in ("loss", "gradient_norm") if name in line]
        assert all("replaced_accuracy" in line for line in lines if "loss" in line)
        assert any("validation_replaced_accuracy" in line for line in lines)
    assert len(curves[1]) == 6
    assert curves[4] == pytest.approx(curves[1], rel=1e-9)


def test_an_objective_from_outside_the_tree_is_exported_with_its_card(
    sample_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(OBJECTIVES, "replaced_token", ReplacedTokenObjective)
    monkeypatch.setitem(model_spec("nezha").heads, "replaced_token", NezhaForReplacedTokens)  # type: ignore[arg-type]
    values = values_of(sample_corpus)
    train_toy(values, tmp_path)
    export_run(tmp_path, tmp_path / "exported", TrainSettings.parse(values, "test"), [])
    assert "replaced-token-detection" in (tmp_path / "exported" / "README.md").read_text()
    assert json.loads((tmp_path / "exported" / "config.json").read_text())["model_type"].endswith("nezha")
