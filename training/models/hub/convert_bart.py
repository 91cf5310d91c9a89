"""Converts a BART of transformers into a folder that holds it as transformers writes it today."""

import logging
import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from transformers.models.bart.configuration_bart import BartConfig

from reread.preprocessing.errors import UserError
from reread.training.models.forms import TORCH, Form

log = logging.getLogger("reread")

BIAS = "final_logits_bias"
"""Of the tokens' logits: zeros in all released weights. No gradient reaches it, so no checkpoint holds it."""
ONLY: dict[str, Any] = {
    "scale_embedding": False,
    "normalize_before": False,
    "add_final_layer_norm": False,
    "normalize_embedding": True,
    "static_position_embeddings": False,
    "tie_word_embeddings": True,
    "encoder_layerdrop": 0.0,
    "decoder_layerdrop": 0.0,
}
"""Keys with which a BART is one as released, and their values."""
_COPIES = ("lm_head.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
_LEFT_OUT = re.compile(r"(^|\.)version$|\._float_tensor$|^classification_heads?\.")


def config_values(source: Mapping[str, Any]) -> dict[str, Any]:
    """All keys of a BART's configuration, with the defaults of its class. Raises ValueError for a variant of BART."""
    for key, value in ONLY.items():
        if source.get(key, value) != value:
            raise ValueError(f"{key} is {source[key]!r}; only {value!r} is supported")
    return BartConfig.from_dict({**source, "model_type": "bart"}).to_dict()  # type: ignore[no-any-return]


def parts(raw: Mapping[str, Any]) -> dict[str, Tensor]:
    """The tensors of a BART or a LED, fp32, by their names within the model, such as `shared.weight`; without copies.

    Raises `UserError` for a decoder that is not tied, and for a bias of logits that is not 0."""
    found: dict[str, Tensor] = {}
    for given, tensor in raw.items():
        name = re.sub(r"^(module\.)?(model\.|led\.)?", "", given)
        if not _LEFT_OUT.search(name):
            found[name] = tensor.float()
    for copy in _COPIES:
        table = found.pop(copy, None)
        if table is not None and not torch.equal(found.setdefault("shared.weight", table), table):
            raise UserError(f"{copy} differs from shared.weight: this model is not tied, BART is")
    bias = found.pop(BIAS, None)
    if bias is not None and bool(bias.any()):
        raise UserError(f"{BIAS} is not 0, as in released weights: it does not learn, so a run would lose it")
    return found


def whole(found: Mapping[str, Tensor], body: str) -> dict[str, Tensor]:
    """`parts` by their names in the class that writes, whose model is called `body`."""
    table = found.get("shared.weight")
    bias = {} if table is None else {BIAS: torch.zeros(1, len(table))}
    return {**{f"{body}.{name}": tensor for name, tensor in found.items()}, **bias}


def _reason(source: Mapping[str, Any]) -> str:
    return "its model_type is bart" if is_bart(source) else ""


def is_bart(source: Mapping[str, Any]) -> bool:
    """allenai's first encoder-decoders say that they are BARTs, too, with windows."""
    return source.get("model_type") == "bart" and "attention_window" not in source


FORMS = (
    Form(
        name="transformers' BART",
        files=TORCH,
        reason=_reason,
        config=config_values,
        weights=lambda raw: whole(parts(raw), "model"),
    ),
)
