"""One case of `make gpu`, in the process that `run.py` starts for it: its figures go to FOLDER/result.json.

python benchmarks/gpu/measure.py "nezha-base 128" bf16 128 FOLDER [--toy]
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import json
import math
import time
from collections import Counter
from typing import Any

import numpy as np
import torch
from transformers import BertConfig, LongformerConfig, PreTrainedModel

from benchmarks.gpu.cases import CASES, VOCABULARIES, Case
from benchmarks.gpu.kernels import profiled
from benchmarks.harness import parser
from benchmarks.random_corpus import random_corpus
from benchmarks.trainer_steps import TrainerSteps
from reread.training.config import TrainSettings
from reread.training.data.batch import IGNORED
from reread.training.data.kinds import open_dataset
from reread.training.data.loader import Loader, rows_by_step
from reread.training.models import model_spec
from reread.training.models.build import model_config
from reread.training.optim.build import build_optimizer
from reread.training.optim.precision import LossScale, MasterWeights, resolve_precision
from reread.training.parallel.gradients import GradientBuckets
from reread.training.parallel.mesh import Mesh
from reread.training.run.metrics import peak_flops

SECONDS = 4.0
"""About how long a case is timed."""
WARM_STEPS = 3
Figures = dict[str, Any]


class Theirs:
    """A model of transformers with the recipe's sizes, rows, optimiser and precision, and its own loss."""

    def __init__(self, kind: type[PreTrainedModel], settings: TrainSettings, device: torch.device) -> None:
        self.settings, self.device = settings, device
        self.source = open_dataset(settings.data, settings.seed, "train")
        self.model = kind(their_config(settings, self.source.vocab_size)).train()
        self.model.to(device)
        dtype = resolve_precision(settings.precision, device)
        self.masters = MasterWeights(self.model, dtype)
        self.optimizer = build_optimizer(self.masters.learning(), settings.optimizer, Mesh(device=device))
        self.buckets = GradientBuckets(self.model.parameters(), Mesh(device=device), 25 * 2**20)
        self.scale = LossScale(dtype, 2.0**12)  # their loss is float16 too there, and must not overflow
        self.peak = peak_flops(settings.peak_tflops, device)
        batch = settings.global_batch
        self.batches = Loader(rows_by_step(self.source, batch, range(batch), 0))  # type: ignore[arg-type]
        self.parameters = sum(parameter.numel() for parameter in self.model.parameters())
        self.skipped = 0

    def figures(self, count: int) -> Figures:
        totals, loss, waited, begin = Counter[str](), torch.zeros((), device=self.device), 0.0, time.perf_counter()
        for _ in range(count):
            before = time.perf_counter()
            batch = next(self.batches)
            waited += time.perf_counter() - before
            loss += self._step(batch)
            totals["rows"] += len(batch["labels"])
            totals["tokens"] += int(batch["attention_mask"].sum())
            totals["predicted"] += int((batch["labels"] != IGNORED).sum())
        mean = loss.item() / count
        seconds = time.perf_counter() - begin
        spec = model_spec(self.settings.model["type"])
        config = model_config(spec, self.settings.model, self.source.vocab_size, None)  # the same products
        flops = spec.flops(config, round(totals["tokens"] / totals["rows"]), totals)
        return {
            "loss": mean,
            "loss_scale": self.scale.value,
            "tokens": totals["tokens"],
            "tokens_per_second": totals["tokens"] / seconds,
            "seconds_per_step": seconds / count,
            "data_wait_share": waited / seconds,
            "mfu": flops / seconds / self.peak,
            "skipped_steps": self.skipped,
        }

    def _step(self, batch: dict[str, Any]) -> torch.Tensor:
        names = ("input_ids", "attention_mask", "token_type_ids", "labels", "next_sentence_label")
        total = torch.zeros((), device=self.device)
        self.buckets.zero()
        for begin in range(0, len(batch["labels"]), self.settings.micro_batch):
            rows = slice(begin, begin + self.settings.micro_batch)
            given = {name: torch.from_numpy(batch[name][rows].astype(np.int64)) for name in names if name in batch}
            loss = self.model(**{name: tensor.to(self.device) for name, tensor in given.items()}).loss
            loss = loss * (len(given["labels"]) / len(batch["labels"]))
            (loss * self.scale.value).backward()
            total += loss.detach()
        self.buckets.finish()
        norm = self.buckets.global_norm() / self.scale.value
        if math.isfinite(norm):
            self.masters.step(self.optimizer, self.buckets, 1e-4, min(1.0, 1 / (norm + 1e-6)) / self.scale.value)
        else:
            self.skipped += 1
        self.scale.update(math.isfinite(norm))
        return total


def their_config(settings: TrainSettings, vocab_size: int) -> BertConfig | LongformerConfig:
    model = {key: value for key, value in settings.model.items() if key not in ("type", "max_relative_position")}
    if settings.model["type"] == "longformer":
        return LongformerConfig(vocab_size=vocab_size, pad_token_id=0, **model)
    return BertConfig(vocab_size=vocab_size, max_position_embeddings=settings.data.sequence_length, **model)


def measure(case: Case, precision: str, rows: int, toy: bool, folder: Path) -> Figures:
    """Figures of a case with `rows` a micro-batch; its corpus is written to `folder`."""
    is_gpu = torch.cuda.is_available()
    device = torch.device("cuda", 0) if is_gpu else torch.device("cpu")
    length = case.tokens(toy)
    settings = case.settings(folder / "corpus", precision, rows, toy)
    pieces = 4 if settings.data.kind == "segments" else 32  # full ones of a document, with [SEP] and [CLS]
    vocabulary = 500 if toy else VOCABULARIES[case.recipe]
    random_corpus(folder / "corpus", vocabulary, [pieces * (length - 2)] * (16 if toy else 128))
    side = TrainerSteps(settings, folder, device) if case.theirs is None else Theirs(case.theirs, settings, device)
    try:
        side.figures(1 if toy else WARM_STEPS)
        each = 8 if settings.data.kind == "segments" else 1  # steps until a document is skimmed and learned from
        count = max(4, min(60, math.ceil(SECONDS / side.figures(1)["seconds_per_step"])))
        count = each * (1 if toy else math.ceil(count / each))
        if is_gpu:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        figures = side.figures(count)
        memory = {}
        if is_gpu:
            memory["peak_gib"] = torch.cuda.max_memory_allocated() / 2**30
            memory["reserved_gib"] = torch.cuda.max_memory_reserved() / 2**30
        profile = profiled(lambda: side.figures(1), is_gpu)
    finally:
        side.batches.close()
    kept = ("seconds_per_step", "tokens_per_second", "mfu", "data_wait_share", "loss", "loss_scale", "skipped_steps")
    return {
        "device": torch.cuda.get_device_name() if is_gpu else "cpu",
        "torch": torch.__version__,
        "parameters": side.parameters,
        "length": length,
        "micro_batch": rows,
        "rows": settings.global_batch,
        "steps": count,
        **{name: figures[name] for name in kept},
        **memory,
        **profile,
    }


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("case", choices=[case.name for case in CASES])
    arguments.add_argument("precision")
    arguments.add_argument("rows", type=int)
    arguments.add_argument("folder", type=Path)
    arguments.add_argument("--toy", action="store_true")
    options = arguments.parse_args()
    case = next(case for case in CASES if case.name == options.case)
    figures = measure(case, options.precision, options.rows, options.toy, options.folder)
    (options.folder / "result.json").write_text(json.dumps(figures))


if __name__ == "__main__":
    main()
