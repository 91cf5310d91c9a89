"""Where we stand on a GPU: the tests that need one, then speed and memory of each model, in under nine minutes.

    make gpu OUT=runs/gpu                        # or: python benchmarks/gpu.py --out runs/gpu
    make gpu PYTHON=python3                      # another interpreter with torch, transformers and our dependencies
    python benchmarks/gpu.py --toy --out here    # the same at toy sizes, on CPU too: figures without a meaning

Each model trains as its recipe says by the trainer's own step, on full rows of random ids, so the losses mean nothing:
two micro-batches and the optimiser. BERT and Longformer of transformers stand beside it with the same sizes, rows,
weights in half precision, float32 masters, gradient buckets and optimiser, and their own loss, which puts all tokens
through the head where ours takes the masked ones. MFU counts the FLOPs of our model for both (see the log's formula).

A case is a process of its own, so one that fails leaves the others alone; one that runs out of memory is tried again
with half the rows. Results are appended to OUT/results.jsonl as they come, what a case printed is in OUT/*.log, and
OUT/table.md is printed at the end. When the minutes are nearly up no other case is begun, and those left are named.
Without a GPU it prints what it would do.
"""

import argparse
import json
import math
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile
from transformers import BertConfig, BertForPreTraining, LongformerConfig, LongformerForMaskedLM, PreTrainedModel

from pipeline.recipe import load_recipe
from preprocessing.corpus import CONTINUES_WORD, SENTENCE_END, Manifest, ShardWriter
from training.config import TrainSettings
from training.data.kinds import open_dataset
from training.data.loader import Loader, rows_by_step
from training.data.rows import IGNORED
from training.metrics import peak_flops
from training.models import model_spec
from training.models.build import model_config
from training.optim.build import build_optimizer
from training.optim.precision import LossScale, MasterWeights, resolve_precision
from training.parallel.gradients import GradientBuckets
from training.parallel.mesh import Mesh
from training.trainer import Trainer
from training.window import Window

ROOT = Path(__file__).resolve().parents[1]
Figures = dict[str, Any]

TOKENS = 16384
"""Of a micro-batch, unless the GPU is small."""
ACCUMULATION = 2
SECONDS = 4.0
"""Of each case that are timed, more or less."""
WARM_STEPS = 3
CASE_SECONDS = 90.0
"""After which a case is ended."""
LEAST_SECONDS = 30.0
"""That must be left for another case to begin."""
TESTS_SECONDS = 170.0


@dataclass(frozen=True)
class Case:
    name: str
    recipe: str
    length: int
    overrides: tuple[str, ...] = ()
    toy: tuple[str, ...] = ()
    """Overrides that make it small."""
    theirs: type[PreTrainedModel] | None = None
    """A model of transformers that takes the place of the recipe's."""

    def tokens(self, toy: bool) -> int:
        """Of a row."""
        return max(32, self.length // 8) if toy else self.length

    def settings(self, corpus: Path, precision: str, rows: int, toy: bool) -> TrainSettings:
        """Of the recipe, with `rows` a micro-batch."""
        length = self.tokens(toy)
        common = [f"data.corpus={corpus}", f"data.sequence_length={length}", f"precision={precision}", "init=null"]
        common += [f"micro_batch={rows}", f"global_batch={ACCUMULATION * rows}", "steps=1000000"]
        sizes = ["model.hidden_size=64", "model.num_hidden_layers=2", "model.num_attention_heads=2"]
        small = [*sizes, *self.toy, "peak_tflops=1"]
        recipe = load_recipe(self.recipe, [*common, *self.overrides, *(small if toy else ())], "train")
        assert recipe.train is not None
        return recipe.train


_NEZHA = ("data.short_sequence_probability=0",), ("model.intermediate_size=128",)
_LONGFORMER = (
    ("model.max_position_embeddings=4098", "model.type_vocab_size=1"),
    ("model.intermediate_size=128", "model.attention_window=32"),
)
_ERNIE_DOC = ("model.intermediate_size=128", "model.memory_length=16", "model.max_position_embeddings=64")
CASES = (
    Case("nezha-base 128", "nezha-base", 128, *_NEZHA),
    Case("BERT-base 128", "nezha-base", 128, *_NEZHA, theirs=BertForPreTraining),
    Case("nezha-base 512", "nezha-base", 512, *_NEZHA),
    Case("BERT-base 512", "nezha-base", 512, *_NEZHA, theirs=BertForPreTraining),
    Case("longformer-base 4096", "longformer-base", 4096, *_LONGFORMER),
    Case("transformers' Longformer 4096", "longformer-base", 4096, *_LONGFORMER, theirs=LongformerForMaskedLM),
    Case("ernie-doc-base 512", "ernie-doc-base-en", 512, ("data.retrospective=false",), _ERNIE_DOC),
    Case("ernie-doc-base 512, skim", "ernie-doc-base-en", 512, (), _ERNIE_DOC),
    Case("ran-base 512", "ran-base", 512, (), ("model.head_size=32", "model.window_size=32")),
)
VOCABULARIES = {"nezha-base": 21128, "ran-base": 30522, "longformer-base": 50265, "ernie-doc-base-en": 50265}


def random_corpus(folder: Path, vocabulary: int, documents: int, tokens: int) -> None:
    """Documents of as many tokens each, random but for words and sentences."""
    rng = np.random.default_rng(0)
    folder.mkdir(parents=True)
    writer = ShardWriter(folder / "train-00000.tar", "train", "uint16")
    for _ in range(documents):
        flags = np.zeros(tokens, np.uint8)
        flags[rng.random(tokens) < 0.4] |= CONTINUES_WORD
        flags[::25] |= SENTENCE_END
        writer.add(rng.integers(5, vocabulary, tokens, np.uint16), flags)
    special = {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4}
    tokenizer = {"fingerprint": "random", "type": "wordpiece", "vocab_size": vocabulary, **special}
    Manifest(tokenizer=tokenizer, dtype="uint16", shards=[writer.close()]).write(folder)


class Ours:
    """A recipe on the trainer's own assembly and step."""

    def __init__(self, settings: TrainSettings, run: Path, device: torch.device) -> None:
        self.trainer = trainer = Trainer(settings, run, Mesh(device=device))
        self.batches = trainer.objective.batches(0)
        self.parameters = sum(parameter.numel() for parameter in trainer.assembly.model.parameters())

    def steps(self, count: int) -> Figures:
        trainer = self.trainer
        window = Window(trainer.assembly.spec, trainer.assembly.config, trainer.objective, trainer.step)
        for _ in range(count):
            with window.waiting_for_data():
                batch = next(self.batches)
            rate, norm = trainer._train_step(batch, window)
            trainer.step += 1
        values = window.close(trainer.step, rate, norm, trainer.scale.value)
        return {**values, "skipped_steps": trainer.skipped_steps}


class Theirs:
    """A model of transformers with the recipe's sizes, rows, optimiser and precision, and its own loss."""

    def __init__(self, kind: type[PreTrainedModel], settings: TrainSettings, device: torch.device) -> None:
        self.settings, self.device = settings, device
        self.source = open_dataset(settings.data, settings.seed, "train")
        self.model = kind(_their_config(settings, self.source.vocab_size)).train()
        self.model.to(device)
        dtype = resolve_precision(settings.precision, device)
        self.masters = MasterWeights(self.model, dtype)
        self.optimizer = build_optimizer(self.masters.learning(), settings.optimizer, Mesh(device=device))
        self.buckets = GradientBuckets(self.model.parameters(), Mesh(device=device), 25 * 2**20)
        self.scale = LossScale(dtype, 2.0**12)  # in float16 their loss is so itself, and must not overflow
        self.peak = peak_flops(settings.peak_tflops, device)
        self.batches = Loader(rows_by_step(self.source, settings.global_batch, range(settings.global_batch), 0))
        self.parameters = sum(parameter.numel() for parameter in self.model.parameters())
        self.skipped = 0

    def steps(self, count: int) -> Figures:
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
        flops = spec.flops(config, self.settings.data.sequence_length, totals)
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


def _their_config(settings: TrainSettings, vocab_size: int) -> BertConfig | LongformerConfig:
    model = {key: value for key, value in settings.model.items() if key not in ("type", "max_relative_position")}
    if settings.model["type"] == "longformer":
        return LongformerConfig(vocab_size=vocab_size, pad_token_id=0, **model)
    return BertConfig(vocab_size=vocab_size, max_position_embeddings=settings.data.sequence_length, **model)


def measure(case: Case, precision: str, rows: int, toy: bool, folder: Path) -> Figures:
    """Figures of a case with `rows` a micro-batch; `folder` holds its corpus."""
    device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    is_gpu = device.type == "cuda"
    length = case.tokens(toy)
    settings = case.settings(folder / "corpus", precision, rows, toy)
    pieces = 4 if settings.data.kind == "segments" else 32  # full ones of a document, with [SEP] and [CLS]
    vocabulary = 500 if toy else VOCABULARIES[case.recipe]
    random_corpus(folder / "corpus", vocabulary, 16 if toy else 128, pieces * (length - 2))
    side = Ours(settings, folder, device) if case.theirs is None else Theirs(case.theirs, settings, device)
    try:
        side.steps(1 if toy else WARM_STEPS)
        each = 8 if settings.data.kind == "segments" else 1  # steps until a document is skimmed and learned from
        count = max(4, min(60, math.ceil(SECONDS / side.steps(1)["seconds_per_step"])))
        count = each * (1 if toy else math.ceil(count / each))
        if is_gpu:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        figures = side.steps(count)
        memory = {}
        if is_gpu:
            memory["peak_gib"] = torch.cuda.max_memory_allocated() / 2**30
            memory["reserved_gib"] = torch.cuda.max_memory_reserved() / 2**30
        attention, kernels = attention_of(lambda: side.steps(1), is_gpu)
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
        "attention": attention,
        "kernels": kernels,
    }


def attention_of(step: Callable[[], object], is_gpu: bool) -> tuple[list[str], list[str]]:
    """What scaled_dot_product_attention chose in a step, and the GPU's kernels that did it, backward too."""
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if is_gpu else [])]
    with profile(activities=activities) as profiler:
        step()
    names = {event.key for event in profiler.key_averages()}
    pattern = r"aten::_scaled_dot_product_(?:attention_)?(\w+?)(?:_attention)?(?:_for_cpu)?"
    chosen = {found[1] for name in names if (found := re.fullmatch(pattern, name)) and "backward" not in name}
    kernels = {re.split(r"[<(]", name.removeprefix("void "))[0] for name in names if not name.startswith("aten::")}
    known = re.compile("fmha|flash|attention|sdpa|mha", re.IGNORECASE)
    return sorted(chosen), sorted(name[:80] for name in kernels if known.search(name)) if is_gpu else []


def precisions() -> tuple[list[str], str]:
    """Those that this device is measured in, the one that `precision: auto` takes first; and a word on them."""
    if not torch.cuda.is_available():
        return ["fp32"], "fp32, for there is no GPU"
    major, minor = torch.cuda.get_device_capability()
    if major < 8:
        return ["fp16"], f"fp16; no bf16 below compute capability 8.0, this is {major}.{minor}"
    return ["bf16", "fp16"], "bf16, then fp16"


def rows_of(case: Case, toy: bool) -> int:
    """Of a micro-batch."""
    if toy:
        return 2
    memory = torch.cuda.get_device_properties(0).total_memory / 2**30 if torch.cuda.is_available() else 80
    return max(1, TOKENS // (1 if memory > 24 else 2) // case.length)


def run_case(case: Case, precision: str, rows: int, toy: bool, out: Path, seconds: float) -> Figures:
    """Its figures, or `error`, from a process of its own that is given so many seconds."""
    label = re.sub(r"[^\w-]+", "-", f"{case.name}-{precision}-{rows}")
    with tempfile.TemporaryDirectory() as folder, (out / f"{label}.log").open("w+") as printed:
        result = Path(folder) / "result.json"
        command = [sys.executable, __file__, "--case", case.name, precision, str(rows), folder, *["--toy"] * toy]
        try:
            done = subprocess.run(command, stdout=printed, stderr=subprocess.STDOUT, timeout=seconds, check=False)
        except subprocess.TimeoutExpired:
            return {"error": f"not done in {seconds:.0f} s"}
        if done.returncode == 0:
            return json.loads(result.read_text())
        printed.seek(0)
        lines = [line.strip() for line in printed if line.strip()]
    telling = [line for line in lines if "out of memory" in line] or lines
    return {"error": telling[-1][:300] if telling else f"status {done.returncode}"}


def run_tests(out: Path, seconds: float) -> Figures:
    """tests/gpu, counted from what pytest printed, so those that ran before the time was up count too."""
    with (out / "tests.log").open("w+") as printed:
        command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", str(ROOT / "tests" / "gpu")]
        begin = time.monotonic()
        try:
            status: int | str = subprocess.run(
                command, cwd=ROOT, stdout=printed, stderr=subprocess.STDOUT, timeout=seconds, check=False
            ).returncode
        except subprocess.TimeoutExpired:
            status = f"not done in {seconds:.0f} s"
        printed.seek(0)
        text = printed.read()
    counts = Counter(re.findall(r"^tests/\S+::.* (PASSED|FAILED|ERROR|SKIPPED)\b", text, re.MULTILINE))
    failed = re.findall(r"^(?:FAILED|ERROR) (tests/\S+)", text, re.MULTILINE)
    counted = {kind.lower(): count for kind, count in counts.items()}
    if not counts and text.strip():  # pytest is not there, or a module that the tests import
        counted = {"error": text.strip().splitlines()[-1][:300]}
    return {**counted, "status": status, "failed_tests": failed, "seconds": round(time.monotonic() - begin, 1)}


def table(results: list[Figures]) -> str:
    columns = ("model", "precision", "rows", "s/step", "tokens/s", "MFU", "peak GiB", "waiting", "attention", "kernels")
    lines = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    for one in results:
        start = f"| {one['case']} | {one['precision']} | {ACCUMULATION} x {one['micro_batch']} |"
        if "error" in one:
            lines.append(f"{start} {one['error'].replace('|', '/')} |" + " |" * (len(columns) - 4))
            continue
        mfu = f"{100 * one['mfu']:.1f} %" if math.isfinite(one["mfu"]) else "-"
        peak = f"{one['peak_gib']:.1f}" if "peak_gib" in one else "-"
        skipped = f" ({one['skipped_steps']} steps skipped)" if one["skipped_steps"] else ""
        lines.append(
            f"{start} {one['seconds_per_step']:.3f}{skipped} | {one['tokens_per_second']:,.0f} | {mfu} | {peak} | "
            f"{100 * one['data_wait_share']:.1f} % | {', '.join(one['attention']) or 'no SDPA'} | "
            f"{', '.join(one['kernels']) or '-'} |"
        )
    return "\n".join(lines)


def plan(chosen: list[Case], toy: bool, minutes: float) -> str:
    begin = "" if toy else "tests/gpu, then "
    lines = [f"in {minutes:g} minutes: {begin}each of these in {precisions()[1]}:"]
    for case in chosen:
        rows, length = rows_of(case, toy), case.tokens(toy)
        who = "transformers' model" if case.theirs else f"recipe {case.recipe}"
        lines.append(f"  {case.name}: {who}, {ACCUMULATION} micro-batches of {rows} rows of {length} tokens")
    return "\n".join(lines)


def run_all(chosen: list[Case], toy: bool, out: Path, deadline: float) -> None:
    out.mkdir(parents=True, exist_ok=True)
    results: list[Figures] = []

    def keep(result: Figures) -> None:
        results.append(result)
        with (out / "results.jsonl").open("a") as file:
            file.write(json.dumps(result) + "\n")

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    heading = f"{device}, torch {torch.__version__}, CUDA {torch.version.cuda}{', toy sizes' if toy else ''}"
    print(heading, flush=True)
    tests = "not run (toy sizes)"
    if not toy:
        counted = run_tests(out, min(TESTS_SECONDS, deadline - time.monotonic()))
        keep({"case": "tests/gpu", **counted})
        tests = ", ".join(f"{name} {value}" for name, value in counted.items() if value != [])
        print(f"tests/gpu: {tests}", flush=True)
        results.clear()  # the table is of cases
    left: list[str] = []
    for precision in precisions()[0]:
        for case in chosen:
            rows = rows_of(case, toy)
            while True:
                seconds = min(CASE_SECONDS, deadline - time.monotonic())
                if seconds < LEAST_SECONDS:
                    left.append(f"{case.name} {precision}")
                    break
                begin = time.monotonic()
                figures = run_case(case, precision, rows, toy, out, seconds)
                wall = round(time.monotonic() - begin, 1)
                keep({"case": case.name, "precision": precision, "micro_batch": rows, **figures, "wall": wall})
                said = figures.get("error") or f"{figures['tokens_per_second']:,.0f} tokens/s"
                print(f"{case.name}, {precision}, {ACCUMULATION} x {rows} rows: {said} ({wall:.0f} s)", flush=True)
                if rows == 1 or "out of memory" not in figures.get("error", ""):
                    break
                rows //= 2
    text = f"{heading}\n\ntests/gpu: {tests}\n\n{table(results)}\n"
    text += f"\nNot run, the time was up: {', '.join(left)}\n" if left else ""
    (out / "table.md").write_text(text)
    print(f"\n{text}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/gpu"), help="folder of the results")
    parser.add_argument("--minutes", type=float, default=8.5, help="that all may take")
    parser.add_argument("--only", default="*", help="glob of cases, for example 'nezha*'")
    parser.add_argument("--toy", action="store_true", help="small sizes, no tests; on CPU too")
    parser.add_argument("--case", nargs=4, help=argparse.SUPPRESS)  # the process of one case
    options = parser.parse_args()
    if options.case:
        name, precision, rows, folder = options.case
        case = next(case for case in CASES if case.name == name)
        figures = measure(case, precision, int(rows), options.toy, Path(folder))
        (Path(folder) / "result.json").write_text(json.dumps(figures))
        return
    deadline = time.monotonic() + 60 * options.minutes
    chosen = [case for case in CASES if fnmatchcase(case.name, options.only)]
    print(plan(chosen, options.toy, options.minutes), flush=True)
    if not torch.cuda.is_available() and not options.toy:
        print("torch sees no GPU here, so nothing is run; --toy tries the same at toy sizes")
        return
    run_all(chosen, options.toy, options.out, deadline)


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    sys.exit(main())
