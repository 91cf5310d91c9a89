"""A small BERT from random weights on Chinese text, by our trainer and by transformers' Trainer as run_mlm.py uses it,
for the same CPU time: the loss of held-out words, masked whole.

    python benchmarks/training/from_scratch.py TEXT... [--seconds 600]   # files of text, .xz too

The texts are cut into documents of some 4,000 characters, of which each twentieth is held out; the vocabulary is
trained on the rest. All sides have the same model (2 x 128), rows of 128 tokens, 32 a step, AdamW with a linear
schedule and a tenth of warm-up, clipping at 1, and one thread. A side first times a few steps, and then takes as many
steps as fit `--seconds`, so its schedule ends with its time. transformers is used in two ways: masking tokens, as
run_mlm.py does, and by its collator of whole words, for which the words that rjieba finds are set apart by spaces (it
takes what has no space within as a word, and draws [MASK] alone). Held-out rows are ours, with words masked whole.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import json
import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import chain
from typing import Any

from benchmarks.harness import STEPS_ALONE, heading, in_process, open_text, overrides, parser, row, seconds
from benchmarks.training.finetuning import trainer_arguments
from reread.preprocessing.errors import one_line

SIZES = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 512}
LENGTH, ROWS, RATE = 128, 32, 1e-3
DOCUMENT, EACH = 4_000, 20
TIMED = 20
"""Steps that are timed, after as many to warm up."""
HELD_OUT_ROWS = 512


def documents(paths: list[Path]) -> Iterator[str]:
    """Lines of the texts, joined to documents."""
    for path in paths:
        with open_text(path) as file:
            lines: list[str] = []
            for line in file:
                lines.append(line.strip())
                if sum(map(len, lines)) >= DOCUMENT:
                    yield "\n".join(lines)
                    lines = []
            if lines:
                yield "\n".join(lines)


def write_documents(folder: Path, paths: list[Path]) -> tuple[Path, Path]:
    """Write the documents to learn from, and those that are held out, as JSON lines."""
    found = list(documents(paths))
    parts = {"train": [one for number, one in enumerate(found) if number % EACH], "held-out": found[::EACH]}
    for name, texts in parts.items():
        lines = (json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts)
        (folder / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")
    return folder / "train.jsonl", folder / "held-out.jsonl"


def prepare(folder: Path, paths: list[Path]) -> None:
    """train.jsonl, held-out.jsonl and the corpus of both."""
    from reread.preprocessing.config import PreprocessSettings
    from reread.preprocessing.execution.build import build

    train, held_out = write_documents(folder, paths)
    values = {
        "input": {"paths": [str(train)], "validation_paths": [str(held_out)]},
        "output": str(folder / "corpus"),
        "tokenizer": {"train": {"size": 5000}},
        "workers": 1,
    }
    build(PreprocessSettings.parse(values, "benchmark"))


def settings_of(folder: Path, steps: int, seed: int) -> Any:
    from reread.pipeline.recipe.load import load_recipe
    from reread.pipeline.recipe.schema import train_section

    values = {
        **STEPS_ALONE,
        "init": "null",
        "seed": seed,
        "data.corpus": folder / "corpus",
        "data.sequence_length": LENGTH,
        "data.separate_documents": "false",
        "steps": steps,
        "global_batch": ROWS,
        "micro_batch": ROWS,
        "precision": "fp32",
        "optimizer.learning_rate": RATE,
        "optimizer.betas": "[0.9,0.999]",
        "schedule.warmup_steps": steps // 10,
        "threads": 1,
        "log_every": max(1, steps // 10),
        "peak_tflops": 1,
        "model.max_position_embeddings": LENGTH,
        **{f"model.{name}": size for name, size in SIZES.items()},
    }
    return train_section(load_recipe("continue-encoder", overrides(values), "train"))


def ours(folder: Path, limit: float, seed: int) -> dict[str, float]:
    import torch

    from benchmarks.trainer_steps import TrainerSteps
    from reread.training.parallel.mesh import Mesh
    from reread.training.trainer import Trainer

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as run:
        side = TrainerSteps(settings_of(folder, 1 << 20, seed), Path(run))
        window = side.window()
        timed = [seconds(lambda: side.step(next(side.batches), window)) for _ in range(2 * TIMED)]
        side.batches.close()
    steps = round(limit / statistics.fmean(timed[TIMED:]))
    with tempfile.TemporaryDirectory() as run:
        trainer = Trainer(settings_of(folder, steps, seed), Path(run), Mesh())
        trainer._validate = lambda writer: False  # type: ignore[method-assign]
        taken = seconds(trainer.train)
        return {"seconds": taken, "steps": steps, **held_out(folder, trainer.assembly.model.state_dict())}


def theirs(folder: Path, limit: float, seed: int, whole: bool) -> dict[str, float]:
    import torch
    from transformers import AutoTokenizer, DataCollatorForLanguageModeling, Trainer, TrainerCallback, set_seed
    from transformers.models.bert import BertConfig, BertForMaskedLM

    class Times(TrainerCallback):  # type: ignore[misc]
        def __init__(self) -> None:
            self.begun: list[float] = []

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            self.begun.append(time.process_time())

    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(folder / "corpus" / "tokenizer")
    collator = DataCollatorForLanguageModeling(tokenizer, whole_word_mask=whole, mlm_probability=0.15)
    rows = rows_of(folder, tokenizer, whole)

    def run(steps: int) -> tuple[Any, Times]:
        set_seed(seed)
        times = Times()
        arguments = trainer_arguments(ROWS, RATE, steps, seed, remove_unused_columns=False, use_cpu=True)
        config = BertConfig(vocab_size=len(tokenizer), max_position_embeddings=LENGTH, **SIZES)
        trainer = Trainer(
            model=BertForMaskedLM(config),
            args=arguments,
            train_dataset=rows,
            data_collator=collator,
            callbacks=[times],
        )
        return trainer, times

    trainer, times = run(2 * TIMED)
    trainer.train()
    steps = round(limit * (TIMED - 1) / (times.begun[-1] - times.begun[TIMED]))
    trainer, _ = run(steps)
    taken = seconds(trainer.train)
    return {"seconds": taken, "steps": steps, **held_out(folder, trainer.model.state_dict())}


def rows_of(folder: Path, tokenizer: Any, whole: bool) -> list[dict[str, Any]]:
    import rjieba

    with (folder / "train.jsonl").open(encoding="utf-8") as file:
        texts = [json.loads(line)["text"] for line in file]
    if whole:
        texts = [" ".join(rjieba.cut(text)) for text in texts]
    made = tokenizer(texts, return_special_tokens_mask=True, return_offsets_mapping=whole, verbose=False)
    return joined_rows(made, LENGTH)


def joined_rows(made: Mapping[str, Any], length: int) -> list[dict[str, Any]]:
    """A tokenizer's lists by document, joined and cut to the length, as by run_mlm.py's `group_texts`."""
    joined = {name: list(chain.from_iterable(values)) for name, values in made.items()}
    ends = range(length, len(joined["input_ids"]) + 1, length)
    return [{name: values[end - length : end] for name, values in joined.items()} for end in ends]


def held_out(folder: Path, weights: dict[str, Any]) -> dict[str, float]:
    from transformers.models.bert import BertConfig, BertForMaskedLM

    from reread.training.data.kinds import open_dataset

    data: Any = open_dataset(settings_of(folder, 10, 0).data, 0, "validation")
    model = BertForMaskedLM(BertConfig(vocab_size=data.vocab_size, max_position_embeddings=LENGTH, **SIZES)).eval()
    left = model.load_state_dict(weights, strict=False)
    assert not left.missing_keys, left
    return of_masked_words(model, data, HELD_OUT_ROWS)


def of_masked_words(model: Any, data: Any, most: int, device: str = "cpu") -> dict[str, float]:
    """Mean loss in nats, and accuracy in points, over the masked tokens of a dataset's rows, `most` at the most.

    `model` is one of transformers, in float32 and in evaluation.
    """
    import numpy as np
    import torch

    loss = right = count = 0.0
    end = min(most, len(data))
    for first in range(0, end, ROWS):
        drawn = data.rows(np.arange(first, min(first + ROWS, end)))
        rows = {name: torch.from_numpy(values).long().to(device) for name, values in drawn.items()}
        chosen = rows["labels"] != -100
        with torch.no_grad():
            logits = model(rows["input_ids"], rows["attention_mask"]).logits[chosen]
        labels = rows["labels"][chosen]
        loss += float(torch.nn.functional.cross_entropy(logits, labels, reduction="sum"))
        right += float((logits.argmax(1) == labels).sum())
        count += len(labels)
    return {"loss": loss / count, "accuracy": 100 * right / count}


@one_line()
def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("text", nargs="+", type=Path)
    arguments.add_argument("--seconds", type=float, default=600.0)
    arguments.add_argument("--seeds", type=int, default=1)
    options = arguments.parse_args()
    sides = {
        "ours: whole words": ours,
        "transformers: tokens": partial(theirs, whole=False),
        "transformers: whole words": partial(theirs, whole=True),
    }
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        in_process(prepare, folder, [path.resolve() for path in options.text])
        heading("seed", "side", "steps", "CPU s", "held-out loss", "accuracy")
        for seed in range(options.seeds):
            for name, side in sides.items():
                found = in_process(_run, side, folder, options.seconds, seed)
                figures = f"{found['loss']:.3f}", f"{found['accuracy']:.1f}"
                row(str(seed), name, f"{found['steps']:,.0f}", f"{found['seconds']:.0f}", *figures)


def _run(side: Any, folder: Path, limit: float, seed: int) -> dict[str, float]:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    result: dict[str, float] = side(folder, limit, seed)
    return result


if __name__ == "__main__":
    main()
