"""Training states of fairseq's RoBERTa, NVIDIA's BERT and PyTorch Lightning, as weights by transformers' names."""

import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from reread.preprocessing.errors import UserError
from reread.training.exchange.inert import entries

log = logging.getLogger("reread")

FAIRSEQ = (
    (re.compile(r"^(?:encoder|decoder)\.(?=sentence_encoder\.|lm_head\.)"), ""),
    (re.compile(r"^lm_head\.weight$"), "lm_head.decoder.weight"),
    (re.compile(r"^sentence_encoder\.embed_tokens\."), "roberta.embeddings.word_embeddings."),
    (re.compile(r"^sentence_encoder\.embed_positions\."), "roberta.embeddings.position_embeddings."),
    (re.compile(r"^sentence_encoder\.(?:emb_layer_norm|layernorm_embedding)\."), "roberta.embeddings.LayerNorm."),
    (re.compile(r"^sentence_encoder\.layers\."), "roberta.encoder.layer."),
    (re.compile(r"\.self_attn\.q_proj\."), ".attention.self.query."),
    (re.compile(r"\.self_attn\.k_proj\."), ".attention.self.key."),
    (re.compile(r"\.self_attn\.v_proj\."), ".attention.self.value."),
    (re.compile(r"\.self_attn\.out_proj\."), ".attention.output.dense."),
    (re.compile(r"\.self_attn_layer_norm\."), ".attention.output.LayerNorm."),
    (re.compile(r"\.fc1\."), ".intermediate.dense."),
    (re.compile(r"\.fc2\."), ".output.dense."),
    (re.compile(r"\.final_layer_norm\."), ".output.LayerNorm."),
)
"""fairseq's name -> transformers'; all are applied. The first releases' encoder is a decoder."""
FAIRSEQ_LEFT_OUT = re.compile(r"classification_heads\.|\.version$|\._float_tensor$")
IN_PROJ = re.compile(r"\.self_attn\.in_proj_(weight|bias)$")
"""Query, key and value in one, until 2019."""

TABLE = "embeddings.word_embeddings.weight"


def weights_in(path: Path, state: Any) -> dict[str, Tensor] | None:
    """The weights in a training state that `path` holds, by transformers' names; None for one of no known program."""
    inner, outer = entries(state), entries(entries(state).get("state_dict"))
    if _are_tensors(outer):
        return _from_lightning(outer)
    model = entries(inner.get("model"))
    if not _are_tensors(model):
        return None
    if any("sentence_encoder." in name for name in model):
        return _from_fairseq(path, model)
    return {re.sub(r"\.dense_act\.", ".dense.", name): tensor for name, tensor in model.items()}


def settings_in(path: Path, state: Any) -> dict[str, Any]:
    """The configuration in transformers' form that a training state brings along, as far as it does.

    Raises `UserError` for a RoBERTa that names no number of heads.
    """
    inner = entries(state)
    model = entries(inner.get("model"))
    if not _are_tensors(model):
        return {}
    if any("sentence_encoder." in name for name in model):
        given = entries(inner.get("args")) or entries(entries(inner.get("cfg")).get("model"))
        return _fairseq_settings(path, _from_fairseq(path, model), given)
    return {"model_type": "bert"} if any(".dense_act." in name for name in model) else {}


def unpadded(weights: Mapping[str, Tensor], rows: int) -> dict[str, Tensor]:
    """`weights` with `rows` words, where these programs have more so that the number is a multiple of 8 or 128."""
    padded = [
        name for name in weights if name.endswith(TABLE) or re.search(r"^cls\.predictions\.(?:decoder\.|bias$)", name)
    ]
    if any(0 < len(weights[name]) - rows < 128 for name in padded):
        log.info("rows of words past %d left out: they pad the vocabulary", rows)
        return {**weights, **{name: weights[name][:rows] for name in padded}}
    return dict(weights)


def _are_tensors(values: Mapping[Any, Any]) -> bool:
    return bool(values) and all(isinstance(name, str) and torch.is_tensor(one) for name, one in values.items())


def _from_lightning(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Those of a module that has its model as `model`, as allenai's Longformer scripts, whose heads of tasks stay out;
    all of a module without one, which is the model itself."""
    model = {name.removeprefix("model."): tensor for name, tensor in weights.items() if name.startswith("model.")}
    if model and (others := [name for name in weights if not name.startswith("model.")]):
        log.info("left out, not of the model: %s", ", ".join(others))
    return model or dict(weights)


def _from_fairseq(path: Path, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """RoBERTa's; it has no types of tokens, whose table in transformers' is one row of zeros."""
    made: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        if re.search(r"sentence_encoder\.layer_norm\.", name):
            raise UserError(
                f"{path}: this RoBERTa norms before each part of a layer (encoder_normalize_before), "
                "which no model here does"
            )
        if FAIRSEQ_LEFT_OUT.search(name):
            continue
        if found := IN_PROJ.search(name):
            for part, one in zip(("q", "k", "v"), tensor.chunk(3), strict=True):
                made[_renamed(IN_PROJ.sub(f".self_attn.{part}_proj.{found[1]}", name))] = one
        else:
            made[_renamed(name)] = tensor
    words = made.get(f"roberta.{TABLE}")
    if words is not None:
        made["roberta.embeddings.token_type_embeddings.weight"] = torch.zeros(1, words.shape[-1])
    return made


def _renamed(name: str) -> str:
    for pattern, replacement in FAIRSEQ:
        name = pattern.sub(replacement, name)
    return name


def _fairseq_settings(path: Path, weights: Mapping[str, Tensor], given: Mapping[str, Any]) -> dict[str, Any]:
    heads = given.get("encoder_attention_heads")
    if heads is None:
        return {}
    sizes = {name: tensor.shape for name, tensor in weights.items()}
    try:
        words, positions = sizes[f"roberta.{TABLE}"], sizes["roberta.embeddings.position_embeddings.weight"]
        inner = sizes["roberta.encoder.layer.0.intermediate.dense.weight"][0]
    except (KeyError, IndexError) as error:
        raise UserError(f"{path}: not a whole RoBERTa of fairseq ({error} is missing)") from None
    layers = {found[1] for name in weights if (found := re.search(r"\.layer\.(\d+)\.", name))}
    return {
        "model_type": "roberta",
        "vocab_size": words[0],
        "hidden_size": words[-1],
        "num_hidden_layers": len(layers),
        "num_attention_heads": heads,
        "intermediate_size": inner,
        "hidden_act": given.get("activation_fn", "gelu"),
        "hidden_dropout_prob": given.get("dropout", 0.1),
        "attention_probs_dropout_prob": given.get("attention_dropout", 0.1),
        "max_position_embeddings": positions[0],
        "type_vocab_size": 1,
        "layer_norm_eps": 1e-5,
        "bos_token_id": 0,
        "pad_token_id": 1,
        "eos_token_id": 2,
    }
