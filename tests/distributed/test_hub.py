"""transformers' encoders by the trainer: beside a plain loop, and on more processes."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch.nn.functional import cross_entropy

from reread.training.assembly import resolve
from reread.training.config import TrainSettings
from reread.training.data.kinds import open_dataset
from reread.training.models.build import build_model
from tests.conftest import train_values
from tests.distributed.test_training import agree, curve, state_of, train_in_process

STEPS = 4


def bert_values(corpus: Path, **changes: Any) -> dict[str, Any]:
    """The `train` section of a tiny BERT on packed rows, without dropout."""
    model = {
        "type": "bert",
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 24,
        "max_position_embeddings": 48,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    }
    values = {
        "model": model,
        "data": {"kind": "packed", "corpus": str(corpus), "sequence_length": 48},
        "optimizer": {"name": "adam", "learning_rate": 0.01, "eps": 1e-4},
        "schedule": {"decay": "constant"},
    }
    return train_values(corpus, **{**values, "steps": STEPS, "validate_every": STEPS, **changes})


def plain_loop(values: dict[str, Any]) -> tuple[list[float], dict[str, torch.Tensor]]:
    """A loop as one writes it with transformers' own class and torch's AdamW; the losses and the weights at the end."""
    settings = TrainSettings.parse(values, "test")
    dataset: Any = open_dataset(settings.data, settings.seed, "train")
    resolved = resolve(settings, dataset.vocab_size, None, dataset.special)
    model = transformers.BertForMaskedLM(resolved.config)
    model.load_state_dict(build_model(resolved.head, resolved.config, None, settings.seed).state_dict())
    plain = [name.endswith("bias") or "LayerNorm" in name for name, _ in model.named_parameters()]
    groups = [
        {"params": [p for p, one in zip(model.parameters(), plain, strict=True) if one == of], "weight_decay": decay}
        for of, decay in ((False, 0.01), (True, 0.0))
    ]
    optimizer = torch.optim.AdamW(groups, lr=0.01, betas=(0.9, 0.999), eps=1e-4)
    steps, warmup = settings.steps, settings.schedule.warmup_steps

    def share(step: int) -> float:
        return min((step + 1) / warmup, (steps - step) / (steps - warmup)) if warmup else 1.0

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, share)
    losses = []
    for step in range(steps):
        rows = dataset.rows(torch.arange(8 * step, 8 * step + 8).numpy())
        labels = torch.tensor(rows["labels"], dtype=torch.long)
        logits = model(input_ids=torch.tensor(rows["input_ids"], dtype=torch.long)).logits
        loss = cross_entropy(logits.flatten(0, 1), labels.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    return losses, dict(model.named_parameters())


def test_the_same_run_as_a_plain_loop_on_one_two_and_four_processes(ranks_in_float64, sample_corpus, tmp_path) -> None:
    """With four the optimiser's state is divided."""
    for processes in (1, 2, 4):
        run = tmp_path / str(processes)
        run.mkdir()
        values = bert_values(sample_corpus, parallel={"shard_state": processes == 4})
        ranks_in_float64(processes, train_in_process, values, run)
    ((losses, weights),) = ranks_in_float64(1, plain_loop, bert_values(sample_corpus))
    ends = state_of(tmp_path / "1", STEPS)
    for key, value in weights.items():
        torch.testing.assert_close(ends[f"model.{key}"], value, rtol=1e-8, atol=1e-10)
    for processes in (1, 2, 4):
        assert curve(tmp_path / str(processes)) == pytest.approx(losses, rel=1e-9)
        agree(state_of(tmp_path / str(processes), STEPS), ends)


@pytest.mark.long
def test_a_hundred_steps_are_those_of_a_plain_loop(ranks_in_float64, sample_corpus, tmp_path) -> None:
    """With a warm-up and a linear decay: all losses, and the weights at the end."""
    values = bert_values(sample_corpus, steps=100, validate_every=100, schedule={"warmup_steps": 10})
    ranks_in_float64(1, train_in_process, values, tmp_path)
    ((losses, weights),) = ranks_in_float64(1, plain_loop, values)
    assert curve(tmp_path) == pytest.approx(losses, rel=1e-9) and losses[-1] < losses[0] - 0.5
    ends = state_of(tmp_path, 100)
    for key, value in weights.items():
        torch.testing.assert_close(ends[f"model.{key}"], value, rtol=1e-8, atol=1e-10)
