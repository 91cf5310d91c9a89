"""Transformer-XL (Dai et al. 2019, arXiv:1901.02860), with enhanced recurrence and Segatron's positions."""

from reread.training.models.transformer_xl.configuration_transformer_xl import TransformerXLConfig
from reread.training.models.transformer_xl.modeling_transformer_xl import TransformerXLForCausalLM, TransformerXLModel

__all__ = ["TransformerXLConfig", "TransformerXLForCausalLM", "TransformerXLModel"]
