"""Linear layers whose weight's gradient is added to a float32 sum by the product itself.

Else the gradient is rounded to half precision, written, read again and added. The product is torch's
(`addmm(out_dtype=)`, from 2.8 on CUDA). Shapes: n tokens, I inputs, O outputs.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

log = logging.getLogger("reread")


AddProduct = Callable[[Tensor, Tensor], None]
"""(gradient [n, O], x [n, I]) -> adds gradient^T x to the sum of a weight [O, I], which has it as `add_product`."""


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, add: AddProduct) -> Tensor:
        ctx.add = add
        ctx.save_for_backward(x, weight)
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        x, weight = ctx.saved_tensors
        of_x, of_weight, of_bias = ctx.needs_input_grad[:3]
        d_weight = weight_gradient(gradient, x, ctx.add) if of_weight else None
        d_bias = gradient.flatten(0, -2).sum(0) if of_bias else None
        return input_gradient(gradient, weight) if of_x else None, d_weight, d_bias, None


class _Projections(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, memory: Tensor | None, adds: Sequence[AddProduct | None], *of: Any) -> Any:
        context = hidden if memory is None else torch.cat([memory, hidden], dim=1)
        ctx.adds = adds
        ctx.save_for_backward(hidden, context, *of[::2])
        pairs = zip((hidden, context, context), of[::2], of[1::2], strict=True)
        return tuple(F.linear(*one) for one in pairs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        of_hidden, _, _, *needs = ctx.needs_input_grad
        hidden, context, *weights = ctx.saved_tensors  # asked for once, as activation checkpointing wants it
        d_hidden = None
        if of_hidden:
            d_hidden = input_gradient(gradients[0], weights[0])
            for gradient, weight in zip(gradients[1:], weights[1:], strict=True):
                behind = gradient[:, -hidden.shape[1] :]
                d_hidden.baddbmm_(behind, weight.expand(len(behind), -1, -1))
        of: list[Tensor | None] = []
        for number, (gradient, x) in enumerate(zip(gradients, (hidden, context, context), strict=True)):
            of.append(weight_gradient(gradient, x, ctx.adds[number]) if needs[2 * number] else None)
            of.append(gradient.flatten(0, -2).sum(0) if needs[2 * number + 1] else None)
        return d_hidden, None, None, *of


def projections(hidden: Tensor, memory: Tensor | None, *layers: Any) -> tuple[Tensor, Tensor, Tensor]:
    """hidden [B, T, D], memory [B, M, D] without gradient -> the first of three Linear layers of `hidden` [B, T, O],
    the others of memory and hidden [B, M + T, O]. The three gradients of `hidden` are added up by their products."""
    adds = [adds_to(layer.weight) for layer in layers]
    of = [one for layer in layers for one in (layer.weight, layer.bias)]
    return _Projections.apply(hidden, memory, adds, *of)  # type: ignore[no-any-return]


def weight_gradient(gradient: Tensor, x: Tensor, add: AddProduct | None) -> Tensor | None:
    """gradient^T x [O, I] for gradient [..., O] and x [..., I]; None if `add` added it."""
    gradient, x = gradient.flatten(0, -2), x.flatten(0, -2)
    if add is None:
        return gradient.t() @ x
    add(gradient, x)
    return None


def input_gradient(gradient: Tensor, weight: Tensor) -> Tensor:
    """gradient W [..., I] for gradient [..., O]."""
    return (gradient.flatten(0, -2) @ weight).view(*gradient.shape[:-1], -1)


def adds_to(weight: Tensor) -> AddProduct | None:
    """What adds a product to the sum of a weight's gradient; None: autograd gets the gradient, or none is computed."""
    return getattr(weight, "add_product", None) if torch.is_grad_enabled() else None


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x [..., I] -> x W^T + b [..., O]."""
    add = adds_to(weight)
    if add is None:
        return F.linear(x, weight, bias)
    return _Linear.apply(x, weight, bias, add)  # type: ignore[no-any-return]


def add_product(total: Tensor, gradient: Tensor, x: Tensor) -> None:
    """Add gradient^T x to `total` [O, I], in half precision or in the type of the total."""
    if gradient.dtype == total.dtype:
        total.addmm_(gradient.t(), x)
    elif total.is_meta:  # torch 2.8 to 2.12 fail there where a type is stated
        torch.addmm(total, gradient.t(), x, out=total)
    else:
        torch.addmm(total, gradient.t(), x, out_dtype=total.dtype, out=total)


def adds_products(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether products of `dtype` can be added to a float32 sum on `device`; if they cannot, a line says why."""
    reason = _why_not(dtype, device)
    if reason:
        log.info("gradients of weights: added after the product, as %s", reason)
    return reason is None


def _why_not(dtype: torch.dtype, device: torch.device) -> str | None:
    if not hasattr(torch.ops.aten.addmm, "dtype_out"):
        return f"torch {torch.__version__} cannot; 2.8 can"
    total, ones = torch.ones(8, 8, device=device), torch.ones(8, 8, dtype=dtype, device=device)
    try:
        add_product(total, ones, ones)
    except Exception as error:  # whatever this torch lacks
        return f"torch cannot ({str(error).splitlines()[0][:99]})"
    if device.type != "meta" and (total != 9).any():
        return "the product adds another number here"
    return None
