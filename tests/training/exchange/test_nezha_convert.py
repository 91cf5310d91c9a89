"""Weights of transformers, Huawei, lonePatient and TensorFlow become the same NEZHA."""

import importlib.util
import json
import logging
import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import BertTokenizer

from reread.preprocessing.errors import UserError
from reread.preprocessing.tokens.base import read_backend
from reread.training.data.tasks.dataset import special_tokens
from reread.training.exchange.convert import convert
from reread.training.models.nezha import NezhaConfig, NezhaForPreTraining
from reread.training.models.nezha.convert import config_values, from_huggingface_like, from_tensorflow
from tests.conftest import extra

VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "中", "国", "##a", "a"]
SIZES: dict[str, Any] = {
    "vocab_size": 9,
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 12,
    "hidden_act": "gelu",
    "max_relative_position": 4,
}
HUAWEI = {**SIZES, "use_relative_position": True, "type_vocab_size": 2, "max_position_embeddings": 512}
TENSORFLOW = {key: value for key, value in HUAWEI.items() if key != "max_relative_position"} | {"pooler_fc_size": 8}


@pytest.fixture(scope="module")
def model() -> NezhaForPreTraining:
    torch.manual_seed(0)
    model = NezhaForPreTraining(NezhaConfig(**SIZES)).eval()
    for parameter in model.parameters():  # biases and layer norms too, or a swap would go unseen
        torch.nn.init.normal_(parameter)
    return model


@pytest.fixture
def transformers_names(model: NezhaForPreTraining) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def huawei_names(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.replace("nezha.", "bert."): tensor for name, tensor in weights.items()}


def tensorflow_arrays(weights: dict[str, Tensor]) -> dict[str, NDArray[Any]]:
    """As NEZHA's training code leaves them: kernels [in, out], optimizer slots beside the weights."""
    arrays: dict[str, NDArray[Any]] = {}
    for name, tensor in weights.items():
        if "decoder" in name:
            continue
        array = tensor.numpy()
        parts = name.replace("nezha.", "bert.").replace("encoder.layer.", "encoder.layer_").split(".")
        if "embeddings" in parts[-2]:
            parts.pop()
        elif parts[1] == "seq_relationship":
            parts[-1] = "output_weights" if parts[-1] == "weight" else "output_bias"
        elif parts[:2] == ["cls", "predictions"] and len(parts) == 3:
            parts[-1] = "output_bias"
        elif parts[-2] == "LayerNorm":
            parts[-1] = {"weight": "gamma", "bias": "beta"}[parts[-1]]
        elif parts[-1] == "weight":
            parts[-1], array = "kernel", np.ascontiguousarray(array.T)
        arrays["/".join(parts)] = array
    slots = {f"{name}/{slot}": -array for name, array in arrays.items() for slot in ("lamb_m", "lamb_v", "adam_m")}
    numbers = {name: np.array(7) for name in ("global_step", "good_steps", "bad_steps", "loss_scale", "x/loss_scale")}
    return {**slots, **arrays, **numbers}


def source_folder(folder: Path, config: dict[str, Any], name: str = "config.json") -> Path:
    folder.mkdir()
    (folder / name).write_text(json.dumps(config), encoding="utf-8")
    (folder / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n", encoding="utf-8")
    return folder


def assert_equal_weights(weights: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert set(weights) == {name for name in expected if "decoder" not in name}
    for name, tensor in weights.items():
        assert torch.equal(tensor, expected[name]), name


def test_names_of_transformers_and_huawei_are_read(transformers_names: dict[str, Tensor]) -> None:
    assert_equal_weights(from_huggingface_like(transformers_names), transformers_names)
    assert_equal_weights(from_huggingface_like(huawei_names(transformers_names)), transformers_names)


def test_old_names_half_precision_and_kept_tables_are_read(transformers_names: dict[str, Tensor]) -> None:
    source = {}
    for name, tensor in huawei_names(transformers_names).items():
        old = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
        source["module." + old] = tensor.half()
    table = "module.bert.encoder.layer.0.attention.self.relative_positions_encoding.positions_encoding"
    source[table] = torch.zeros(4, 4, 4)
    source["module.bert.embeddings.position_ids"] = torch.arange(512)[None]
    expected = {name: tensor.half().float() for name, tensor in transformers_names.items()}
    assert_equal_weights(from_huggingface_like(source), expected)


def test_tensorflow_variables_are_transposed_and_optimizer_slots_left(
    transformers_names: dict[str, Tensor], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "reread"):
        weights = from_tensorflow(tensorflow_arrays(transformers_names))
    assert_equal_weights(weights, transformers_names)
    assert "the optimizer's state: bert/" in caplog.text


def test_an_untied_decoder_is_refused(transformers_names: dict[str, Tensor]) -> None:
    transformers_names["cls.predictions.decoder.weight"] += 1
    with pytest.raises(UserError, match="decoder is not tied"):
        from_huggingface_like(transformers_names)


def test_two_tensors_for_one_name_are_refused(transformers_names: dict[str, Tensor]) -> None:
    transformers_names["bert.pooler.dense.bias"] = torch.zeros(8)
    with pytest.raises(UserError, match=r"bert\.pooler\.dense\.bias: another tensor"):
        from_huggingface_like(transformers_names)


def test_settings_of_every_source_are_understood(caplog: pytest.LogCaptureFixture) -> None:
    assert NezhaConfig(**config_values(HUAWEI, tensorflow=False)).hidden_act == "gelu"
    with caplog.at_level(logging.INFO, "reread"):
        values = config_values(TENSORFLOW, tensorflow=True)
    assert (values["hidden_act"], values["max_relative_position"]) == ("gelu_new", 64)
    assert "pooler_fc_size" not in values
    assert "trained with the tanh form" in caplog.text
    absolute = config_values({**HUAWEI, "use_relative_position": False}, tensorflow=False)
    assert absolute["position_type"] == "parametric_absolute"


@pytest.mark.parametrize("kind", ["bin", "safetensors", "folder"])
def test_a_converted_folder_gives_the_logits_of_its_source(
    tmp_path: Path, model: NezhaForPreTraining, transformers_names: dict[str, Tensor], kind: str
) -> None:
    folder = source_folder(tmp_path / "source", HUAWEI, "bert_config.json")
    source = folder / ("model.safetensors" if kind == "safetensors" else "pytorch_model.bin")
    (save_file if kind == "safetensors" else torch.save)(huawei_names(transformers_names), source)
    convert(folder if kind == "folder" else source, tmp_path / "out")
    converted = NezhaForPreTraining.from_pretrained(tmp_path / "out").eval()
    ids = torch.arange(18).view(2, 9) % 9
    ours, theirs = converted(ids), model(ids)
    assert torch.equal(ours.prediction_logits, theirs.prediction_logits)
    assert torch.equal(ours.seq_relationship_logits, theirs.seq_relationship_logits)
    settings = json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())
    named = {f"{role}_token": f"[{role.upper()}]" for role in ("pad", "unk", "cls", "sep", "mask")}
    assert settings == {"tokenizer_class": "BertTokenizer", "do_lower_case": True, "model_max_length": 512, **named}


def test_a_vocabulary_alone_becomes_a_tokenizer_that_tasks_are_read_with(
    tmp_path: Path, transformers_names: dict[str, Tensor]
) -> None:
    folder = source_folder(tmp_path / "source", HUAWEI)
    torch.save(transformers_names, folder / "pytorch_model.bin")
    convert(folder, tmp_path / "out")
    tokenizer = read_backend(tmp_path / "out" / "tokenizer.json")
    assert set(special_tokens(tmp_path / "out", tokenizer.get_vocab())) == {"pad", "unk", "cls", "sep", "mask"}
    (tmp_path / "out" / "tokenizer.json").rename(tmp_path / "tokenizer.json")
    theirs = BertTokenizer.from_pretrained(tmp_path / "out", local_files_only=True)
    for text in ("中国aa", "A 中"):
        assert tokenizer.encode(text, add_special_tokens=False).ids == theirs(text, add_special_tokens=False).input_ids


def test_a_source_without_heads_leaves_them_out_and_says_so(
    tmp_path: Path, transformers_names: dict[str, Tensor], caplog: pytest.LogCaptureFixture
) -> None:
    folder = source_folder(tmp_path / "source", HUAWEI)
    prefix = "nezha."
    bare = {name.removeprefix(prefix): tensor for name, tensor in transformers_names.items() if prefix in name}
    torch.save(bare, folder / "pytorch_model.bin")
    with caplog.at_level(logging.INFO, "reread"):
        convert(folder, tmp_path / "out")
    assert "left out, as the source lacks them: cls.predictions.bias" in caplog.text
    assert set(load_file(tmp_path / "out" / "model.safetensors")) == {prefix + name for name in bare}


def refused(tmp_path: Path, weights: Any, config: dict[str, Any] | None = None) -> str:
    folder = source_folder(tmp_path / "source", config or HUAWEI)
    torch.save(weights, folder / "pytorch_model.bin")
    with pytest.raises(UserError) as error:
        convert(folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert "\n" not in str(error.value)
    return str(error.value)


def test_missing_unexpected_and_misshapen_weights_are_listed(
    tmp_path: Path, transformers_names: dict[str, Tensor]
) -> None:
    weights = huawei_names(transformers_names)
    del weights["bert.encoder.layer.1.output.dense.bias"]
    weights["bert.embeddings.position_embeddings.weight"] = torch.zeros(512, 8)
    weights["bert.pooler.dense.weight"] = torch.zeros(4, 8)
    message = refused(tmp_path, weights)
    assert "nezha.encoder.layer.1.output.dense.bias is missing" in message
    assert "nezha.embeddings.position_embeddings.weight is unexpected" in message
    assert "nezha.pooler.dense.weight is [4, 8], but by the configuration [8, 8]" in message


class Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path("exploded"),)


def test_a_pickle_that_would_run_code_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, transformers_names: dict[str, Tensor]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "can run code" in refused(tmp_path, {**transformers_names, "bomb": Bomb()})
    (tmp_path / "source" / "pytorch_model.bin").write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(UserError, match="can run code"):
        convert(tmp_path / "source", tmp_path / "out")
    assert not Path("exploded").exists()


def test_a_pickle_of_a_builtin_command_is_refused_as_such(tmp_path: Path) -> None:
    class Command:
        def __reduce__(self) -> Any:
            return os.system, ("true",)

    assert "can run code" in refused(tmp_path, {"bomb": Command()})


def test_a_training_state_is_refused(tmp_path: Path, transformers_names: dict[str, Tensor]) -> None:
    assert "not a dictionary of tensors" in refused(tmp_path, {"net": transformers_names, "step": 3})


def test_settings_that_do_not_fit_are_refused(tmp_path: Path, transformers_names: dict[str, Tensor]) -> None:
    message = refused(tmp_path, transformers_names, {**HUAWEI, "hidden_act": "swish"})
    assert "config.json: hidden_act is one of gelu, gelu_new, relu, not 'swish'" in message


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.safetensors"])
@pytest.mark.parametrize("kept", [0, 10, 2000, 5000])
def test_a_truncated_file_is_refused(
    tmp_path: Path, transformers_names: dict[str, Tensor], name: str, kept: int
) -> None:
    folder = source_folder(tmp_path / "source", HUAWEI)
    (torch.save if name.endswith(".bin") else save_file)(transformers_names, folder / name)
    (folder / name).write_bytes((folder / name).read_bytes()[:kept])
    with pytest.raises(UserError, match=f"{name}: .*was the download complete"):
        convert(folder, tmp_path / "out")


def test_sources_without_weights_configuration_or_room_for_the_vocabulary_are_refused(
    tmp_path: Path, transformers_names: dict[str, Tensor]
) -> None:
    folder = source_folder(tmp_path / "source", HUAWEI)
    with pytest.raises(UserError, match="holds no weights"):
        convert(folder, tmp_path / "out")
    with pytest.raises(UserError, match="not there"):
        convert(tmp_path / "nowhere", tmp_path / "out")
    torch.save(transformers_names, folder / "pytorch_model.bin")
    with pytest.raises(UserError, match="holds the weights to convert"):
        convert(folder, folder)
    (folder / "vocab.txt").write_text("\n".join([*VOCABULARY, "more"]), encoding="utf-8")
    with pytest.raises(UserError, match=r"vocab\.txt: 10 tokens, but the configuration's vocab_size is 9"):
        convert(folder, tmp_path / "out")
    (folder / "config.json").unlink()
    with pytest.raises(UserError, match="no config"):
        convert(folder, tmp_path / "out")


def test_a_tensorflow_checkpoint_without_tensorflow_names_the_extra(tmp_path: Path) -> None:
    if importlib.util.find_spec("tensorflow"):
        pytest.skip("tensorflow is installed")
    folder = source_folder(tmp_path / "source", TENSORFLOW)
    (folder / "model.ckpt-5.index").write_bytes(b"")
    for source in (folder, folder / "model.ckpt-5"):
        with pytest.raises(UserError, match=r"reread\[tensorflow\]"):
            convert(source, tmp_path / "out")


def test_a_tensorflow_checkpoint_becomes_the_same_model(tmp_path: Path, transformers_names: dict[str, Tensor]) -> None:
    tensorflow = extra("tensorflow", "tensorflow")
    v1 = tensorflow.compat.v1
    folder = source_folder(tmp_path / "source", TENSORFLOW)
    with v1.Graph().as_default(), v1.Session() as session:
        for name, array in tensorflow_arrays(transformers_names).items():
            v1.get_variable(name, initializer=array, use_resource=False)
        session.run(v1.global_variables_initializer())
        v1.train.Saver().save(session, str(folder / "model.ckpt"), global_step=5)
    convert(folder / "model.ckpt-5", tmp_path / "prefix")
    convert(folder, tmp_path / "folder")
    assert_equal_weights(load_file(tmp_path / "prefix" / "model.safetensors"), transformers_names)
    assert_equal_weights(load_file(tmp_path / "folder" / "model.safetensors"), transformers_names)
    assert NezhaConfig.from_pretrained(tmp_path / "prefix").hidden_act == "gelu_new"
    shutil.copyfile(folder / "vocab.txt", folder / "model.ckpt-5.data-00000-of-00001")
    with pytest.raises(UserError, match="cannot be read"):
        convert(folder, tmp_path / "broken")
