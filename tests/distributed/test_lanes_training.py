"""Models with memory on real process groups: lanes, cursors and memories belong to the run, not to a rank."""

from pathlib import Path
from typing import Any

import pytest
import torch

from reread.training.config import TrainSettings
from tests.conftest import document_values, ran_stream_values, ran_words_values, rarer, stream_values
from tests.distributed.test_training import agree, curve, mixed, state_of, train_in_process, train_untrimmed

KINDS = {
    "documents": document_values,
    "stream": stream_values,
    "ran": ran_stream_values,
    "ran words": ran_words_values,
    "mixed documents": lambda corpus, **changes: mixed(document_values(corpus, **changes)),
    "mixed stream": lambda corpus, **changes: mixed(stream_values(corpus, **changes)),
}
OFTEN = ("documents", "ran words")
FEW_SPLITS = ("ran words", "mixed documents", "mixed stream")


def values_of(kind: str, corpus: Path, **changes: Any) -> dict[str, Any]:
    values = KINDS[kind](corpus, **changes)
    names = ("dropout", "dropatt") if "stream" in kind else ("hidden_dropout_prob", "attention_probs_dropout_prob")
    values["model"] |= dict.fromkeys(names, 0.0)
    return values


@pytest.mark.parametrize("kind", [kind if kind in OFTEN else rarer(kind) for kind in KINDS])
def test_same_loss_curve_at_every_split(ranks_in_float64, sample_corpus, tmp_path, kind) -> None:
    """Splits 1x1 and 2x2 (tensor x data) with accumulation, and 1x3, which does not divide the lanes. At 1x1 segments
    are not trimmed.

    Adaptive word vectors are one more model of RAN's, and mixtures one more dataset, so 1x1 and 2x2 do for them.
    """
    splits = ((1, 1, 4), (2, 2, 1), (1, 3, 2))
    for tensor, data, micro_batch in splits[:2] if kind in FEW_SPLITS else splits:
        values = values_of(kind, sample_corpus, parallel={"tensor": tensor}, micro_batch=micro_batch)
        values |= {"steps": 3, "validate_every": 2, "global_batch": 4}
        run = tmp_path / f"{tensor}x{data}"
        run.mkdir()
        ranks_in_float64(tensor * data, train_untrimmed if tensor == data == 1 else train_in_process, values, run)
    expected = tmp_path / "1x1"
    assert len(curve(expected)) == 3 and len(curve(expected, "validation_loss")) == 2
    for run in tmp_path.iterdir():
        for name in ("loss", "validation_loss", "gradient_norm", "tokens"):
            assert curve(run, name) == pytest.approx(curve(expected, name), rel=1e-9), (run, name)
        agree(state_of(run, 3), state_of(expected, 3))


def evaluate_in_process(values: dict[str, Any], run: Path) -> tuple[dict[str, float], dict[str, float]]:
    from reread.training.parallel.rendezvous import init_mesh
    from reread.training.trainer import Trainer

    task = Trainer(TrainSettings.parse(values, "test"), run, init_mesh()).objective
    return task.held_out_summary(None), task.held_out_summary(1)


@pytest.mark.long
def test_processes_that_have_no_lane_wait_for_the_one_that_reads(ranks, sample_corpus, tmp_path) -> None:
    """With one lane all processes have the figures of a single process, bit for bit."""
    values = values_of("ran", sample_corpus)
    ((alone, _),) = ranks(1, evaluate_in_process, values, tmp_path)
    found = ranks(3, evaluate_in_process, values, tmp_path)
    assert all(whole == alone and part == found[0][1] for whole, part in found)


@pytest.mark.parametrize(
    ("kind", "splits"),
    [
        rarer("documents", ((1, 1), (2, 2), (1, 3), (4, 1))),
        ("stream", ((2, 2), (1, 3), (2, 1))),
        rarer("ran", ((2, 2), (1, 3), (2, 1))),
        ("ran words", ((2, 2), (1, 1))),
    ],
)
def test_a_run_goes_on_at_another_split_with_its_memories(
    ranks_in_float64, sample_corpus, tmp_path, kind, splits
) -> None:
    """Each split (tensor x data) resumes the one before; the result equals a run of one process."""
    whole, moved = tmp_path / "whole", tmp_path / "moved"
    for run in (whole, moved):
        run.mkdir()
    last = 2 * len(splits)
    values = values_of(kind, sample_corpus, steps=last, validate_every=last, schedule={"decay": "constant"})
    values["global_batch"] = 4
    ranks_in_float64(1, train_in_process, {**values, "micro_batch": 4}, whole)
    for number, (tensor, data) in enumerate(splits, 1):
        now = {"steps": 2 * number, "parallel": {"tensor": tensor}, "micro_batch": number}
        ranks_in_float64(tensor * data, train_in_process, {**values, **now}, moved)
    assert curve(moved, "tokens") == curve(whole, "tokens")
    assert curve(moved) == pytest.approx(curve(whole), rel=1e-9)
    agree(state_of(moved, last), state_of(whole, last))
    assert any(tensor.any() for name, tensor in state_of(moved, last).items() if name.startswith("memory."))


def test_learning_rows_stay_near_the_global_batch_and_are_reported(ranks, sample_corpus, tmp_path) -> None:
    ranks(
        1, train_in_process, values_of("documents", sample_corpus, steps=20, global_batch=16, micro_batch=16), tmp_path
    )
    learning, skimmed = curve(tmp_path, "learning_rows"), curve(tmp_path, "skimmed_rows")
    assert all(learns + skims == 32 for learns, skims in zip(learning, skimmed, strict=True))
    assert sum(learning) / 20 == pytest.approx(16, rel=0.15)
    assert min(learning) >= 8 and max(learning) <= 24


def test_half_precision_remembers(ranks, sample_corpus, tmp_path) -> None:
    """fp16 weights and memories with fp32 masters follow the curve of fp32, and memory is restored as saved."""
    for precision in ("fp32", "fp16"):
        run = tmp_path / precision
        run.mkdir()
        ranks(1, train_in_process, values_of("documents", sample_corpus, precision=precision), run)
    assert curve(tmp_path / "fp16") == pytest.approx(curve(tmp_path / "fp32"), rel=0.01)
    memories = {name: tensor for name, tensor in state_of(tmp_path / "fp16", 6).items() if name.startswith("memory.")}
    assert len(memories) == 2 and all(tensor.dtype == torch.float16 for tensor in memories.values())
