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
import gzip
import json
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

    torch.set_num_threads(1)
    taken, predicted = by_trainer(options, padded, seed, cpu=True)
    return taken, _accuracy(predicted, options.dev)


def by_trainer(options: argparse.Namespace, padded: bool, seed: int, *, cpu: bool) -> tuple[float, list[str]]:
    """(seconds of training, predicted labels of `options.dev`). Without `cpu` in bfloat16 on a GPU, if there is one."""
    import torch
    from transformers import (
        AutoModelForSequenceClassification,
        AutoTokenizer,
        DataCollatorWithPadding,
        Trainer,
        TrainingArguments,
    )

    gpu = torch.cuda.is_available() and not cpu
    train, dev = labelled(options.train), labelled(options.dev)
    labels = sorted({label for _, label in train})
    tokenizer = AutoTokenizer.from_pretrained(options.export, trust_remote_code=True)
    torch.manual_seed(seed)  # of the head
    model = AutoModelForSequenceClassification.from_pretrained(
        options.export, trust_remote_code=True, num_labels=len(labels), dtype=torch.float32
    )

    def examples(rows: list[tuple[str, str]]) -> list[dict[str, Any]]:
        made = tokenizer(
            [text for text, _ in rows],
            truncation=True,
            max_length=options.length,
            padding="max_length" if padded else False,
        )
        names = list(made)
        return [
            {**{name: made[name][number] for name in names}, "labels": labels.index(label)}
            for number, (_, label) in enumerate(rows)
        ]

    steps = options.steps or -(-len(train) // options.batch) * options.epochs
    arguments = TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=options.batch,
        per_device_eval_batch_size=options.batch,
        max_steps=steps,
        learning_rate=options.rate,
        warmup_steps=steps // 10,
        weight_decay=0.01,
        adam_epsilon=1e-6,
        seed=seed,
        bf16=gpu,
        use_cpu=cpu,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        logging_strategy="no",
    )
    trainer = Trainer(
        model=model, args=arguments, train_dataset=examples(train), data_collator=DataCollatorWithPadding(tokenizer)
    )
    taken = seconds(trainer.train, "cuda" if gpu else "cpu")
    logits = trainer.predict(examples(dev)).predictions  # type: ignore[arg-type]
    logits = logits[0] if isinstance(logits, tuple) else logits
    return taken, [labels[number] for number in logits.argmax(1)]


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
    arguments.set_defaults(steps=None)
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
    for what, longest in (("what is read", options.length - 2), ("whole texts", None)):
        row(f"bag of words, {what}", "-", "-", f"{_accuracy(bag_of_words(options, longest), options.dev):.1f}")


def bag_of_words(options: argparse.Namespace, longest: int | None) -> list[str]:
    """Predicted labels of `options.dev`, by the first `longest` tokens of each text."""
    from tokenizers import Tokenizer

    from reread.training.scoring.baselines import BagOfGrams

    tokenizer = Tokenizer.from_file(str(options.export / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()

    def begun(text: str) -> str:
        offsets = tokenizer.encode(text, add_special_tokens=False).offsets[:longest]
        return text[: offsets[-1][1]] if offsets else ""

    sides = [[(begun(text), label) for text, label in labelled(path)] for path in (options.train, options.dev)]
    (texts, labels), (dev, _) = (zip(*side, strict=True) for side in sides)
    return BagOfGrams(texts, labels, unit="word").predict(dev)


def labelled(path: Path) -> list[tuple[str, str]]:
    """(text, label) of each line of a TSV with columns `text_a` and `label`, or of JSON lines with `text` and
    `label`, which may be packed by gzip."""
    with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8", newline="") as file:  # type: ignore[operator]
        if ".jsonl" in path.suffixes:
            return [(one["text"], one["label"]) for one in map(json.loads, file)]
        return [(one["text_a"], one["label"]) for one in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)]


def _accuracy(predicted: list[str], dev: Path) -> float:
    """In points."""
    return 100 * statistics.fmean(one == label for one, (_, label) in zip(predicted, labelled(dev), strict=True))


def _run(side: Any, options: argparse.Namespace, seed: int) -> tuple[float, float]:
    result: tuple[float, float] = side(options, seed=seed)
    return result


if __name__ == "__main__":
    main()
