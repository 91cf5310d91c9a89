"""Names of NEZHA's weights and settings in the files of other projects."""

import logging
import re
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from reread.preprocessing.errors import UserError
from reread.training.models.bounds import settings_of
from reread.training.models.forms import TENSORFLOW as TENSORFLOW_FILES
from reread.training.models.forms import TORCH, Form
from reread.training.models.nezha.configuration_nezha import NezhaConfig

log = logging.getLogger("reread")

HEADS = ("nezha.pooler.", "cls.")
"""Prefixes of parameters that may be missing: fine-tuned models and bare encoders have no pretraining heads."""

TENSORFLOW = {
    "bert/embeddings/word_embeddings": "nezha.embeddings.word_embeddings.weight",
    "bert/embeddings/token_type_embeddings": "nezha.embeddings.token_type_embeddings.weight",
    "bert/embeddings/position_embeddings": "nezha.embeddings.position_embeddings.weight",
    "bert/embeddings/LayerNorm/*": "nezha.embeddings.LayerNorm.*",
    "bert/encoder/layer_N/attention/self/query/*": "nezha.encoder.layer.N.attention.self.query.*",
    "bert/encoder/layer_N/attention/self/key/*": "nezha.encoder.layer.N.attention.self.key.*",
    "bert/encoder/layer_N/attention/self/value/*": "nezha.encoder.layer.N.attention.self.value.*",
    "bert/encoder/layer_N/attention/output/dense/*": "nezha.encoder.layer.N.attention.output.dense.*",
    "bert/encoder/layer_N/attention/output/LayerNorm/*": "nezha.encoder.layer.N.attention.output.LayerNorm.*",
    "bert/encoder/layer_N/intermediate/dense/*": "nezha.encoder.layer.N.intermediate.dense.*",
    "bert/encoder/layer_N/output/dense/*": "nezha.encoder.layer.N.output.dense.*",
    "bert/encoder/layer_N/output/LayerNorm/*": "nezha.encoder.layer.N.output.LayerNorm.*",
    "bert/pooler/dense/*": "nezha.pooler.dense.*",
    "cls/predictions/transform/dense/*": "cls.predictions.transform.dense.*",
    "cls/predictions/transform/LayerNorm/*": "cls.predictions.transform.LayerNorm.*",
    "cls/predictions/output_bias": "cls.predictions.bias",
    "cls/seq_relationship/output_weights": "cls.seq_relationship.weight",  # [2, D] in both: not transposed
    "cls/seq_relationship/output_bias": "cls.seq_relationship.bias",
}
"""TensorFlow's name -> ours; N is a layer's number, * a key of LEAVES."""
LEAVES = {"kernel": "weight", "bias": "bias", "gamma": "weight", "beta": "bias"}
"""A kernel is [in, out] and is transposed."""

OPTIMIZER = {"lamb_m", "lamb_v", "adam_m", "adam_v", "global_step", "good_steps", "bad_steps", "loss_scale"}
"""Last parts of names in TensorFlow checkpoints that are not weights. A slot's name is its weight's and this."""
PYTORCH_IGNORED = re.compile(r"relative_positions|\.position_ids$|embeddings\.token_type_ids$")
"""Buffers of some implementations that are recomputed here."""
PYTORCH_NAMES = (
    (re.compile(r"^module\."), ""),
    (re.compile(r"^bert\."), "nezha."),  # Huawei's and lonePatient's PyTorch
    (re.compile(r"^(?=embeddings\.|encoder\.|pooler\.)"), "nezha."),  # a bare encoder
    (re.compile(r"LayerNorm\.gamma$"), "LayerNorm.weight"),
    (re.compile(r"LayerNorm\.beta$"), "LayerNorm.bias"),
)
TIED = {
    "cls.predictions.decoder.weight": "nezha.embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
}


def from_huggingface_like(source: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights of transformers, Huawei's PyTorch or lonePatient -> our names, float32; unknown names are kept.

    Raises `UserError` if two source tensors get one name, or a decoder is not tied.
    """
    weights: dict[str, Tensor] = {}
    ignored = []
    for name, tensor in source.items():
        if PYTORCH_IGNORED.search(name):
            ignored.append(name)
            continue
        new = name
        for pattern, replacement in PYTORCH_NAMES:
            new = pattern.sub(replacement, new)
        _add(weights, new, tensor.float(), name)
    for copy, original in TIED.items():
        if copy in weights and not torch.equal(weights.setdefault(original, weights[copy]), weights[copy]):
            raise UserError(f"{copy} differs from {original}: this decoder is not tied, NEZHA's is")
        weights.pop(copy, None)
    _report(ignored, "tables that are recomputed")
    return weights


def from_tensorflow(arrays: Mapping[str, NDArray[Any]]) -> dict[str, Tensor]:
    """Variables of a TensorFlow checkpoint -> our names and layouts, float32; unknown names are kept."""
    weights: dict[str, Tensor] = {}
    ignored = []
    for name in arrays:
        owner, _, leaf = name.rpartition("/")
        if leaf in OPTIMIZER:
            ignored.append(name)
            continue
        new = TENSORFLOW.get(name, name)
        number = re.search(r"/layer_(\d+)/", name)
        template = TENSORFLOW.get(re.sub(r"/layer_\d+/", "/layer_N/", owner) + "/*")
        if template and leaf in LEAVES:
            new = template.removesuffix("*") + LEAVES[leaf]
            new = new.replace(".N.", f".{number[1]}.") if number else new
        array = np.asarray(arrays[name], np.float32)
        _add(weights, new, torch.from_numpy(array.T.copy() if leaf == "kernel" else array), name)
    _report(ignored, "the optimizer's state")
    return weights


def config_values(source: Mapping[str, Any], tensorflow: bool) -> dict[str, Any]:
    """Keys for `NezhaConfig` from a config.json or bert_config.json, without those that it does not know.

    Raises ValueError for a number out of bounds.
    """
    values = settings_of(NezhaConfig, source)
    if source.get("use_relative_position") is False:
        values["position_type"] = "parametric_absolute"
    elif "max_relative_position" not in source:
        log.info("max_relative_position 64: the configuration has none, and NEZHA's own code uses 64")
        values["max_relative_position"] = 64
    if tensorflow and values.get("hidden_act", "gelu") == "gelu":
        log.info("hidden_act gelu_new: TensorFlow releases were trained with the tanh form of gelu")
        values["hidden_act"] = "gelu_new"
    return values


def values_of_bert(source: Mapping[str, Any]) -> dict[str, Any]:
    """Keys for `NezhaConfig` from BERT's config.json: with a table of absolute positions a NEZHA is a BERT.

    Raises ValueError for a number out of bounds and for positions of another kind.
    """
    if source.get("position_embedding_type", "absolute") != "absolute":
        raise ValueError(
            f"position_embedding_type is {source['position_embedding_type']!r}; only 'absolute' is supported"
        )
    if source.get("head_act", source.get("hidden_act")) != source.get("hidden_act"):
        log.info(
            "the masked-word head has the layers' %s; it was trained with %s", source["hidden_act"], source["head_act"]
        )
    log.info("position_type parametric_absolute: BERT's positions, with which this NEZHA is a BERT")
    return settings_of(NezhaConfig, source) | {"position_type": "parametric_absolute", "max_relative_position": None}


def _add(weights: dict[str, Tensor], name: str, tensor: Tensor, source: str) -> None:
    if name in weights:
        raise UserError(f"{source}: another tensor of the source is already {name}")
    weights[name] = tensor


def _report(ignored: list[str], what: str) -> None:
    if ignored:
        log.info("ignored %d tensors, %s: %s%s", len(ignored), what, ignored[0], ", ..." if len(ignored) > 1 else "")


def _reason(framework: str, config: Mapping[str, Any]) -> str:
    """Releases name no model_type, or BERT's beside NEZHA's own keys."""
    kind = config.get("model_type", "nezha")
    own = {"max_relative_position", "use_relative_position"} & config.keys()
    return f"a file of {framework}" if kind == "nezha" or (kind == "bert" and own) else ""


def _reason_of_bert(config: Mapping[str, Any]) -> str:
    return "its model_type is bert" if config.get("model_type") == "bert" and not _reason("PyTorch", config) else ""


FORMS = (
    Form(
        name="NEZHA of transformers, Huawei or lonePatient",
        files=TORCH,
        reason=partial(_reason, "PyTorch's or safetensors"),
        config=lambda config: config_values(config, tensorflow=False),
        weights=from_huggingface_like,
        heads=HEADS,
    ),
    Form(
        name="BERT",
        files=TORCH,
        reason=_reason_of_bert,
        config=values_of_bert,
        weights=from_huggingface_like,
        heads=HEADS,
    ),
    Form(
        name="NEZHA's TensorFlow checkpoint",
        files=TENSORFLOW_FILES,
        reason=partial(_reason, "TensorFlow's"),
        config=lambda config: config_values(config, tensorflow=True),
        weights=from_tensorflow,
        heads=HEADS,
    ),
)
