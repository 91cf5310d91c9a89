"""Muon (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon): hidden matrices by orthogonalised momentum."""

import math
import re
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from reread.training.optim.moments import add_to_moments, chunks, gradients_of, with_gradients

COEFFICIENTS = 3.4445, -4.7750, 2.0315
"""Of Jordan's quintic iteration, whose slope at 0 is as steep as can be."""
ITERATIONS = 5
RMS = 0.2
"""Root of the mean square that AdamW's updates have about (Liu et al. 2025, arXiv:2502.16982)."""


def is_hidden_matrix(name: str, parameter: nn.Parameter) -> bool:
    """Whether Muon orthogonalises the updates of a parameter: a matrix of a layer, not of embeddings or heads."""
    return parameter.dim() == 2 and re.search(r"\.layers?\.\d+\.", name) is not None


class Muon(torch.optim.Optimizer):
    """Of groups with `hidden`, matrices [A, B]: w <- w - lr (decay w + 0.2 sqrt(max(A, B)) O), where O orthogonalises
    g + momentum (b - g) and b is the average of the gradients, b <- b + (1 - momentum) (g - b).

    The factor is that of Liu et al., by which matrices learn at the rate and with the decay of the rest, which AdamW
    updates. Orthogonalised in bfloat16 as Jordan's, on a CPU in the weights' type.

    Groups may set lr, betas, eps and weight_decay. State: momentum_buffer of a hidden matrix, exp_avg and exp_avg_sq of
    others; `step` by group.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        momentum: float = 0.95,
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "momentum": momentum}
        super().__init__(params, {**defaults, "step": 0, "hidden": False})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """One update from the `.grad` of each parameter that has one, which it overwrites."""
        for group in self.param_groups:
            group["step"] += 1
            for weights in chunks(with_gradients(group)):
                torch._foreach_mul_(weights, 1 - group["lr"] * group["weight_decay"])
                if group["hidden"]:
                    self._step_hidden(group, [weight for weight in weights if weight.numel()])
                else:
                    self._step_others(group, weights)

    def _step_hidden(self, group: dict[str, Any], weights: list[Tensor]) -> None:
        for weight, gradient in zip(weights, gradients_of(weights), strict=True):
            average = self.state[weight].setdefault("momentum_buffer", torch.zeros_like(weight))
            average.lerp_(gradient, 1 - group["momentum"])
            direction = orthogonalised(gradient.lerp_(average, group["momentum"]))
            weight.add_(direction, alpha=-group["lr"] * RMS * math.sqrt(max(weight.shape)))

    def _step_others(self, group: dict[str, Any], weights: list[Tensor]) -> None:
        first, roots, unbias = add_to_moments(self.state, group, weights)
        torch._foreach_sqrt_(roots)
        torch._foreach_add_(roots, group["eps"])
        torch._foreach_addcdiv_(weights, first, roots, -group["lr"] / unbias)


def orthogonalised(matrix: Tensor) -> Tensor:
    """About U V^T of `matrix` = U S V^T, whose singular values become numbers around 1 (Newton and Schulz)."""
    a, b, c = COEFFICIENTS
    wide = matrix.T if len(matrix) > matrix.shape[1] else matrix
    wide = wide.to(wide.dtype if wide.device.type == "cpu" else torch.bfloat16)
    wide = wide / wide.norm().clamp(min=1e-7)
    for _ in range(ITERATIONS):
        gram = wide @ wide.T
        wide = torch.addmm(wide, torch.addmm(gram, gram, gram, beta=b, alpha=c), wide, beta=a)
    return (wide.T if len(matrix) > matrix.shape[1] else wide).to(matrix.dtype)
