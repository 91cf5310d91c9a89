"""Our sides: training, fine-tuning and preprocessing; that of loading is beside its peers', in loading.py."""

import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.harness import cpu_seconds
from benchmarks.peers.sizes import HEADS, INNER, LAYERS, LENGTHS, RATE, TOKENS, WIDTH, finetuning
from reread.training.config import TrainSettings


def train_settings(folder: Path, length: int, model: str = "position_type=functional") -> TrainSettings:
    """Full rows of concatenated documents, one micro-batch a step, whole words, Adam."""
    from reread.pipeline.recipe.load import load_recipe
    from reread.pipeline.recipe.schema import train_section

    sizes = f"hidden_size={WIDTH} num_hidden_layers={LAYERS} num_attention_heads={HEADS} intermediate_size={INNER}"
    rows = TOKENS // length
    values = f"data.kind=packed data.corpus={folder / 'corpus'} data.sequence_length={length} data.copies=1"
    values += f" data.masking.strategy=whole-word global_batch={rows} micro_batch={rows} steps=1000000 precision=fp32"
    values += f" optimizer.name=adam optimizer.learning_rate={RATE} schedule.warmup_steps=0 peak_tflops=1"
    values += " activation_checkpointing=false"
    overrides = [*values.split(), *(f"model.{size}" for size in [*sizes.split(), model])]
    return train_section(load_recipe("nezha-base", overrides, "train"))


def bert(folder: Path, seed: int) -> dict[str, float]:
    """NEZHA with BERT's learned positions is BERT."""
    return _train(folder, "position_type=parametric_absolute")


def nezha(folder: Path, seed: int) -> dict[str, float]:
    """Distances are clipped at 64, as in transformers' model."""
    return _train(folder, "max_relative_position=64")


def _train(folder: Path, model: str) -> dict[str, float]:
    """CPU seconds of the median step, and of an epoch with drawing its batches, by length."""
    from benchmarks.trainer_steps import TrainerSteps

    costs = {}
    for length in LENGTHS:
        with TemporaryDirectory() as run:
            side = TrainerSteps(train_settings(folder, length, model), Path(run))
            window, steps, begin = side.window(), [], time.process_time()
            for _ in range(len(side.trainer.dataset) // (TOKENS // length)):
                batch = next(side.batches)
                before = time.process_time()
                side.step(batch, window)
                steps.append(time.process_time() - before)
            costs |= {f"step {length}": median(steps), f"epoch {length}": time.process_time() - begin}
            side.batches.close()
    return costs


def finetune(folder: Path, seed: int) -> dict[str, float]:
    from benchmarks.training.finetuning import ours

    taken, accuracy = ours(finetuning(folder), seed)
    return {"epochs": taken, "accuracy": accuracy}


def preprocess(folder: Path, seed: int) -> dict[str, float]:
    """CPU seconds until duplicates are found, and of the whole: deduplicated ids with word and sentence boundaries."""
    from reread.preprocessing.config import PreprocessSettings
    from reread.preprocessing.execution.build import build, build_share
    from reread.preprocessing.execution.executors.base import Share

    begin = cpu_seconds()
    with TemporaryDirectory(dir=folder) as output:
        values: dict[str, Any] = {
            "input": {"paths": [str(folder / "documents.jsonl")]},
            "output": str(Path(output) / "corpus"),
            "tokenizer": {"path": str(folder / "vocab.txt")},
            "workers": 1,
        }
        settings = PreprocessSettings.parse(values, "benchmark")
        for stage in ("read", "duplicates"):
            build_share(settings, stage, Share(0, 1))
        found = cpu_seconds() - begin
        build(settings)
    return {"duplicates": found, "corpus": cpu_seconds() - begin}
