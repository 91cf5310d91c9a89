"""Configuration of a Longformer with dilated windows; copied beside exported weights.

Imports no torch.
"""

from typing import Any

from transformers import LongformerConfig as TransformersLongformerConfig

from ..head_options import checked_reading


class LongformerConfig(TransformersLongformerConfig):
    """transformers' own with `attention_dilation` and `dilated_heads`, which its model would ignore: another type, so
    that no version of transformers loads such weights without the code beside them."""

    model_type = "reread_longformer"

    def __init__(self, *, reading: dict[str, Any] | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.reading = checked_reading(reading, self.max_position_embeddings - (self.pad_token_id or 0) - 1)
