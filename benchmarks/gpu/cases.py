"""The cases of `make gpu`: recipes, and models of transformers with the same sizes."""

from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import BertForPreTraining, LongformerForMaskedLM, PreTrainedModel

from reread.pipeline.recipe.load import load_recipe
from reread.training.config import TrainSettings

TOKENS = 16384
"""Tokens of a micro-batch, unless the GPU is small."""
ACCUMULATION = 2


@dataclass(frozen=True)
class Case:
    name: str
    recipe: str
    length: int
    overrides: tuple[str, ...] = ()
    toy: tuple[str, ...] = ()
    """Overrides for small sizes."""
    theirs: type[PreTrainedModel] | None = None
    """A model of transformers, which replaces the recipe's."""

    def tokens(self, toy: bool) -> int:
        """Tokens of a row."""
        return max(32, self.length // 8) if toy else self.length

    def settings(self, corpus: Path, precision: str, rows: int, toy: bool) -> TrainSettings:
        """The recipe's, with `rows` a micro-batch."""
        length = self.tokens(toy)
        common = [f"data.corpus={corpus}", f"data.sequence_length={length}", f"precision={precision}", "init=null"]
        common += [f"micro_batch={rows}", f"global_batch={ACCUMULATION * rows}", "steps=1000000"]
        common.append("activation_checkpointing=false")
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
_RAN = ("model.head_size=32", "model.window_size=32")
CASES = (
    Case("nezha-base 128", "nezha-base", 128, *_NEZHA),
    Case("BERT-base 128", "nezha-base", 128, *_NEZHA, theirs=BertForPreTraining),
    Case("nezha-base 512", "nezha-base", 512, *_NEZHA),
    Case("BERT-base 512", "nezha-base", 512, *_NEZHA, theirs=BertForPreTraining),
    Case("longformer-base 4096", "longformer-base", 4096, *_LONGFORMER),
    Case("transformers' Longformer 4096", "longformer-base", 4096, *_LONGFORMER, theirs=LongformerForMaskedLM),
    Case("ernie-doc-base 512", "ernie-doc-base-en", 512, ("data.retrospective=false",), _ERNIE_DOC),
    Case("ernie-doc-base 512, skim", "ernie-doc-base-en", 512, (), _ERNIE_DOC),
    Case("ran-base 512", "ran-base", 512, (), _RAN),
    *(
        Case(f"{name}, compiled", recipe, length, (*overrides, "compile=true"), toy)
        for name, recipe, length, overrides, toy in (
            ("nezha-base 128", "nezha-base", 128, *_NEZHA),
            ("nezha-base 512", "nezha-base", 512, *_NEZHA),
            ("longformer-base 4096", "longformer-base", 4096, *_LONGFORMER),
            ("ernie-doc-base 512", "ernie-doc-base-en", 512, ("data.retrospective=false",), _ERNIE_DOC),
            ("ran-base 512", "ran-base", 512, (), _RAN),
        )
    ),
)
VOCABULARIES = {"nezha-base": 21128, "ran-base": 30522, "longformer-base": 50265, "ernie-doc-base-en": 50265}


def rows_of(case: Case, toy: bool) -> int:
    """Rows of a micro-batch."""
    if toy:
        return 2
    memory = torch.cuda.get_device_properties(0).total_memory / 2**30 if torch.cuda.is_available() else 80
    return max(1, TOKENS // (1 if memory > 24 else 2) // case.length)
