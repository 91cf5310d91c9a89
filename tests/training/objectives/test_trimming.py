"""Micro-batches of similar rows, trimmed, learn what untrimmed ones do, in every model family."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from reread.training.assembly import head_of
from reread.training.config import TrainSettings
from reread.training.data.kinds import open_dataset
from reread.training.models import model_spec
from reread.training.models.build import build_model, model_config
from reread.training.objectives import objective_of
from reread.training.objectives.objective import Objective
from reread.training.parallel.mesh import Mesh
from tests.conftest import document_values, longformer_values, ran_values, span_values, thinned, train_values
from tests.corpora import VOCABULARY, make_corpus

COLUMNS = 48
FAMILIES: dict[str, tuple[Any, dict[str, Any], dict[str, Any]]] = {
    "nezha, pairs": (train_values, {}, {}),
    "nezha, clipped positions": (train_values, {"max_relative_position": 9}, {"next_sentence": False}),
    "nezha, absolute positions": (train_values, {"position_type": "parametric_absolute"}, {}),
    "nezha, spans": (span_values, {}, {}),
    "ran": (ran_values, {}, {}),
    "ran, one window": (ran_values, {"window_size": 64}, {}),
    "ran, paper": (ran_values, {"profile": "paper"}, {}),
    "longformer": (longformer_values, {}, {"kind": "rows", "next_sentence": False}),
    "ernie_doc": (document_values, {}, {}),
    "ernie_doc, shifted": (document_values, {"recurrence": "shifted"}, {"retrospective": False}),
}
"""Values, keys of `model` and keys of `data`."""
OFFICIAL = {
    "ran": (ran_values, {"official_padding": True}, {}),
    "ernie_doc": (document_values, {"official_memory": True}, {}),
}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Documents of a few tokens to a few rows, most of them shorter than one."""
    lengths = np.random.default_rng(0).integers(3, 70, 40).tolist()
    return make_corpus(tmp_path_factory.mktemp("trimming") / "corpus", lengths).folder


@pytest.fixture(autouse=True)
def losses_in_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the losses of a float64 model in float64; `.float()` would cast them."""
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)


def objective_for(corpus: Path, family: tuple[Any, dict[str, Any], dict[str, Any]]) -> Any:
    values, model, data = family
    given = values(corpus, global_batch=9, micro_batch=4)
    given["model"] |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, **model}
    given["data"] |= data
    settings = TrainSettings.parse(given, "test")
    spec, learned = model_spec(settings.model["type"]), objective_of(settings)
    config = model_config(spec, settings.model, VOCABULARY, None, {"pad": 0})
    built = build_model(head_of(spec, learned, settings.data), config, None, 0).double()
    dataset = open_dataset(settings.data, settings.seed, "train")
    return learned(built, settings, Mesh(), dataset, dataset)


class Followed:
    """The steps of an objective without updates, and the columns that its encoder sees."""

    def __init__(self, corpus: Path, family: tuple[Any, dict[str, Any], dict[str, Any]]) -> None:
        self.objective = objective_for(corpus, family)
        self.widths: list[int] = []
        self.objective.model.base_model.register_forward_pre_hook(self._see, with_kwargs=True)

    def _see(self, module: Any, args: Any, given: Any) -> None:
        self.widths.append((args[0] if args else given["input_ids"]).shape[1])

    def steps(self, count: int) -> list[torch.Tensor]:
        """Loss, figures, gradients and memories of each step."""
        found: list[torch.Tensor] = []
        with self.objective.batches(0) as loader:
            for step in range(count):
                batch = next(loader)
                totals = {name: max(value, 1) for name, value in self.objective.counts(batch).items()}
                figures, total = self.objective.zeros(), torch.zeros((), dtype=torch.float64)
                self.objective.model.zero_grad()
                for loss, of_pass, _ in self.objective.losses(batch, totals, step):
                    figures += of_pass
                    if loss is not None:
                        loss.backward()
                        total += loss.detach()
                gradients = [p.grad.clone() for p in self.objective.model.parameters() if p.grad is not None]
                memory = self.objective.memory
                mems = [tensor.clone() for tensor in memory.mems] if memory else []
                found += [total, figures, *gradients, *mems]
        return found


@pytest.mark.slow
@pytest.mark.parametrize("family", thinned(FAMILIES, 3))
def test_trimmed_micro_batches_learn_what_untrimmed_ones_do(monkeypatch, corpus, family) -> None:
    """Losses, figures, gradients and memories of six steps in float64, and figures of held-out text."""
    trimmed, whole = Followed(corpus, FAMILIES[family]), Followed(corpus, FAMILIES[family])
    found = [*trimmed.steps(6), trimmed.objective.evaluate(trimmed.objective.held_out, None)]
    with monkeypatch.context() as patch:
        patch.setattr(Objective, "padding_counts", True)
        expected = [*whole.steps(6), whole.objective.evaluate(whole.objective.held_out, None)]
    assert set(whole.widths) == {COLUMNS}
    assert len(set(trimmed.widths)) >= 4 and min(trimmed.widths) <= 16
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("model", OFFICIAL)
def test_padding_that_changes_results_stays(corpus, model) -> None:
    """The authors' RAN cuts windows of padding, and their ERNIE-Doc remembers it."""
    followed = Followed(corpus, OFFICIAL[model])
    followed.steps(2)
    assert set(followed.widths) == {COLUMNS}


@pytest.mark.parametrize("family", ["nezha, pairs", "ran", "longformer", "ernie_doc"])
def test_mfu_and_speed_count_text_and_not_padding(corpus, family) -> None:
    objective = objective_for(corpus, FAMILIES[family])
    with objective.batches(0) as loader:
        batch = next(loader)
    passes = list(objective.losses(batch, objective.counts(batch), 0))
    totals = objective.totals_of(torch.stack([one.figures for one in passes]).sum(0))
    tokens = batch["attention_mask"][batch.get("learns", np.ones(len(batch["labels"]), bool))]
    assert totals["tokens"] == tokens.sum() < 0.8 * tokens.size
    spec, mean = model_spec(objective.settings.model["type"]), round(tokens.sum() / len(tokens))
    flops = objective.flops(spec, objective.model.config, totals)
    assert flops == spec.flops(objective.model.config, mean, totals)
    assert flops < 0.8 * spec.flops(objective.model.config, COLUMNS, totals)
