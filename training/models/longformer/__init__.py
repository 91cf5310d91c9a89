"""Longformer (Beltagy et al. 2020, arXiv:2004.05150)."""

from transformers import LongformerConfig

from training.models.longformer.modeling_longformer import LongformerForMaskedLM, LongformerModel

__all__ = ["LongformerConfig", "LongformerForMaskedLM", "LongformerModel"]
