"""The settings of a model's configuration and the bounds of their numbers, by names that models share. No torch."""

import inspect
from collections.abc import Iterable, Mapping
from typing import Any

LARGEST = 1 << 24
"""The bound of every number without one of its own."""

_BOUNDS: dict[str, tuple[float, float]] = {
    "num_hidden_layers": (1, 1024),
    "n_layer": (1, 1024),
    "encoder_layers": (1, 1024),
    "decoder_layers": (1, 1024),
    "num_attention_heads": (1, 1024),
    "n_head": (1, 1024),
    "encoder_attention_heads": (1, 1024),
    "decoder_attention_heads": (1, 1024),
    "hidden_size": (1, 1 << 17),
    "d_model": (1, 1 << 17),
    "head_size": (1, 1 << 17),
    "d_head": (1, 1 << 17),
    "intermediate_size": (1, 1 << 20),
    "d_inner": (1, 1 << 20),
    "encoder_ffn_dim": (1, 1 << 20),
    "decoder_ffn_dim": (1, 1 << 20),
    "chunk_size_feed_forward": (0, LARGEST),
    "memory_length": (0, LARGEST),
    "mem_len": (0, LARGEST),
    "character_filters": (0, 1 << 17),
    "dilated_heads": (0, 1024),
    "initializer_range": (0, 100),
    "init_std": (0, 100),
    "proj_initializer_range": (0, 100),
    "layer_norm_eps": (1e-30, 1),
    "layer_norm_epsilon": (1e-30, 1),
    "norm_eps": (1e-30, 1),
    "initializer_cutoff_factor": (1e-3, 100),
    "sparse_pred_ignore_index": (-100, -100),
}
_SHARES = ("hidden_dropout_prob", "attention_probs_dropout_prob", "dropout", "dropatt")
_SHARE_ENDS = ("_dropout", "_layerdrop")


def check_number(name: str, value: Any) -> None:
    """Raises ValueError for a number, or one in a list, that is out of the bounds of `name`; other values pass."""
    if isinstance(value, Iterable) and not isinstance(value, str | bytes | dict):
        for one in value:
            check_number(name, one)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return
    if name in _SHARES or name.endswith(_SHARE_ENDS):
        if not 0 <= value < 1:
            raise ValueError("is at least 0 and below 1")
        return
    least, most = _BOUNDS.get(name, (0 if name.endswith("_token_id") else 1, LARGEST))
    if not least <= value <= most:  # false for NaN
        raise ValueError(f"is {least:g} to {most:,}")


def settings_of(config: type[Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """The settings in `values`, such as those of a config.json, that the constructor of `config` takes.

    Raises ValueError for a number out of bounds, with its name.
    """
    settings = {key: values[key] for key in inspect.signature(config).parameters if key in values}
    for key, value in settings.items():
        try:
            check_number(key, value)
        except ValueError as error:
            raise ValueError(f"{key} {error} (got {value!r})") from None
    return settings
