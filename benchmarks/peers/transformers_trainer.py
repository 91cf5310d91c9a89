"""transformers' Trainer with its collator of whole words, as run_mlm.py and run_mlm_wwm.py use it; and its fine-tuning.

Rows are documents' tokens joined and cut to the length (run_mlm.py's `group_texts`).
"""

import json
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch
from transformers import BertTokenizerFast, PreTrainedModel, Trainer, TrainerCallback, TrainingArguments

from benchmarks.peers.sizes import HEADS, INNER, LAYERS, LENGTHS, RATE, TOKENS, WIDTH, finetuning
from benchmarks.training.from_scratch import joined_rows

SIZES = {"hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "intermediate_size": INNER}


class Steps(TrainerCallback):  # type: ignore[misc]
    """CPU seconds of each step without drawing its batch."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self.seconds.append(-time.process_time())

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.seconds[-1] += time.process_time()


def bert(folder: Path, seed: int) -> dict[str, float]:
    from transformers import BertConfig, BertForMaskedLM, DataCollatorForLanguageModeling

    tokenizer = _tokenizer(folder)
    model = BertForMaskedLM(BertConfig(vocab_size=len(tokenizer), **SIZES))
    return _train(folder, tokenizer, model, DataCollatorForLanguageModeling(tokenizer, whole_word_mask=True))


def nezha(folder: Path, seed: int) -> dict[str, float]:
    from transformers import DataCollatorForWholeWordMask, NezhaConfig, NezhaForMaskedLM

    tokenizer = _tokenizer(folder)
    model = NezhaForMaskedLM(NezhaConfig(vocab_size=len(tokenizer), **SIZES))
    return _train(folder, tokenizer, model, DataCollatorForWholeWordMask(tokenizer))


def _tokenizer(folder: Path) -> BertTokenizerFast:
    path = str(folder / "vocab.txt")
    return BertTokenizerFast(vocab_file=path, vocab=path)  # the names in transformers 4 and 5


def _train(folder: Path, tokenizer: BertTokenizerFast, model: PreTrainedModel, collator: Any) -> dict[str, float]:
    """CPU seconds of the median step, and of an epoch with drawing its batches, by length."""
    torch.set_num_threads(1)
    with (folder / "text.jsonl").open(encoding="utf-8") as file:
        texts = [json.loads(line)["text"] for line in file]
    by_offsets = hasattr(collator, "whole_word_mask")  # transformers 5
    made = tokenizer(texts, return_special_tokens_mask=True, return_offsets_mapping=by_offsets)
    costs = {}
    for length in LENGTHS:
        arguments = TrainingArguments(
            output_dir=tempfile.mkdtemp(),
            per_device_train_batch_size=TOKENS // length,
            num_train_epochs=1,
            learning_rate=RATE,
            weight_decay=0.01,
            dataloader_drop_last=True,
            remove_unused_columns=False,  # the collator uses them
            use_cpu=True,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            logging_strategy="no",
        )
        steps, rows = Steps(), joined_rows(made, length)
        trainer = Trainer(
            model=model,
            args=arguments,
            train_dataset=rows,
            data_collator=collator,
            callbacks=[steps],
        )
        begin = time.process_time()
        trainer.train()
        costs |= {f"step {length}": median(steps.seconds), f"epoch {length}": time.process_time() - begin}
    return costs


def finetune(folder: Path, seed: int) -> dict[str, float]:
    from benchmarks.training.finetuning import theirs

    taken, accuracy = theirs(finetuning(folder), False, seed)
    return {"epochs": taken, "accuracy": accuracy}
