"""The specification of an encoder of transformers, made from its entry in the table."""

from functools import cache

from reread.training.models.hub.encoders import ATTENTION, ENCODERS
from reread.training.models.hub.heads import classes_of, config_of
from reread.training.models.spec import ModelSpec, OwnKey

_ATTENTION = """Attention of transformers: torch's (sdpa), as written (eager), or the package flash-attn, in half
precision on a GPU; default: transformers' own choice, which the log says."""
ONLY = {
    "is_decoder": False,
    "add_cross_attention": False,
    "tie_word_embeddings": True,
    "position_embedding_type": "absolute",
    "sparse_prediction": False,
}
"""Keys with which such a configuration is of an encoder for masked words, and their values."""


@cache
def hub_spec(name: str) -> ModelSpec:
    """The model of this name in `ENCODERS`."""
    encoder = ENCODERS[name]
    heads, paired, further = classes_of(encoder)
    return ModelSpec(
        name,
        config_of(encoder),
        heads,
        {},
        encoder.flops,
        longest=encoder.longest,
        own_keys={
            **{key: OwnKey(*row) for key, row in encoder.own_keys.items()},
            "attn_implementation": OwnKey(ATTENTION, "sdpa", _ATTENTION),
        },
        one_token_type=encoder.one_token_type,
        compiles=True,
        layer=encoder.layer,
        paired=paired,
        further=further,
        separates=True,
        only=ONLY,
        merged=encoder.merged,
        fused=encoder.fused,
    )
