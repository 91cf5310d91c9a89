"""Converts RoBERTa, BERT or a Longformer to a Longformer of any length (Beltagy et al. 2020, section 5).

Local attention gets the weights of full attention, global attention a copy of them, and the table of positions is
repeated. For a text no longer than the source could read, the outputs are the source's as far as the window covers it.
"""

import logging
import re
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import CONFIG_MAPPING, PretrainedConfig

from reread.preprocessing.errors import UserError
from reread.training.models.conversion import Conversion
from reread.training.models.forms import TORCH, Form, kind_of
from reread.training.models.longformer.spec import COPIED

log = logging.getLogger("reread")

LENGTH, WINDOW = 4096, 512
"""The defaults of --length and --window."""
TABLE = "longformer.embeddings.position_embeddings.weight"
HEADS = ("lm_head.",)
"""Prefixes of parameters that may be missing."""

KINDS = {
    "longformer": "Longformer",
    "bert": "BERT",
    "roberta": "RoBERTa",
    "xlm-roberta": "RoBERTa",
    "camembert": "RoBERTa",
}
"""model_type -> the name of its form."""
KEYS = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "hidden_act",
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "type_vocab_size",
    "initializer_range",
    "layer_norm_eps",
    "pad_token_id",
    "bos_token_id",
    "eos_token_id",
)
"""Settings that are copied from the source."""
ONLY: dict[str, Any] = {
    "position_embedding_type": "absolute",
    "tie_word_embeddings": True,
    "is_decoder": False,
    "autoregressive": False,
}
"""Settings and the only value of each that is supported."""

NAMES = (
    (re.compile(r"^module\."), ""),
    (re.compile(r"^(?:roberta|bert|longformer)\.|^(?=embeddings\.|encoder\.|pooler\.)"), "longformer."),
    (re.compile(r"^cls\.predictions\.transform\.dense\."), "lm_head.dense."),
    (re.compile(r"^cls\.predictions\.transform\.LayerNorm\."), "lm_head.layer_norm."),
    (re.compile(r"^cls\.predictions\."), "lm_head."),
    (re.compile(r"\.gamma$"), ".weight"),
    (re.compile(r"\.beta$"), ".bias"),
)
"""Names of transformers' RoBERTa, BERT and Longformer and of allenai's RobertaLong -> ours; all are applied."""
LEFT_OUT = re.compile(r"^longformer\.pooler\.|^cls\.seq_relationship\.|\.position_ids$|\.token_type_ids$")
"""Parameters that masked language modelling does not use, and tables that are recomputed."""
TIED = {
    "lm_head.decoder.weight": "longformer.embeddings.word_embeddings.weight",
    "lm_head.decoder.bias": "lm_head.bias",
}


def forms(options: Conversion) -> tuple[Form, ...]:
    """Sources of a Longformer with these options."""
    return tuple(
        Form(
            name=name,
            files=TORCH,
            reason=partial(_reason, name),
            config=partial(config_values, length=options.length, window=options.window),
            weights=from_transformers,
            fit=partial(fit_length, positions=options.positions or "copied"),
            heads=HEADS,
        )
        for name in ("Longformer", "RoBERTa", "BERT")
    )


def config_values(source: Mapping[str, Any], length: int | None, window: int | None) -> dict[str, Any]:
    """Keys for `LongformerConfig` from the config.json of a source.

    Raises ValueError for a source that is not supported, or that reads more than `length` tokens already.
    """
    theirs = _settings(source)
    values = {key: getattr(theirs, key) for key in KEYS}
    had = theirs.max_position_embeddings - _first(theirs)
    if length is None:
        length = max(LENGTH, had)
        log.info("length %d: --length is not given, and the source has %d positions", length, had)
    if length < had:
        raise ValueError(
            f"the source reads {had} tokens already; give a --length of at least {had}, and for shorter text lower "
            "train.data.sequence_length alone"
        )
    if window is None:
        values["attention_window"] = _own_window(source) or WINDOW
        log.info("window %s: --window is not given", values["attention_window"])
    else:
        values["attention_window"] = window
    stated = source.get("attention_dilation", 1)
    if stated != 1 and any(dilation != 1 for dilation in ([stated] if isinstance(stated, int) else stated)):
        values |= {key: source[key] for key in ("attention_dilation", "dilated_heads") if key in source}
    sep = getattr(theirs, "sep_token_id", None)
    values["sep_token_id"] = theirs.eos_token_id if sep is None else sep
    return values | {"max_position_embeddings": length + theirs.pad_token_id + 1}


def from_transformers(source: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights of RoBERTa, BERT or Longformer by their names in transformers, or of allenai's RobertaLong -> ours, fp32.

    Positions are still the source's, and global attention may be missing: see `fit_length`. Unknown names are kept.
    Raises `UserError` if two tensors get one name, or a decoder is not tied.
    """
    weights: dict[str, Tensor] = {}
    ignored = []
    for name, tensor in source.items():
        new = name
        for pattern, replacement in NAMES:
            new = pattern.sub(replacement, new)
        if LEFT_OUT.search(new):
            ignored.append(name)
        elif new in weights:
            raise UserError(f"{name}: another tensor of the source is already {new}")
        else:
            weights[new] = tensor.float()
    for copy, original in TIED.items():
        if copy in weights and not torch.equal(weights.setdefault(original, weights[copy]), weights[copy]):
            raise UserError(f"{copy} differs from {original}: this decoder is not tied, Longformer's is")
        weights.pop(copy, None)
    if ignored:
        log.info("left out, not used here: %s", ", ".join(ignored))
    return weights


def fit_length(
    weights: Mapping[str, Tensor], source: Mapping[str, Any], config: PretrainedConfig, positions: str = "copied"
) -> dict[str, Tensor]:
    """`weights` of a model with the settings `source` -> those of one with `config`, which reads longer texts.

    The table of positions [rows, D] becomes [config.max_position_embeddings, D]. Global projections that the source
    lacks are copies of local ones. Raises `UserError` if the table does not have the size in `source`.
    """
    full = dict(weights)
    for name, tensor in weights.items():
        for copy, original in COPIED.items():
            full.setdefault(name.replace(f".self.{original}.", f".self.{copy}."), tensor.clone())
    if TABLE in weights:
        full[TABLE] = _positions(weights[TABLE], _settings(source), config, positions)
    return full


def _positions(table: Tensor, theirs: PretrainedConfig, config: PretrainedConfig, positions: str) -> Tensor:
    """Our table [rows, D], where a text's first token has row pad_token_id + 1; rows before it are for padding."""
    if len(table) != theirs.max_position_embeddings:
        raise UserError(
            f"{TABLE} has {len(table)} rows, but by the configuration {theirs.max_position_embeddings}; fix config.json"
        )
    rows, first = config.max_position_embeddings, config.pad_token_id + 1
    if positions == "random":
        log.info("positions drawn at random, all %d rows", rows)
        return torch.empty(rows, table.shape[1]).normal_(std=config.initializer_range)
    old = table[_first(theirs) :]
    before = table[:first] if _first(theirs) else table[:1].expand(first, -1)
    log.info("positions copied: %d of them, repeated to %d", len(old), rows - first)
    if first + len(old) < rows:
        log.info('to train the new ones alone: trainable: ["*.position_embeddings.weight[%d:]"]', first + len(old))
    return torch.cat([before, old[torch.arange(rows - first) % len(old)]])


def _first(theirs: PretrainedConfig) -> int:
    """The source's row for a text's first token: 0 in BERT, the one after padding's in the others."""
    return 0 if theirs.model_type == "bert" else theirs.pad_token_id + 1


def _settings(source: Mapping[str, Any]) -> PretrainedConfig:
    """`source` with the defaults of its type. Raises ValueError for a source that is not supported."""
    for key, value in ONLY.items():
        if source.get(key, value) != value:
            raise ValueError(f"{key} is {source[key]!r}; only {value!r} is supported")
    kind = kind_of(source)
    head = source.get("head_act", source.get("hidden_act", "gelu"))  # a Megatron's layers alone may have another
    if kind == "bert" and head != "gelu":
        raise ValueError(f"hidden_act is {head!r}, also in BERT's head; Longformer's head always has gelu")
    try:
        theirs = CONFIG_MAPPING[kind].from_dict(dict(source))
    except Exception as error:  # what is raised depends on the version of transformers
        raise ValueError(" ".join(str(error).split())) from None
    if theirs.pad_token_id is None:
        raise ValueError("pad_token_id is missing; positions are counted from it")
    return theirs


def _own_window(source: Mapping[str, Any]) -> int | list[int] | None:
    """A Longformer's window; allenai's own code counts only one side."""
    window = source.get("attention_window")
    if "attention_mode" not in source or window is None:
        return window
    return [2 * side for side in window] if isinstance(window, list) else 2 * window


def _reason(name: str, source: Mapping[str, Any]) -> str:
    kind = kind_of(source)
    if ("Longformer" if "attention_window" in source else KINDS.get(kind)) != name or kind not in KINDS:
        return ""
    return (
        f"its model_type is {kind}"
        if "model_type" in source
        else "its configuration looks like one, without a model_type"
    )
