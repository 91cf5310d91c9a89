"""ERNIE-Doc: how it is split over tensor-parallel devices, what a step of it costs, and its heads."""

from collections.abc import Mapping

from reread.training.models.ernie_doc.configuration_ernie_doc import MOST_SKIMMED, ErnieDocConfig
from reread.training.models.ernie_doc.modeling_ernie_doc import (
    ErnieDocForCoreference,
    ErnieDocForEmbedding,
    ErnieDocForKeyPhrases,
    ErnieDocForMultipleChoice,
    ErnieDocForPreTraining,
    ErnieDocForQuestionAnswering,
    ErnieDocForSequenceClassification,
    ErnieDocForTokenClassification,
)
from reread.training.models.spec import ModelSpec

TENSOR_PLAN = {
    "*.word_embeddings": "vocabulary",
    "*.attention.self": "attention",
    "*.attention.self.query": "column",
    "*.attention.self.key": "column",
    "*.attention.self.value": "column",
    "*.attention.self.position": "column",
    "*.attention.self.token_type": "column",
    "*.attention.self.*_bias": "heads",
    "*.attention.output.dense": "row",
    "*.layer.*.intermediate.dense": "column",
    "*.layer.*.output.dense": "row",
    "cls.predictions.decoder": "vocabulary",
    "cls.predictions.bias": "vocabulary",
}


def flops(config: ErnieDocConfig, length: int, totals: Mapping[str, float]) -> float:
    """Training FLOPs of segments of `length` tokens, from sums over a batch.

    totals: "rows" learned from, "skimmed" rows, "predicted" tokens that go through the head. Learning is three times
    the forward pass, skimming one. A multiply and an add are two; dense matrix products alone, with memory taken as
    full: keys and values of its slots are made anew in each segment, and each query meets a key's content, its value
    and its distance. So are those of the states of a skim of most segments, which rows that learn alone attend to. The
    table of distances is made once a batch and left out, and so are pooler and reordering.
    """
    width, keys = config.hidden_size, length + config.slots

    def layer(keys: int) -> int:
        projections = 4 * width * width * (length + keys) + 4 * length * width * config.intermediate_size
        return projections + 6 * length * keys * width

    head = 2 * totals["predicted"] * width * (width + config.vocab_size)
    skimmed = config.num_hidden_layers * MOST_SKIMMED * config.skimmed_length if config.recurrence == "full" else 0
    layers = 3.0 * totals["rows"] * layer(keys + skimmed) + totals["skimmed"] * layer(keys)
    return config.num_hidden_layers * layers + 3.0 * head


_USAGE = """A text of any length is read whole, twice over, so that its first token knows its last:

```python
import torch
from transformers import AutoModel

model = AutoModel.from_pretrained("this/folder", trust_remote_code=True).eval()
ids = tokenizer(text, add_special_tokens=False, return_tensors="pt").input_ids[0]
with torch.no_grad():  # else the second pass keeps what gradients need, of the whole text
    read = model.read(ids)  # last_hidden_state [tokens, hidden], pooler_output [hidden], mems
```

To go segment by segment, give each call the `mems` that the call before returned; none begin a document. A segment is
its tokens, [SEP] and, in the last position, [CLS], which is how the tokenizer puts a single text."""


SPEC = ModelSpec(
    "ernie_doc",
    ErnieDocConfig,
    {
        "documents": ErnieDocForPreTraining,
        "classify": ErnieDocForSequenceClassification,
        "tag": ErnieDocForTokenClassification,
        "answer": ErnieDocForQuestionAnswering,
        "choose": ErnieDocForMultipleChoice,
        "rank": ErnieDocForSequenceClassification,
        "phrases": ErnieDocForKeyPhrases,
        "coreference": ErnieDocForCoreference,
        "embed": ErnieDocForEmbedding,
    },
    TENSOR_PLAN,
    flops,
    frame="segments",
    seldom=("*token_type*",),  # of second texts
    usage={"documents": _USAGE},
)
