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

import csv
import json
import os
import statistics
import tempfile
from functools import partial
from typing import Any, NamedTuple

from benchmarks.harness import (
    STEPS_ALONE,
    heading,
    in_process,
    in_turns,
    open_text,
    overrides,
    parser,
    ratio,
    row,
    seconds,
)
from reread.preprocessing.errors import one_line


class Finetuning(NamedTuple):
    """What both sides are given."""

    export: Path
    train: Path
    dev: Path
    """Examples, as `labelled` reads them."""
    length: int
    """Tokens of a text that are read, special ones included."""
    epochs: int
    batch: int
    rate: float
    steps: int | None = None
    """Of the Trainer; None: as many as its epochs have."""
    micro_batch: int = 8
    """Of our side."""


def ours(given: Finetuning, seed: int) -> tuple[float, float]:
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
        **STEPS_ALONE,
        "init": given.export,
        "seed": seed,
        "task.train": given.train,
        "task.dev": given.dev,
        "task.sequence_length": given.length,
        "task.longest": given.length - 2,
        "finetune.epochs": given.epochs,
        "global_batch": given.batch,
        "micro_batch": given.micro_batch,
        "optimizer.learning_rate": given.rate,
        "best_by": "null",
        "log_every": 1000,
        "peak_tflops": 1.0,
    }
    recipe = finetune_recipe("nezha-chnsenticorp", overrides(values))
    trainer = Trainer(train_section(recipe), folder / "run", Mesh())
    trainer._validate = lambda writer: False  # type: ignore[method-assign]
    trainer.dataset.verify()  # the other side's texts are tokenised before it trains, too
    taken = seconds(trainer.train)
    return taken, trainer.objective.held_out_summary(None)["accuracy"]


def theirs(given: Finetuning, padded: bool, seed: int) -> tuple[float, float]:
    """(CPU seconds of training, accuracy in points); `padded`: every row to the whole length."""
    import torch

    torch.set_num_threads(1)
    taken, predicted = by_trainer(given, padded, seed, cpu=True)
    return taken, accuracy(predicted, given.dev)


def by_trainer(given: Finetuning, padded: bool, seed: int, *, cpu: bool) -> tuple[float, list[str]]:
    """(seconds of training, predicted labels of `given.dev`). Without `cpu` in bfloat16 on a GPU, if there is one."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer, DataCollatorWithPadding, Trainer

    gpu = torch.cuda.is_available() and not cpu
    train, dev = labelled(given.train), labelled(given.dev)
    labels = sorted({label for _, label in train})
    tokenizer = AutoTokenizer.from_pretrained(given.export, trust_remote_code=True)
    torch.manual_seed(seed)  # of the head
    model = AutoModelForSequenceClassification.from_pretrained(
        given.export, trust_remote_code=True, num_labels=len(labels), dtype=torch.float32
    )

    def examples(rows: list[tuple[str, str]]) -> list[dict[str, Any]]:
        made = tokenizer(
            [text for text, _ in rows],
            truncation=True,
            max_length=given.length,
            padding="max_length" if padded else False,
        )
        names = list(made)
        return [
            {**{name: made[name][number] for name in names}, "labels": labels.index(label)}
            for number, (_, label) in enumerate(rows)
        ]

    steps = given.steps or -(-len(train) // given.batch) * given.epochs
    arguments = trainer_arguments(
        given.batch, given.rate, steps, seed, per_device_eval_batch_size=given.batch, bf16=gpu, use_cpu=cpu
    )
    trainer = Trainer(
        model=model, args=arguments, train_dataset=examples(train), data_collator=DataCollatorWithPadding(tokenizer)
    )
    taken = seconds(trainer.train, "cuda" if gpu else "cpu")
    logits = trainer.predict(examples(dev)).predictions  # type: ignore[arg-type]
    logits = logits[0] if isinstance(logits, tuple) else logits
    return taken, [labels[number] for number in logits.argmax(1)]


def trainer_arguments(batch: int, rate: float, steps: int, seed: int, **others: Any) -> Any:
    """AdamW as ours, a linear schedule with a tenth of warm-up; nothing is written."""
    from transformers import TrainingArguments

    return TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=batch,
        max_steps=steps,
        learning_rate=rate,
        warmup_steps=steps // 10,
        weight_decay=0.01,
        adam_epsilon=1e-6,
        seed=seed,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        logging_strategy="no",
        **others,
    )


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
    given = Finetuning(
        *(path.resolve() for path in (options.export, options.train, options.dev)),
        length=options.length,
        epochs=options.epochs,
        batch=options.batch,
        rate=options.rate,
        micro_batch=options.micro_batch,
    )
    sides = {"ours": ours}
    if not options.without_padded:
        sides["padded to the length"] = partial(theirs, padded=True)
    sides["padded to the longest of a batch"] = partial(theirs, padded=False)
    seeds = {name: iter(range(options.rounds)) for name in sides}
    found = in_turns(
        {
            name: lambda name=name, side=side: in_process(_run, side, given, next(seeds[name]))  # type: ignore[misc]
            for name, side in sides.items()
        },
        options.rounds,
    )
    heading("", "CPU s an epoch", "ours is faster by", "accuracy, mean and range")
    own = [taken for taken, _ in found["ours"]]
    for name, results in found.items():
        times, scores = [taken for taken, _ in results], [score for _, score in results]
        spread = f"{statistics.fmean(scores):.1f} ({min(scores):.1f} to {max(scores):.1f})"
        faster = "-" if name == "ours" else ratio(own, times)
        row(name, f"{min(times) / options.epochs:.1f}", faster, spread)
    for what, longest in (("what is read", options.length - 2), ("whole texts", None)):
        predicted = bag_of_words(given.export, given.train, given.dev, longest)
        row(f"bag of words, {what}", "-", "-", f"{accuracy(predicted, given.dev):.1f}")


def bag_of_words(export: Path, train: Path, dev: Path, longest: int | None) -> list[str]:
    """Predicted labels of `dev`, by the first `longest` tokens of each text."""
    from tokenizers import Tokenizer

    from reread.training.scoring.baselines import BagOfGrams

    tokenizer = Tokenizer.from_file(str(export / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()

    def begun(text: str) -> str:
        offsets = tokenizer.encode(text, add_special_tokens=False).offsets[:longest]
        return text[: offsets[-1][1]] if offsets else ""

    texts, labels = zip(*labelled(train), strict=True)
    bag = BagOfGrams([begun(text) for text in texts], labels, unit="word")
    return bag.predict([begun(text) for text, _ in labelled(dev)])


def labelled(path: Path) -> list[tuple[str, str]]:
    """(text, label) of each line of a TSV with columns `text_a` and `label`, or of JSON lines with `text` and
    `label`, which may be packed by gzip."""
    with open_text(path, newline="") as file:
        if ".jsonl" in path.suffixes:
            return [(one["text"], one["label"]) for one in map(json.loads, file)]
        return [(one["text_a"], one["label"]) for one in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)]


def accuracy(predicted: list[str], dev: Path) -> float:
    """In points."""
    return 100 * statistics.fmean(one == label for one, (_, label) in zip(predicted, labelled(dev), strict=True))


def _run(side: Any, given: Finetuning, seed: int) -> tuple[float, float]:
    result: tuple[float, float] = side(given, seed=seed)
    return result


if __name__ == "__main__":
    main()
