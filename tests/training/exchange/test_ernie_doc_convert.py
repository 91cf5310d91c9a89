"""Weights of PaddleNLP, of the static release, of RoBERTa and of our own exports become the same ERNIE-Doc."""

import json
import logging
import os
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from transformers import AutoTokenizer, BertConfig, BertForMaskedLM, RobertaConfig, RobertaForMaskedLM

from reread.preprocessing.errors import UserError
from reread.training.exchange.convert import convert
from reread.training.models.ernie_doc import ErnieDocConfig, ErnieDocForPreTraining, ErnieDocModel
from reread.training.models.ernie_doc.convert import (
    PADDLENLP,
    config_from_paddlenlp,
    config_from_roberta,
    from_paddlenlp,
    from_roberta,
    from_static,
)
from tests.conftest import GOLDEN, shared
from tests.training.exchange.test_paddle import variable

NUMBERS = GOLDEN / "ernie_doc.npz"
VOCABULARY = ["[PAD]", "[CLS]", "[SEP]", "[MASK]", "中", "国", "a", "##a", "[UNK]"]
STATIC_CONFIG: dict[str, Any] = {
    "attention_probs_dropout_prob": 0.0,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.0,
    "hidden_size": 8,
    "initializer_range": 0.02,
    "max_position_embeddings": 6,
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
    "sent_type_vocab_size": 4,
    "task_type_vocab_size": 3,
    "vocab_size": 9,
    "memory_len": 4,
    "epsilon": 1e-12,
}
"""The keys of the released ernie_config.json."""
IDS = torch.tensor([[4, 5, 6, 7, 2, 1], [5, 4, 2, 0, 0, 1]])
MASK = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 1]])


@pytest.fixture(scope="module")
def model() -> ErnieDocForPreTraining:
    torch.manual_seed(0)
    model = ErnieDocForPreTraining(ErnieDocConfig(**config_from_paddlenlp(STATIC_CONFIG))).eval()
    for parameter in model.parameters():  # biases and layer norms too, or a swap would go unseen
        torch.nn.init.normal_(parameter)
    return model


def untied(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in weights.items() if ".decoder." not in name}


def static_arrays(weights: dict[str, Tensor]) -> dict[str, NDArray[Any]]:
    """Named and laid out as the static release, with what an optimizer leaves."""
    rules = (
        (r"^ernie_doc\.embeddings\.word_embeddings\.weight$", "word_embedding"),
        (r"^ernie_doc\.embeddings\.position_embeddings\.weight$", "pos_embedding"),
        (r"^ernie_doc\.embeddings\.token_type_embeddings\.weight$", "task_embedding"),
        (r"^ernie_doc\.embeddings\.word_layer_norm\.", "pre_encoder_emb_layer_norm_"),
        (r"^ernie_doc\.embeddings\.position_layer_norm\.", "pre_encoder_r_pos_layer_norm_"),
        (r"^ernie_doc\.embeddings\.token_type_layer_norm\.", "pre_encoder_r_task_layer_norm_"),
        (r"^ernie_doc\.encoder\.layer\.(\d+)\.", r"encoder_layer_\1_"),
        (r"attention\.self\.content_bias", "multi_head_att_r_w_bias"),
        (r"attention\.self\.position_bias", "multi_head_att_r_r_bias"),
        (r"attention\.self\.token_type_bias", "multi_head_att_r_t_bias"),
        (r"attention\.self\.position\.", "multi_head_att_pos_fc."),
        (r"attention\.self\.token_type\.", "multi_head_att_task_fc."),
        (r"attention\.self\.(query|key|value)\.", r"multi_head_att_\1_fc."),
        (r"attention\.output\.dense\.", "multi_head_att_output_fc."),
        (r"attention\.output\.LayerNorm\.", "post_att_layer_norm_"),
        (r"intermediate\.dense\.", "ffn_fc_0."),
        (r"(?<=\d_)output\.dense\.", "ffn_fc_1."),
        (r"(?<=\d_)output\.LayerNorm\.", "post_ffn_layer_norm_"),
        (r"^ernie_doc\.pooler\.dense\.", "pooled_fc."),
        (r"^cls\.predictions\.transform\.dense\.", "mask_lm_trans_fc."),
        (r"^cls\.predictions\.transform\.LayerNorm\.", "mask_lm_trans_layer_norm_"),
        (r"^cls\.predictions\.bias$", "mask_lm_out_fc.b_0"),
        (r"^cls\.segment_reorder\.", "multi_sent_sorted_fc."),
        (r"norm_weight$", "norm_scale"),
        (r"fc(_\d)?\.weight$", r"fc\1.w_0"),
        (r"fc(_\d)?\.bias$", r"fc\1.b_0"),
    )
    arrays: dict[str, NDArray[Any]] = {}
    for name, tensor in untied(weights).items():
        new = name
        for pattern, replacement in rules:
            new = re.sub(pattern, replacement, new)
        arrays[new] = tensor.numpy().T.copy() if new.endswith("w_0") else tensor.numpy()
    slots = {f"{name}_{slot}": -array for name, array in arrays.items() for slot in ("moment1_0", "beta1_pow_acc_0")}
    return {**slots, **arrays, "learning_rate_0": np.ones(1, np.float32), "@LR_DECAY_COUNTER@": np.ones(1, np.int64)}


def paddlenlp_arrays(weights: dict[str, Tensor]) -> dict[str, NDArray[Any]]:
    """By the table backwards; the golden numbers show that the table is right."""
    arrays: dict[str, NDArray[Any]] = {}
    for name, tensor in weights.items():
        number = re.search(r"(?<=layer\.)\d+", name)
        leaf = re.search("(weight|bias)$", name)
        assert leaf
        for theirs, ours in PADDLENLP.items():
            filled = {"n": number and number[0], "leaf": leaf[0]}
            if ours.format(**filled) == name:
                matrix = tensor.dim() == 2 and "embeddings" not in name
                arrays[theirs.format(**filled)] = tensor.numpy().T.copy() if matrix else tensor.numpy()
    assert len(arrays) == len(weights)
    return arrays


def assert_equal_weights(weights: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert set(weights) == set(expected)
    for name, tensor in weights.items():
        assert tensor.dtype == torch.float32
        assert torch.equal(tensor, expected[name]), name


def test_paddlenlps_weights_give_paddlenlps_numbers() -> None:
    golden = np.load(NUMBERS)
    config = ErnieDocConfig(**config_from_paddlenlp(json.loads(str(golden["config"]))), official_memory=True)
    model = ErnieDocModel(config).eval()
    model.load_state_dict(from_paddlenlp({name[7:]: golden[name] for name in golden if name.startswith("weight/")}))
    mems = None
    for segment in range(4):
        inputs = [torch.from_numpy(golden[f"{name}_{segment}"]) for name in ("input_ids", "attention_mask", "type_ids")]
        output = model(*inputs, mems)
        mems = output.mems
        found = [output.last_hidden_state, output.pooler_output, *mems]
        wanted = [f"hidden_{segment}", f"pooled_{segment}", *(f"memory_{segment}_{layer}" for layer in range(3))]
        for ours, theirs in zip(found, wanted, strict=True):
            torch.testing.assert_close(ours, torch.from_numpy(golden[theirs]), rtol=0, atol=1e-4, msg=theirs)  # float32


def test_names_below_a_prefix_keep_it_and_heads_of_tasks_are_left_out(
    model: ErnieDocForPreTraining, caplog: pytest.LogCaptureFixture
) -> None:
    expected = {f"ernie_doc.{name}": tensor for name, tensor in model.ernie_doc.state_dict().items()}
    arrays = {f"ernie_doc.{name}": array for name, array in paddlenlp_arrays(model.ernie_doc.state_dict()).items()}
    with caplog.at_level(logging.INFO, "reread"):
        weights = from_paddlenlp({**arrays, "linear.weight": np.zeros((8, 2)), "linear.bias": np.zeros(2)})
    assert_equal_weights(weights, expected)
    assert "left out, not part of ERNIE-Doc: linear.weight, linear.bias" in caplog.text


def test_the_static_release_gives_body_and_pretraining_heads(
    model: ErnieDocForPreTraining, caplog: pytest.LogCaptureFixture
) -> None:
    arrays = static_arrays(model.state_dict())
    with caplog.at_level(logging.INFO, "reread"):
        weights = from_static(arrays)
    assert_equal_weights(weights, untied(model.state_dict()))
    assert "word_embedding_moment1_0" in caplog.text
    with pytest.raises(UserError, match="a matrix of its own"):
        from_static({**arrays, "mask_lm_out_fc.w_0": np.zeros((8, 9))})


def test_settings_of_paddle_are_understood_however_they_are_nested() -> None:
    flat = config_from_paddlenlp(STATIC_CONFIG)
    assert flat["layer_norm_eps"] == 1e-12
    assert (flat["memory_length"], flat["type_vocab_size"], flat["attention_probs_dropout_prob"]) == (4, 3, 0.0)
    assert "official_memory" not in flat
    body = {**STATIC_CONFIG, "rel_pos_params_sharing": False, "relu_dropout": 0.0, "init_class": "ErnieDocModel"}
    head = {"init_args": [body], "num_classes": 2, "init_class": "ErnieDocForSequenceClassification"}
    assert config_from_paddlenlp(head) == flat
    assert config_from_paddlenlp({"architectures": ["ErnieDocModel"]}) == {"layer_norm_eps": 1e-5}


@pytest.mark.parametrize("key", ["rel_pos_params_sharing", "normalize_before"])
def test_models_that_ours_cannot_be_are_refused(key: str) -> None:
    with pytest.raises(ValueError, match=f"{key} is True"):
        config_from_paddlenlp({**STATIC_CONFIG, key: True})


def roberta_like(kind: str) -> Any:
    """A tiny random RoBERTa or BERT without positions, whose type row is not zero."""
    torch.manual_seed(1)
    sizes: dict[str, Any] = {
        "vocab_size": 9,
        "hidden_size": 8,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 20,
        "max_position_embeddings": 16,
        "layer_norm_eps": 1e-5,  # RoBERTa's, and that of ERNIE-Doc's embeddings
    }
    source: Any = (
        RobertaForMaskedLM(RobertaConfig(**sizes, type_vocab_size=1, pad_token_id=0))
        if kind == "roberta"
        else BertForMaskedLM(BertConfig(**sizes))
    )
    for parameter in source.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    torch.nn.init.zeros_(source.base_model.embeddings.position_embeddings.weight)
    return source.eval()


@pytest.mark.parametrize("kind", ["roberta", "bert"])
def test_without_positions_a_start_from_roberta_is_roberta(kind: str) -> None:
    source = roberta_like(kind)
    model = ErnieDocForPreTraining(ErnieDocConfig(**config_from_roberta(source.config.to_dict()))).eval()
    found = model.load_state_dict(from_roberta(source.state_dict()), strict=False)
    assert not found.unexpected_keys
    assert {re.sub(r"\d+", "N", name) for name in found.missing_keys if ".decoder." not in name} == {
        "ernie_doc.embeddings.position_embeddings.weight",
        "ernie_doc.embeddings.token_type_embeddings.weight",
        *(f"ernie_doc.embeddings.{norm}_layer_norm.{leaf}" for norm in ("position", "token_type") for leaf in LEAVES),
        *(f"{SELF}.{part}.{leaf}" for part in ("position", "token_type") for leaf in LEAVES),
        *(f"{SELF}.{part}_bias" for part in ("content", "position", "token_type")),
        *(f"{part}.{leaf}" for part in ("ernie_doc.pooler.dense", "cls.segment_reorder") for leaf in LEAVES),
    }
    for name, parameter in model.named_parameters():
        if ".attention.self." in name and not any(part in name for part in ("query", "key", "value")):
            torch.nn.init.zeros_(parameter)  # the terms of positions and types
    model, source = model.double(), source.double()
    with torch.no_grad():
        theirs = source(IDS, attention_mask=MASK, output_hidden_states=True)
        ours = model(IDS, MASK, torch.zeros_like(IDS), output_hidden_states=True)
    tokens = MASK.bool()
    for mine, other in zip(ours.hidden_states, theirs.hidden_states, strict=True):
        torch.testing.assert_close(mine[tokens], other[tokens], rtol=0, atol=1e-6)  # two tables are one, in float32
    probabilities = [logits.log_softmax(-1)[tokens] for logits in (ours.prediction_logits, theirs.logits)]
    torch.testing.assert_close(*probabilities, rtol=0, atol=1e-6)


LEAVES = ("weight", "bias")
SELF = "ernie_doc.encoder.layer.N.attention.self"


def test_a_decoder_of_its_own_is_refused() -> None:
    weights = {name: tensor.clone() for name, tensor in roberta_like("roberta").state_dict().items()}
    weights["lm_head.decoder.weight"] += 1
    with pytest.raises(UserError, match=r"lm_head\.decoder\.weight differs from .*: this decoder is not tied"):
        from_roberta(weights)


def logits(folder: Path) -> list[Tensor]:
    loaded: Any = ErnieDocForPreTraining.from_pretrained(folder).eval()
    first = loaded(IDS, MASK)
    second = loaded(IDS, MASK, mems=first.mems)
    return [first.prediction_logits, first.reorder_logits, second.prediction_logits]


def with_vocabulary(folder: Path, config: dict[str, Any], name: str) -> Path:
    folder.mkdir()
    (folder / name).write_text(json.dumps(config), encoding="utf-8")
    lines = [f"{token}\t{row}" for row, token in enumerate(VOCABULARY)]  # as ERNIE's are
    (folder / "vocab.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def static_folder(folder: Path, model: ErnieDocForPreTraining) -> Path:
    with_vocabulary(folder, STATIC_CONFIG, "ernie_config.json")
    (folder / "params").mkdir()
    for name, array in static_arrays(model.state_dict()).items():
        (folder / "params" / name).write_bytes(variable(array, 5 if array.dtype == np.float32 else 3))
    return folder


def test_a_static_folder_becomes_the_same_model_whose_tokenizer_frames_as_pretraining_did(
    tmp_path: Path, model: ErnieDocForPreTraining, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "reread"):
        convert(static_folder(tmp_path / "source", model), tmp_path / "out", "ernie_doc")
    assert "as ERNIE-Doc's static release: its folder has a file for each variable" in caplog.text
    expected = model(IDS, MASK)
    for ours, theirs in zip(
        logits(tmp_path / "out"),
        [expected.prediction_logits, expected.reorder_logits, model(IDS, MASK, mems=expected.mems).prediction_logits],
        strict=True,
    ):
        assert torch.equal(ours, theirs)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert tokenizer(["中国A", "中"], padding=True)["input_ids"] == [[4, 5, 6, 2, 1], [0, 0, 4, 2, 1]]
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert [config[f"{role}_token_id"] for role in ("pad", "cls", "sep")] == [0, 1, 2]
    # and what was converted can be converted, as a folder of ours
    with caplog.at_level(logging.INFO, "reread"):
        convert(tmp_path / "out", tmp_path / "again", "ernie_doc")
    assert "as ERNIE-Doc as exported by reread: its configuration has memory_length" in caplog.text
    for name in ("model.safetensors", "config.json", "tokenizer.json"):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "out" / name).read_bytes()


def test_a_folder_of_paddlenlp_becomes_the_same_encoder(
    tmp_path: Path, model: ErnieDocForPreTraining, caplog: pytest.LogCaptureFixture
) -> None:
    folder = with_vocabulary(tmp_path / "source", {"init_args": [STATIC_CONFIG]}, "model_config.json")
    arrays = paddlenlp_arrays(model.ernie_doc.state_dict())
    (folder / "model_state.pdparams").write_bytes(pickle.dumps({**arrays, "linear.bias": np.zeros(2)}, 2))
    with caplog.at_level(logging.INFO, "reread"):
        convert(folder, tmp_path / "out", "ernie_doc")
    assert "as ERNIE-Doc of PaddleNLP: its configuration has memory_len" in caplog.text
    assert "left out, as the source lacks them: cls.predictions.bias" in caplog.text
    loaded = ErnieDocModel.from_pretrained(tmp_path / "out").eval()
    assert_equal_weights(loaded.state_dict(), model.ernie_doc.state_dict())


class Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch exploded",)


def test_a_pdparams_that_would_run_code_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = with_vocabulary(tmp_path / "source", STATIC_CONFIG, "model_config.json")
    (folder / "model_state.pdparams").write_bytes(pickle.dumps({"bomb": Bomb()}))
    with pytest.raises(UserError, match=r"model_state\.pdparams: refused, .*\.system"):
        convert(folder, tmp_path / "out", "ernie_doc")
    assert not Path("exploded").exists()
    assert not (tmp_path / "out").exists()


def byte_level(folder: Path, names: list[str]) -> None:
    """RoBERTa's three tokenizer files, of single bytes and one merge."""
    letters = [*names, "a", "b", "c", "ab"]
    backend = Tokenizer(models.BPE({token: row for row, token in enumerate(letters)}, [("a", "b")]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.save(str(folder / "tokenizer.json"))
    (folder / "vocab.json").write_text(json.dumps(backend.get_vocab()))
    (folder / "merges.txt").write_text("#version: 0.2\na b\n")
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "RobertaTokenizer"}))


def test_roberta_becomes_a_start_whose_new_parameters_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = roberta_like("roberta")
    source.save_pretrained(tmp_path / "source")
    byte_level(tmp_path / "source", ["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
    with caplog.at_level(logging.INFO, "reread"):
        convert(tmp_path / "source", tmp_path / "out", "ernie_doc")
    assert "as RoBERTa: its model_type is roberta" in caplog.text
    drawn = next(line for line in caplog.messages if line.startswith("drawn at random, as RoBERTa has no such"))
    for name in ("embeddings.position_embeddings.weight", "embeddings.token_type_layer_norm.bias"):
        assert f"ernie_doc.{name}" in drawn
    for part in ("position.weight", "token_type.bias", "content_bias", "position_bias", "token_type_bias"):
        assert f"{SELF}.{part}" in drawn
    assert "left out, as the source lacks them: ernie_doc.pooler.dense.weight" in caplog.text
    assert "cls.segment_reorder.weight" in caplog.text
    loaded: Any = ErnieDocForPreTraining.from_pretrained(tmp_path / "out")
    weights = source.state_dict()
    words = weights["roberta.embeddings.word_embeddings.weight"]
    types = weights["roberta.embeddings.token_type_embeddings.weight"]
    assert torch.equal(loaded.ernie_doc.embeddings.word_embeddings.weight, words + types[0])
    drawn_biases = loaded.ernie_doc.encoder.layer[1].attention.self.content_bias
    assert 0 < drawn_biases.abs().max() <= 2 * loaded.config.initializer_range
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert tokenizer("abc")["input_ids"] == [8, 7, 2, 0]
    assert (loaded.config.pad_token_id, loaded.config.cls_token_id, loaded.config.sep_token_id) == (1, 0, 2)
    convert(tmp_path / "source", tmp_path / "again", "ernie_doc")
    again, first = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("again", "out"))
    assert again == first


def test_other_models_are_refused_with_what_is_read(tmp_path: Path) -> None:
    folder = with_vocabulary(tmp_path / "source", {"model_type": "longformer"}, "config.json")
    torch.save({}, folder / "pytorch_model.bin")
    with pytest.raises(UserError, match=r"of type longformer cannot be converted to ernie_doc; .*RoBERTa \(\*\.saf"):
        convert(folder, tmp_path / "out", "ernie_doc")


def test_an_english_vocabulary_of_numbers_needs_and_uses_gpt2s_bpe(
    tmp_path: Path, model: ErnieDocForPreTraining
) -> None:
    folder = static_folder(tmp_path / "source", model)
    numbers = ["[CLS]", "[PAD]", "[SEP]", "[UNK]", "3", "1", "0", "2", "[MASK]"]  # 3 is "ab" there
    (folder / "vocab.txt").write_text("\n".join(numbers) + "\n")
    with pytest.raises(UserError, match=r"vocab\.txt: numbers of GPT-2's BPE; put its encoder\.json and vocab\.bpe"):
        convert(folder, tmp_path / "out", "ernie_doc")
    (folder / "encoder.json").write_text(json.dumps({"a": 0, "b": 1, "c": 2, "ab": 3}))
    (folder / "vocab.bpe").write_text("#version: 0.2\na b\n")
    convert(folder, tmp_path / "out", "ernie_doc")
    tokenizer: Any = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert tokenizer("abc")["input_ids"] == [4, 7, 2, 0]
    assert ErnieDocConfig.from_pretrained(tmp_path / "out").pad_token_id == 1


@pytest.mark.long
@pytest.mark.slow
def test_the_released_english_vocabulary_is_read(tmp_path: Path, model: ErnieDocForPreTraining) -> None:
    from reread.training.exchange.tokenizer import copy_tokenizer, frame_tokenizer

    for theirs, name in (("ernie-doc-base-en.vocab.txt", "vocab.txt"), ("gpt2.encoder.json", "encoder.json")):
        (tmp_path / name).write_bytes(shared(f"vocab/{theirs}").read_bytes())
    (tmp_path / "vocab.bpe").write_bytes(shared("vocab/gpt2.vocab.bpe").read_bytes())
    folder = tmp_path / "out"
    folder.mkdir()
    copy_tokenizer([tmp_path], folder, 50265)
    assert frame_tokenizer(folder, "segments") == {
        "pad_token_id": 1,
        "cls_token_id": 0,
        "sep_token_id": 2,
        "bos_token_id": None,
        "eos_token_id": None,
    }
    rows = (tmp_path / "vocab.txt").read_text().splitlines()
    numbers = json.loads((tmp_path / "encoder.json").read_text())
    wanted = [rows.index(str(numbers[token])) for token in ("It", "Ġis", "Ġa", "Ġtruth", "Ġuniversally", ".")]
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    assert tokenizer("It is a truth universally.")["input_ids"] == [*wanted, 2, 0]
    assert tokenizer("It is [MASK].")["input_ids"] == [*wanted[:2], 50264, wanted[-1], 2, 0]  # no token for the space
