"""A larger encoder that begins as a smaller one, repeated: ModernBERT-large from base (Warner et al. 2024).

Weights lie in the centre of larger ones and wrap around, as Phi's do; layers repeat in order, as Gopher's do (section
2.2). Facts that the paper leaves open are those of its authors' released code: which layer repeats, and that fused
matrices are tiled part by part.
"""

import logging
import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor
from transformers import PretrainedConfig

from reread.preprocessing.errors import UserError
from reread.training.models.bounds import settings_of
from reread.training.models.conversion import SIZES
from reread.training.models.spec import ModelSpec

log = logging.getLogger("reread")

_LAYER = re.compile(r"(?<=\.layer\.)\d+(?=\.)|(?<=\.layers\.)\d+(?=\.)")
"""The number of a layer in the name of a parameter."""


def tiled(weight: Tensor, shape: Sequence[int], parts: int = 1) -> Tensor:
    """`weight` in the centre of a tensor of `shape`, and again around it: along a dimension of n numbers that becomes
    one of m, number i is the old one (i - ⌊(m - n) / 2⌋) mod n.

    `parts` matrices above one another, such as ModernBERT's query, key and value, are tiled each by itself.
    """
    blocks = weight.unflatten(0, (parts, -1))
    for dimension, size in enumerate((shape[0] // parts, *shape[1:]), 1):
        count = blocks.shape[dimension]
        blocks = blocks.index_select(dimension, (torch.arange(size) - (size - count) // 2) % count)
    return blocks.flatten(0, 1)


def repeated_layers(count: int, wanted: int) -> list[int]:
    """For each of the `wanted` layers the one of `count` that it begins as."""
    return [min(round(number * count / wanted), count - 1) for number in range(wanted)]


def larger_config(spec: ModelSpec, values: Mapping[str, Any], sizes: Mapping[str, int]) -> PretrainedConfig:
    """The configuration of a source, whose keys are `values`, with other `sizes` (`Conversion.sizes`).

    Raises `UserError` for smaller ones, for heads of another size, and for a number of heads of which the source's
    cannot be the centre.
    """
    kept = {key: values[key] for key in spec.own_keys if key in values}
    kept |= settings_of(spec.config, values)
    small = spec.config(**kept)
    old: dict[str, int] = {key: getattr(small, key) for key in SIZES}
    new = {**old, **sizes}
    if smaller := next((key for key in SIZES if new[key] < old[key]), None):
        raise UserError(
            f"{smaller}: {new[smaller]} is less than the source's {old[smaller]}, which is tiled to a larger model"
        )
    width, heads = new["hidden_size"], new["num_attention_heads"]
    head = old["hidden_size"] // old["num_attention_heads"]
    if width != heads * head:
        fitting = f"hidden_size={heads * head}" if width % head else f"num_attention_heads={width // head}"
        raise UserError(
            f"hidden_size: {width} with {heads} heads, but a head keeps the source's size, {head}; choose {fitting}"
        )
    if (heads - old["num_attention_heads"]) % 2:
        raise UserError(
            f"num_attention_heads: {heads} would cut heads in two, since the source's {old['num_attention_heads']} lie "
            f"in the middle; choose {heads + 1} with hidden_size={(heads + 1) * head}"
        )
    values = spec.merged(kept, dict(sizes))
    return spec.config_for(values)(**values)


def larger_weights(
    weights: Mapping[str, Tensor], shapes: Mapping[str, Sequence[int]], layers: Sequence[int], fused: Mapping[str, int]
) -> dict[str, Tensor]:
    """`weights` tiled to the `shapes` of a larger model; names whose source there is not are left out.

    `layers` are those of `repeated_layers`, and `fused` is `ModelSpec.fused`.
    """
    larger = {}
    for name, shape in shapes.items():
        origin = _origin(name, layers, weights)
        if origin is not None:
            parts = next((parts for glob, parts in fused.items() if fnmatchcase(name, glob)), 1)
            larger[name] = tiled(weights[origin], shape, parts)
    log.info("tiled to %d layers, which begin as %s", len(layers), ", ".join(map(str, layers)))
    return larger


def _origin(name: str, layers: Sequence[int], weights: Mapping[str, Tensor]) -> str | None:
    """The name of the weight that the larger model's `name` begins as; None if there is none."""
    number = _LAYER.search(name)
    if number is None:
        return name if name in weights else None
    wanted = layers[int(number[0])]
    named = {layer: f"{name[: number.start()]}{layer}{name[number.end() :]}" for layer in range(wanted, layers[-1] + 1)}
    found = next((layer for layer, one in named.items() if one in weights), None)
    if found is None:
        return None
    if found != wanted:  # ModernBERT's first layer has no norm before its attention
        log.info("%s begins as that of layer %d, since layer %d has none", name, found, wanted)
    return named[found]
