"""StableAdamW (Wortsman et al. 2023, arXiv:2304.13013, algorithm 2): AdamW with updates that are clipped by tensor."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from reread.training.optim.moments import add_to_moments, chunks, gradients_of, whole_norms, with_gradients


class StableAdamW(torch.optim.Optimizer):
    """w <- w - r (m' / (sqrt(v') + eps) + decay w) with r = lr / max(1, rms(g / max(sqrt(v'), eps))), where m', v' are
    Adam's bias-corrected moments and the root of the mean square is that of all elements of a tensor.

    With them the rate of decay of both averages at step n is beta (1 - beta^(n-1)) / (1 - beta^n), as in the paper.

    Tensors are whole logical ones, as in `Lamb`; the number of elements of one that is divided is its `whole_size`.
    Groups may set lr, betas, eps and weight_decay. State: exp_avg, exp_avg_sq by parameter; `step` by group. A step
    overwrites gradients by its updates.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        betas: tuple[float, float] = (0.9, 0.99),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        *,
        tensor_group: dist.ProcessGroup | None = None,
        data_group: dist.ProcessGroup | None = None,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "step": 0})
        self.tensor_group, self.data_group = tensor_group, data_group

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """One update from the `.grad` of each parameter that has one."""
        stepped = [(group, weights) for group in self.param_groups if (weights := with_gradients(group))]
        norms: list[Tensor] = []
        for group, weights in stepped:
            group["step"] += 1
            for chunk in chunks(weights):
                norms += self._to_updates(group, chunk)
        rates = iter(self._rates(stepped, norms))
        for group, weights in stepped:  # The rates stay on the device, so that the host does not wait for them.
            factors = next(rates)
            decays = 1 + group["weight_decay"] * factors
            torch._foreach_mul_(weights, decays.to(weights[0].dtype).unbind())
            updates = gradients_of(weights)
            torch._foreach_mul_(updates, factors.to(weights[0].dtype).unbind())
            torch._foreach_add_(weights, updates)

    def _to_updates(self, group: dict[str, Any], weights: list[Tensor]) -> tuple[Tensor, ...]:
        """Turn the gradients of some of a group's weights into m' / (sqrt(v') + eps); returns the norms of
        g / max(sqrt(v'), eps)."""
        gradients = gradients_of(weights)
        first, roots, unbias = add_to_moments(self.state, group, weights)
        torch._foreach_sqrt_(roots)
        norms = torch._foreach_norm(torch._foreach_div(gradients, torch._foreach_clamp_min(roots, group["eps"])))
        torch._foreach_add_(roots, group["eps"])
        torch._foreach_copy_(gradients, first)
        torch._foreach_div_(gradients, roots)
        torch._foreach_div_(gradients, unbias)
        return norms

    def _rates(self, stepped: list[tuple[dict[str, Any], list[Tensor]]], norms: list[Tensor]) -> Iterable[Tensor]:
        """-r of the weights of each group, float64 [n], on the device."""
        weights = [weight for _, group in stepped for weight in group]
        if not weights:
            return ()
        norms = whole_norms(weights, norms, self.tensor_group, self.data_group)
        sizes = [getattr(weight, "whole_size", weight.numel()) for weight in weights]
        stacked = torch.stack(norms).double()
        clipped = (stacked / stacked.new_tensor(sizes).sqrt()).clamp(min=1.0)
        rates = stacked.new_tensor([-group["lr"] for group, weights in stepped for _ in weights])
        return (rates / clipped).split([len(weights) for _, weights in stepped])
