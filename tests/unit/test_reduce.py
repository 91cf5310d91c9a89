"""Which ring sums gradients, as it is asked for and told."""

import logging
import os

import pytest
import torch

from preprocessing.errors import UserError
from training.config import ParallelSettings
from training.parallel.mesh import Mesh, pin_ring
from training.parallel.reduce import reducer

TWO = {"world": 4, "tensor_size": 2, "data_size": 2}
CUDA = torch.device("cuda")


@pytest.mark.parametrize(
    ("settings", "mesh", "algorithm", "told"),
    [
        (
            {},
            Mesh(**TWO),
            None,
            "torch.distributed over gloo's ring, 2 data-parallel ranks beside tensor groups of 2",
        ),
        ({"gradients": "nccl-ring"}, Mesh(**TWO), None, "over gloo's ring (nccl-ring: no NCCL on CPU), "),
        ({"gradients": "nccl-ring"}, Mesh(**TWO, device=CUDA), "Ring", "over NCCL (NCCL_ALGO=Ring), "),
        ({}, Mesh(**TWO, device=CUDA), None, "over NCCL (ring or tree, as it chooses), "),
        ({"gradient_dtype": "fp16", "bucket_megabytes": 5}, Mesh(**TWO), None, "buckets of 5 MB, sent as fp16"),
        ({}, Mesh(), None, "nothing to reduce, for there is one data-parallel rank"),
    ],
)
def test_the_log_says_which_ring_is_in_use(monkeypatch, caplog, settings, mesh, algorithm, told) -> None:
    monkeypatch.delenv("NCCL_ALGO", raising=False)
    if algorithm:
        monkeypatch.setenv("NCCL_ALGO", algorithm)
    with caplog.at_level(logging.INFO, "reread"):
        reducer(ParallelSettings.parse(settings, "test"), mesh)
    (line,) = caplog.messages
    assert line.startswith("gradients: ")
    assert told in line


def test_nccl_ring_pins_the_ring_before_there_is_a_communicator(monkeypatch) -> None:
    monkeypatch.setenv("NCCL_ALGO", "")
    monkeypatch.delenv("NCCL_ALGO")
    pin_ring("nccl-ring")
    assert os.environ["NCCL_ALGO"] == "Ring"


def test_a_ring_and_a_tree_cannot_both_be_asked_for(monkeypatch) -> None:
    monkeypatch.setenv("NCCL_ALGO", "Tree")
    with pytest.raises(UserError, match=r"nccl-ring, but NCCL_ALGO=Tree is set"):
        pin_ring("nccl-ring")
