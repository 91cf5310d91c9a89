"""LAMB's and Adam's step by kernels: weights, moments and gradients each lie in one flat buffer."""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn

from reread.training.kernels.sums import add_to
from reread.training.kernels.update import Tables, adam_apply, lamb_apply, lamb_moments, sum_by_tensor
from reread.training.optim.build import MOMENTS, set_steps_taken, steps_taken, with_state
from reread.training.optim.lamb import Lamb
from reread.training.optim.precision import MasterWeights
from reread.training.parallel.gradients import BLOCK, GradientBuckets, flat_weights, move_to
from reread.training.parallel.mesh import Mesh


class FlatUpdate:
    """Steps `optimizer`, LAMB or AdamW, in whose state the moments stay, on buffers laid out as those of the gradients.

    The master weights, the moments and the model's parameters in half precision become views of the buffers, and all
    that refers to them, such as a checkpoint, goes on as before. Of divided masters the buffers are this process'
    share.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, masters: MasterWeights, gradients: GradientBuckets) -> None:
        self.optimizer, self.masters, self.mesh = optimizer, masters, gradients.mesh
        learning = dict(masters.learning())
        owners = {masters.model_parameters[name]: name for name in learning}
        names = [owners[parameter] for parameter in gradients.offsets]
        size = len(gradients.flat)
        here = masters.shares.here if masters.shares else slice(0, size)
        starts = (torch.tensor([*gradients.offsets.values(), size]) - here.start).clamp(0, here.stop - here.start)
        # Move everything into the buffers.
        model = flat_weights(gradients.offsets, size) if masters.flat is None else masters.flat
        self.weights, self.halves, self.gradients = model[here], None, gradients.flat[here]
        if masters.rounded:
            self.weights, self.halves = torch.zeros_like(self.gradients), self.weights
            for name, start in zip(names, starts.tolist(), strict=False):
                move_to(masters.masters[name], self.weights, start)
        for name in masters.first_rows.keys() & learning.keys():
            learning[name].data = masters.learnt_rows(name)
        begins = {name: learning[name].storage_offset() - self.weights.storage_offset() for name in names}
        self.moments: list[Tensor] = []
        for moment in MOMENTS:  # one after the other, so that the memory of the old ones is free
            buffer = torch.zeros_like(self.weights)
            for name in names:
                state, begin = optimizer.state[learning[name]], begins[name]
                view = buffer[begin : begin + state[moment].numel()].view(state[moment].shape)
                state[moment] = view.copy_(state[moment])
            self.moments.append(buffer)
        # What the kernels have to know of each tensor
        groups = {parameter: group for group in optimizer.param_groups for parameter in group["params"]}
        of_each = [groups[learning[name]] for name in names]
        device, blocks = self.gradients.device, starts // BLOCK
        self.tables = Tables(
            torch.repeat_interleave(torch.arange(len(names)), blocks.diff()).int().to(device),
            blocks.int().to(device),
            torch.tensor([begins[name] for name in names], device=device),
            self.weights.new_tensor([group["weight_decay"] for group in of_each]),
            self.weights.new_tensor([group.get("scale", 1.0) for group in of_each]),
        )
        self.norm_decays = self.tables.decays
        if getattr(optimizer, "variant", None) == "nezha":  # whose norms have one decay for every tensor
            self.norm_decays = torch.full_like(self.tables.decays, optimizer.defaults["weight_decay"])
        split = [bool(getattr(learning[name], "tensor_model_parallel", False)) for name in names]
        self.split = torch.tensor(split).nonzero().flatten().to(device)

    def __call__(self, rate: float, factor: float) -> None:
        """One step at learning rate `rate` on `factor` times the gradients."""
        steps = steps_taken(self.optimizer) + 1
        beta1, beta2 = self.optimizer.param_groups[0]["betas"]
        STEPS[type(self.optimizer)](self, rate, factor, 1 - beta1**steps, 1 - beta2**steps)
        set_steps_taken(self.optimizer, steps)
        self.masters.gather()

    def lamb(self, rate: float, factor: float, unbias1: float, unbias2: float) -> None:
        (beta1, beta2), eps = (self.optimizer.param_groups[0][name] for name in ("betas", "eps"))
        nezha = self.optimizer.variant == "nezha"  # type: ignore[attr-defined]
        owners, ends, begins, decays, rates = self.tables
        numbers = factor, beta1, beta2, unbias1, unbias2, eps, nezha
        sums = lamb_moments(self.weights, self.gradients, *self.moments, owners, begins, self.norm_decays, *numbers)
        squares = self._of_whole_tensors(sum_by_tensor(sums, ends))
        tables = owners, begins, decays, rates, squares
        lamb_apply(self.weights, *self.moments, self.halves, *tables, rate, unbias1, unbias2, eps, nezha)

    def adam(self, rate: float, factor: float, unbias1: float, unbias2: float) -> None:
        (beta1, beta2), eps = (self.optimizer.param_groups[0][name] for name in ("betas", "eps"))
        owners, _, begins, decays, rates = self.tables
        buffers = self.weights, self.gradients, *self.moments, self.halves
        adam_apply(*buffers, owners, begins, decays, rates, factor, rate, beta1, beta2, unbias1, unbias2, eps)

    def _of_whole_tensors(self, squares: Tensor) -> Tensor:
        """`squares` [tensors, 2] summed over the processes of divided and of split tensors."""
        if self.masters.shares and self.mesh.data_group is not None:
            dist.all_reduce(squares, group=self.mesh.data_group)
        group = self.mesh.tensor_group
        if group is not None and len(self.split):
            parts = squares[self.split]
            dist.all_reduce(parts, group=group)
            squares[self.split] = parts
        return squares


STEPS: dict[type, Callable[[FlatUpdate, float, float, float, float], None]] = {
    Lamb: FlatUpdate.lamb,
    torch.optim.AdamW: FlatUpdate.adam,
}
"""The step by kernels, (update, learning rate, factor on the gradients, 1 - beta1^n, 1 - beta2^n), of the optimisers
that have one."""


def flat_update(
    optimizer: torch.optim.Optimizer, masters: MasterWeights, gradients: GradientBuckets
) -> FlatUpdate | None:
    """The update by kernels, for an optimiser that has one; the gradients are added by a kernel then, too."""
    if type(optimizer) not in STEPS:
        return None
    gradients.add = add_to
    return FlatUpdate(optimizer, masters, gradients)


def check_update(device: torch.device) -> None:
    """Raises AssertionError if a step by the kernels is not one by torch's operations, for LAMB and Adam."""
    for name in ("nezha", "standard", "adam"):
        ends = []
        for flat in (False, True):
            layers = nn.Sequential(nn.Linear(40, 50), nn.LayerNorm(50)).to(device)
            for number, parameter in enumerate(layers.parameters(), 1):
                parameter.data.copy_(torch.arange(parameter.numel()).sin().mul(number).view(parameter.shape))
            masters = MasterWeights(layers, torch.float16)
            before = [master.detach().clone() for master in masters.masters.values()]
            groups = [{"params": [master for _, master in masters.learning()], "weight_decay": 0.01}]
            plain = torch.optim.AdamW(groups) if name == "adam" else Lamb(groups, 0.0, variant=name)  # type: ignore[arg-type]
            optimizer = with_state(plain, MOMENTS)
            buckets = GradientBuckets(layers.parameters(), Mesh(device=device), 4096)
            update = FlatUpdate(optimizer, masters, buckets) if flat else None
            for _ in range(2):
                buckets.zero()
                totals = [buckets.grad_of(parameter) for parameter in layers.parameters()]
                values = [parameter.detach().cos() for parameter in layers.parameters()]
                if update:
                    add_to(totals, values)
                    update(0.01, 0.5)
                else:
                    torch._foreach_add_(totals, values)
                    masters.step(optimizer, buckets, 0.01, 0.5)
            changes = [master - old for master, old in zip(masters.masters.values(), before, strict=True)]
            ends.append([*changes, *layers.parameters()])
        for ours, expected in zip(*ends, strict=True):
            size = expected.float().abs().max().item()
            torch.testing.assert_close(ours, expected, rtol=1e-3, atol=1e-3 * size)
