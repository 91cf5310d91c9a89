"""SpanBERT's span-boundary objective on NEZHA (Joshi et al. 2020, section 3.2)."""

import copy
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from reread.training.checkpoint.store import CheckpointStore
from reread.training.config import TrainSettings
from reread.training.data.batch import IGNORED
from reread.training.data.masking.masking import span_boundaries
from reread.training.evaluation import evaluate_run
from reread.training.exchange.convert import convert
from reread.training.exchange.export import write_huggingface
from reread.training.models.build import build_model
from reread.training.models.nezha import NezhaConfig, NezhaForMaskedLM, NezhaForPreTraining
from reread.training.models.nezha.spec import flops
from reread.training.objectives.masked_lm import MaskedLMObjective
from reread.training.parallel.mesh import Mesh
from reread.training.run.metrics import read_metrics
from reread.training.trainer import train
from tests.conftest import span_values
from tests.elsewhere import run_elsewhere
from tests.training.data.masking.test_masking import make_rows, run

LENGTH = 40


def config(**values: Any) -> NezhaConfig:
    sizes = {"vocab_size": 60, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    more = {"intermediate_size": 24, "initializer_range": 0.2, "span_boundary": True}
    return NezhaConfig(**{**sizes, **more, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, **values})


def pretraining(**values: Any) -> NezhaForPreTraining:
    torch.manual_seed(0)
    model = NezhaForPreTraining(config(**values)).double()
    with torch.no_grad():
        for parameter in model.parameters():  # biases and norms that could hide a mistake by being 0 or 1
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def masked_rows(rows: int = 3) -> dict[str, np.ndarray[Any, Any]]:
    """Rows with spans of 1 token, of 3, of 25 (longer than the table of positions), and two at the text's ends."""
    generator = np.random.default_rng(0)
    ids = generator.integers(5, 60, (rows, LENGTH)).astype(np.int32)
    labels = np.full_like(ids, IGNORED)
    for row, spans in enumerate(([(1, 1), (5, 7), (36, 38)], [(4, 28)], [(1, 2), (4, 4)])):
        for first, last in spans:
            labels[row, first : last + 1] = ids[row, first : last + 1]
            ids[row, first : last + 1] = 4
    return {
        "input_ids": ids,
        "attention_mask": np.ones_like(ids),
        "labels": labels,
        "token_type_ids": np.zeros_like(ids),
        "next_sentence_label": np.array([0, 1, 0]),
    }


def spans_of(labels: np.ndarray[Any, Any]) -> list[tuple[int, int, int]]:
    """(row, s, e) of each run of predicted tokens, one token after the other."""
    found = []
    for row, values in enumerate(labels.tolist()):
        first = None
        for column, value in enumerate([*values, IGNORED]):
            if value != IGNORED and first is None:
                first = column
            elif value == IGNORED and first is not None:
                found.append((row, first, column - 1))
                first = None
    return found


def naive_loss(model: NezhaForPreTraining, batch: dict[str, np.ndarray[Any, Any]]) -> float:
    """sum of -log P(x_i | y_i), y_i = LN(gelu(W2 LN(gelu(W1 [x_{s-1}; x_{e+1}; p_{i-s+1}])))), in float64."""
    weights = {name: value.detach().numpy() for name, value in model.named_parameters()}
    head = "cls.span_boundary"
    with torch.no_grad():
        x = model.nezha(torch.from_numpy(batch["input_ids"]).long()).last_hidden_state.numpy()
    erf = np.vectorize(math.erf)

    def layer(part: str, values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        z = weights[f"{head}.{part}.dense.weight"] @ values + weights[f"{head}.{part}.dense.bias"]
        z = 0.5 * z * (1 + erf(z / np.sqrt(2)))
        z = (z - z.mean()) / np.sqrt(z.var() + 1e-12)
        return z * weights[f"{head}.{part}.LayerNorm.weight"] + weights[f"{head}.{part}.LayerNorm.bias"]

    total = 0.0
    for row, s, e in spans_of(batch["labels"]):
        for i in range(s, e + 1):
            p = weights[f"{head}.position_embeddings.weight"][min(i - s + 1, 20) - 1]
            y = layer("outer", layer("inner", np.concatenate([x[row, s - 1], x[row, e + 1], p])))
            logits = weights["nezha.embeddings.word_embeddings.weight"] @ y + weights["cls.predictions.bias"]
            total += np.log(np.exp(logits - logits.max()).sum()) + logits.max() - logits[batch["labels"][row, i]]
    return total


def task_of(model: NezhaForPreTraining, rows: int = 3) -> MaskedLMObjective:
    settings = TrainSettings.parse(span_values(Path("nowhere"), global_batch=rows, micro_batch=rows), "test")
    return MaskedLMObjective(model, settings, Mesh(), None, None)


def test_the_loss_is_the_papers_equation() -> None:
    model, batch = pretraining().eval(), masked_rows()
    labels = batch["labels"]
    positions = torch.from_numpy(np.flatnonzero(labels != IGNORED))
    output = model(
        torch.from_numpy(batch["input_ids"]).long(),
        masked_positions=positions,
        span_boundaries=torch.from_numpy(span_boundaries(labels)),
    )
    targets = torch.from_numpy(labels.ravel()).long()[positions]
    ours = torch.nn.functional.cross_entropy(output.span_logits, targets, reduction="sum")
    assert ours.item() == pytest.approx(naive_loss(model, batch), rel=1e-12)


def test_the_step_sums_both_losses_of_each_predicted_token() -> None:
    """L(x_i) = L_MLM(x_i) + L_SBO(x_i), beside next sentences; the span loss is a figure of its own."""
    model, batch = pretraining(), masked_rows()
    task = task_of(model)
    (one,) = task.losses(batch, task.counts(batch), 0)
    totals = dict(zip(task.figures, one.figures.tolist(), strict=True))
    assert totals["in_spans"] == totals["predicted"] == 35
    shown = task.summary(totals, 1)
    assert shown["span_loss"] == pytest.approx(naive_loss(model, batch) / 35, rel=1e-6)  # summed in float32
    parts = shown["masked_lm_loss"] + shown["next_sentence_loss"] + shown["span_loss"]
    assert shown["loss"] == shown["masked_lm_loss"]  # what is minimised is the sum
    assert one.loss is not None and one.loss.item() == pytest.approx(parts, rel=1e-6)


def test_without_the_head_nothing_changes() -> None:
    with_head = pretraining()
    without = pretraining(span_boundary=False)
    without.load_state_dict(with_head.state_dict(), strict=False)
    figures = []
    for model in (with_head, without):
        task = task_of(model)
        (one,) = task.losses(masked_rows(), {"predicted": 35.0, "pairs": 3.0}, 0)
        figures.append(dict(zip(task.figures, one.figures.tolist(), strict=True)))
    assert figures[1]["in_spans"] == 0 and "span_loss" not in MaskedLMObjective.summary(figures[1], 1)
    for name in figures[0].keys() - {"in_spans", "span_sum"}:
        assert figures[0][name] == figures[1][name], name


def test_only_the_tokens_around_a_span_are_seen() -> None:
    """What the encoder makes of the span itself, or of any other token, changes nothing in its logits."""
    model, labels = pretraining(), masked_rows()["labels"]
    boundaries = torch.from_numpy(span_boundaries(labels))
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(3, LENGTH, 16, generator=generator, dtype=torch.float64, requires_grad=True)
    y = model.cls.span_boundary(hidden, boundaries)
    places = {row * LENGTH + column for row, s, e in spans_of(labels) for column in (s - 1, e + 1)}
    (gradient,) = torch.autograd.grad((y * torch.randn_like(y)).sum(), hidden)
    seen = gradient.flatten(0, 1).abs().sum(-1)
    assert set(seen.nonzero().squeeze(1).tolist()) == places
    other = hidden.detach().clone().flatten(0, 1)
    unseen = [place for place in range(3 * LENGTH) if place not in places]
    other[unseen] = torch.randn(len(unseen), 16, generator=generator, dtype=torch.float64)
    assert torch.equal(model.cls.span_boundary(other.view_as(hidden), boundaries), y)


def test_a_token_outside_spans_contributes_nothing() -> None:
    """A row without spans adds no term, and each term is one of a predicted token's."""
    model, batch = pretraining(), masked_rows()
    alone = {name: values[:2] for name, values in batch.items()}
    batch["labels"][2] = IGNORED
    sums = []
    for rows in (alone, batch):
        (one,) = task_of(model, len(rows["labels"])).losses(rows, {"predicted": 1.0, "pairs": 1.0}, 0)
        sums.append(dict(zip(MaskedLMObjective.figures, one.figures.tolist(), strict=True)))
    assert sums[0]["in_spans"] == sums[1]["in_spans"] == 32
    assert sums[1]["span_sum"] == pytest.approx(sums[0]["span_sum"], rel=1e-12)


@pytest.mark.parametrize("strategy", ["span", "whole-word", "token"])
def test_spans_are_the_runs_of_predicted_tokens(strategy: str) -> None:
    rows = make_rows(200, 64)
    _, predicted = run(rows, strategy)
    labels = np.where(predicted, rows["ids"], IGNORED).astype(np.int32)
    expected = [(row * 64 + s - 1, row * 64 + e + 1, i - s) for row, s, e in spans_of(labels) for i in range(s, e + 1)]
    assert span_boundaries(labels).T.tolist() == [list(one) for one in expected]
    assert not predicted.reshape(-1)[span_boundaries(labels)[:2]].any()
    assert span_boundaries(np.full((2, 8), IGNORED, np.int32)).shape == (3, 0)


@pytest.mark.slow
def test_resume_goes_on_bit_for_bit_and_evaluation_tells_the_span_loss(sample_corpus: Path, tmp_path: Path) -> None:
    for name, stops in (("whole", [6]), ("stopped", [3, 6])):
        for steps in stops:
            values = span_values(sample_corpus, steps=steps, schedule={"decay": "constant"})
            (tmp_path / name).mkdir(exist_ok=True)
            train(TrainSettings.parse(values, "test"), tmp_path / name)
    whole, stopped = (
        CheckpointStore(tmp_path / name / "checkpoints", 2, Mesh()).read_full(6, "") for name in ("whole", "stopped")
    )
    assert "exp_avg.cls.span_boundary.position_embeddings.weight" in whole
    assert all(torch.equal(tensor, stopped[name]) for name, tensor in whole.items())
    lines = [line for line in read_metrics(tmp_path / "whole") if "loss" in line]
    assert all(line["loss"] == line["masked_lm_loss"] for line in lines)
    assert lines[-1]["span_loss"] < lines[0]["span_loss"]
    figures = evaluate_run(tmp_path / "whole", TrainSettings.parse(span_values(sample_corpus), "test"))
    assert 0 < figures["span_loss"] < 20


def test_flops_count_the_head() -> None:
    model = pretraining().float()
    ids = torch.zeros(3, LENGTH, dtype=torch.long)
    labels = masked_rows()["labels"]
    positions = torch.from_numpy(np.flatnonzero(labels != IGNORED))
    boundaries = torch.from_numpy(span_boundaries(labels))
    counted = []
    for more in ({}, {"span_boundaries": boundaries}):
        with FlopCounterMode(display=False) as counter:
            model(ids, masked_positions=positions, **more)
        counted.append(counter.get_total_flops())
    totals = {"rows": 3.0, "predicted": 35.0}
    ours = flops(config(), LENGTH, totals) - flops(config(span_boundary=False), LENGTH, totals)
    assert ours == 3 * (counted[1] - counted[0])


LOAD = """
import sys, torch
from transformers import AutoModelForMaskedLM, AutoModelForPreTraining
assert not any(name.split(".")[0] in ("training", "preprocessing") for name in sys.modules)
ids, positions, boundaries = torch.load(sys.argv[2])
outputs = []
for auto in (AutoModelForPreTraining, AutoModelForMaskedLM):
    model, found = auto.from_pretrained(sys.argv[1], trust_remote_code=True, output_loading_info=True)
    assert not any(found[name] for name in ("missing_keys", "unexpected_keys", "mismatched_keys")), found
    outputs.append(model.eval())
both = outputs[0](ids, masked_positions=positions, span_boundaries=boundaries)
logits = outputs[1](ids, masked_positions=positions).logits
torch.save([both.prediction_logits, both.span_logits, logits], sys.argv[2] + ".out")
"""


@pytest.mark.slow
def test_the_export_has_the_head_and_classes_without_it_load_it(tmp_path: Path) -> None:
    model, labels = pretraining().float().eval(), masked_rows()["labels"]
    write_huggingface(tmp_path / "export", model, None, "card")
    ids = torch.from_numpy(masked_rows()["input_ids"]).long()
    positions = torch.from_numpy(np.flatnonzero(labels != IGNORED))
    boundaries = torch.from_numpy(span_boundaries(labels))
    inputs = tmp_path / "inputs"
    torch.save((ids, positions, boundaries), inputs)
    run_elsewhere(tmp_path, LOAD, tmp_path / "export", inputs)
    expected = model(ids, masked_positions=positions, span_boundaries=boundaries)
    prediction, span, masked = torch.load(f"{inputs}.out")
    assert torch.equal(prediction, expected.prediction_logits)
    assert torch.equal(span, expected.span_logits)
    assert torch.equal(masked, expected.prediction_logits)


def test_a_run_with_the_head_starts_from_weights_without_it_and_the_other_way_round(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "reread")
    for head in (False, True):
        folder = tmp_path / str(head)
        theirs = pretraining(span_boundary=head).float()
        write_huggingface(folder, theirs, None, "card")
        ours = build_model(NezhaForPreTraining, config(span_boundary=not head), folder, 0)
        assert hasattr(ours.cls, "span_boundary") is not head
        same = {name: tensor for name, tensor in ours.state_dict().items() if name in theirs.state_dict()}
        assert all(torch.equal(tensor, theirs.state_dict()[name]) for name, tensor in same.items())
    assert "random: cls.span_boundary.inner.LayerNorm.bias" in caplog.text
    assert caplog.text.count("random: ") == 1


def test_conversion_keeps_the_head_and_leaves_it_out_where_the_source_lacks_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "reread")
    model = pretraining().float()
    write_huggingface(tmp_path / "source", model, None, "card")
    convert(tmp_path / "source", tmp_path / "same")
    kept = NezhaForPreTraining.from_pretrained(tmp_path / "same")
    assert weights_of(kept).keys() == weights_of(model).keys()
    assert all(torch.equal(tensor, weights_of(kept)[name]) for name, tensor in weights_of(model).items())
    assert "left out" not in caplog.text
    lacking = copy.deepcopy(model)
    del lacking.cls.span_boundary
    write_huggingface(tmp_path / "lacking", lacking, None, "card")
    convert(tmp_path / "lacking", tmp_path / "without")
    assert "left out, as the source lacks them: cls.span_boundary" in caplog.text
    assert NezhaForMaskedLM.from_pretrained(tmp_path / "without").config.span_boundary


def weights_of(model: NezhaForPreTraining) -> dict[str, Tensor]:
    return dict(model.state_dict())
