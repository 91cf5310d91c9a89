"""What only a GPU can show; skipped without one."""

import copy

import pytest
import torch
from transformers import LongformerConfig, ModernBertConfig, ModernBertForMaskedLM

from benchmarks.gpu.profiles import profiled
from reread.training.config import TrainSettings
from reread.training.models.ernie_doc import ErnieDocConfig, ErnieDocForPreTraining
from reread.training.models.hub import lengths
from reread.training.models.longformer import LongformerForMaskedLM
from reread.training.models.nezha import NezhaConfig, NezhaForPreTraining
from reread.training.models.ran import RanConfig, RanForMaskedLM
from reread.training.parallel.mesh import Mesh
from reread.training.run.metrics import read_metrics
from reread.training.run.progress import ProgressFigures
from reread.training.trainer import Trainer, train
from tests.conftest import (
    document_values,
    longformer_values,
    ran_stream_values,
    ran_values,
    stream_values,
    train_values,
)
from tests.forks import Job
from tests.runs import write_recipe

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")

BF16 = torch.cuda.is_available() and (bool(torch.version.hip) or torch.cuda.get_device_capability() >= (8, 0))
HALF = [torch.float16, pytest.param(torch.bfloat16, marks=pytest.mark.skipif(not BF16, reason="this GPU has no bf16"))]
PRECISIONS = ["fp16", pytest.param("bf16", marks=HALF[1].marks)]  # type: ignore[attr-defined]


@pytest.mark.parametrize("clip", [None, 64])
@pytest.mark.parametrize("dtype", HALF)
def test_half_precision_agrees_with_fp32_at_length_512(clip, dtype) -> None:
    """With a padded row and a row of padding alone: no NaN, gradients included."""
    torch.manual_seed(0)
    config = NezhaConfig(
        vocab_size=1000,
        num_hidden_layers=2,
        max_relative_position=clip,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    model = NezhaForPreTraining(config).cuda().train()
    ids = torch.randint(1000, (3, 512), device="cuda")
    mask = torch.ones_like(ids)
    mask[1, 100:] = 0
    mask[2] = 0
    expected = model(input_ids=ids, attention_mask=mask).prediction_logits
    half = NezhaForPreTraining(config).cuda()
    half.load_state_dict(model.state_dict())
    logits = half.to(dtype).train()(input_ids=ids, attention_mask=mask).prediction_logits
    assert logits.isfinite().all()
    real = mask.bool()
    assert (logits - expected)[real].abs().mean() < 0.02 * expected[real].abs().mean() + 0.01
    logits.square().mean().backward()
    assert all(p.grad.isfinite().all() for p in half.parameters() if p.grad is not None)


def test_unclipped_attention_needs_no_square_memory() -> None:
    """Peak memory at twice the length is about twice, not four times: the fused kernel is taken."""
    config = NezhaConfig(
        vocab_size=1000, num_hidden_layers=1, max_relative_position=None, attention_probs_dropout_prob=0.0
    )
    model = NezhaForPreTraining(config).cuda().half().eval()
    peaks = []
    for length in (4096, 8192):
        torch.cuda.reset_peak_memory_stats()
        with torch.no_grad():
            model.nezha(input_ids=torch.randint(1000, (1, length), device="cuda"))
        peaks.append(torch.cuda.max_memory_allocated())
    assert peaks[1] < 2.3 * peaks[0]


@pytest.mark.parametrize("dtype", HALF)
def test_segments_with_memory_agree_with_fp32(dtype) -> None:
    """Two segments of 512 with memory 128; a row with padding, one without memory, one of padding alone."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 1000, "num_hidden_layers": 2}
    config = ErnieDocConfig(**sizes, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    model = ErnieDocForPreTraining(config).cuda().train()
    half = ErnieDocForPreTraining(config).cuda().train()
    half.load_state_dict(model.state_dict())
    half.to(dtype)
    ids = torch.randint(1000, (2, 3, 512), device="cuda")
    mask = torch.ones_like(ids)
    mask[1, 1, 100:-1] = 0
    mask[1, 2] = 0
    mems = {}
    for one in (model, half):
        first = one(ids[0], mask[0]).mems
        for memory in first:
            memory[0] = 0
        mems[one] = first
    expected, found = (one(ids[1], mask[1], mems=mems[one]) for one in (model, half))
    real = mask[1].bool()
    logits = found.prediction_logits
    assert logits.isfinite().all()
    difference = (logits - expected.prediction_logits)[real].abs().mean()
    assert difference < 0.02 * expected.prediction_logits[real].abs().mean() + 0.01
    (logits.square().mean() + found.reorder_logits.square().mean()).backward()
    assert all(p.grad.isfinite().all() for p in half.parameters() if p.grad is not None)


@pytest.mark.parametrize("name", ["ran", "longformer"])
@pytest.mark.parametrize("dtype", HALF)
def test_windows_agree_with_fp32_at_length_1024(dtype, name) -> None:
    """With a padded row and a row of padding alone: no NaN, gradients included."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 1000, "num_hidden_layers": 2, "hidden_size": 256, "num_attention_heads": 4}
    dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    if name == "ran":
        head, config = RanForMaskedLM, RanConfig(**sizes, **dropout, head_size=64, window_size=128)
    else:
        positions = {"max_position_embeddings": 1026, "attention_window": 128, "intermediate_size": 512}
        head, config = LongformerForMaskedLM, LongformerConfig(**sizes, **dropout, **positions)
    model, half = head(config).cuda().train(), head(config).cuda().train()
    half.load_state_dict(model.state_dict())
    half.to(dtype)
    ids = torch.randint(5, 1000, (3, 1024), device="cuda")
    mask = torch.ones_like(ids)
    mask[1, 300:] = 0
    mask[2] = 0
    expected, found = (one(input_ids=ids, attention_mask=mask).logits for one in (model, half))
    assert found.isfinite().all()
    real = mask.bool()
    assert (found - expected)[real].abs().mean() < 0.02 * expected[real].abs().mean() + 0.01
    found.square().mean().backward()
    assert all(p.grad.isfinite().all() for p in half.parameters() if p.grad is not None)


@pytest.mark.parametrize("dtype", HALF)
def test_documents_by_lengths_are_each_document_alone(dtype) -> None:
    """ModernBERT, two rows of several documents, longer than the local layers' window; the gradient, too."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 2, "intermediate_size": 192}
    config = ModernBertConfig(vocab_size=500, pad_token_id=0, local_attention=16, max_position_embeddings=128, **sizes)
    config._attn_implementation = "eager"
    model = ModernBertForMaskedLM(config).cuda().train()
    half = ModernBertForMaskedLM(copy.deepcopy(config)).cuda()
    half.load_state_dict(model.state_dict())
    half.to(dtype).train()
    lengths.choose(half, None, torch.device("cuda"), dtype)
    if not getattr(half, "by_lengths", False):
        pytest.skip("this torch or GPU has no attention by lengths")
    ids = torch.randint(5, 500, (2, 96), device="cuda")
    borders = torch.tensor([0, 40, 70, 96, 97, 192], device="cuda")
    found = half(input_ids=ids, **lengths.arguments(borders, 96, half.config)).logits.flatten(0, 1)
    alone = [model(input_ids=one[None]).logits[0] for one in ids.flatten().tensor_split(borders[1:-1].cpu())]
    expected = torch.cat(alone)
    assert (found - expected).abs().mean() < 0.02 * expected.abs().mean() + 0.01
    for logits in (found, expected):
        logits.float().square().mean().backward()
    ours, plain = (one.get_input_embeddings().weight.grad.float() for one in (half, model))
    assert (ours - plain).norm() < 0.05 * plain.norm()


VALUES = [train_values, document_values, stream_values, ran_values, ran_stream_values, longformer_values]


@pytest.mark.parametrize("values_of", VALUES)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_training_on_the_gpu_follows_the_cpu(sample_corpus, tmp_path, precision, values_of, monkeypatch) -> None:
    values = values_of(sample_corpus, precision=precision)
    names = (
        ("dropout", "dropatt")
        if values_of is stream_values
        else ("hidden_dropout_prob", "attention_probs_dropout_prob")
    )
    values["model"] |= dict.fromkeys(names, 0.0)
    curves = {}
    for place in ("gpu", "cpu"):
        if place == "cpu":
            monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
            values["precision"] = "fp32"
        run = tmp_path / place
        run.mkdir()
        train(TrainSettings.parse(values, "test"), run)
        curves[place] = [line["loss"] for line in read_metrics(run) if "loss" in line]
    assert curves["gpu"] == pytest.approx(curves["cpu"], rel=3e-2)


@pytest.mark.parametrize("values_of", VALUES)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_training_step_takes_fused_attention_kernels(sample_corpus, tmp_path, precision, values_of) -> None:
    """With masks, biases that have a gradient, and dropout: nothing falls back to products of all scores."""
    settings = TrainSettings.parse(values_of(sample_corpus, precision=precision), "test")
    trainer = Trainer(settings, tmp_path, Mesh(device=torch.device("cuda", 0)))
    window = ProgressFigures(trainer.assembly.spec, trainer.assembly.config, trainer.objective, 0)
    with trainer.objective.batches(0) as batches:
        drawn = trainer._draw(batches, window, 0)
        found = profiled(lambda: trainer._train_step(drawn, drawn.local, window), True)
    assert found["attention"] and "math" not in found["attention"], found["kernels"]


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize("tensor", [1, 2])
def test_two_gpus_train_as_one(sample_corpus, tmp_path, tensor) -> None:
    """Over NCCL, data parallel or tensor parallel."""
    fixed = ("steps=8", "precision=fp32", "model.hidden_dropout_prob=0.0", "model.attention_probs_dropout_prob=0.0")
    curves = []
    for processes in (1, 2):
        folder = tmp_path / str(processes)
        write_recipe(folder, sample_corpus)
        split = f"parallel.tensor={min(tensor, processes)}"
        with Job(folder, "train", "tiny.yaml", *fixed, split, "parallel.processes=1", processes=processes) as job:
            assert job.statuses(timeout=300) == [0] * processes, job.output
        lines = [line for line in read_metrics(folder / "runs" / "tiny") if "loss" in line]
        curves.append([(line["tokens"], line["loss"]) for line in lines])
    (tokens, losses), (split_tokens, split_losses) = (zip(*curve, strict=True) for curve in curves)
    assert split_tokens == tokens
    assert split_losses == pytest.approx(losses, rel=1e-3)
