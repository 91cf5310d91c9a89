"""NEZHA-base through the real trainer: step time, tokens/s and MFU at lengths 128 and 512, in each precision.

    python benchmarks/nezha_training.py --rows 64            # on one GPU: fp16 and bf16
    python benchmarks/nezha_training.py --layers 2 --rows 4  # a small one on CPU, fp32

The corpus is random ids, so the losses mean nothing; batches come through the same loader, masking and optimiser as in
a run. The first progress window is warm-up and is not counted. `waiting` is the share of time without data: near zero,
the device bounds the step.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np
import torch

from preprocessing.corpus import CONTINUES_WORD, SENTENCE_END, Manifest, ShardWriter
from training.config import TrainSettings
from training.metrics import read_metrics
from training.trainer import train

VOCABULARY = 21128


def random_corpus(folder: Path, documents: int = 400, tokens: int = 2000) -> None:
    rng = np.random.default_rng(0)
    writer = ShardWriter(folder / "train-00000.tar", "train", "uint16")
    for _ in range(documents):
        flags = np.zeros(tokens, np.uint8)
        flags[rng.random(tokens) < 0.4] |= CONTINUES_WORD
        flags[::25] |= SENTENCE_END
        writer.add(rng.integers(5, VOCABULARY, tokens, np.uint16), flags)
    special = {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4}
    tokenizer = {"fingerprint": "random", "type": "wordpiece", "vocab_size": VOCABULARY, **special}
    Manifest(tokenizer=tokenizer, dtype="uint16", shards=[writer.close()]).write(folder)


def measure(corpus: Path, length: int, precision: str, layers: int, rows: int, steps: int) -> dict[str, float]:
    values = {
        "model": {"type": "nezha", "num_hidden_layers": layers, "max_relative_position": None},
        "data": {"corpus": corpus, "sequence_length": length},
        "steps": 2 * steps,
        "global_batch": rows,
        "micro_batch": rows,
        "optimizer": {"learning_rate": 1e-4},
        "precision": precision,
        "log_every": steps,
        "validate_every": 10**9,
        "checkpoint": {"every_steps": 10**9},
    }
    with tempfile.TemporaryDirectory() as run:
        train(TrainSettings.parse(values, "benchmark"), Path(run))
        return read_metrics(Path(run))[-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=64, help="rows a step at length 128; a quarter of it at 512")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--steps", type=int, default=20, help="steps that are timed")
    options = parser.parse_args()
    precisions = ["fp16", "bf16"] if torch.cuda.is_available() else ["fp32"]
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else f"CPU, {torch.get_num_threads()} threads"
    print(f"NEZHA-base width, {options.layers} layers, vocabulary {VOCABULARY}, {device}\n")
    print("| length | rows | precision | s/step | tokens/s | MFU | waiting | peak memory |")
    print("|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        random_corpus(Path(folder))
        for length, rows in ((128, options.rows), (512, max(1, options.rows // 4))):
            for precision in precisions:
                if torch.cuda.is_available():
                    torch.cuda.reset_peak_memory_stats()
                line = measure(Path(folder), length, precision, options.layers, rows, options.steps)
                memory = f"{torch.cuda.max_memory_allocated() / 2**30:.1f} GiB" if torch.cuda.is_available() else "-"
                print(
                    f"| {length} | {rows} | {precision} | {line['seconds_per_step']:.3f} | "
                    f"{line['tokens_per_second']:,.0f} | {100 * line['mfu']:.1f} % | "
                    f"{100 * line['data_wait_share']:.1f} % | {memory} |"
                )


if __name__ == "__main__":
    main()
