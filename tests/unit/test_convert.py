"""`reread convert` for models whose names are tested elsewhere."""

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from training.checkpoint.convert import convert
from training.models.transformer_xl import TransformerXLForCausalLM

GOLDEN = Path(__file__).parent.parent / "golden" / "transfo_xl.npz"


def test_transformer_xl_of_transformers_gives_its_numbers_from_the_folder(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    golden = np.load(GOLDEN)
    source = tmp_path / "source"
    source.mkdir()
    config = json.loads(str(golden["config"]))
    (source / "config.json").write_text(json.dumps({**config, "model_type": "transfo-xl"}))
    weights = {name[7:]: torch.from_numpy(golden[name]) for name in golden if name.startswith("weight/")}
    torch.save(weights, source / "pytorch_model.bin")
    with caplog.at_level(logging.INFO, "reread"):
        convert(source, tmp_path / "out", "transformer_xl")
    assert "as Transformer-XL of transformers: its model_type is transfo-xl" in caplog.text
    assert "no tokenizer in the converted folder" in caplog.text
    model: Any = TransformerXLForCausalLM.from_pretrained(tmp_path / "out").eval()
    ids = torch.from_numpy(golden["input_ids_0"])
    empty = [torch.zeros(golden[f"mem_0_{layer}"].shape).double() for layer in range(model.config.n_layer)]
    found = model.double()(ids, mems=empty).logits.float()
    torch.testing.assert_close(found, torch.from_numpy(golden["log_probs_0"]), rtol=0, atol=2e-5)
