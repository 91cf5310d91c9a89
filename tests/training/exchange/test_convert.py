"""`reread convert` for models whose names are tested elsewhere."""

import json
import logging
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from reread.preprocessing.errors import UserError
from reread.training.exchange.convert import convert
from reread.training.models import model_spec
from reread.training.models.build import model_config
from reread.training.models.nezha.convert import FORMS
from reread.training.models.transformer_xl import TransformerXLForCausalLM
from tests.conftest import GOLDEN

NUMBERS = GOLDEN / "transfo_xl.npz"


def test_transformer_xl_of_transformers_gives_its_numbers_from_the_folder(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    golden = np.load(NUMBERS)
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


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A tiny BERT, from which a Longformer is made, and its configuration."""
    from transformers import RobertaConfig, RobertaForMaskedLM

    folder = tmp_path_factory.mktemp("roberta")
    sizes = {"num_hidden_layers": 1, "num_attention_heads": 2, "hidden_size": 8, "intermediate_size": 16}
    config = RobertaConfig(vocab_size=30, max_position_embeddings=18, **sizes)
    RobertaForMaskedLM(config).save_pretrained(folder)
    convert(folder, folder.parent / "out", "longformer", length=32, window=4)
    return folder, json.loads((folder / "config.json").read_text())


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ([], "not the configuration of a model"),
        (None, "not the configuration of a model"),
        ({"num_attention_heads": 0}, ""),
        ({"num_attention_heads": "two"}, ""),
        ({"num_hidden_layers": 10**9}, r"num_hidden_layers is 1 to 1,024 \(got 1000000000\)"),
        ({"num_hidden_layers": 100}, "100 layers, but model.safetensors holds"),
        ({"num_hidden_layers": -1}, ""),
        ({"num_hidden_layers": None}, ""),
        ({"hidden_size": 10**9}, ""),
        ({"hidden_size": -8}, ""),
        ({"hidden_size": [8]}, ""),
        ({"vocab_size": 10**15}, ""),
        ({"intermediate_size": 10**12}, ""),
        ({"max_position_embeddings": 10**12}, ""),
        ({"model_type": ["roberta"]}, ""),
        ({"layer_norm_eps": "x"}, ""),
    ],
    ids=str,
)
def test_a_configuration_that_is_not_of_these_weights_is_one_line(bert, tmp_path, change, line) -> None:
    """And not a traceback, nor all the memory of the machine."""
    folder, config = bert
    source = tmp_path / "source"
    shutil.copytree(folder, source)
    (source / "config.json").write_text(json.dumps({**config, **change} if isinstance(change, dict) else change))
    with pytest.raises(UserError, match=f"^{source}.*{line}") as raised:
        convert(source, tmp_path / "out", "longformer", length=32, window=4)
    assert len(str(raised.value).splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_a_converted_folder_follows_the_umask(bert, tmp_path) -> None:
    """safetensors makes its files 0600, which nobody else could read."""
    before = os.umask(0o022)
    try:
        convert(bert[0], tmp_path / "out", "longformer", length=32, window=4)
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "out").iterdir()} == {0o644}


def test_what_cannot_be_converted_names_what_it_can_become(bert, tmp_path, caplog) -> None:
    """`reread convert`, whose default is NEZHA, and a start; a BERT with NEZHA's own keys is a NEZHA."""
    source, out = bert[0], tmp_path / "out"
    config = json.loads((source / "config.json").read_text())
    hint = r"`reread convert --model` makes ernie_doc or longformer or roberta of it$"
    with pytest.raises(UserError, match=f"weights of a model of type roberta cannot be converted to nezha; .*{hint}"):
        convert(source, out)
    with pytest.raises(
        UserError, match=f"is of a model of type roberta, not nezha; write model.type=roberta, or {hint}"
    ):
        model_config(model_spec("nezha"), {}, 50, source)
    bert_folder = tmp_path / "bert"
    shutil.copytree(source, bert_folder)
    config |= {"model_type": "bert"}
    (bert_folder / "config.json").write_text(json.dumps(config))
    for model in ("nezha", "ernie_doc"):
        with pytest.raises(UserError, match=f"not {model}; use `reread convert` first$"):
            model_config(model_spec(model), {}, 50, bert_folder)
    with caplog.at_level(logging.INFO, "reread"):
        convert(bert_folder, out, "ernie_doc")
    assert "drawn at random, as BERT has no such parameters: " in caplog.text
    (bert_folder / "config.json").write_text(json.dumps({**config, "model_type": "gpt2"}))
    nothing = r"`reread convert` makes nothing of it; models here are nezha, .*, electra, bart, led$"
    with pytest.raises(UserError, match=f"is of a model of type gpt2, not nezha; {nothing}"):
        model_config(model_spec("nezha"), {}, 50, bert_folder)
    nezha, plain, _ = FORMS
    assert nezha.reason({"model_type": "nezha"}) and nezha.reason({}) and not nezha.reason(config)
    assert plain.reason(config) and not plain.reason({}) and not plain.reason({**config, "max_relative_position": 64})
    assert nezha.reason({**config, "max_relative_position": 64})
