"""Weights of rannet become RAN."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from training.models.ran import RanConfig, RanForMaskedLM, RanModel
from training.models.ran.convert import config_from_rannet, from_rannet

GOLDEN = Path(__file__).resolve().parents[1] / "golden"


def golden(length: int) -> dict[str, NDArray[Any]]:
    with np.load(GOLDEN / f"ran_{length}.npz") as file:
        return dict(file)


def below(arrays: dict[str, NDArray[Any]], prefix: str) -> dict[str, NDArray[Any]]:
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


def config_of(arrays: dict[str, NDArray[Any]]) -> RanConfig:
    return RanConfig(**config_from_rannet(json.loads(str(arrays["config"]))))


@pytest.mark.parametrize("length", [5, 21, 33])  # one window; a short window at the end; a rest of one token, merged
def test_golden_numbers_of_rannet_are_met(length: int) -> None:
    arrays = golden(length)
    ids = torch.tensor(arrays["input_ids"])
    encoder = RanModel(config_of(arrays)).eval()
    encoder.load_state_dict(from_rannet(below(arrays, "encoder/weight/")))
    encoded = encoder(ids)
    masked_lm = RanForMaskedLM(config_of(arrays)).eval()
    masked_lm.load_state_dict(from_rannet(below(arrays, "mlm/weight/")))
    got = {
        "encoder/output_0": encoded.last_hidden_state,
        "encoder/output_1": encoded.pooler_output,
        "encoder/output_2": encoded.cell,
        "mlm/output_0": masked_lm(ids).logits,
    }
    for name, tensor in got.items():
        np.testing.assert_allclose(tensor.detach().numpy(), arrays[name], atol=5e-6, rtol=0, err_msg=name)
