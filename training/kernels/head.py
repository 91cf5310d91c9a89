"""The loss over the vocabulary from the states that the head decodes, and its backward pass.

The logits are held once, in the type of the weights, and the gradient is written in their place: torch's cross entropy
holds them in float32 four times. Shapes: n tokens, D hidden size, V vocabulary, R rows of the decoder, which may be
padded. A program computes a token; in the backward pass, `WIDTH` logits of one. The plain form is
`vocab_cross_entropy` in parallel/tensor.py.
"""

from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from reread.training.kernels.language import Operator, cdiv, constexpr, jit, next_power_of_2, tl
from reread.training.kernels.products import linear
from reread.training.kernels.sums import real_type


@jit
def _forward(logits, labels, losses, hits, sums, words, rows, WIDTH: constexpr):
    real = sums.dtype.element_ty
    token = tl.program_id(0)
    begin = logits + token.to(tl.int64) * rows
    label = tl.load(labels + token)
    best = tl.full([], float("-inf"), dtype=real)
    total = tl.zeros([], dtype=real)
    found = tl.zeros([], dtype=tl.int64)
    for first in range(0, words, WIDTH):
        word = first + tl.arange(0, WIDTH)
        value = tl.load(begin + word, mask=word < words, other=float("-inf")).to(real)
        most, index = tl.max(value, 0, return_indices=True)
        found = tl.where(most > best, first + index, found)
        higher = tl.maximum(best, most)
        total = total * tl.exp(best - higher) + tl.sum(tl.exp(value - higher))
        best = higher
    logarithm = best + tl.log(total)
    tl.store(losses + token, logarithm - tl.load(begin + label).to(real))
    tl.store(hits + token, (found == label).to(real))
    tl.store(sums + token, logarithm)


@jit
def _backward(logits, labels, sums, gradient, words, rows, WIDTH: constexpr):
    real = sums.dtype.element_ty
    token = tl.program_id(0)
    word = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    at = token.to(tl.int64) * rows + word
    value = tl.load(logits + at, mask=word < words, other=float("-inf")).to(real)
    share = tl.exp(value - tl.load(sums + token)) - (word == tl.load(labels + token)).to(real)
    tl.store(logits + at, (share * tl.load(gradient + token)).to(logits.dtype.element_ty), mask=word < rows)


@Operator
def token_losses(logits: Tensor, labels: Tensor, words: int) -> tuple[Tensor, Tensor, Tensor]:
    """logits [n, R], of which the first `words` count, and labels [n] -> -log softmax at the labels, 1 where the label
    has the greatest logit, and log sum exp, at least float32 [n]."""
    made = _of_tokens(logits)
    if len(logits):
        _forward[(len(logits),)](logits, labels, *made, words, logits.shape[1], WIDTH=_width(words))
    return made


@partial(Operator, mutates=("logits",))
def token_losses_backward(logits: Tensor, labels: Tensor, sums: Tensor, gradient: Tensor, words: int) -> None:
    """Replace the logits by their gradient, from that of the losses [n]; it is 0 from column `words` on."""
    if len(logits):
        count, rows = logits.shape
        width = _width(rows)
        _backward[(count, cdiv(rows, width))](logits, labels, sums, gradient, words, rows, WIDTH=width)


def _of_tokens(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    made = [logits.new_empty(len(logits), dtype=real_type(logits)) for _ in range(3)]
    return made[0], made[1], made[2]


def _width(words: int) -> int:
    return min(next_power_of_2(words), 4096)


token_losses.register_fake(lambda logits, labels, words: _of_tokens(logits))
token_losses_backward.register_fake(lambda logits, labels, sums, gradient, words: None)


class _Losses(torch.autograd.Function):
    """(logits [n, R], labels [n], words) -> the first two of `token_losses`."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, words: int) -> tuple[Tensor, Tensor]:
        losses, hits, sums = token_losses(logits, labels, words)
        ctx.words = words
        ctx.save_for_backward(logits, labels, sums)
        ctx.mark_non_differentiable(hits)
        return losses, hits

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        logits, labels, sums = ctx.saved_tensors
        token_losses_backward(logits, labels, sums, gradient.contiguous(), ctx.words)
        return logits, None, None


def losses_of(logits: Tensor, labels: Tensor, words: int) -> tuple[Tensor, Tensor]:
    """logits [n, R], of which the first `words` count, and labels [n] -> -log softmax at the labels, and 1 where the
    label has the greatest logit, at least float32 [n]."""
    return _Losses.apply(logits, labels, words)  # type: ignore[no-any-return]


class Undecoded(NamedTuple):
    """What a head returns in place of logits, when the losses are computed by kernels."""

    features: Tensor
    """[..., D]"""
    decoder: nn.Linear

    def losses(self, labels: Tensor) -> tuple[Tensor, Tensor]:
        """-log softmax at the labels [n], and 1 where the label has the greatest logit, at least float32 [n]."""
        weight = self.decoder.weight
        words = getattr(weight, "logical_shape", weight.shape)[0]  # rows behind are padding
        return losses_of(linear(self.features.flatten(0, -2), weight, self.decoder.bias), labels, words)
