"""The options of conversions: those of `reread convert`, and `start.convert` in a recipe. Imports no torch."""

from typing import Any, Literal

from pydantic import Field

from reread.preprocessing.settings import Settings

SIZES = ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size")
"""The options that are sizes of a larger model."""


class Conversion(Settings):
    """Options of `reread convert` for this recipe's type of model; null: the default."""

    length: int | None = Field(default=None, ge=1, le=1 << 20)
    """`longformer`: tokens that the model reads; default: 4096, or as many as the source reads if that is more."""
    window: int | None = Field(default=None, ge=2, le=1 << 20, multiple_of=2)
    """`longformer`: width of local attention in tokens, an even number, half of it on each side; default: a
    Longformer's own, else 512."""
    positions: Literal["copied", "random"] | None = None
    """`longformer`: positions are `copied` from the short model, the default, or drawn at `random`, for comparison."""

    num_hidden_layers: int | None = Field(default=None, ge=1, le=1024)
    """NEZHA and transformers' encoders: layers of a larger model, to which the source's weights are tiled, as
    ModernBERT-large's are from base; default: as many as the source's. The same for the next three."""
    hidden_size: int | None = Field(default=None, ge=1, le=1 << 17)
    """The larger model's hidden size, which is `num_attention_heads` times the size of a head of the source."""
    num_attention_heads: int | None = Field(default=None, ge=1, le=1024)
    """The larger model's heads: the source's and an even number of others."""
    intermediate_size: int | None = Field(default=None, ge=1, le=1 << 20)
    """The larger model's feed-forward size."""

    def given(self) -> dict[str, Any]:
        return self.model_dump(exclude_none=True)

    def sizes(self) -> dict[str, int]:
        """The given sizes of a larger model, by their keys in its configuration."""
        return {key: value for key, value in self.given().items() if key in SIZES}

    def known(self) -> dict[str, Any]:
        """Keys of the model's configuration that do not depend on the source."""
        return self.sizes() | ({} if self.window is None else {"attention_window": self.window})
