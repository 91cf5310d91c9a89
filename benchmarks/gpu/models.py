"""Models as sides of a comparison: recipes on the trainer's own step, and models of transformers at the same sizes.

Each model trains as its recipe says, on full rows of random ids, so the losses mean nothing: two micro-batches and the
optimiser. Those of transformers have the same rows, weights in half precision, float32 masters, gradient buckets and
optimiser, and their own loss, which puts all tokens through the head where ours takes the masked ones. MFU counts the
FLOPs of our model for both.
"""

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor, nn
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForPreTraining,
    LongformerConfig,
    LongformerForMaskedLM,
    PreTrainedModel,
)

from benchmarks.gpu.profiles import profiled
from benchmarks.gpu.sides import Comparison, Figures, LeftOutError, Place
from benchmarks.gpu.without import attending, without
from benchmarks.random_corpus import random_corpus
from benchmarks.trainer_steps import TrainerSteps
from reread.pipeline.recipe.load import load_recipe
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

TOKENS = 16384
"""Tokens of a micro-batch, unless the GPU is small."""
ACCUMULATION = 2
VOCABULARIES = {
    "nezha-base": 21128,
    "ran-base": 30522,
    "longformer-base": 50265,
    "ernie-doc-base-en": 50265,
    "continue-encoder": 30522,
}


@dataclass(frozen=True)
class Model:
    name: str
    recipe: str
    length: int
    overrides: tuple[str, ...] = ()
    toy: tuple[str, ...] = ()
    """Overrides for small sizes."""
    theirs: type[PreTrainedModel] | None = None
    """A model of transformers, which replaces the recipe's."""
    compiled: Literal["no", "static", "dynamic"] = "no"
    """Whether torch.compile compiles the layers, for the shapes at hand or for any."""
    without: tuple[str, ...] = ()
    """Kernels of ours that it trains without."""
    in_one_kernel: bool = False
    """Whether ERNIE-Doc's attention is the kernel that is not installed."""

    def tokens(self, toy: bool) -> int:
        """Tokens of a row."""
        return max(32, self.length // 8) if toy else self.length

    def rows(self, tokens: int, toy: bool) -> int:
        """Rows of a micro-batch of so many tokens."""
        return 2 if toy else max(1, tokens // self.length)

    def settings(self, corpus: Path, precision: str, rows: int, toy: bool) -> TrainSettings:
        """The recipe's, with `rows` a micro-batch."""
        length = self.tokens(toy)
        common = [f"data.corpus={corpus}", f"data.sequence_length={length}", f"precision={precision}", "init=null"]
        common += [f"micro_batch={rows}", f"global_batch={ACCUMULATION * rows}", "steps=1000000"]
        common += ["activation_checkpointing=false", f"compile={str(self.compiled != 'no').lower()}"]
        sizes = ["model.hidden_size=64", "model.num_hidden_layers=2", "model.num_attention_heads=2"]
        small = [*sizes, *self.toy, "peak_tflops=1"]
        recipe = load_recipe(self.recipe, [*common, *self.overrides, *(small if toy else ())], "train")
        assert recipe.train is not None
        return recipe.train

    def but_without(self, *kernels: str) -> "Model":
        return replace(self, name=f"{self.name}, without {', '.join(kernels)}", without=kernels)

    def as_compiled(self, how: Literal["static", "dynamic"]) -> "Model":
        return replace(self, name=f"{self.name}, compiled, {how}", compiled=how)

    def build(self, place: Place) -> "Training":
        """The side of a comparison. Raises `LeftOutError` for a compiled one without a GPU."""
        if self.compiled != "no" and not place.is_gpu:
            raise LeftOutError("is compiled on a GPU alone")
        return Training(self, place)


class Training:
    """A model that trains; a turn is two steps, so that the host runs ahead as in a run, or all of a document."""

    def __init__(self, model: Model, place: Place) -> None:
        self.place, length = place, model.tokens(place.toy)
        corpus = place.folder / f"corpus-{model.recipe}-{model.length}"
        settings = model.settings(corpus, place.precision, model.rows(place.tokens, place.toy), place.toy)
        is_document = settings.data.kind == "segments"
        pieces = 4 if is_document else 32  # full ones of a document, with [SEP] and [CLS]
        if not corpus.exists():
            vocabulary = 500 if place.toy else VOCABULARIES[model.recipe]
            random_corpus(corpus, vocabulary, [pieces * (length - 2)] * (16 if place.toy else 128))
        self.steps = 1 if place.toy else 2
        if is_document:  # until a document is skimmed, if it is, and learned from
            self.steps = pieces * (2 if settings.data.retrospective else 1)
        self.settings, self.before = settings, torch.cuda.memory_allocated() if place.is_gpu else 0
        run = place.folder / model.name.replace("/", "-")
        run.mkdir(exist_ok=True)
        with without(model.without), compiling(model.compiled), attending(model.in_one_kernel):
            self.trains: TrainerSteps | Theirs
            if model.theirs is None:
                self.trains = TrainerSteps(settings, run, place.device)
            else:
                self.trains = Theirs(model.theirs, settings, place.device)

    def turn(self) -> Figures:
        figures = self.trains.figures(self.steps)
        kept = "tokens_per_second", "mfu", "data_wait_share", "loss", "loss_scale", "skipped_steps"
        return {"ms": 1000 * figures["seconds_per_step"], **{name: figures[name] for name in kept}}

    def about(self) -> Figures:
        rows = {"parameters": self.trains.parameters, "micro_batch": self.settings.micro_batch}
        memory = {}
        if self.place.is_gpu:
            now = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
            self.trains.figures(1)
            above = torch.cuda.max_memory_allocated() - now
            memory["step_gib"] = above / 2**30
        return {**rows, **memory, **profiled(lambda: self.trains.figures(1), self.place.is_gpu)}

    def results(self) -> Sequence[Tensor]:
        return ()

    def close(self) -> None:
        self.trains.batches.close()


@contextmanager
def compiling(how: str) -> Iterator[None]:
    """Within this context what is compiled takes shapes as they are (`static`) or leaves them open (`dynamic`)."""
    compile_module = nn.Module.compile

    def compiled(module: nn.Module) -> None:
        compile_module(module, dynamic=how == "dynamic")

    with patch.object(nn.Module, "compile", compiled):
        yield


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
            "tokens_per_second": totals["tokens"] / seconds,
            "seconds_per_step": seconds / count,
            "data_wait_share": waited / seconds,
            "mfu": flops / seconds / self.peak,
            "skipped_steps": self.skipped,
        }

    def _step(self, batch: dict[str, Any]) -> Tensor:
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


_NEZHA = ("data.short_sequence_probability=0",), ("model.intermediate_size=128",)
_LONGFORMER = (
    ("model.max_position_embeddings=4098", "model.type_vocab_size=1"),
    ("model.intermediate_size=128", "model.attention_window=32"),
)
_ERNIE_DOC = ("model.intermediate_size=128", "model.memory_length=16", "model.max_position_embeddings=64")
_RAN = ("model.head_size=32", "model.window_size=32")
NEZHA_128 = Model("nezha-base 128", "nezha-base", 128, *_NEZHA)
NEZHA_512 = Model("nezha-base 512", "nezha-base", 512, *_NEZHA)
BERT_128 = Model("BERT-base 128", "nezha-base", 128, *_NEZHA, theirs=BertForPreTraining)
BERT_512 = Model("BERT-base 512", "nezha-base", 512, *_NEZHA, theirs=BertForPreTraining)
LONGFORMER = Model("longformer-base 4096", "longformer-base", 4096, *_LONGFORMER)
THEIR_LONGFORMER = replace(LONGFORMER, name="transformers' Longformer 4096", theirs=LongformerForMaskedLM)
SKIMMING = Model("ernie-doc-base 512, skim", "ernie-doc-base-en", 512, (), _ERNIE_DOC)
ERNIE_DOC = replace(SKIMMING, name="ernie-doc-base 512", overrides=("data.retrospective=false",))
IN_ONE_KERNEL = replace(ERNIE_DOC, name="ernie-doc-base 512, attention in one kernel", in_one_kernel=True)
RAN = Model("ran-base 512", "ran-base", 512, (), _RAN)
_ENCODER = "continue-encoder", 512, ("data.separate_documents=false",), ("model.intermediate_size=128",)
HUB_BERT = Model("model.type bert 512", *_ENCODER)
THEIR_BERT = replace(HUB_BERT, name="transformers' BertForMaskedLM 512", theirs=BertForMaskedLM)
MODERNBERT = Model("modernbert 4096", "continue-encoder", 4096, ("model.type=modernbert",), _ENCODER[3])
"""Documents apart by variable lengths, where the GPU can."""
BY_A_MASK = replace(
    MODERNBERT,
    name="modernbert 4096, by a mask",
    overrides=(*MODERNBERT.overrides, "model.attn_implementation=sdpa"),
)
OURS = NEZHA_128, NEZHA_512, LONGFORMER, ERNIE_DOC, SKIMMING, RAN
"""The models of the project, one for each way that `make gpu` trains them."""


def steps(*models: Model) -> Callable[[Place], Iterator[Comparison]]:
    """Whole steps of models in turns; with `Place.without` each of ours also without those kernels."""

    def comparisons(place: Place) -> Iterator[Comparison]:
        sides = [
            one
            for model in models
            for one in (model, *([model.but_without(*place.without)] if place.without and not model.theirs else ()))
        ]
        yield Comparison(f"whole steps of {models[0].length} tokens", {one.name: one.build for one in sides})

    return comparisons
