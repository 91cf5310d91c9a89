"""Makes a LED of a BART, as its authors did (Beltagy et al. 2020, section 7), or of a LED.

The encoder's positions are copied until there are as many as wanted, and so are the projections of queries, keys and
values, for the global token. The decoder stays BART's. BART's tables of positions have two rows before that of the
first token, LED's of transformers none.
"""

import logging
import re
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import PretrainedConfig
from transformers.models.led.configuration_led import LEDConfig

from reread.preprocessing.errors import UserError
from reread.training.models.conversion import Conversion
from reread.training.models.forms import TORCH, Form
from reread.training.models.hub.convert_bart import config_values as bart_values
from reread.training.models.hub.convert_bart import is_bart, parts, whole

log = logging.getLogger("reread")

COPIES, WINDOW = 16, 1024
"""Times that the paper's model repeats BART's positions, and its window, both sides together."""
OFFSET = 2
"""Rows of a BART's table before that of a text's first token."""
KEYS = (
    *("vocab_size", "d_model", "activation_function", "init_std"),
    *(f"{part}_{key}" for part in ("encoder", "decoder") for key in ("layers", "ffn_dim", "attention_heads")),
    *("dropout", "attention_dropout", "activation_dropout"),
    *(f"{token}_token_id" for token in ("pad", "bos", "eos", "decoder_start")),
)
"""Settings that are copied from the source."""
_LAYER = re.compile(r"^(encoder\.layers\.\d+\.self_attn\.)(q|k|v|out)_proj\.")
_NAMES = {"q": "query", "k": "key", "v": "value"}


def forms(options: Conversion) -> tuple[Form, ...]:
    """Sources of a LED with these options."""
    if options.positions == "random":
        raise UserError("--positions: not for led, whose positions are copied; models that take it: longformer")
    return tuple(
        Form(
            name=name,
            files=TORCH,
            reason=reason,
            config=partial(config, options.length, options.window),
            weights=parts,
            fit=fit,
        )
        for name, reason, config in (("BART", _of_bart, _from_bart), ("LED", _of_led, _from_led))
    )


def _of_bart(source: Mapping[str, Any]) -> str:
    return "its model_type is bart" if is_bart(source) else ""


def _of_led(source: Mapping[str, Any]) -> str:
    if source.get("model_type") == "led":
        return "its model_type is led"
    return "a BART with attention_window" if source.get("model_type") == "bart" and not is_bart(source) else ""


def _from_bart(length: int | None, window: int | None, source: Mapping[str, Any]) -> dict[str, Any]:
    """Keys for `LEDConfig`. Raises ValueError for a variant of BART, and one that reads more tokens already."""
    theirs = bart_values(source)
    had = theirs["max_position_embeddings"]
    return {key: theirs[key] for key in KEYS} | {
        "max_encoder_position_embeddings": _length(had, length, COPIES * had, f"{COPIES} times those of the source"),
        "max_decoder_position_embeddings": had,
        "attention_window": _window(window, WINDOW),
    }


def _from_led(length: int | None, window: int | None, source: Mapping[str, Any]) -> dict[str, Any]:
    """As `_from_bart`. allenai's first configurations count one side of a window."""
    given = {key: value for key, value in source.items() if key != "model_type"}
    theirs, own = LEDConfig.from_dict(given).to_dict(), source.get("attention_window", WINDOW)
    if "attention_mode" in source:
        own = [2 * one for one in own] if isinstance(own, list) else 2 * own
    had = theirs["max_encoder_position_embeddings"]
    return {key: theirs[key] for key in KEYS} | {
        "max_encoder_position_embeddings": _length(had, length, had, "those of the source"),
        "max_decoder_position_embeddings": theirs["max_decoder_position_embeddings"],
        "attention_window": _window(window, own),
    }


def _length(had: int, length: int | None, default: int, which: str) -> int:
    if length is None:
        log.info("length %d: --length is not given, so positions are %s", default, which)
    elif length < had:
        raise ValueError(
            f"the source reads {had} tokens already; give a --length of at least {had}, and for shorter text lower "
            "task.sequence_length alone"
        )
    return default if length is None else length


def _window(window: int | None, default: Any) -> Any:
    if window is None:
        log.info("window %s: --window is not given", default)
    return default if window is None else window


def fit(weights: Mapping[str, Tensor], source: Mapping[str, Any], config: PretrainedConfig) -> dict[str, Tensor]:
    """The `parts` of a source -> all weights of a LED with `config`. Raises `UserError` for a table of positions of
    another size than the source's configuration says."""
    full: dict[str, Tensor] = {}
    for given, tensor in weights.items():
        name = _LAYER.sub(_renamed, given)
        full[name] = tensor
        if any(f".{one}." in name for one in _NAMES.values()):
            copy = re.sub(r"\.(query|key|value)\.", r".\1_global.", name)
            full[copy] = weights.get(copy, tensor.clone())
    for part in ("encoder", "decoder"):
        key, wanted = f"{part}.embed_positions.weight", getattr(config, f"max_{part}_position_embeddings")
        if key in full:
            had = source.get(f"max_{part}_position_embeddings", source.get("max_position_embeddings"))
            full[key] = _positions(key, full[key], int(had or wanted), wanted)
    return whole(full, "led")


def _renamed(found: re.Match[str]) -> str:
    part = _NAMES.get(found[2])
    return f"{found[1]}longformer_self_attn.{part}." if part else f"{found[1]}output."


def _positions(name: str, table: Tensor, had: int, wanted: int) -> Tensor:
    """[wanted, D], of a table with or without the rows of a BART that belong to no token."""
    if len(table) not in (had, had + OFFSET):
        raise UserError(f"{name} has {len(table)} rows, but by the configuration {had}; fix config.json")
    old = table[len(table) - had :]
    if wanted > had:
        log.info("%s: %d rows copied, repeated to %d", name, had, wanted)
    return old[torch.arange(wanted) % had]
