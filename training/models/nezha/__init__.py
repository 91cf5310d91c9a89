"""NEZHA (Wei et al. 2019, arXiv:1909.00204)."""

from reread.training.models.nezha.configuration_nezha import NezhaConfig
from reread.training.models.nezha.modeling_nezha import (
    NezhaForMaskedLM,
    NezhaForMultipleChoice,
    NezhaForPreTraining,
    NezhaForQuestionAnswering,
    NezhaForSequenceClassification,
    NezhaForTokenClassification,
    NezhaModel,
)

__all__ = [
    "NezhaConfig",
    "NezhaForMaskedLM",
    "NezhaForMultipleChoice",
    "NezhaForPreTraining",
    "NezhaForQuestionAnswering",
    "NezhaForSequenceClassification",
    "NezhaForTokenClassification",
    "NezhaModel",
]
