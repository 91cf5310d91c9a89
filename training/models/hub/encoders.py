"""The table of transformers' encoders: what training has to know of each beside its classes. Imports no torch.

A further encoder is an entry. Its classes are found by its stem, as `BertForMaskedLM`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal


def _same(start: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    return {**start, **given}


def all_positions(config: Any) -> int:
    return int(config.max_position_embeddings)


def dense_flops(config: Any, length: int, totals: Mapping[str, float]) -> float:
    """Training FLOPs of totals["rows"] rows of `length` tokens of which totals["predicted"] go through the head.

    Three times the forward pass, a multiply and an add counted as two, dense matrix products alone.
    """
    width, tokens = config.hidden_size, totals["rows"] * length
    table = getattr(config, "embedding_size", width)  # ELECTRA's is narrower, with a projection
    layer = 2 * tokens * (4 * width * width + 2 * width * config.intermediate_size) + 4 * tokens * length * width
    projection = 2 * tokens * table * width if table != width else 0
    head = 2 * totals["predicted"] * table * (width + config.vocab_size)
    return 3.0 * (config.num_hidden_layers * layer + projection + head)


@dataclass(frozen=True)
class Encoder:
    stem: str
    """What the names of its classes begin with."""
    layer: str
    """The class of its layers, which are compiled one by one."""
    head: tuple[str, ...]
    """The modules of its ForMaskedLM from the encoder's states to logits, one after the other; they run on the
    predicted tokens alone."""
    flops: Callable[[Any, int, Mapping[str, float]], float] = dense_flops
    """As `ModelSpec.flops`."""
    longest: Callable[[Any], int] = all_positions
    first_position: Callable[[Any], int | None] = lambda config: 0
    """The position of the first token of a document that is read apart; None: positions are relative."""
    pairs: bool = False
    """Whether its ForPreTraining learns sentence pairs."""
    one_token_type: bool = False
    """As `ModelSpec.one_token_type`."""
    token_head: str = ""
    """The class of the layers that its heads for tokens have, as `head`, between states and classifier."""
    answer_layer: str = "qa_outputs"
    """The last layer of its ForQuestionAnswering."""
    also: tuple[str, ...] = ()
    """Other model types with the same weights, which `reread convert` makes into this one."""
    own_keys: Mapping[str, tuple[Any, Any, str]] = field(default_factory=dict)
    """As `ModelSpec.own_keys`: keys that only some versions of its configuration have, and that all take."""
    merged: Callable[[dict[str, Any], dict[str, Any]], dict[str, Any]] = _same
    """As `ModelSpec.merged`."""
    fused: Mapping[str, int] = field(default_factory=dict)
    """As `ModelSpec.fused`."""


def _after_padding(config: Any) -> int:
    """RoBERTa counts positions from its padding's id + 1."""
    return int(config.pad_token_id or 0) + 1


def _modernbert_flops(config: Any, length: int, totals: Mapping[str, float]) -> float:
    """As `dense_flops`, with a gated feed-forward layer; a token of a local layer meets `local_attention` + 1 keys."""
    width, tokens = config.hidden_size, totals["rows"] * length
    every = getattr(config, "global_attn_every_n_layers", 3)
    kinds = getattr(config, "layer_types", None) or [
        "sliding_attention" if number % every else "full_attention" for number in range(config.num_hidden_layers)
    ]
    dense = 2 * tokens * (4 * width * width + 3 * width * config.intermediate_size)
    keys = {"full_attention": length, "sliding_attention": min(length, config.local_attention + 1)}
    layers = sum(dense + 4 * tokens * keys[kind] * width for kind in kinds)
    return 3.0 * (layers + 2 * totals["predicted"] * width * (width + config.vocab_size))


_THETAS = {"full_attention": "global_rope_theta", "sliding_attention": "local_rope_theta"}


def _modernbert_values(start: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """transformers 5 writes what follows from the keys of a recipe into keys of its own, which would win over them."""
    values = dict(start)
    if ropes := values.get("rope_parameters"):
        values["rope_parameters"] = {
            kind: {**(rope or {}), **({"rope_theta": given[_THETAS[kind]]} if _THETAS.get(kind) in given else {})}
            for kind, rope in ropes.items()
        }
    for ours, theirs in (("bos", "cls"), ("eos", "sep")):  # as released; its defaults are those of its own vocabulary
        if f"{theirs}_token_id" in values:
            values.setdefault(f"{ours}_token_id", values[f"{theirs}_token_id"])
    if {"global_attn_every_n_layers", "num_hidden_layers"} & given.keys():
        values.pop("layer_types", None)
    return {**values, **given}


ENCODERS: dict[str, Encoder] = {
    "bert": Encoder("Bert", "BertLayer", ("cls.predictions",), pairs=True),
    "roberta": Encoder(
        "Roberta",
        "RobertaLayer",
        ("lm_head",),
        longest=lambda config: all_positions(config) - _after_padding(config),
        first_position=_after_padding,
        one_token_type=True,
        merged=lambda start, given: {"type_vocab_size": 1, **start, **given},  # as released
        also=("xlm-roberta", "camembert"),
    ),
    "modernbert": Encoder(
        "ModernBert",
        "ModernBertEncoderLayer",
        ("head", "decoder"),
        flops=_modernbert_flops,
        first_position=lambda config: None,
        token_head="ModernBertPredictionHead",
        answer_layer="classifier",
        own_keys={
            "global_attn_every_n_layers": (
                int,
                3,
                "One of so many layers, from the first on, attends to the whole row.",
            ),
            "global_rope_theta": (float, 160_000.0, "Base of the rotary positions of layers that attend to the row."),
            "local_rope_theta": (float, 10_000.0, "Base of the rotary positions of local layers."),
        },
        merged=_modernbert_values,
        fused={"*.Wqkv.*": 3, "*.Wi.*": 2},
    ),
    "electra": Encoder("Electra", "ElectraLayer", ("generator_predictions", "generator_lm_head")),
}
"""`model.type`, which is also `model_type` in config.json -> the encoder."""

ATTENTION = Literal["sdpa", "eager", "flash_attention_2"]
