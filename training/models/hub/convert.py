"""Converts an encoder of transformers into a folder that holds it as transformers writes it today."""

import logging
import re
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import CONFIG_MAPPING

from reread.training.models.build import present_name, without_copies
from reread.training.models.forms import TORCH, Form, kind_of
from reread.training.models.hub.encoders import ENCODERS
from reread.training.models.hub.heads import config_of
from reread.training.models.hub.spec import ONLY, hub_spec

log = logging.getLogger("reread")

_TABLES = re.compile(r"\.(position_ids|token_type_ids)$|(^|\.)rotary_emb\.")
"""Tables that are computed, which some files hold."""


def forms_of(name: str) -> tuple[Form, ...]:
    """The form of the encoder `name`."""
    encoder, spec = ENCODERS[name], hub_spec(name)
    prefix = f"{spec.converted.base_model_prefix}."
    with torch.device("meta"):
        names = list(spec.converted(config_of(encoder)(num_hidden_layers=1)).state_dict())
    return (
        Form(
            name=f"transformers' {encoder.stem}",
            files=TORCH,
            reason=partial(_reason, (name, *encoder.also)),
            config=partial(_config, name),
            weights=partial(_weights, prefix, {one.partition(".")[0] for one in names}),
            fit=partial(_fit, name),
            heads=(f"{prefix}pooler.", *sorted({f"{one.partition('.')[0]}." for one in names} - {prefix})),
        ),
    )


def _reason(kinds: tuple[str, ...], source: Mapping[str, Any]) -> str:
    kind = kind_of(source)
    return f"its configuration is of a model of type {kind}" if kind in kinds else ""


def _config(name: str, source: Mapping[str, Any]) -> dict[str, Any]:
    """Keys of the encoder's configuration, with the defaults of the source's own class. Raises ValueError for a model
    that is no encoder for masked words."""
    for key, value in ONLY.items():
        if source.get(key, value) != value:
            raise ValueError(f"{key} is {source[key]!r}, but {name} is trained with {value!r} alone")
    values = CONFIG_MAPPING[kind_of(source)](**source).to_dict()
    return {**values, **{key: source[key] for key in ENCODERS[name].own_keys if key in source}}


def _weights(prefix: str, parts: set[str], raw: Mapping[str, Any]) -> dict[str, Tensor]:
    """The tensors by today's names: those of an encoder without a head get its prefix."""
    found = {}
    for given, tensor in raw.items():
        name = present_name(given.removeprefix("module."))
        if not _TABLES.search(name):
            found[name if name.partition(".")[0] in parts else f"{prefix}{name}"] = tensor.float()
    return found


def _fit(name: str, weights: Mapping[str, Tensor], source: Mapping[str, Any], config: Any) -> dict[str, Tensor]:
    """`weights` without those of heads that the encoder's class does not have, and without copies."""
    head = hub_spec(name).converted
    weights = without_copies(head, weights, head.__name__)
    with torch.device("meta"):
        known = head(config).state_dict().keys() - set(head._tied_weights_keys or {})
    body = f"{head.base_model_prefix}."
    left = [one for one in weights if one not in known and (not one.startswith(body) or ".pooler." in one)]
    if unused := [one for one in left if one not in (head._tied_weights_keys or {})]:
        log.info("left out, as %s has no such head: %s", head.__name__, ", ".join(unused))
    return {one: tensor for one, tensor in weights.items() if one not in left}
