"""The ring that sums gradients, in settings and log; the places of Horovod's processes."""

import logging
import os
import socket

import pytest
import torch

from reread.preprocessing.errors import UserError
from reread.training.config import ParallelSettings
from reread.training.parallel.horovod import check_address, slot
from reread.training.parallel.mesh import Mesh
from reread.training.parallel.reduce import reducer
from reread.training.parallel.rendezvous import pin_ring

TWO = {"world": 4, "tensor_size": 2, "data_size": 2}
CUDA = torch.device("cuda")


@pytest.mark.parametrize(
    ("settings", "mesh", "algorithm", "expected"),
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
        ({}, Mesh(), None, "nothing to reduce with one data-parallel rank"),
    ],
)
def test_the_log_names_the_ring_in_use(monkeypatch, caplog, settings, mesh, algorithm, expected) -> None:
    monkeypatch.delenv("NCCL_ALGO", raising=False)
    if algorithm:
        monkeypatch.setenv("NCCL_ALGO", algorithm)
    with caplog.at_level(logging.INFO, "reread"):
        reducer(ParallelSettings.parse(settings, "test"), mesh)
    (line,) = caplog.messages
    assert line.startswith("gradients: ")
    assert expected in line


def test_by_rocm_the_log_names_its_library(monkeypatch, caplog) -> None:
    monkeypatch.setattr(torch.version, "hip", "6.4")
    monkeypatch.delenv("NCCL_ALGO", raising=False)
    with caplog.at_level(logging.INFO, "reread"):
        reducer(ParallelSettings(), Mesh(**TWO, device=CUDA))
    assert "over RCCL (ring or tree, as it chooses), " in caplog.messages[0]


def test_nccl_ring_pins_the_ring_before_there_is_a_communicator(monkeypatch) -> None:
    monkeypatch.setenv("NCCL_ALGO", "")
    monkeypatch.delenv("NCCL_ALGO")
    pin_ring("nccl-ring")
    assert os.environ["NCCL_ALGO"] == "Ring"


def test_a_ring_and_a_tree_cannot_both_be_asked_for(monkeypatch) -> None:
    monkeypatch.setenv("NCCL_ALGO", "Tree")
    with pytest.raises(UserError, match=r"nccl-ring, but NCCL_ALGO=Tree is set"):
        pin_ring("nccl-ring")


def test_processes_find_their_places_on_their_hosts() -> None:
    """Two on the first host, three on the second, one in between."""
    slots = [slot([7, 7, 3, 9, 9, 9], rank) for rank in range(6)]
    assert [(one["LOCAL_RANK"], one["LOCAL_SIZE"]) for one in slots] == [(0, 2), (1, 2), (0, 1), (0, 3), (1, 3), (2, 3)]
    assert [(one["CROSS_RANK"], one["CROSS_SIZE"]) for one in slots] == [(0, 3), (0, 2), (1, 3), (2, 3), (1, 2), (0, 1)]
    assert [(one["RANK"], one["SIZE"]) for one in slots] == [(rank, 6) for rank in range(6)]


def test_a_name_that_does_not_lead_to_its_host_is_reported_before_horovod_listens_there(monkeypatch) -> None:
    monkeypatch.setattr(socket, "gethostbyname", {"node3": "127.0.1.1", "node4": "10.0.0.4"}.__getitem__)
    check_address("node3", alone=True)
    check_address("node4", alone=False)
    with pytest.raises(UserError, match=r"on node3 that is 127\.0\.1\.1; .*/etc/hosts"):
        check_address("node3", alone=False)


def test_a_host_without_an_address_is_reported(monkeypatch) -> None:
    def unknown(host: str) -> str:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "gethostbyname", unknown)
    with pytest.raises(UserError, match="on node5 that is no address"):
        check_address("node5", alone=True)
