"""All of a layer behind its attention as one function for autograd: the end of both halves and what lies between them.

A function for each part would keep the host busy for longer than a GPU computes it. Shapes: D hidden size, I columns
between. The plain form is `PostNormLayer` in models/blocks.py.
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from reread.training.kernels.gelu import bias_gelu, bias_gelu_backward
from reread.training.kernels.products import AddProduct, input_gradient, weight_gradient
from reread.training.kernels.residual import residual_gradients, residual_norm
from reread.training.kernels.sums import sum_partials


class Options(NamedTuple):
    eps: float
    drops: float
    """The probability of dropout, in both halves."""
    seeds: tuple[int, int]
    """Of dropout in each half."""
    tanh: bool
    """Whether GELU is approximated."""
    adds: tuple[AddProduct | None, AddProduct | None, AddProduct | None]
    """How the gradients of the three weights are added to their sums; None: autograd gets them."""


class _Tail(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, attended: Tensor, residual: Tensor, options: Options, *of: Any) -> tuple[Tensor, Tensor]:
        weight, bias, gamma, beta, inner_weight, inner_bias, out_weight, out_bias, out_gamma, out_beta = of
        eps, drops, seeds = options.eps, options.drops, options.seeds
        y, *first = residual_norm(F.linear(attended, weight), bias, residual, gamma, beta, eps, drops, seeds[0])
        x = F.linear(y, inner_weight)
        active = bias_gelu.launch(x, inner_bias, options.tanh)
        product = F.linear(active, out_weight)
        z, *second = residual_norm(product, out_bias, y, out_gamma, out_beta, eps, drops, seeds[1])
        ctx.options = options
        ctx.save_for_backward(
            *(attended, *first, weight, gamma, y, x, inner_weight, inner_bias),
            *(active, *second, out_weight, out_gamma),
        )
        ctx.set_materialize_grads(False)
        return z, z.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        options, needs = ctx.options, ctx.needs_input_grad[3:]
        drops, seeds, adds = options.drops, options.seeds, options.adds
        kept = ctx.saved_tensors  # asked for once, as activation checkpointing wants it
        attended, h, mean, scale, weight, gamma, y, x, inner_weight, inner_bias = kept[:10]
        active, out_h, out_mean, out_scale, out_weight, out_gamma = kept[10:]
        # The end of the layer
        end = out_h, out_mean, out_scale, out_gamma, drops, seeds[1]
        dproduct, dy, of_output = residual_gradients(gradients, *end)
        d_out_weight = weight_gradient(dproduct, active, adds[2]) if needs[6] else None
        # What is activated
        dx, partial = bias_gelu_backward(input_gradient(dproduct, out_weight), x, inner_bias, options.tanh)
        d_inner_bias = sum_partials(partial, inner_bias)[0]
        d_inner_weight = weight_gradient(dx, y, adds[1]) if needs[4] else None
        # The end of the attention, whose output is read twice
        end = h, mean, scale, gamma, drops, seeds[0]
        dproduct, dresidual, of_attention = residual_gradients([dy, input_gradient(dx, inner_weight)], *end)
        d_weight = weight_gradient(dproduct, attended, adds[0]) if needs[0] else None
        of_inner = d_inner_weight, d_inner_bias
        dattended = input_gradient(dproduct, weight)
        return dattended, dresidual, None, d_weight, *of_attention, *of_inner, d_out_weight, *of_output


def tail(attended: Tensor, residual: Tensor, options: Options, *of: Tensor) -> Tensor:
    """attended, residual [..., D] -> [..., D], by weight [D, D], bias, gamma and beta [D] of the attention's output,
    weight [I, D] and bias [I] of what is activated, and weight [D, I], bias, gamma and beta [D] of the layer's output.
    What is returned is read twice, as `residual_output` says."""
    z, again = _Tail.apply(attended, getattr(residual, "again", residual), options, *of)
    z.again = again
    return z  # type: ignore[no-any-return]
