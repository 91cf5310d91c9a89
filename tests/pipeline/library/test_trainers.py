"""transformers' own Trainer reads our corpora, and goes on exactly where it was stopped (docs/api.md)."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader
from transformers import BertConfig, BertForMaskedLM, Trainer, TrainerCallback, TrainingArguments

import reread

pytestmark = pytest.mark.slow


class Continue(TrainerCallback):  # type: ignore[misc]
    """Has the data continue at the step of the checkpoint."""

    def on_train_begin(self, args: Any, state: Any, control: Any, train_dataloader: Any = None, **_: Any) -> None:
        train_dataloader.dataset.step = state.global_step * args.gradient_accumulation_steps


class OurTrainer(Trainer):  # type: ignore[misc]
    def get_train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(self.train_dataset, batch_size=None)


def train(corpus: Path, folder: Path, stop: int, resume: bool = False) -> dict[str, torch.Tensor]:
    """The weights after `stop` of 6 steps, from random ones or from the last checkpoint in the folder."""
    torch.manual_seed(0)
    tokens = reread.open_corpus(corpus).manifest.tokenizer["vocab_size"]
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    config = BertConfig(vocab_size=tokens, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, **sizes)
    data = reread.dataset(corpus, sequence_length=32, batch_size=4, seed=1)
    arguments = TrainingArguments(
        str(folder),
        max_steps=6,
        gradient_accumulation_steps=2,
        save_steps=2,
        logging_steps=1,
        ignore_data_skip=True,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = OurTrainer(BertForMaskedLM(config), arguments, train_dataset=data, callbacks=[Continue(), Stop(stop)])
    trainer.train(resume_from_checkpoint=resume)
    assert trainer.state.global_step == stop
    return {name: value.clone() for name, value in trainer.model.state_dict().items()}


class Stop(TrainerCallback):  # type: ignore[misc]
    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        control.should_training_stop = state.global_step >= self.step


def test_transformers_trainer_that_is_stopped_continues_exactly(sample_corpus: Path, tmp_path: Path) -> None:
    whole = train(sample_corpus, tmp_path / "whole", 6)
    train(sample_corpus, tmp_path / "parts", 2)
    parts = train(sample_corpus, tmp_path / "parts", 6, resume=True)
    assert whole.keys() == parts.keys() and all(torch.equal(whole[name], parts[name]) for name in whole)
