"""LAMB (You et al. 2020, arXiv:1904.00962, algorithm 2), in two variants."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor

from reread.training.optim.moments import Tensors, add_to_moments, chunks, gradients_of, whole_norms, with_gradients

Variant = Literal["nezha", "standard"]


class Lamb(torch.optim.Optimizer):
    """w <- w - lr r u with u = m' / (sqrt(v') + eps) + decay w, where m', v' are Adam's bias-corrected moments.

    `standard` is You et al. as apex's FusedLAMB computes it: r = |w| / |u|, or 1 where the group's decay is 0.
    `nezha` is the optimiser NEZHA was trained with: r = min(|w| / |m' / sqrt(v' + eps) + decay w|, 10) for every
    tensor, where `decay` is the constructor's even in groups that are not decayed. In both r is 1 if a norm is 0.

    Norms are those of whole logical tensors: for a parameter with `tensor_model_parallel` set (as megatron-core
    marks split ones) squares are summed over `tensor_group`, all of them in one all-reduce a step; those of all
    parameters over `data_group`, if its processes hold other rows of them.

    Groups may set lr, betas, eps and weight_decay. State: exp_avg, exp_avg_sq by parameter; `step` by group. A step
    overwrites gradients by its updates.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        *,
        variant: Variant = "nezha",
        tensor_group: dist.ProcessGroup | None = None,
        data_group: dist.ProcessGroup | None = None,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "step": 0})
        self.variant = variant
        self.tensor_group, self.data_group = tensor_group, data_group

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One update from the `.grad` of each parameter that has one."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        stepped = [(group, weights) for group in self.param_groups if (weights := with_gradients(group))]
        # Turn all gradients into updates, before any weight changes.
        adapted: list[list[Tensor]] = []
        norms: list[Tensor] = []
        for group, weights in stepped:
            group["step"] += 1
            for chunk in chunks(weights):
                norms += self._to_updates(group, chunk)
            if self._adapts(group):
                adapted.append(weights)
        # Scale the updates by learning rate and trust ratio, and apply them.
        ratios = iter(self._trust_ratios(adapted, norms))
        for group, weights in stepped:
            updates = gradients_of(weights)
            if self._adapts(group):  # The ratios stay on the device, so that the host does not wait for them.
                factors = next(ratios) * -group["lr"]
                torch._foreach_mul_(updates, factors.to(weights[0].dtype).unbind())
            else:
                torch._foreach_mul_(updates, -group["lr"])
            torch._foreach_add_(weights, updates)
        return loss

    def _adapts(self, group: dict[str, Any]) -> bool:
        """Whether a group's updates are multiplied by trust ratios."""
        return self.variant == "nezha" or bool(group["weight_decay"] != 0)

    def _to_updates(self, group: dict[str, Any], weights: list[Tensor]) -> Tensors:
        """Turn the gradients of some of a group's weights into the updates u; returns the norms that their trust ratios
        divide by, none for a group without ratios."""
        gradients = gradients_of(weights)
        first, roots, unbias1 = add_to_moments(self.state, group, weights)

        def direct(denominators: Tensors, decay: float) -> None:
            torch._foreach_copy_(gradients, weights)
            torch._foreach_mul_(gradients, decay)
            torch._foreach_addcdiv_(gradients, first, denominators, 1 / unbias1)

        # NEZHA adds eps inside the root for the norms, and outside for the update.
        norms: Tensors = ()
        if self.variant == "nezha":
            inside = torch._foreach_add(roots, group["eps"])
            torch._foreach_sqrt_(inside)
            direct(inside, self.defaults["weight_decay"])
            norms = torch._foreach_norm(gradients)
        torch._foreach_sqrt_(roots)
        torch._foreach_add_(roots, group["eps"])
        direct(roots, group["weight_decay"])
        return norms or (torch._foreach_norm(gradients) if self._adapts(group) else ())

    def _trust_ratios(self, groups: list[list[Tensor]], direction_norms: list[Tensor]) -> Sequence[Tensor]:
        """The ratios of the weights of each group, float64 [n], on the device."""
        weights = [weight for group in groups for weight in group]
        if not weights:
            return ()
        norms = [*torch._foreach_norm(weights), *direction_norms]
        norms = whole_norms(weights, norms, self.tensor_group, self.data_group)
        above, below = torch.stack(norms).view(2, -1)
        ratios = torch.where((above > 0) & (below > 0), above / below, 1.0)
        if self.variant == "nezha":
            ratios = ratios.clamp(max=10.0)
        return ratios.double().split([len(group) for group in groups])
