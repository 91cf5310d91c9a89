"""ERNIE-Doc (Ding et al. 2021, arXiv:2012.15688)."""

from reread.training.models.ernie_doc.configuration_ernie_doc import ErnieDocConfig
from reread.training.models.ernie_doc.modeling_ernie_doc import (
    ErnieDocForMaskedLM,
    ErnieDocForMultipleChoice,
    ErnieDocForPreTraining,
    ErnieDocForQuestionAnswering,
    ErnieDocForSequenceClassification,
    ErnieDocForTokenClassification,
    ErnieDocModel,
)

__all__ = [
    "ErnieDocConfig",
    "ErnieDocForMaskedLM",
    "ErnieDocForMultipleChoice",
    "ErnieDocForPreTraining",
    "ErnieDocForQuestionAnswering",
    "ErnieDocForSequenceClassification",
    "ErnieDocForTokenClassification",
    "ErnieDocModel",
]
