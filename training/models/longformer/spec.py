"""Longformer: how it is split over tensor-parallel devices, what a step costs, and what pretraining leaves alone."""

from collections.abc import Mapping
from typing import Literal

from transformers import LongformerConfig

from reread.training.models.longformer.configuration_longformer import LongformerConfig as DilatedConfig
from reread.training.models.longformer.modeling_longformer import (
    LongformerForCoreference,
    LongformerForKeyPhrases,
    LongformerForMaskedLM,
    LongformerForMultipleChoice,
    LongformerForQuestionAnswering,
    LongformerForSequenceClassification,
    LongformerForTokenClassification,
    LongformerModel,
    dilations,
    windows,
)
from reread.training.models.spec import ModelSpec, OwnKey

TENSOR_PLAN = {
    "*.word_embeddings": "vocabulary",
    "*.attention.self": "attention",
    "*.attention.self.query*": "column",
    "*.attention.self.key*": "column",
    "*.attention.self.value*": "column",
    "*.attention.output.dense": "row",
    "*.layer.*.intermediate.dense": "column",
    "*.layer.*.output.dense": "row",
    "lm_head.decoder": "vocabulary",
    "lm_head.bias": "vocabulary",
}

COPIED = {"query_global": "query", "key_global": "key", "value_global": "value"}
"""Pretraining has no global tokens: the projections that meet them are copied from those that it trained."""


def flops(config: LongformerConfig, length: int, totals: Mapping[str, float]) -> float:
    """Training FLOPs of totals["rows"] rows of `length` tokens of which totals["predicted"] go through the head.

    Three times the forward pass, a multiply and an add counted as two, dense matrix products alone. A query meets
    2w + 1 keys or the whole row, and every d-th of it with dilation d: keys that lie in its chunk but not in its window
    are work, but not progress.
    """
    width, tokens = config.hidden_size, totals["rows"] * length
    dense = 2 * tokens * (4 * width * width + 2 * width * config.intermediate_size)
    heads = config.num_attention_heads
    layers = 0.0
    for window, (gap, dilated) in zip(windows(config), dilations(config), strict=True):
        plain, apart = (min(2 * window + 1, -(-length // step)) for step in (1, gap))
        layers += dense + 4 * tokens * width * (plain * (heads - dilated) + apart * dilated) / heads
    head = 2 * totals["predicted"] * width * (width + config.vocab_size)
    return 3.0 * (layers + head)


def longest(config: LongformerConfig) -> int:
    """Tokens a row may have: positions count from pad_token_id + 1."""
    return config.max_position_embeddings - (config.pad_token_id or 0) - 1


_USAGE = """Name the tokens that a task turns on in `global_attention_mask` [batch, tokens], 1 for those that
see the whole text and are seen by it: the first for classification, those of the question for question answering."""


_LENGTH = """A text is read in one sequence, as far as positions go (`tokenizer.model_max_length`); transformers' class
does not cut a longer one into windows."""
_SEPARATORS = """Where the tokenizer puts one [SEP] between two parts, as BERT's does, transformers' class cannot find
them: give it `global_attention_mask`, 1 for the tokens of"""
_USAGE_OF_TASKS = {
    "classify": f"Its first token is global. {_LENGTH}",
    "tag": f"No token is global. {_LENGTH}",
    "answer": f"The question is global. {_SEPARATORS} the question. {_LENGTH}",
    "rank": "Its first token is global.",
    "choose": f"What follows the text is global. {_SEPARATORS} question and option. {_LENGTH}",
}


_GLOBAL_ATTENTION = """Global tokens have projections of their `own`, those that they share with all tokens, or there
are none (Longformer, section 3.1 and Table 10)."""

_ATTENTION_DILATION = """How far apart the tokens of a window are: 1 without gaps, 2 every second token; one number, or
one a layer. `attention_window` stays the number of tokens, so a window reaches as many times further (Longformer,
section 3.1). Global tokens see all, and are seen by all."""
_DILATED_HEADS = """How many heads of each layer, the first ones, have dilated windows; null: all (Longformer, section
4.1: 2)."""

SPEC = ModelSpec(
    "longformer",
    LongformerConfig,
    {
        "masked_lm": LongformerForMaskedLM,
        "classify": LongformerForSequenceClassification,
        "tag": LongformerForTokenClassification,
        "answer": LongformerForQuestionAnswering,
        "choose": LongformerForMultipleChoice,
        "rank": LongformerForSequenceClassification,
        "phrases": LongformerForKeyPhrases,
        "coreference": LongformerForCoreference,
        "embed": LongformerModel,
    },
    TENSOR_PLAN,
    flops,
    longest=longest,
    own_keys={
        "global_attention": OwnKey(Literal["own", "shared", "none"], "own", _GLOBAL_ATTENTION),
        "attention_dilation": OwnKey(int | list[int], 1, _ATTENTION_DILATION),
        "dilated_heads": OwnKey(int | None, None, _DILATED_HEADS),
    },
    variants={"attention_dilation": DilatedConfig},
    copied=COPIED,
    seldom=tuple(f"*.{name}.*" for name in COPIED),
    one_token_type=True,
    usage={"masked_lm": _USAGE, **_USAGE_OF_TASKS},
)
