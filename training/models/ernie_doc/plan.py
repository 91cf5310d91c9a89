"""How ERNIE-Doc is split over tensor-parallel devices, and what a step of it costs."""

from collections.abc import Mapping

from training.models.ernie_doc.configuration_ernie_doc import ErnieDocConfig

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
"""Globs of module and parameter names -> how they are split (training/parallel/tensor.py); the rest is whole."""


def flops(config: ErnieDocConfig, length: int, totals: Mapping[str, float]) -> float:
    """Training FLOPs of segments of `length` tokens, from sums over a batch.

    totals: "rows" learned from, "skimmed" rows, "predicted" tokens that go through the head. Learning is three times
    the forward pass, skimming one. A multiply and an add are two; dense matrix products alone, with memory taken as
    full: keys and values of its slots are made anew in each segment, and each query meets a key's content, its value
    and its distance. The table of distances is made once a batch and left out, and so are pooler and reordering.
    """
    width, keys = config.hidden_size, length + config.slots
    projections = 4 * width * width * (length + keys) + 4 * length * width * config.intermediate_size
    layer = projections + 6 * length * keys * width
    head = 2 * totals["predicted"] * width * (width + config.vocab_size)
    return (3.0 * totals["rows"] + totals["skimmed"]) * config.num_hidden_layers * layer + 3.0 * head
