"""RoBERTa, BERT and Longformers become Longformers of another length that give their sources' outputs."""

import json
import logging
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor, nn
from transformers import AutoTokenizer, BertConfig, BertForPreTraining
from transformers import LongformerForMaskedLM as TransformersLongformer
from typer.testing import CliRunner

from reread.pipeline.cli import app
from reread.preprocessing.errors import UserError
from reread.training.config import OptimizerSettings
from reread.training.exchange.convert import convert
from reread.training.models.build import freeze
from reread.training.models.longformer import LongformerForMaskedLM
from reread.training.models.longformer.spec import COPIED
from reread.training.optim.build import build_optimizer
from reread.training.optim.precision import MasterWeights
from reread.training.parallel.gradients import GradientBuckets
from reread.training.parallel.mesh import Mesh
from tests.conftest import GOLDEN

TABLE = "longformer.embeddings.position_embeddings.weight"
BERT: dict[str, Any] = {
    "vocab_size": 9,
    "hidden_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 24,
    "max_position_embeddings": 20,
}
CHINESE = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "中", "国", "##a", "a"]


def golden(name: str) -> tuple[dict[str, Any], dict[str, Tensor], dict[str, Tensor]]:
    """Configuration, weights, and the rest of tests/golden/<name>.npz."""
    arrays = np.load(GOLDEN / f"{name}.npz")
    config = {**json.loads(str(arrays["config"])), "model_type": name}
    tensors = {key: torch.from_numpy(arrays[key]) for key in arrays if key != "config"}
    weights = {key.removeprefix("weight/"): tensor for key, tensor in tensors.items() if key.startswith("weight/")}
    return config, weights, tensors


def source_folder(folder: Path, config: dict[str, Any], weights: dict[str, Tensor]) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    torch.save(weights, folder / "pytorch_model.bin")
    return folder


def converted(folder: Path, config: dict[str, Any], weights: dict[str, Tensor], **options: Any) -> Any:
    """Our model of the folder `folder`/out that is made from these weights."""
    convert(source_folder(folder / "source", config, weights), folder / "out", "longformer", **options)
    return LongformerForMaskedLM.from_pretrained(folder / "out").eval()


def refused(folder: Path, config: dict[str, Any], weights: dict[str, Tensor], **options: Any) -> str:
    """The one line that refuses the source."""
    with pytest.raises(UserError) as error:
        converted(folder, config, weights, **options)
    assert not (folder / "out").exists()
    assert "\n" not in str(error.value)
    return str(error.value)


def assert_close(ours: Tensor, theirs: Tensor) -> None:
    """Both in float32; models are compared more closely elsewhere."""
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-4)


@pytest.mark.parametrize("length", [32, 50, 4096])
def test_roberta_gives_its_outputs_for_texts_it_could_read(tmp_path: Path, length: int) -> None:
    config, weights, tensors = golden("roberta")
    model = converted(tmp_path, config, weights, length=length, window=64)
    with torch.no_grad():
        assert_close(model(tensors["input_ids"]).logits, tensors["logits"])
        theirs = TransformersLongformer.from_pretrained(tmp_path / "out").eval()
        assert_close(theirs(tensors["input_ids"]).logits, tensors["logits"])
    assert model.config.max_position_embeddings == length + 2
    assert model.config.sep_token_id == 2
    assert model.config.type_vocab_size == 1


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("optimizer", ["adam", "lamb"])
def test_new_positions_trained_alone_leave_short_texts_as_they_were(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, optimizer: Any, precision: torch.dtype
) -> None:
    """Bit for bit, under weight decay; the line that the conversion prints names the rows."""
    config, weights, tensors = golden("roberta")
    caplog.set_level("INFO", logger="reread")
    model = converted(tmp_path, config, weights, length=100, window=64)
    own = config["max_position_embeddings"]
    globs = [f"*.position_embeddings.weight[{own}:]"]
    assert f'trainable: ["{globs[0]}"]' in caplog.text
    masters = MasterWeights(model, precision, freeze(model, globs, COPIED))
    settings = OptimizerSettings(name=optimizer, learning_rate=0.01, weight_decay=0.5)
    steps, buckets = (
        build_optimizer(masters.learning(), settings, Mesh()),
        GradientBuckets(model.parameters(), Mesh(), 1000),
    )
    table, short = model.get_parameter(TABLE), tensors["input_ids"]
    long = short[:1, 1:2].repeat(1, 100)
    with torch.no_grad():
        before = [table.clone(), model(short).logits, model(long).logits]
    for _ in range(3):
        buckets.zero()
        model(long, labels=long).loss.backward()
        assert buckets.global_norm() == pytest.approx(buckets.grad_of(table)[own:].norm().item(), rel=1e-6)
        masters.step(steps, buckets, rate=0.01, factor=1.0)
    with torch.no_grad():
        after = [table, model(short).logits, model(long).logits]
    assert torch.equal(before[0][:own], after[0][:own]) and torch.equal(before[1], after[1])
    assert (before[0][own:] != after[0][own:]).any(1).all() and not torch.equal(before[2], after[2])
    state = [tensor for one in steps.state.values() for tensor in one.values() if tensor.dim()]
    assert {tuple(tensor.shape) for tensor in state} == {(102 - own, config["hidden_size"])}, (
        "moments of new rows alone"
    )


def test_a_roberta_of_other_names_is_the_same(tmp_path: Path) -> None:
    config, weights, tensors = golden("roberta")
    bare = {name.removeprefix("roberta."): tensor.clone() for name, tensor in weights.items() if "decoder" not in name}
    bare |= {"pooler.dense.weight": torch.ones(12, 12), "embeddings.position_ids": torch.arange(34)[None]}
    del config["model_type"]
    model = converted(tmp_path, {**config, "architectures": ["RobertaForMaskedLM"]}, bare, length=40, window=64)
    with torch.no_grad():
        assert_close(model(tensors["input_ids"]).logits, tensors["logits"])


@pytest.mark.parametrize("length", [32, 33, 100])
def test_each_row_of_the_table_is_one_of_the_source(tmp_path: Path, length: int) -> None:
    config, weights, _ = golden("roberta")
    old = weights["roberta.embeddings.position_embeddings.weight"]
    new = converted(tmp_path, config, weights, length=length).state_dict()[TABLE]
    assert len(new) == length + 2
    assert torch.equal(new[:2], old[:2])
    for position in range(length):
        assert torch.equal(new[2 + position], old[2 + position % 32]), position


def test_random_positions_are_drawn_all_of_them_and_the_same_each_time(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config, weights, _ = golden("roberta")
    old = weights["roberta.embeddings.position_embeddings.weight"]
    tables = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        with caplog.at_level(logging.INFO, "reread"):
            model = converted(tmp_path / name, {**config, "initializer_range": 0.5}, weights, positions="random")
        tables.append(model.state_dict()[TABLE])
    assert torch.equal(*tables)
    assert tables[0].shape == (4098, 12)
    assert not torch.isin(tables[0], old).all(1).any()
    assert tables[0].std().item() == pytest.approx(0.5, rel=0.02)
    assert (tables[0].abs().sum(1) > 0).all()
    assert "positions drawn at random, all 4098 rows" in caplog.text


def test_global_attention_begins_as_local_and_what_is_chosen_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config, weights, _ = golden("roberta")
    with caplog.at_level(logging.INFO, "reread"):
        model = converted(tmp_path, config, weights)
    assert (model.config.attention_window, model.config.max_position_embeddings) == (512, 4098)
    assert "length 4096: --length is not given" in caplog.text
    assert "window 512: --window is not given" in caplog.text
    assert "as RoBERTa: its model_type is roberta" in caplog.text
    state = model.state_dict()
    local = [name for name in state if re.search(r"\.self\.(query|key|value)\.", name)]
    assert len(local) == 12
    for name in local:
        copy = re.sub(r"\.(query|key|value)\.", r".\1_global.", name)
        assert torch.equal(state[copy], state[name])
        assert torch.equal(state[name], weights[name.replace("longformer.", "roberta.")])


def bert() -> tuple[BertForPreTraining, dict[str, Any]]:
    torch.manual_seed(0)
    model = BertForPreTraining(BertConfig(**BERT)).eval()
    for parameter in model.parameters():  # biases and layer norms too, or a swap would go unseen
        nn.init.normal_(parameter, std=0.5)
    return model, {**BERT, "model_type": "bert"}


@pytest.mark.parametrize("old", [False, True])
def test_bert_gives_its_outputs_though_its_positions_begin_elsewhere(tmp_path: Path, old: bool) -> None:
    theirs, config = bert()
    weights = {name: tensor.clone() for name, tensor in theirs.state_dict().items()}
    if old:  # as Google's conversion left them
        weights = {
            name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
            for name, tensor in weights.items()
        }
        del config["model_type"]
        config["type_vocab_size"] = 2
    folder = source_folder(tmp_path / "source", config, weights)
    (folder / "vocab.txt").write_text("\n".join(CHINESE) + "\n", encoding="utf-8")
    convert(folder, tmp_path / "out", "longformer", length=50, window=40)
    ours: Any = LongformerForMaskedLM.from_pretrained(tmp_path / "out").eval()
    ids = torch.randint(1, 9, (2, 20))
    ids[1, 13:] = 0
    mask = (ids != 0).long()
    with torch.no_grad():
        expected = theirs(ids, attention_mask=mask).prediction_logits
        elsewhere = TransformersLongformer.from_pretrained(tmp_path / "out").eval()(ids, attention_mask=mask).logits
        for found in (ours(ids, attention_mask=mask).logits, elsewhere):
            assert_close(found[mask.bool()], expected[mask.bool()])
    table = weights["bert.embeddings.position_embeddings.weight"]
    new = ours.state_dict()[TABLE]
    assert len(new) == 51
    assert torch.equal(new[0], table[0])
    for position in range(50):
        assert torch.equal(new[1 + position], table[position % 20]), position
    assert (ours.config.pad_token_id, ours.config.sep_token_id, ours.config.eos_token_id) == (0, 3, None)
    tokens = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert dict(tokens("中[MASK]")) == {"input_ids": [2, 5, 4, 3], "attention_mask": [1, 1, 1, 1]}
    assert tokens.model_max_length == 50


def test_a_longformer_is_made_longer_with_its_own_windows_and_global_projections(tmp_path: Path) -> None:
    config, weights, tensors = golden("longformer")
    model = converted(tmp_path, config, weights, length=150)
    assert model.config.attention_window == [8, 8]
    assert len(model.state_dict()[TABLE]) == 152
    inputs = {name: tensors[name] for name in ("input_ids", "attention_mask", "global_attention_mask")}
    with torch.no_grad():
        found = model(**inputs).logits
    real = tensors["attention_mask"].bool()
    assert_close(found[real], tensors["logits"][real])


def test_the_authors_own_code_counts_one_side_of_the_window(tmp_path: Path) -> None:
    config, weights, tensors = golden("longformer")
    weights = {name.replace("longformer.", "roberta."): tensor.clone() for name, tensor in weights.items()}
    config |= {"model_type": "roberta", "attention_mode": "sliding_chunks", "attention_dilation": [1, 1]}
    model = converted(tmp_path, {**config, "attention_window": [4, 4], "autoregressive": False}, weights)
    assert model.config.attention_window == [8, 8]
    real = tensors["attention_mask"].bool()
    with torch.no_grad():
        found = model(tensors["input_ids"], attention_mask=tensors["attention_mask"]).logits
    assert_close(found[real], tensors["logits_without_global"][real])


def test_a_source_without_a_head_leaves_it_out_and_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config, weights, _ = golden("roberta")
    body = {name: tensor for name, tensor in weights.items() if name.startswith("roberta.")}
    with caplog.at_level(logging.INFO, "reread"):
        converted(tmp_path, config, body, length=40)
    assert "left out, as the source lacks them: lm_head.bias, lm_head.dense.weight" in caplog.text


@pytest.mark.parametrize(
    ("changes", "options", "message"),
    [
        ({}, {"length": 31}, "config.json: the source reads 32 tokens already; give a --length of at least 32"),
        ({}, {"length": 0}, r"convert: length: input should be greater than or equal to 1 \(got 0\)"),
        ({}, {"window": 7}, r"convert: window: input should be a multiple of 2 \(got 7\)"),
        ({}, {"window": 0}, "convert: window: input should be greater than or equal to 2"),
        ({}, {"positions": "randon"}, "convert: positions: input should be 'copied' or 'random'"),
        ({}, {"lenght": 64}, "unknown key `lenght`; did you mean `length`?"),
        ({"is_decoder": True}, {}, "config.json: is_decoder is True"),
        ({"position_embedding_type": "relative_key"}, {}, "position_embedding_type is 'relative_key'"),
        ({"tie_word_embeddings": False}, {}, "config.json: tie_word_embeddings is False"),
        ({"pad_token_id": None}, {}, "config.json: pad_token_id is missing"),
        ({"hidden_size": "wide"}, {}, "config.json: .*hidden_size"),
        ({"max_position_embeddings": 50}, {}, "has 34 rows, but by the configuration 50"),
        ({"model_type": "bert", "hidden_act": "relu"}, {}, "hidden_act is 'relu', also in BERT's head"),
        ({"model_type": "gpt2"}, {}, "weights of a model of type gpt2 cannot be converted to longformer"),
    ],
)
def test_what_longformer_cannot_be_is_refused_in_one_line(
    tmp_path: Path, changes: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    config, weights, _ = golden("roberta")
    assert re.search(message, refused(tmp_path, {**config, **changes}, weights, **options))


def test_weights_that_do_not_fit_are_refused_in_one_line(tmp_path: Path) -> None:
    config, weights, _ = golden("roberta")
    query = "roberta.encoder.layer.1.attention.self.query.weight"
    cases = {
        "lm_head.decoder.weight differs from .*: this decoder is not tied": {
            "lm_head.decoder.weight": torch.ones(61, 12)
        },
        "classifier.dense.weight is unexpected": {"classifier.dense.weight": torch.ones(12, 12)},
        r"self\.query\.weight is \[12, 6\], but by the configuration \[12, 12\]": {query: torch.ones(12, 6)},
        "another tensor of the source is already longformer": {query.removeprefix("roberta."): weights[query]},
    }
    for number, (message, changes) in enumerate(cases.items()):
        (tmp_path / str(number)).mkdir()
        assert re.search(message, refused(tmp_path / str(number), config, {**weights, **changes}, length=40))
    del weights[query]
    assert "self.query.weight is missing" in refused(tmp_path, config, weights, length=40)


def test_the_options_are_longformers_alone(tmp_path: Path) -> None:
    config, weights, _ = golden("roberta")
    folder = source_folder(tmp_path / "source", config, weights)
    command = ["convert", str(folder), str(tmp_path / "out"), "--length", "64", "--model"]
    refusal = CliRunner().invoke(app, [*command, "ernie_doc"]).exception
    assert isinstance(refusal, UserError)
    assert str(refusal) == "--length: not for ernie_doc; models that take it: longformer, led"
    done = CliRunner().invoke(app, [*command, "longformer", "--window", "16", "--positions", "random"])
    assert done.exit_code == 0, done.exception
    made = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (made["max_position_embeddings"], made["attention_window"]) == (66, 16)


def test_robertas_tokenizers_come_along(tmp_path: Path) -> None:
    config, weights, _ = golden("roberta")
    folder = source_folder(tmp_path / "source", config, weights)
    tokens = ["<s>", "<pad>", "</s>", "<unk>", "a", "b", "ab", "<mask>"]
    (folder / "vocab.json").write_text(json.dumps({token: number for number, token in enumerate(tokens)}))
    (folder / "merges.txt").write_text("#version: 0.2\na b\n")
    (folder / "tokenizer_config.json").write_text('{"model_max_length": 512}')
    convert(folder, tmp_path / "bpe", "longformer", length=64)
    loaded = AutoTokenizer.from_pretrained(tmp_path / "bpe")
    assert dict(loaded("abb")) == {"input_ids": [0, 6, 5, 2], "attention_mask": [1, 1, 1, 1]}
    assert loaded.model_max_length == 64
    for name in ("vocab.json", "merges.txt", "tokenizer_config.json"):
        (folder / name).unlink()
    pieces = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁a", -1.0), ("b", -2.0), ("▁", -3.0)]
    backend = Tokenizer(models.Unigram(pieces, unk_id=3))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.add_special_tokens(["<mask>"])
    backend.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "xlm-roberta"}))
    convert(folder, tmp_path / "unigram", "longformer", length=64)
    loaded = AutoTokenizer.from_pretrained(tmp_path / "unigram")
    assert type(loaded).__name__.startswith("XLMRoberta")
    assert loaded("ab")["input_ids"] == [0, 4, 5, 2]
