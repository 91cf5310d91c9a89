"""Names of Transformer-XL's weights and settings in transformers' files."""

import logging
import re
from collections.abc import Mapping
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from reread.preprocessing.errors import UserError
from reread.training.models.forms import TORCH, Form

log = logging.getLogger("reread")

SAME_KEYS = (
    "vocab_size",
    "cutoffs",
    "d_model",
    "d_embed",
    "n_head",
    "d_head",
    "d_inner",
    "n_layer",
    "div_val",
    "mem_len",
    "same_length",
    "dropout",
    "dropatt",
    "layer_norm_epsilon",
    "eos_token_id",
)
SUPPORTED = {"untie_r": False, "pre_lnorm": False, "attn_type": 0}
"""Settings of transformers' configuration and the only value of each that is supported, the paper's."""

NAMES = tuple(
    (re.compile(pattern), name)
    for pattern, name in (
        (r"^(?:transformer\.)?word_emb\.emb_layers\.(\d+)\.weight$", r"transformer.embeddings.tables.\1.weight"),
        (r"^(?:transformer\.)?word_emb\.emb_projs\.(\d+)$", r"transformer.embeddings.projections.\1"),
        (r"^(?:transformer\.)?r_w_bias$", "transformer.content_bias"),
        (r"^(?:transformer\.)?r_r_bias$", "transformer.position_bias"),
        (r"^(?:transformer\.)?layers\.(\d+)\.", r"transformer.layer.\1."),
        (r"\.dec_attn\.qkv_net\.", ".attention.self.qkv."),
        (r"\.dec_attn\.r_net\.", ".attention.self.position."),
        (r"\.dec_attn\.o_net\.", ".attention.output.dense."),
        (r"\.dec_attn\.layer_norm\.", ".attention.output.LayerNorm."),
        (r"\.pos_ff\.CoreNet\.0\.", ".intermediate.dense."),
        (r"\.pos_ff\.CoreNet\.3\.", ".output.dense."),
        (r"\.pos_ff\.layer_norm\.", ".output.LayerNorm."),
        (r"^crit\.cluster_", "softmax.cluster_"),
        (r"^crit\.out_layers\.(\d+)\.", r"softmax.layers.\1."),
        (r"^crit\.out_projs\.(\d+)$", r"softmax.projections.\1"),
    )
)
"""Patterns of transformers' names (the authors' own, some with the prefix `transformer.`) -> ours; all are applied."""
IGNORED = re.compile(r"(^|\.)pos_emb\.inv_freq$|\.dec_attn\.r_[wr]_bias$")
"""Tables that are recomputed, and each layer's copies of u and v."""


def config_from_transformers(source: Mapping[str, Any]) -> dict[str, Any]:
    """Keys for `TransformerXLConfig` from transformers' config.json (model type transfo-xl).

    Memory begins as zeros that are attended to, since transformers trained the weights that way.
    Raises `UserError` for a variant that is not supported.
    """
    for key, value in SUPPORTED.items():
        if source.get(key, value) != value:
            raise UserError(f"config.json: {key} {source[key]!r} is not supported, only {value!r} is")
    values = {key: source[key] for key in SAME_KEYS if key in source}
    values["initial_memory"] = "zeros"
    values["clamp_len"] = source["clamp_len"] if source.get("clamp_len", -1) > 0 else None
    if source.get("adaptive") is False:
        values["cutoffs"] = []
    if "tie_projs" in source:
        values["tie_projs"] = [bool(tied) for tied in source["tie_projs"]]
    elif source.get("proj_share_all_but_first") is False:
        values["tie_projs"] = [False] * (len(values.get("cutoffs", ())) + 1)
    return values


def from_transformers(source: Mapping[str, Tensor | NDArray[Any]]) -> dict[str, Tensor]:
    """Weights of transformers' TransfoXLLMHeadModel -> our names, float32; unknown names stay as they are.

    qkv_net is split into three, the clusters' biases are concatenated, and the softmax's copies of embeddings are
    dropped. Raises `UserError` if the softmax's words are not tied to the embeddings.
    """
    weights: dict[str, Tensor] = {}
    ignored = []
    for name, values in source.items():
        if IGNORED.search(name):
            ignored.append(name)
            continue
        tensor = torch.as_tensor(values).float()
        new = name
        for pattern, replacement in NAMES:
            new = pattern.sub(replacement, new)
        if ".qkv." in new:
            for part, third in zip(("query", "key", "value"), tensor.chunk(3), strict=True):
                weights[new.replace("qkv", part)] = third.clone()
        else:
            weights[new] = tensor
    _drop_shared(weights)
    log.info("ignored %d tensors that are recomputed or copies of others", len(ignored))
    return weights


def _drop_shared(weights: dict[str, Tensor]) -> None:
    """Drop the softmax's copies of shared matrices and concatenate its biases."""
    biases = []
    for cluster in range(len(weights)):
        table, layer = f"transformer.embeddings.tables.{cluster}.weight", f"softmax.layers.{cluster}"
        bias = weights.pop(f"{layer}.bias", None)
        if bias is None:
            break
        biases.append(bias)
        copy = weights.pop(f"{layer}.weight")
        if table not in weights or not torch.equal(copy, weights[table]):
            raise UserError(
                f"crit.out_layers.{cluster}.weight differs from its embeddings: only tied ones are supported"
            )
    weights["softmax.bias"] = torch.cat(biases)
    for name in [name for name in weights if name.startswith("softmax.projections.")]:
        own = name.replace("softmax.", "transformer.embeddings.")
        first = "transformer.embeddings.projections.0"  # with div_val 1, the one projection of all clusters
        if torch.equal(weights[name], weights[own if own in weights else first]):
            del weights[name]


FORMS = (
    Form(
        name="Transformer-XL of transformers",
        files=TORCH,
        reason=lambda config: "its model_type is transfo-xl" if config.get("model_type") == "transfo-xl" else "",
        config=config_from_transformers,
        weights=from_transformers,
    ),
)
