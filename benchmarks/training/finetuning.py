"""Fine-tuning a classifier from the same model, by `reread finetune` and by transformers' Trainer.

    python benchmarks/training/finetuning.py EXPORT --train train.tsv --dev dev.tsv   # columns label, text_a

EXPORT is a folder of `reread export`, or that of an encoder as transformers has it, such as a BERT.

Both sides have the same texts (the first `--length` tokens of each), epochs, batch, optimiser (AdamW, linear schedule
with 10 % of warm-up, clipping at 1) and seeds. transformers is used in two ways: as its example `run_glue.py` does by
default, every row padded to `--length`, and with rows padded to the longest of their batch. Ours sorts the examples of
a step by length and pads groups of `--micro-batch`. A side is a process; sides take turns, a round for each seed. Time
is CPU seconds of training alone, on one thread, with ours the last step's checkpoint; the accuracy is that step's.
Beside it stands a bag of words, of what both sides read and of whole texts.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import argparse
import csv
import os
import statistics
import tempfile
from functools import partial
from typing import Any

from benchmarks.harness import heading, in_process, in_turns, parser, ratio, row, seconds
from reread.preprocessing.errors import one_line


def ours(options: argparse.Namespace, seed: int) -> tuple[float, float]:
    """(CPU seconds of training, accuracy in points)."""
    import torch

    from reread.pipeline.recipe.schema import train_section
    from reread.pipeline.recipe.task import finetune_recipe
    from reread.training.parallel.mesh import Mesh
    from reread.training.trainer import Trainer

    torch.set_num_threads(1)
    folder = Path(tempfile.mkdtemp())
    os.chdir(folder)
    values = {
        "init": options.export,
        "seed": seed,
        "task.train": options.train,
        "task.dev": options.dev,
        "task.sequence_length": options.length,
        "task.longest": options.length - 2,
        "finetune.epochs": options.epochs,
        "global_batch": options.batch,
        "micro_batch": options.micro_batch,
        "activation_checkpointing": False,
        "optimizer.learning_rate": options.rate,
        "best_by": "null",
        "validate_every": 1 << 30,
        "log_every": 1000,
        "writers": [],
        "peak_tflops": 1.0,
    }
    recipe = finetune_recipe("nezha-chnsenticorp", [f"{name}={value}" for name, value in values.items()])
    trainer = Trainer(train_section(recipe), folder / "run", Mesh())
    trainer._validate = lambda writer: False  # type: ignore[method-assign]
    trainer.dataset.verify()  # the other side's texts are tokenised before it trains, too
    taken = seconds(trainer.train)
    return taken, trainer.objective.held_out_summary(None)["accuracy"]


def theirs(options: argparse.Namespace, padded: bool, seed: int) -> tuple[float, float]:
    """(CPU seconds of training, accuracy in points); `padded`: every row to the whole length."""
    import torch
    from transformers import (
        AutoModelForSequenceClassification,
        AutoTokenizer,
        DataCollatorWithPadding,
        Trainer,
        TrainingArguments,
    )

    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(options.export, trust_remote_code=True)
    model = AutoModelForSequenceClassification.from_pretrained(options.export, trust_remote_code=True, num_labels=2)

    def examples(path: Path) -> list[dict[str, Any]]:
        rows = _rows(path)
        made = tokenizer(
            [text for text, _ in rows],
            truncation=True,
            max_length=options.length,
            padding="max_length" if padded else False,
        )
        names = list(made)
        return [
            {**{name: made[name][number] for name in names}, "labels": int(label)}
            for number, (_, label) in enumerate(rows)
        ]

    train, dev = examples(options.train), examples(options.dev)
    steps = -(-len(train) // options.batch) * options.epochs
    arguments = TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=options.batch,
        per_device_eval_batch_size=options.batch,
        num_train_epochs=options.epochs,
        learning_rate=options.rate,
        warmup_steps=steps // 10,
        weight_decay=0.01,
        adam_epsilon=1e-6,
        seed=seed,
        use_cpu=True,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        logging_strategy="no",
    )
    trainer = Trainer(
        model=model, args=arguments, train_dataset=train, data_collator=DataCollatorWithPadding(tokenizer)
    )
    taken = seconds(trainer.train)
    logits = trainer.predict(dev).predictions  # type: ignore[arg-type]
    logits = logits[0] if isinstance(logits, tuple) else logits
    right = sum(int(one.argmax()) == example["labels"] for one, example in zip(logits, dev, strict=True))
    return taken, 100 * right / len(dev)


@one_line()
def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("export", type=Path)
    arguments.add_argument("--train", type=Path, required=True)
    arguments.add_argument("--dev", type=Path, required=True)
    arguments.add_argument("--length", type=int, default=256)
    arguments.add_argument("--epochs", type=int, default=2)
    arguments.add_argument("--batch", type=int, default=32)
    arguments.add_argument("--micro-batch", type=int, default=8)
    arguments.add_argument("--rate", type=float, default=3e-4)
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--without-padded", action="store_true", help="leave out rows padded to the length")
    options = arguments.parse_args()
    for name in ("export", "train", "dev"):
        setattr(options, name, getattr(options, name).resolve())
    sides = {"ours": ours}
    if not options.without_padded:
        sides["padded to the length"] = partial(theirs, padded=True)
    sides["padded to the longest of a batch"] = partial(theirs, padded=False)
    seeds = {name: iter(range(options.rounds)) for name in sides}
    found = in_turns(
        {
            name: lambda name=name, side=side: in_process(_run, side, options, next(seeds[name]))  # type: ignore[misc]
            for name, side in sides.items()
        },
        options.rounds,
    )
    heading("", "CPU s an epoch", "ours is faster by", "accuracy, mean and range")
    own = [taken for taken, _ in found["ours"]]
    for name, results in found.items():
        times, scores = [taken for taken, _ in results], [score for _, score in results]
        accuracy = f"{statistics.fmean(scores):.1f} ({min(scores):.1f} to {max(scores):.1f})"
        faster = "-" if name == "ours" else ratio(own, times)
        row(name, f"{min(times) / options.epochs:.1f}", faster, accuracy)
    row("bag of words, what is read", "-", "-", f"{bag_of_words(options, options.length - 2):.1f}")
    row("bag of words, whole texts", "-", "-", f"{bag_of_words(options, None):.1f}")


def bag_of_words(options: argparse.Namespace, longest: int | None) -> float:
    """Accuracy in points, by the first `longest` tokens of each text."""
    from tokenizers import Tokenizer

    from reread.training.scoring.baselines import BagOfGrams

    tokenizer = Tokenizer.from_file(str(options.export / "tokenizer.json"))
    tokenizer.no_truncation()

    def begun(text: str) -> str:
        offsets = tokenizer.encode(text, add_special_tokens=False).offsets[:longest]
        return text[: offsets[-1][1]] if offsets else ""

    sides = [[(begun(text), label) for text, label in _rows(path)] for path in (options.train, options.dev)]
    (texts, labels), (dev, right) = (zip(*side, strict=True) for side in sides)
    found = BagOfGrams(texts, labels, unit="word").predict(dev)
    return 100 * statistics.fmean(one == label for one, label in zip(found, right, strict=True))


def _rows(path: Path) -> list[tuple[str, str]]:
    """(text, label) of each line."""
    with path.open(encoding="utf-8", newline="") as file:
        return [(one["text_a"], one["label"]) for one in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)]


def _run(side: Any, options: argparse.Namespace, seed: int) -> tuple[float, float]:
    result: tuple[float, float] = side(options, seed=seed)
    return result


if __name__ == "__main__":
    main()
