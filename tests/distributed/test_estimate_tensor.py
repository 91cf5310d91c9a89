"""`reread plan` computes what a tensor rank holds and sends, from one process without the others."""

from typing import Any

import pytest
import torch
import torch.distributed as dist

from reread.pipeline.estimate.rehearsal import rehearse
from reread.training.assembly import head_of
from reread.training.config import TrainSettings
from reread.training.models import model_spec
from reread.training.models.build import build_model, freeze, model_config
from reread.training.objectives import objective_of
from reread.training.optim.build import build_optimizer
from reread.training.optim.precision import MasterWeights
from reread.training.parallel.gradients import GradientBuckets
from reread.training.parallel.rendezvous import init_mesh
from reread.training.parallel.tensor import parallelise
from tests.conftest import document_values, longformer_values, ran_values, train_values

VOCABULARY = 500


def held(values: dict[str, Any]) -> dict[str, int]:
    """Bytes of the trainer's tensors in one of two tensor ranks, and bytes sent between them in a micro-batch."""
    settings = TrainSettings.parse(values, "test")
    mesh = init_mesh(2)
    spec = model_spec(settings.model["type"])
    config = model_config(spec, settings.model, VOCABULARY, None)
    model = build_model(head_of(spec, objective_of(settings), settings.data), config, None, 0).train()
    freeze(model, None, spec.copied)
    parallelise(model, spec.tensor_plan, mesh)
    masters = MasterWeights(model, torch.float32)
    optimizer = build_optimizer(masters.learning(), settings.optimizer, mesh)
    buckets = GradientBuckets(list(model.parameters()), mesh, 2**20)
    moments = [tensor for state in optimizer.state.values() for name, tensor in state.items() if name != "step"]
    sent: list[int] = []
    real = dist.all_reduce

    def counted(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        sent.append(tensor.nbytes)
        return real(tensor, *args, **kwargs)

    task = objective_of(settings)(model, settings, mesh, None, None)
    dist.all_reduce = counted
    for loss, _, _ in task.losses(settings.data.blank(2), dict.fromkeys(task.counted, 1.0), 0):
        if loss is not None:
            loss.backward()
    dist.all_reduce = real
    return {
        "weights": sum(parameter.nbytes for parameter in model.parameters()),
        "optimizer": sum(tensor.nbytes for tensor in moments),
        "gradients": buckets.flat.nbytes,
        "tensor_bytes": sum(sent),
        "tensor_calls": len(sent),
    }


@pytest.mark.long
@pytest.mark.parametrize("values_of", [train_values, ran_values, longformer_values])
def test_an_estimated_tensor_rank_is_the_trainers(ranks, values_of) -> None:
    values = values_of("nowhere", global_batch=2, micro_batch=2, kernels="plain")
    if values_of is longformer_values:
        values["model"]["max_position_embeddings"] = 50  # they begin after [PAD], 1 without a corpus
    settings = TrainSettings.parse(values, "test")
    spec = model_spec(settings.model["type"])
    config = model_config(spec, settings.model, VOCABULARY, None)
    footprint = rehearse(settings, config, torch.float32, tensor=2, micro_batch=2, checkpointing=False)
    for found in ranks(2, held, values):
        assert found == {name: getattr(footprint, name) for name in found}


def test_a_tensor_rank_holds_about_half() -> None:
    values = document_values("nowhere", kernels="plain")  # flat buffers have blocks for the smallest tensors
    settings = TrainSettings.parse(values, "test")
    spec = model_spec("ernie_doc")
    config = model_config(spec, settings.model, VOCABULARY, None)
    whole, half = (
        rehearse(settings, config, torch.float16, tensor=tensor, micro_batch=2, checkpointing=False)
        for tensor in (1, 2)
    )
    assert 0.5 <= half.state / whole.state < 0.7
    assert half.parameters == whole.parameters
    assert whole.tensor_bytes == 0 < half.tensor_bytes
