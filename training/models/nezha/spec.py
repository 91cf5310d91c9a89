"""NEZHA: how it is split over tensor-parallel devices, what a step of it costs, and its heads."""

from collections.abc import Mapping

from reread.training.models.nezha.configuration_nezha import SPAN_POSITION_SIZE, NezhaConfig
from reread.training.models.nezha.modeling_nezha import (
    NezhaForCoreference,
    NezhaForEmbedding,
    NezhaForKeyPhrases,
    NezhaForMultipleChoice,
    NezhaForPreTraining,
    NezhaForQuestionAnswering,
    NezhaForSequenceClassification,
    NezhaForTokenClassification,
)
from reread.training.models.spec import ModelSpec

TENSOR_PLAN = {
    "*.word_embeddings": "vocabulary",
    "*.attention.self": "attention",
    "*.attention.self.query": "column",
    "*.attention.self.key": "column",
    "*.attention.self.value": "column",
    "*.attention.self.relative_keys.weight": "shared",
    "*.attention.self.relative_values.weight": "shared",
    "*.attention.output.dense": "row",
    "*.layer.*.intermediate.dense": "column",
    "*.layer.*.output.dense": "row",
    "cls.predictions.decoder": "vocabulary",
    "cls.predictions.bias": "vocabulary",
}


def flops(config: NezhaConfig, length: int, totals: Mapping[str, float]) -> float:
    """Training FLOPs of totals["rows"] rows of `length` tokens of which totals["predicted"] go through the head, and
    through that of spans where there is one.

    Three times the forward pass, a multiply and an add counted as two, dense matrix products alone. Relative
    positions are left out: their share depends on the form computed, and this is the numerator of MFU.
    """
    width, tokens = config.hidden_size, totals["rows"] * length
    layer = 2 * tokens * (4 * width * width + 2 * width * config.intermediate_size) + 4 * tokens * length * width
    head = width + config.vocab_size
    if config.span_boundary:
        head += 3 * width + SPAN_POSITION_SIZE + config.vocab_size
    return 3.0 * (config.num_hidden_layers * layer + 2 * totals["predicted"] * width * head)


SPEC = ModelSpec(
    "nezha",
    NezhaConfig,
    {
        "masked_lm": NezhaForPreTraining,
        "classify": NezhaForSequenceClassification,
        "tag": NezhaForTokenClassification,
        "answer": NezhaForQuestionAnswering,
        "choose": NezhaForMultipleChoice,
        "rank": NezhaForSequenceClassification,
        "phrases": NezhaForKeyPhrases,
        "coreference": NezhaForCoreference,
        "embed": NezhaForEmbedding,
    },
    TENSOR_PLAN,
    flops,
    compiles=True,
    paired=NezhaForPreTraining,
    fused={},
)
