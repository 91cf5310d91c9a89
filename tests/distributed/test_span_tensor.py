"""The span-boundary head on a split vocabulary: float64 logits and gradients equal those of the whole model."""

import torch
from torch import Tensor

from reread.training.models.nezha.spec import TENSOR_PLAN
from reread.training.parallel.layout import Slice
from reread.training.parallel.rendezvous import init_mesh
from reread.training.parallel.tensor import layout, parallelise
from tests.distributed.test_tensor import VOCABULARY, batch, gradients_of, small_nezha

PLACES = torch.tensor([2, 3, 4, 17, 33, 34])
BOUNDARIES = torch.tensor([[1, 1, 1, 16, 32, 32], [5, 5, 5, 18, 35, 35], [0, 1, 2, 0, 0, 1]])
WEIGHTS = torch.linspace(-1, 1, len(PLACES) * VOCABULARY, dtype=torch.float64).view(len(PLACES), VOCABULARY)


def _span_logits(tensor: int) -> tuple[Tensor, dict[str, Tensor], dict[str, Slice]]:
    """This rank's logits, and its gradients of the weighted sum of all ranks' logits."""
    mesh = init_mesh(tensor)
    model = small_nezha(span_boundary=True).double()
    parallelise(model, TENSOR_PLAN, mesh)
    ids, mask, _ = batch()
    output = model(input_ids=ids, attention_mask=mask, masked_positions=PLACES, span_boundaries=BOUNDARIES)
    start = mesh.tensor_rank * output.span_logits.shape[1]
    logits = output.span_logits[:, : max(VOCABULARY - start, 0)]
    (logits * WEIGHTS[:, start : start + logits.shape[1]]).sum().backward()
    return logits.detach(), gradients_of(model), layout(model, mesh)


def test_span_prediction_is_the_same_on_a_split_vocabulary(ranks) -> None:
    ((whole, expected, _),) = ranks(1, _span_logits, 1)
    assert "cls.span_boundary.position_embeddings.weight" in expected and whole.shape == (6, VOCABULARY)
    parts = ranks(2, _span_logits, 2)
    torch.testing.assert_close(torch.cat([logits for logits, _, _ in parts], dim=1), whole, rtol=1e-12, atol=1e-12)
    for _, gradients, slices in parts:
        assert gradients.keys() == expected.keys()
        for name, gradient in gradients.items():
            place = slices[name]
            region = expected[name][place.region()]
            torch.testing.assert_close(place.inside(gradient), region, rtol=1e-11, atol=1e-12, msg=name)
