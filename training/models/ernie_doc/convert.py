"""Names of ERNIE-Doc's weights and settings in the files of PaddleNLP, the static release, and RoBERTa."""

import logging
import re
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from reread.preprocessing.errors import UserError
from reread.training.models.bounds import settings_of
from reread.training.models.ernie_doc.configuration_ernie_doc import ErnieDocConfig
from reread.training.models.forms import PADDLE, PADDLE_STATIC, TORCH, Form

log = logging.getLogger("reread")

HEADS = ("ernie_doc.pooler.", "cls.")
"""Prefixes of parameters that may be missing."""
NEW = (
    "ernie_doc.embeddings.position_*",
    "ernie_doc.embeddings.token_type_*",
    "ernie_doc.encoder.layer.*.attention.self.position.*",
    "ernie_doc.encoder.layer.*.attention.self.token_type.*",
    "ernie_doc.encoder.layer.*.attention.self.*_bias",
)
"""Parameters that RoBERTa does not have."""

PADDLENLP = {
    "embeddings.word_emb.weight": "embeddings.word_embeddings.weight",
    "embeddings.pos_emb.weight": "embeddings.position_embeddings.weight",
    "embeddings.token_type_emb.weight": "embeddings.token_type_embeddings.weight",
    "embeddings.norms.0.{leaf}": "embeddings.word_layer_norm.{leaf}",
    "embeddings.norms.1.{leaf}": "embeddings.position_layer_norm.{leaf}",
    "embeddings.norms.2.{leaf}": "embeddings.token_type_layer_norm.{leaf}",
    "encoder.layers.{n}.attn.q_proj.{leaf}": "encoder.layer.{n}.attention.self.query.{leaf}",
    "encoder.layers.{n}.attn.k_proj.{leaf}": "encoder.layer.{n}.attention.self.key.{leaf}",
    "encoder.layers.{n}.attn.v_proj.{leaf}": "encoder.layer.{n}.attention.self.value.{leaf}",
    "encoder.layers.{n}.attn.r_proj.{leaf}": "encoder.layer.{n}.attention.self.position.{leaf}",
    "encoder.layers.{n}.attn.t_proj.{leaf}": "encoder.layer.{n}.attention.self.token_type.{leaf}",
    "encoder.layers.{n}.attn.r_w_bias": "encoder.layer.{n}.attention.self.content_bias",
    "encoder.layers.{n}.attn.r_r_bias": "encoder.layer.{n}.attention.self.position_bias",
    "encoder.layers.{n}.attn.r_t_bias": "encoder.layer.{n}.attention.self.token_type_bias",
    "encoder.layers.{n}.attn.out_proj.{leaf}": "encoder.layer.{n}.attention.output.dense.{leaf}",
    "encoder.layers.{n}.norm1.{leaf}": "encoder.layer.{n}.attention.output.LayerNorm.{leaf}",
    "encoder.layers.{n}.ffn.linear1.{leaf}": "encoder.layer.{n}.intermediate.dense.{leaf}",
    "encoder.layers.{n}.ffn.linear2.{leaf}": "encoder.layer.{n}.output.dense.{leaf}",
    "encoder.layers.{n}.norm2.{leaf}": "encoder.layer.{n}.output.LayerNorm.{leaf}",
    "pooler.dense.{leaf}": "pooler.dense.{leaf}",
}
"""PaddleNLP's name, without a prefix -> ours; {n} is a layer's number, {leaf} a key of `LEAVES`."""

_ATTENTION = "encoder_layer_{n}_multi_head_att"
STATIC = {
    "word_embedding": "ernie_doc.embeddings.word_embeddings.weight",
    "pos_embedding": "ernie_doc.embeddings.position_embeddings.weight",
    "task_embedding": "ernie_doc.embeddings.token_type_embeddings.weight",
    "pre_encoder_emb_layer_norm_{leaf}": "ernie_doc.embeddings.word_layer_norm.{leaf}",
    "pre_encoder_r_pos_layer_norm_{leaf}": "ernie_doc.embeddings.position_layer_norm.{leaf}",
    "pre_encoder_r_task_layer_norm_{leaf}": "ernie_doc.embeddings.token_type_layer_norm.{leaf}",
    f"{_ATTENTION}_query_fc.{{leaf}}": "ernie_doc.encoder.layer.{n}.attention.self.query.{leaf}",
    f"{_ATTENTION}_key_fc.{{leaf}}": "ernie_doc.encoder.layer.{n}.attention.self.key.{leaf}",
    f"{_ATTENTION}_value_fc.{{leaf}}": "ernie_doc.encoder.layer.{n}.attention.self.value.{leaf}",
    f"{_ATTENTION}_pos_fc.{{leaf}}": "ernie_doc.encoder.layer.{n}.attention.self.position.{leaf}",
    f"{_ATTENTION}_task_fc.{{leaf}}": "ernie_doc.encoder.layer.{n}.attention.self.token_type.{leaf}",
    f"{_ATTENTION}_r_w_bias": "ernie_doc.encoder.layer.{n}.attention.self.content_bias",
    f"{_ATTENTION}_r_r_bias": "ernie_doc.encoder.layer.{n}.attention.self.position_bias",
    f"{_ATTENTION}_r_t_bias": "ernie_doc.encoder.layer.{n}.attention.self.token_type_bias",
    f"{_ATTENTION}_output_fc.{{leaf}}": "ernie_doc.encoder.layer.{n}.attention.output.dense.{leaf}",
    "encoder_layer_{n}_post_att_layer_norm_{leaf}": "ernie_doc.encoder.layer.{n}.attention.output.LayerNorm.{leaf}",
    "encoder_layer_{n}_ffn_fc_0.{leaf}": "ernie_doc.encoder.layer.{n}.intermediate.dense.{leaf}",
    "encoder_layer_{n}_ffn_fc_1.{leaf}": "ernie_doc.encoder.layer.{n}.output.dense.{leaf}",
    "encoder_layer_{n}_post_ffn_layer_norm_{leaf}": "ernie_doc.encoder.layer.{n}.output.LayerNorm.{leaf}",
    "pooled_fc.{leaf}": "ernie_doc.pooler.dense.{leaf}",
    "mask_lm_trans_fc.{leaf}": "cls.predictions.transform.dense.{leaf}",
    "mask_lm_trans_layer_norm_{leaf}": "cls.predictions.transform.LayerNorm.{leaf}",
    "mask_lm_out_fc.b_0": "cls.predictions.bias",
    "multi_sent_sorted_fc.{leaf}": "cls.segment_reorder.{leaf}",
}
"""The static release's name -> ours."""

_SAME = "attention.self.query attention.self.key attention.self.value attention.output.dense attention.output.LayerNorm"
ROBERTA = {
    "embeddings.word_embeddings.weight": "ernie_doc.embeddings.word_embeddings.weight",
    "embeddings.LayerNorm.{leaf}": "ernie_doc.embeddings.word_layer_norm.{leaf}",
    **{
        f"encoder.layer.{{n}}.{part}.{{leaf}}": f"ernie_doc.encoder.layer.{{n}}.{part}.{{leaf}}"
        for part in [*_SAME.split(), "intermediate.dense", "output.dense", "output.LayerNorm"]
    },
    "pooler.dense.{leaf}": "ernie_doc.pooler.dense.{leaf}",
    "lm_head.dense.{leaf}": "cls.predictions.transform.dense.{leaf}",
    "lm_head.layer_norm.{leaf}": "cls.predictions.transform.LayerNorm.{leaf}",
    "lm_head.bias": "cls.predictions.bias",
    "cls.predictions.transform.dense.{leaf}": "cls.predictions.transform.dense.{leaf}",
    "cls.predictions.transform.LayerNorm.{leaf}": "cls.predictions.transform.LayerNorm.{leaf}",
    "cls.predictions.bias": "cls.predictions.bias",
}
"""RoBERTa's and BERT's names in transformers, without a prefix -> ours."""
ROBERTA_TIED = {
    "lm_head.decoder.weight": "embeddings.word_embeddings.weight",
    "lm_head.decoder.bias": "lm_head.bias",
    "cls.predictions.decoder.weight": "embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
}

LEAVES = {
    "weight": "weight",
    "bias": "bias",
    "w_0": "weight",
    "b_0": "bias",
    "scale": "weight",
    "gamma": "weight",
    "beta": "bias",
}

SETTINGS = {
    "vocab_size": "vocab_size",
    "hidden_size": "hidden_size",
    "num_hidden_layers": "num_hidden_layers",
    "num_attention_heads": "num_attention_heads",
    "hidden_act": "hidden_act",
    "hidden_dropout_prob": "hidden_dropout_prob",
    "attention_dropout_prob": "attention_probs_dropout_prob",
    "attention_probs_dropout_prob": "attention_probs_dropout_prob",  # the static release's
    "max_position_embeddings": "max_position_embeddings",
    "memory_len": "memory_length",
    "task_type_vocab_size": "type_vocab_size",
    "initializer_range": "initializer_range",
    "pad_token_id": "pad_token_id",
}
"""PaddleNLP's and the static release's key -> ours."""
SUPPORTED = {"rel_pos_params_sharing": False, "normalize_before": False}
"""Settings and the only value of each that is supported."""


def config_from_paddlenlp(source: Mapping[str, Any]) -> dict[str, Any]:
    """Keys for `ErnieDocConfig` from PaddleNLP's config.json or model_config.json, or the static ernie_config.json.

    Raises ValueError for a variant that is not supported.
    """
    source = _init_args(source)
    for key, value in SUPPORTED.items():
        if source.get(key, value) != value:
            raise ValueError(f"{key} is {source[key]}; only {value} is supported")
    if source.get("relu_dropout"):
        log.info(
            "relu_dropout %s ignored: this model has no dropout between the two linear layers", source["relu_dropout"]
        )
    if source.get("cls_token_idx", -1) != -1:
        log.info("cls_token_idx %s ignored: this model pools the last token", source["cls_token_idx"])
    values = {ours: source[theirs] for theirs, ours in SETTINGS.items() if theirs in source}
    return {**values, "layer_norm_eps": source.get("epsilon", 1e-5)}  # 1e-5 is PaddleNLP's default


def _init_args(source: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments in PaddleNLP's old model_config.json, where a head's include those of its body."""
    inner = [given for given in source.get("init_args", ()) if isinstance(given, Mapping)]
    return {key: value for given in [*map(_init_args, inner), source] for key, value in given.items()}


def from_paddlenlp(source: Mapping[str, Any]) -> dict[str, Tensor]:
    """PaddleNLP's arrays by name -> ours, float32; the prefix `ernie_doc.` is kept where there is one.

    Heads of tasks are left out, with a line in the log.
    """
    weights: dict[str, Tensor] = {}
    ignored = []
    for name in source:
        prefix = "ernie_doc." if name.startswith("ernie_doc.") else ""
        new = _renamed(name.removeprefix(prefix), PADDLENLP)
        if new is None:
            ignored.append(name)
        else:
            weights[prefix + new] = _from_paddle(source[name], new)
    _report(ignored, "not part of ERNIE-Doc")
    return weights


def from_static(source: Mapping[str, Any]) -> dict[str, Tensor]:
    """Arrays of the static release by name -> ours with pretraining heads, float32.

    Heads of tasks and the optimizer's state are left out, with a line in the log. Raises `UserError` for an MLM head
    with a matrix of its own.
    """
    if "mask_lm_out_fc.w_0" in source:
        raise UserError("mask_lm_out_fc.w_0: this MLM head has a matrix of its own; ERNIE-Doc uses the word embeddings")
    names = {name: _renamed(name, STATIC) for name in source}
    _report([name for name, new in names.items() if new is None], "not part of ERNIE-Doc")
    return {new: _from_paddle(source[name], new) for name, new in names.items() if new is not None}


def from_roberta(source: Mapping[str, Any]) -> dict[str, Tensor]:
    """Weights of RoBERTa or BERT by transformers' names -> ours, float32; those that ERNIE-Doc lacks are left out.

    Row 0 of the type table, which each token of a single text gets, is added to every word embedding, so that the
    embeddings' layer norm has the same input. The tied decoder then adds one number to all logits of a position, which
    the softmax cancels. Absolute positions are dropped. Raises `UserError` for a decoder that is not tied.
    """
    bare = {re.sub(r"^(module\.)?((roberta|bert)\.)?", "", name): tensor for name, tensor in source.items()}
    for copy, original in ROBERTA_TIED.items():
        if copy in bare and original in bare and not torch.equal(_tensor(bare[copy]), _tensor(bare[original])):
            raise UserError(f"{copy} differs from {original}: this decoder is not tied, ERNIE-Doc's is")
    weights: dict[str, Tensor] = {}
    ignored = []
    for name, tensor in bare.items():
        new = _renamed(name, ROBERTA)
        if new is not None:
            weights[new] = _tensor(tensor)
        elif name not in ROBERTA_TIED and not name.endswith("position_ids"):
            ignored.append(name)
    types = bare.get("embeddings.token_type_embeddings.weight")
    words = "ernie_doc.embeddings.word_embeddings.weight"
    if types is not None and words in weights:
        weights[words] = weights[words] + _tensor(types)[0]
        log.info("row 0 of the type table added to the word embeddings, since this model does not add types")
    _report(ignored, "not part of ERNIE-Doc, whose positions are relative")
    return weights


def config_from_roberta(source: Mapping[str, Any]) -> dict[str, Any]:
    """Keys for `ErnieDocConfig` from RoBERTa's or BERT's config.json; positions, memory and types are ERNIE-Doc's.

    Raises ValueError for a decoder that is not tied and a number out of bounds.
    """
    other = {"max_position_embeddings", "type_vocab_size"}
    if source.get("tie_word_embeddings") is False:
        raise ValueError("tie_word_embeddings is false; ERNIE-Doc's decoder is tied")
    settings = settings_of(ErnieDocConfig, source)
    return {key: value for key, value in settings.items() if value is not None and key not in other}


def _from_paddle(array: Any, name: str) -> Tensor:
    """Paddle's linear weights are [in, out] and are transposed; its embeddings are not."""
    tensor = _tensor(array)
    return tensor.T.contiguous() if tensor.dim() == 2 and "embeddings." not in name else tensor


def _tensor(array: Any) -> Tensor:
    return array.float() if isinstance(array, Tensor) else torch.from_numpy(np.array(array, np.float32))


def _renamed(name: str, table: Mapping[str, str]) -> str | None:
    """The new name by the template in `table` that `name` matches; None if there is none."""
    number = re.search(r"(?<=layer[._])\d+|(?<=layers\.)\d+", name)
    leaf = re.search(f"(?<=[._])({'|'.join(LEAVES)})$", name)
    template = name if number is None else name[: number.start()] + "{n}" + name[number.end() :]
    found = table.get(template)
    if found is None and leaf is not None:
        found = table.get(template.removesuffix(leaf[0]) + "{leaf}")
    return found and found.format(n=number and number[0], leaf=leaf and LEAVES[leaf[0]])


def _report(names: list[str], what: str) -> None:
    if names:
        more = f" and {len(names) - 8} more" if len(names) > 8 else ""
        log.info("left out, %s: %s%s", what, ", ".join(names[:8]), more)


def _is_paddlenlp(config: Mapping[str, Any]) -> str:
    values = _init_args(config)
    if "memory_len" in values:
        return "its configuration has memory_len"
    named = values.get("architectures")
    classes = [values.get("init_class", ""), *(named if isinstance(named, list) else ())]
    return next((f"its class is {name}" for name in map(str, classes) if name.startswith("ErnieDoc")), "")


def _is_of_type(kind: str, config: Mapping[str, Any]) -> str:
    return f"its model_type is {kind}" if config.get("model_type") == kind else ""


FORMS = (
    Form(
        name="ERNIE-Doc as exported by reread",
        files=TORCH,
        reason=lambda config: "its configuration has memory_length" if "memory_length" in config else "",
        config=dict,
        weights=lambda source: {name: tensor.float() for name, tensor in source.items()},
        heads=HEADS,
    ),
    Form(
        name="ERNIE-Doc of PaddleNLP",
        files=(*PADDLE, "*.safetensors"),
        reason=_is_paddlenlp,
        config=config_from_paddlenlp,
        weights=lambda source: {
            f"ernie_doc.{name.removeprefix('ernie_doc.')}": tensor for name, tensor in from_paddlenlp(source).items()
        },
        heads=HEADS,
    ),
    Form(
        name="ERNIE-Doc's static release",
        files=PADDLE_STATIC,
        reason=lambda config: "its folder has a file for each variable",
        config=config_from_paddlenlp,
        weights=from_static,
        heads=HEADS,
    ),
    *(
        Form(
            name=name,
            files=TORCH,
            reason=partial(_is_of_type, kind),
            config=config_from_roberta,
            weights=from_roberta,
            heads=HEADS,
            new=NEW,
        )
        for kind, name in (("roberta", "RoBERTa"), ("bert", "BERT"))
    ),
)
