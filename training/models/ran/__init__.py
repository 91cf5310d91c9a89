"""RAN, the Recurrent Attention Network (Li et al. 2023, arXiv:2306.06843)."""

from reread.training.models.ran.configuration_ran import RanConfig
from reread.training.models.ran.modeling_ran import (
    RanForCausalLM,
    RanForMaskedLM,
    RanForMultipleChoice,
    RanForQuestionAnswering,
    RanForSequenceClassification,
    RanForTokenClassification,
    RanModel,
)

__all__ = [
    "RanConfig",
    "RanForCausalLM",
    "RanForMaskedLM",
    "RanForMultipleChoice",
    "RanForQuestionAnswering",
    "RanForSequenceClassification",
    "RanForTokenClassification",
    "RanModel",
]
