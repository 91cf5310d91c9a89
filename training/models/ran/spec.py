"""RAN: how it is split over tensor-parallel devices, what a step of it costs, and its heads."""

from collections.abc import Mapping

from reread.training.models.ran.configuration_ran import RanConfig
from reread.training.models.ran.modeling_ran import (
    RanForCausalLM,
    RanForConditionalGeneration,
    RanForCoreference,
    RanForEmbedding,
    RanForKeyPhrases,
    RanForMaskedLM,
    RanForMultipleChoice,
    RanForQuestionAnswering,
    RanForSequenceClassification,
    RanForTokenClassification,
)
from reread.training.models.spec import ModelSpec

TENSOR_PLAN = {
    "*.word_embeddings": "vocabulary",
    "*.attention.query": "column",
    "*.attention.key": "column",
    "*.attention.value": "column",
    "*.attention.heads": "split",
    "*.attention.output": "row",
    "cls.predictions.decoder": "vocabulary",
    "cls.predictions.bias": "vocabulary",
}
"""The rest is whole: memory
review has one head, what works on cells alone is little, and adaptive tables are whole as Transformer-XL's are."""


def flops(config: RanConfig, length: int, totals: Mapping[str, float]) -> float:
    """Training FLOPs of totals["rows"] rows of `length` tokens of which totals["predicted"] go through the head.

    Three times the forward pass, a multiply and an add counted as two, dense matrix products alone: of tokens, of the
    chain of cells, and of memory review. Masked scores are counted; the classification vector is not.
    """
    width, heads = config.hidden_size, config.num_attention_heads * config.head_size
    full, rest = divmod(length, config.window_size)
    merged = full and rest < config.min_window_size
    windows = [config.window_size] * full + ([] if merged else [rest])
    if merged:
        windows[-1] += rest
    cells, square = len(windows), 2 * width * width
    projections = 8 * width * heads + 2 * square * config.attention_residual
    layer = (length + cells) * projections + 4 * heads * sum((1 + tokens) ** 2 for tokens in windows)
    layer += square * (config.cell_transform == "always")
    layer += square * (2 * (cells - 1 + config.first_cell_residual) * (config.cell_residual == "gated"))
    if config.memory_review:
        of_token = 1 + config.review_output + 2 * config.review_residual
        layer += square * (length * of_token + 2 * cells) + 4 * length * cells * width
    words = config.clusters[0][1] + len(config.cutoffs)  # the clusters of rare words are left out
    projected = config.div_val > 1
    head = 2 * totals["predicted"] * width * (width * (1 + projected) + words)
    return 3.0 * (totals["rows"] * config.num_hidden_layers * layer + head)


_USAGE = """A text of any length is read whole, in windows of {window_size} tokens that hand on what they know; the
tokenizer puts no special tokens around it."""
_USAGE_OF_LANGUAGE_MODEL = """`logits` are those of the next token. Memory goes from one piece of a text to the next.
Windows of {window_size} tokens begin anew with each piece, so make the pieces as long as in training, {sequence_length}
tokens:

```python
import torch

ids = [token for line in filter(str.strip, text.splitlines()) for token in tokenizer(line).input_ids]
mems = None
with torch.no_grad():
    for piece in torch.tensor(ids).split({sequence_length}):
        output = model(piece[None], mems=mems)
        mems = output.mems
```"""


SPEC = ModelSpec(
    "ran",
    RanConfig,
    {
        "masked_lm": RanForMaskedLM,
        "causal_lm": RanForCausalLM,
        "classify": RanForSequenceClassification,
        "tag": RanForTokenClassification,
        "answer": RanForQuestionAnswering,
        "choose": RanForMultipleChoice,
        "rank": RanForSequenceClassification,
        "phrases": RanForKeyPhrases,
        "coreference": RanForCoreference,
        "embed": RanForEmbedding,
        "generate": RanForConditionalGeneration,
    },
    TENSOR_PLAN,
    flops,
    frame="bare",
    seldom=("*.initial.*", "*.cell.residual.*"),  # of some layers' first cells, and of later windows
    usage={"masked_lm": _USAGE, "causal_lm": _USAGE_OF_LANGUAGE_MODEL},
)
