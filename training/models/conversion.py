"""The options of conversions: those of `reread convert`, and `start.convert` in a recipe. Imports no torch."""

from typing import Any, Literal

from pydantic import Field

from reread.preprocessing.settings import Settings


class Conversion(Settings):
    """Options of `reread convert` for this recipe's type of model; null: the default."""

    length: int | None = Field(default=None, ge=1, le=1 << 20)
    """`longformer`: tokens that the model reads; default: 4096, or as many as the source reads if that is more."""
    window: int | None = Field(default=None, ge=2, le=1 << 20, multiple_of=2)
    """`longformer`: width of local attention in tokens, an even number, half of it on each side; default: a
    Longformer's own, else 512."""
    positions: Literal["copied", "random"] | None = None
    """`longformer`: positions are `copied` from the short model, the default, or drawn at `random`, for comparison."""

    def given(self) -> dict[str, Any]:
        return self.model_dump(exclude_none=True)

    def known(self) -> dict[str, Any]:
        """Keys of the model's configuration that do not depend on the source."""
        return {} if self.window is None else {"attention_window": self.window}
