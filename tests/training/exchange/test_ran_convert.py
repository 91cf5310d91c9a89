"""Weights of rannet become RAN."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import AutoModelForMaskedLM

from reread.preprocessing.errors import UserError
from reread.training.exchange.convert import convert
from reread.training.exchange.export import write_huggingface
from reread.training.models.build import build_model
from reread.training.models.ran import RanConfig, RanForCausalLM, RanForMaskedLM, RanModel
from reread.training.models.ran.convert import FORMS, config_from_rannet, from_rannet
from tests.conftest import GOLDEN


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
    encoder = RanModel(config_of(arrays)).double().eval()
    encoder.load_state_dict(from_rannet(below(arrays, "encoder/weight/")))
    encoded = encoder(ids)
    masked_lm = RanForMaskedLM(config_of(arrays)).double().eval()
    masked_lm.load_state_dict(from_rannet(below(arrays, "mlm/weight/")))
    got = {
        "encoder/output_0": encoded.last_hidden_state,
        "encoder/output_1": encoded.pooler_output,
        "encoder/output_2": encoded.cell,
        "mlm/output_0": masked_lm(ids).logits,
    }
    for name, tensor in got.items():
        np.testing.assert_allclose(tensor.detach().numpy(), arrays[name], atol=2e-5, rtol=0, err_msg=name)  # float32


def of_tensorflow(arrays: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """The names that rannet's export gives its numbered weights."""
    named, layer = {}, ""
    for numbered, array in arrays.items():
        name = numbered.split("|")[1].lower().removesuffix(":0").replace("window-loop/", "")
        layer = name.split("/")[0] if name.startswith("ran-") else layer
        name = f"{layer}/{name}" if name.startswith("cell-initializer") else name
        name = f"mlm-hidden/{name}" if name.startswith(("dense/", "layernorm/")) else name
        named[f"rannet/{name}"] = array
    return named


def test_an_exported_tensorflow_checkpoint_has_the_same_weights(caplog: pytest.LogCaptureFixture) -> None:
    numbered = below(golden(5), "mlm/weight/")
    expected, named = from_rannet(numbered), of_tensorflow(numbered)
    assert {"rannet/ran-1/cell-initializer/kernel", "rannet/mlm-hidden/layernorm/beta"} <= named.keys()
    training = {"optimizer/iter": np.zeros(()), "_CHECKPOINTABLE_OBJECT_GRAPH": np.zeros(())}
    with caplog.at_level("INFO", "reread"):
        got = from_rannet({**named, **training})
    assert "ignored 2 tensors" in caplog.text
    assert got.keys() == expected.keys() == RanForMaskedLM(config_of(golden(5))).state_dict().keys()
    assert all(torch.equal(got[name], expected[name]) for name in got)
    form = next(form for form in FORMS if form.reason({"ran_layers": 2}))
    with caplog.at_level("INFO", "reread"):
        weights = form.weights({**named, "rannet/output-cell-dense/kernel": np.zeros((12, 12))})
    assert weights.keys() == got.keys() - {"cls.predictions.decoder.weight", "cls.predictions.decoder.bias"}
    assert "left out, not part of a language model: ran.pooler.cell.weight" in caplog.text


def test_weights_without_heads_are_for_a_bare_model() -> None:
    numbered = below(golden(5), "encoder/weight/")
    body = {name: array for name, array in numbered.items() if "Output-" not in name}
    RanModel(config_of(golden(5))).load_state_dict(from_rannet(numbered))
    RanModel(config_of(golden(5)), add_pooling_layer=False).load_state_dict(from_rannet(body))


def test_what_is_no_part_of_ran_is_refused() -> None:
    numbered = below(golden(5), "encoder/weight/")
    with pytest.raises(UserError, match=r"other/kernel: not part of RAN; give a checkpoint written by rannet's RanNet"):
        from_rannet({**numbered, "rannet/other/kernel": np.zeros((12, 12))})
    with pytest.raises(UserError, match=r"another tensor is already embeddings\.word_embeddings\.weight"):
        from_rannet({**numbered, "rannet/token-embedding/embeddings": np.zeros((37, 12))})


def test_settings_of_rannet_become_ours() -> None:
    config = config_of(golden(5))
    sizes = (config.hidden_size, config.head_size, config.num_attention_heads, config.num_hidden_layers)
    assert (*sizes, config.window_size, config.min_window_size) == (12, 4, 3, 2, 8, 3)
    assert (config.profile, config.hidden_dropout_prob, config.attention_probs_dropout_prob) == ("rannet", 0.1, 0.1)
    bare = RanConfig(**config_from_rannet({"vocab_size": 9}))
    assert (bare.hidden_size, bare.head_size, bare.num_attention_heads) == (512, 128, 8)
    assert (bare.window_size, bare.min_window_size) == (256, 16)
    with pytest.raises(ValueError, match="cell_initializer_type is mean"):
        config_from_rannet({"vocab_size": 9, "cell_initializer_type": "mean"})


def test_an_exported_folder_is_converted_to_itself(tmp_path: Path) -> None:
    torch.manual_seed(0)
    sizes = {"vocab_size": 40, "hidden_size": 12, "num_attention_heads": 2, "head_size": 4, "window_size": 8}
    model = RanForMaskedLM(RanConfig(profile="paper", **sizes)).eval()  # type: ignore[arg-type]
    model.save_pretrained(tmp_path / "ours")
    convert(tmp_path / "ours", tmp_path / "converted", "ran")
    ours = RanForMaskedLM.from_pretrained(tmp_path / "converted").eval()
    exported = AutoModelForMaskedLM.from_pretrained(tmp_path / "converted", trust_remote_code=True).eval()
    assert type(exported) is not RanForMaskedLM
    ids = torch.arange(1, 21)[None]
    for again in (ours, exported):
        assert all(torch.equal(again.state_dict()[name], tensor) for name, tensor in model.float().state_dict().items())
        # bits depend on where the weights lie
        torch.testing.assert_close(again.double()(ids).logits, model.double()(ids).logits)


def test_a_model_of_adaptive_words_needs_no_conversion_and_says_so(tmp_path: Path) -> None:
    sizes = {"vocab_size": 7, "hidden_size": 16, "num_attention_heads": 2, "head_size": 8}
    model = RanForCausalLM(RanConfig(**sizes, cutoffs=[2, 4], div_val=2))
    write_huggingface(tmp_path / "words", model, None, "card")
    with pytest.raises(UserError, match=r"it has adaptive words \(cutoffs\) and needs no conversion"):
        convert(tmp_path / "words", tmp_path / "out", "ran")
    again = build_model(RanForCausalLM, model.config, tmp_path / "words", 0)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))
