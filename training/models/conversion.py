"""The options of conversions: those of `reread convert`, and `start.convert` in a recipe. Imports no torch."""

from typing import Any, Literal

from pydantic import Field

from reread.preprocessing.settings import Settings

SIZES = ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size")
"""The options that are sizes of a larger model."""


class Conversion(Settings):
    """Options of `reread convert` for this recipe's type of model; null: the default."""

    length: int | None = Field(default=None, ge=1, le=1 << 20)
    """`longformer` and `led`: tokens that the model reads; default: 4096, or as many as the source reads if that is
    more, and for `led` 16 times as many as a BART."""
    window: int | None = Field(default=None, ge=2, le=1 << 20, multiple_of=2)
    """`longformer` and `led`: width of local attention in tokens, an even number, half of it on each side; default:
    the source's own, else 512, and for `led` 1024."""
    positions: Literal["copied", "random"] | None = None
    """`longformer`: positions are `copied` from the short model, the default, or drawn at `random`, for comparison."""

    num_hidden_layers: int | None = Field(default=None, ge=1, le=1024)
    """NEZHA and transformers' encoders: layers of a larger model that begins as the source, its weights tiled, as
    ModernBERT-large did; default: as many as the source has."""
    hidden_size: int | None = Field(default=None, ge=1, le=1 << 17)
    """Hidden size of such a larger model; its heads keep the source's size."""
    num_attention_heads: int | None = Field(default=None, ge=1, le=1024)
    """Heads of such a larger model: an even number more than the source has."""
    intermediate_size: int | None = Field(default=None, ge=1, le=1 << 20)
    """Feed-forward size of such a larger model."""

    def given(self) -> dict[str, Any]:
        return self.model_dump(exclude_none=True)

    def sizes(self) -> dict[str, int]:
        """The given sizes of a larger model, by their keys in its configuration."""
        return {key: value for key, value in self.given().items() if key in SIZES}

    def known(self) -> dict[str, Any]:
        """Keys of the model's configuration that do not depend on the source."""
        return self.sizes() | ({} if self.window is None else {"attention_window": self.window})
