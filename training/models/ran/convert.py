"""Names of RAN's weights and settings in rannet's files."""

import logging
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from reread.preprocessing.errors import UserError
from reread.training.models.forms import TENSORFLOW as TENSORFLOW_FILES
from reread.training.models.forms import TORCH, Form

log = logging.getLogger("reread")

HEADS = ("cls.", "softmax.", "transform.")
"""Prefixes of parameters that may be missing."""

RANNET = {
    "token-embedding/embeddings": "embeddings.word_embeddings.weight",
    "embedding-layernorm/*": "embeddings.LayerNorm.*",
    "ran-N/cell-initializer/kernel": "encoder.layer.N.initial.dense.weight",
    "ran-N/cell-initializer-layernorm/*": "encoder.layer.N.initial.LayerNorm.*",
    "ran-N/concat-layernorm/*": "encoder.layer.N.LayerNorm.*",
    "ran-N/encode-attn/dense-q/*": "encoder.layer.N.attention.query.*",
    "ran-N/encode-attn/dense-k/*": "encoder.layer.N.attention.key.*",
    "ran-N/encode-attn/dense-v/*": "encoder.layer.N.attention.value.*",
    "ran-N/encode-attn/dense-o/*": "encoder.layer.N.attention.output.*",
    "ran-N/encode-attn/glu/dense-t/*": "encoder.layer.N.attention.residual.linear.*",
    "ran-N/encode-attn/glu/dense-g/*": "encoder.layer.N.attention.residual.gate.*",
    "ran-N/encode-attn/layernorm/*": "encoder.layer.N.attention.residual.LayerNorm.*",
    "ran-N/cell-glu/dense-t/*": "encoder.layer.N.cell.residual.linear.*",
    "ran-N/cell-glu/dense-g/*": "encoder.layer.N.cell.residual.gate.*",
    "ran-N/cell-residual-layernorm/*": "encoder.layer.N.cell.residual.LayerNorm.*",
    "ran-N/output-attn/dense-q/*": "encoder.layer.N.review.query.*",
    "ran-N/output-attn/dense-k/*": "encoder.layer.N.review.key.*",
    "ran-N/output-attn/dense-v/*": "encoder.layer.N.review.value.*",
    "ran-N/output-attn/dense-o/*": "encoder.layer.N.review.output.*",
    "ran-N/output-attn/glu/dense-t/*": "encoder.layer.N.review.residual.linear.*",
    "ran-N/output-attn/glu/dense-g/*": "encoder.layer.N.review.residual.gate.*",
    "ran-N/output-attn/layernorm/*": "encoder.layer.N.review.residual.LayerNorm.*",
    "output-cell-dense/*": "pooler.cell.*",
    "output-cell-glu/dense-t/*": "pooler.gated.linear.*",
    "output-cell-glu/dense-g/*": "pooler.gated.gate.*",
    "output-pooling-dense/*": "pooler.tokens.*",
    "mlm-hidden/dense/*": "cls.predictions.transform.dense.*",
    "mlm-hidden/layernorm/*": "cls.predictions.transform.LayerNorm.*",
    "mlm-matching/bias": "cls.predictions.bias",
}
"""rannet's name in lower case, without its prefix -> ours; N is a layer's number, * a key of LEAVES."""
LEAVES = {"kernel": "weight", "bias": "bias", "gamma": "weight", "beta": "bias"}
"""A kernel is [in, out] and is transposed."""
IGNORED = re.compile(r"optimizer|(^|/)adam|(^|/)(_checkpointable_object_graph|global_step|save_counter)(/|$)")
"""Entries of a training checkpoint that are not weights, in lower case."""
SETTINGS = {
    "vocab_size": "vocab_size",
    "embedding_size": "hidden_size",
    "ran_layers": "num_hidden_layers",
    "head_num": "num_attention_heads",
    "head_size": "head_size",
    "window_size": "window_size",
    "min_window_size": "min_window_size",
    "cell_pooling": "cell_pooling",
    "kernel_initializer_range": "initializer_range",
}
"""rannet's key -> ours."""
DEFAULTS = {"embedding_size": 512, "ran_layers": 2, "head_num": 8, "head_size": 128, "window_size": 256}
"""rannet's defaults where ours differ."""


def config_from_rannet(source: Mapping[str, Any]) -> dict[str, Any]:
    """Keys for `RanConfig` from rannet's config.json.

    The switches are those of rannet above 0.2.1, with a line in the log: no file has rannet's version.
    Raises ValueError for a variant that is not supported.
    """
    log.info("profile rannet with cell_transform empty, as rannet above 0.2.1 ('V3 models'); older ones need always")
    if source.get("cell_initializer_type", "zero") != "zero":
        raise ValueError(f"cell_initializer_type is {source['cell_initializer_type']}; only zero is supported")
    given = {**DEFAULTS, **source}
    values = {ours: given[theirs] for theirs, ours in SETTINGS.items() if theirs in given}
    dropout = source.get("dropout_rate", 0.1)
    return {
        **values,
        "profile": "rannet",
        "hidden_dropout_prob": dropout,
        "attention_probs_dropout_prob": dropout,
        "layer_norm_eps": 1e-7,
    }


def from_rannet(source: Mapping[str, Any]) -> dict[str, Tensor]:
    """rannet's weights by name -> ours, float32; a whole state_dict, to be loaded with strict=True.

    Names are those of an exported TensorFlow checkpoint ("rannet/ran-0/..."), or those of a Keras model's weights
    with their number in its list ("017|cell-initializer/kernel:0"), which gives the layer where the name does not.
    With the language-model head, the result is for `RanForMaskedLM` and `RanForCausalLM`; without, for `RanModel`, with
    a pooler if the source has one.

    Raises `UserError` for names that are not part of RAN, and for two tensors with the same new name.
    """
    weights: dict[str, Tensor] = {}
    layer = ""
    ignored = [name for name in source if IGNORED.search(name.lower())]
    if ignored:
        log.info("ignored %d tensors that are not weights: %s, ...", len(ignored), ignored[0])
    for name in sorted(set(source) - set(ignored)):
        theirs = _plain(name)
        number = re.match(r"ran-(\d+)/", theirs)
        if number:
            layer = number[1]
        elif theirs.startswith("cell-initializer"):
            theirs = f"ran-{layer}/{theirs}"
        new = _renamed(theirs)
        if new is None or new in weights:
            problem = f"another tensor is already {new}" if new else "not part of RAN"
            raise UserError(f"{name}: {problem}; give a checkpoint written by rannet's RanNet.export_checkpoint")
        tensor = torch.from_numpy(np.array(source[name], np.float32))
        weights[new] = tensor.T.contiguous() if theirs.endswith("/kernel") else tensor
    if not any(name.startswith("cls.") for name in weights):
        return weights
    weights = {name if name.startswith("cls.") else f"ran.{name}": tensor for name, tensor in weights.items()}
    weights["cls.predictions.decoder.weight"] = weights["ran.embeddings.word_embeddings.weight"]
    weights["cls.predictions.decoder.bias"] = weights["cls.predictions.bias"]
    return weights


def _plain(name: str) -> str:
    """A name without its number, its prefix, and TensorFlow's additions."""
    name = re.sub(r"^\d+\|", "", name.lower().removesuffix(":0").removesuffix("/.attributes/variable_value"))
    name = re.sub(r"^rannet/", "", name).replace("window-loop/", "")
    return re.sub(r"^(?=(dense|layernorm)/)", "mlm-hidden/", name)


def _renamed(name: str) -> str | None:
    owner, _, leaf = name.rpartition("/")
    number = re.match(r"ran-(\d+)/", owner)
    owner = re.sub(r"^ran-\d+/", "ran-N/", owner)
    new = RANNET.get(f"{owner}/{leaf}")
    if new is None and leaf in LEAVES and f"{owner}/*" in RANNET:
        new = RANNET[f"{owner}/*"].removesuffix("*") + LEAVES[leaf]
    return new and new.replace(".N.", f".{number[1] if number else ''}.")


def _language_model(source: Mapping[str, Any]) -> dict[str, Tensor]:
    """`from_rannet` with the names of `RanForMaskedLM`, without tied copies and the pooler."""
    weights = {name: tensor for name, tensor in from_rannet(source).items() if ".decoder." not in name}
    weights = {name if name.startswith(("ran.", "cls.")) else f"ran.{name}": one for name, one in weights.items()}
    pooler = [name for name in weights if name.startswith("ran.pooler.")]
    if pooler:
        log.info("left out, not part of a language model: %s", ", ".join(pooler))
    return {name: tensor for name, tensor in weights.items() if name not in pooler}


def _ours(config: Mapping[str, Any]) -> dict[str, Any]:
    if config.get("cutoffs"):
        raise ValueError("it has adaptive words (cutoffs) and needs no conversion; set train.init to its folder")
    return dict(config)


FORMS = (
    Form(
        name="RAN as exported by reread",
        files=TORCH,
        reason=lambda config: "its model_type is ran" if config.get("model_type") == "ran" else "",
        config=_ours,
        weights=lambda source: {
            name: tensor.float() for name, tensor in source.items() if not name.startswith("cls.predictions.decoder.")
        },
        heads=HEADS,
    ),
    Form(
        name="rannet's TensorFlow checkpoint",
        files=TENSORFLOW_FILES,
        reason=lambda config: (
            "its configuration has ran_layers or head_num" if {"ran_layers", "head_num"} & config.keys() else ""
        ),
        config=config_from_rannet,
        weights=_language_model,
        heads=HEADS,
    ),
)
