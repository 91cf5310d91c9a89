"""Transformer-XL: how it is split over tensor-parallel devices, what a step of it costs, and its heads."""

from collections.abc import Mapping

from reread.training.models.spec import ModelSpec
from reread.training.models.transformer_xl.configuration_transformer_xl import TransformerXLConfig
from reread.training.models.transformer_xl.modeling_transformer_xl import TransformerXLForCausalLM

TENSOR_PLAN = {
    "transformer.content_bias": "heads",
    "transformer.position_bias": "heads",
    "*.attention.self": "attention",
    "*.attention.self.query": "column",
    "*.attention.self.key": "column",
    "*.attention.self.value": "column",
    "*.attention.self.position": "column",
    "*.attention.output.dense": "row",
    "*.layer.*.intermediate": "attention",  # for the same reasons: one sum of gradients, and dropout of its own
    "*.layer.*.intermediate.dense": "column",
    "*.layer.*.output.dense": "row",
}
"""Globs of module and parameter names -> how they are split (training/parallel/tensor.py); the rest is whole.

So are the embeddings and the softmax that shares them: a token meets a cluster's words only if its label is there,
which the devices would have to agree on, and the narrow clusters are most of the vocabulary and little of the work.
"""


def flops(config: TransformerXLConfig, length: int, totals: Mapping[str, float]) -> float:
    """Training FLOPs of totals["rows"] segments of `length` tokens of which totals["predicted"] in all have a label.

    Dense matrix products of layers and head, a multiply and an add counted as two, forward once and backward twice;
    but once for keys and values of memory, whose gradient stops there. Memory is taken as full, and masked scores are
    counted, once by content and once by position. Left out are what depends on the words (the clusters of rare ones),
    what rows share (W_r R), the projection of embeddings, and sentences' and paragraphs' distances. In windows a token
    meets w + 1 keys, or every d-th one of the text: what lies in its chunk but not in its window is no progress.
    """
    width, heads = config.d_model, config.n_head * config.d_head
    memory = 0 if config.recurrence == "none" else config.mem_len
    tokens, slots = totals["rows"] * length, totals["rows"] * memory
    dense = 2 * tokens * (4 * width * heads + 2 * width * config.d_inner)
    attended = sum(_keys(config, memory + length)) * 6 * tokens * heads
    recalled = 2 * slots * 2 * width * heads
    words = config.clusters[0][1] + len(config.cutoffs)
    projected = config.div_val > 1 or config.d_embed != width
    head = 2 * totals["predicted"] * config.d_embed * (words + width * projected)
    return 3.0 * (config.n_layer * dense + attended + head) + 2.0 * config.n_layer * recalled


def _keys(config: TransformerXLConfig, length: int) -> list[float]:
    """For each layer the keys that a token of a text of `length` tokens meets, the mean over heads."""
    found = []
    for window, gap, dilated in config.windows or [(length, 1, 0)] * config.n_layer:
        plain, apart = (min(window + 1, -(-length // step)) for step in (1, gap))
        found.append((plain * (config.n_head - dilated) + apart * dilated) / config.n_head)
    return found


_USAGE = """`logits` are log-probabilities of the next token. Memory goes from one piece of a text to the next. A
vocabulary of words has `<eos>` for the end of each line, and Segatron's `positions` need to know which tokens end a
sentence and which a paragraph, that is a line; other models leave the two arguments alone. Sentences are told here by
their stops, which is close to how the corpus tells them:

```python
import torch

ids, sentence_ends, paragraph_ends = [], [], []
eos = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
stops = set(tokenizer.convert_tokens_to_ids(list(".!?。！？"))) - {tokenizer.unk_token_id}
for line in filter(str.strip, text.splitlines()):
    tokens = tokenizer(line, add_special_tokens=False).input_ids
    ids += tokens + eos
    sentence_ends += [token in stops for token in tokens[:-1]] + [False] * len(eos) + [True]
    paragraph_ends += [False] * len(tokens[1:] + eos) + [True]

mems = None
with torch.no_grad():
    for start in range(0, len(ids), 150):
        piece, sentences, paragraphs = (
            torch.tensor([values[start : start + 150]]) for values in (ids, sentence_ends, paragraph_ends)
        )
        output = model(piece, mems=mems, sentence_ends=sentences, paragraph_ends=paragraphs)
        mems = output.mems
```"""


SPEC = ModelSpec(
    "transformer_xl",
    TransformerXLConfig,
    {"causal_lm": TransformerXLForCausalLM},
    TENSOR_PLAN,
    flops,
    frame="bare",
    usage={"causal_lm": _USAGE},
)
