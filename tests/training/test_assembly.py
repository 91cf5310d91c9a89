"""The model a recipe asks for: what cannot be built is refused in one line."""

import inspect
import json
import math
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import pytest
import torch
from safetensors.torch import load_file, save_file

from reread.pipeline.commands.run import run
from reread.pipeline.recipe.layers import available_recipes
from reread.pipeline.recipe.load import load_recipe
from reread.preprocessing.config import TokenizerSettings
from reread.preprocessing.errors import UserError
from reread.preprocessing.tokens.tokenizer import load_tokenizer
from reread.training.assembly import Assembly, check_data, check_model, resolved_with
from reread.training.config import TrainSettings
from reread.training.data.rows.cut_documents import SegmentSettings
from reread.training.data.rows.samples import RowSettings
from reread.training.exchange.export import write_huggingface
from reread.training.models import MODELS, model_spec
from reread.training.models.build import build_model, check_vocabulary, freeze, model_config
from reread.training.objectives import OBJECTIVES
from reread.training.parallel.mesh import Mesh
from tests.conftest import shared

NEZHA = model_spec("nezha")
TINY = {"vocab_size": 50, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
TINY_LONGFORMER = {"max_position_embeddings": 20, "attention_window": 4, **TINY} | {"vocab_size": 100}


def test_an_unknown_model_key_names_the_nearest() -> None:
    with pytest.raises(UserError, match=r"`hiden_size` for nezha; did you mean `train\.model\.hidden_size`"):
        model_config(model_spec("nezha"), {"type": "nezha", "hiden_size": 8}, 100, None)
    with pytest.raises(UserError, match=r"did you mean `nezha`.* known: nezha, .*, roberta, "):
        model_spec("nehza")
    with pytest.raises(UserError, match="vocab_size: 50 is smaller than the corpus' 100"):
        model_config(model_spec("nezha"), {"type": "nezha", "vocab_size": 50}, 100, None)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"num_attention_heads": 5}, "train.model: hidden_size 768 is no multiple of num_attention_heads 5"),
        ({"hidden_size": "wide"}, "train.model.hidden_size: input should be a valid integer"),
        ({"hidden_act": "swish"}, "train.model: hidden_act is one of"),
    ],
)
def test_a_model_that_cannot_be_built_is_refused_in_one_line(values, message) -> None:
    with pytest.raises(UserError, match=message) as raised:
        model_config(NEZHA, {"type": "nezha", **values}, 100, None)
    assert "\n" not in str(raised.value)


def test_what_transformers_own_configuration_lets_pass_is_refused_in_one_line() -> None:
    longformer = model_spec("longformer")
    with pytest.raises(UserError, match=r"train.model: attention_window: 7 .* must be even"):
        config = model_config(longformer, {"attention_window": 7, "num_hidden_layers": 1}, 100, None)
        build_model(longformer.converted, config, None, 0)
    with pytest.raises(UserError, match=r"train.model: KeyError\('gelo'\)"):
        config = model_config(longformer, {**TINY_LONGFORMER, "hidden_act": "gelo"}, 100, None)
        build_model(longformer.converted, config, None, 0)
    with pytest.raises(UserError, match=r"`hidden_sise` for longformer; did you mean `train\.model\.hidden_size`"):
        model_config(longformer, {"hidden_sise": 8}, 100, None)


def test_numbers_that_yaml_takes_for_text_are_numbers() -> None:
    assert model_config(NEZHA, {"layer_norm_eps": "1e-5"}, 100, None).layer_norm_eps == 1e-5


def test_rows_longer_than_the_positions_are_refused_at_the_start() -> None:
    values = {"position_type": "parametric_absolute", "max_position_embeddings": 16}
    longer = RowSettings(corpus=Path("x"), sequence_length=17)
    with pytest.raises(UserError, match=r"sequence_length: 17, but this model's positions end at 16"):
        check_data(NEZHA, OBJECTIVES["masked_lm"], model_config(NEZHA, values, 100, None), longer)
    check_data(NEZHA, OBJECTIVES["masked_lm"], model_config(NEZHA, {"max_position_embeddings": 16}, 100, None), longer)


def test_data_that_a_model_does_not_learn_from_is_refused() -> None:
    ernie_doc = model_spec("ernie_doc")
    config = model_config(ernie_doc, {}, 100, None)
    with pytest.raises(UserError, match=r"train.data.kind: rows, but ernie_doc learns from segments"):
        check_data(ernie_doc, OBJECTIVES["masked_lm"], config, RowSettings(corpus=Path("x")))
    with pytest.raises(UserError, match=r"special_tokens: false, but nezha reads text with"):
        bare = RowSettings(corpus=Path("x"), next_sentence=False, special_tokens=False)
        check_data(NEZHA, OBJECTIVES["masked_lm"], model_config(NEZHA, {}, 100, None), bare)
    with pytest.raises(UserError, match=r"reorder_classes: 33, but 5 chunks have 153 orders"):
        check_data(
            ernie_doc,
            OBJECTIVES["documents"],
            config,
            SegmentSettings(kind="segments", corpus=Path("x"), reorder_chunks=5),
        )
    segments = SegmentSettings(kind="segments", corpus=Path("x"))
    check_data(ernie_doc, OBJECTIVES["documents"], config, segments)
    once = segments.model_copy(update={"retrospective": False})
    for values in ({"recurrence": "none"}, {"memory_length": 0}):
        forgetful = model_config(ernie_doc, values, 100, None)
        check_data(ernie_doc, OBJECTIVES["documents"], forgetful, once)
        with pytest.raises(UserError, match=r"train.data.retrospective: .* without memory"):
            check_data(ernie_doc, OBJECTIVES["documents"], forgetful, segments)


def test_a_start_from_half_precision_trains_in_fp32(tmp_path) -> None:
    write_huggingface(tmp_path / "half", NEZHA.converted(NEZHA.config(**TINY)).half(), None, "")
    config = model_config(NEZHA, {}, 50, tmp_path / "half")
    assert {p.dtype for p in build_model(NEZHA.converted, config, tmp_path / "half", 0).parameters()} == {torch.float32}


def test_a_start_that_does_not_fit_is_refused(tmp_path) -> None:
    folder = tmp_path / "start"
    write_huggingface(folder, NEZHA.converted(NEZHA.config(**TINY)), None, "")
    for values, reason in (
        ({"intermediate_size": 24}, r"intermediate\.dense\.bias \(\d+,\) there, \(24,\) here"),
        ({"num_hidden_layers": 2}, "it lacks"),
    ):
        with pytest.raises(UserError, match=rf"train\.init: .*start does not fit train\.model: .*{reason}"):
            build_model(NEZHA.converted, model_config(NEZHA, values, 50, folder), folder, 0)
    with pytest.raises(UserError, match=r"^train\.init: .*nowhere holds no config\.json"):
        model_config(NEZHA, {}, 50, tmp_path / "nowhere")
    with pytest.raises(UserError, match=r"^train\.init: .*model\.safetensors is a file; give its folder"):
        model_config(NEZHA, {}, 50, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"model_type": "bert"}))
    with pytest.raises(UserError, match="is of a model of type bert, not nezha"):
        model_config(NEZHA, {}, 50, folder)
    for text, reason in (("[]", "is not the configuration of a model"), ("[" * 100_000, "is not readable as JSON")):
        (folder / "config.json").write_text(text)
        with pytest.raises(UserError, match=rf"^train\.init: .*config\.json {reason}"):
            model_config(NEZHA, {}, 50, folder)


def test_a_start_with_another_vocabulary_is_refused(tmp_path) -> None:
    for name, tokens in {
        "init": "[PAD] a b c",
        "same": "[PAD] a b c",
        "fewer": "[PAD] a b",
        "other": "[PAD] b a",
    }.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "vocab.txt").write_text("\n".join(tokens.split()) + "\n")
    check_vocabulary(tmp_path / "init", tmp_path / "same")
    check_vocabulary(tmp_path / "init", tmp_path / "fewer")
    with pytest.raises(UserError, match="the weights would get other tokens"):
        check_vocabulary(tmp_path / "init", tmp_path / "other")


def test_what_learns_is_named_and_something_must() -> None:
    longformer = model_spec("longformer")
    config = model_config(longformer, TINY_LONGFORMER, 50, None)
    model = build_model(longformer.converted, config, None, 0)
    freeze(model, ["*.position_embeddings.weight", "lm_head.*"], longformer.copied)
    learning = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert "longformer.embeddings.position_embeddings.weight" in learning
    assert all(name.startswith("lm_head.") or "position" in name for name in learning)
    freeze(model, None, longformer.copied)
    frozen = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    assert frozen and all("_global." in name for name in frozen)
    first_rows = freeze(model, ["*.query*.weight[3:]"], longformer.copied)  # also matches copied projections
    learning = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert learning == first_rows.keys() and set(first_rows.values()) == {3}
    assert learning and all(name.endswith(".query.weight") for name in learning)
    settings = TrainSettings.parse(
        {
            "model": {"type": "longformer"},
            "data": {"kind": "packed", "corpus": "x"},
            "trainable": ["*.position_embeddings.weight[12:]", "*.word_embeddings.weight[5:]"],
            **{"steps": 1, "global_batch": 1, "micro_batch": 1, "optimizer": {"learning_rate": 1e-3}},
        },
        "test",
    )
    with pytest.raises(UserError, match=r"word_embeddings\.weight can be split over devices, so it learns whole"):
        Assembly(resolved_with(settings, config), Mesh(), torch.float32)
    for trainable, message in (
        ([], "nothing would learn"),
        (["*.positions"], r"`\*\.positions` matches no parameter that can learn; these can: longformer"),
        (["lm_head.*", "*_global.*"], r"`\*_global\.\*` matches no parameter that can learn"),
        (
            ["*.position_embeddings.weight[20:]"],
            r"position_embeddings.weight has 20 rows, so none is left from row 20 on",
        ),
    ):
        with pytest.raises(UserError, match=message):
            freeze(model, trainable, longformer.copied)


@pytest.mark.parametrize("source", ["made here", "bert-base-chinese"])
def test_a_start_from_a_vocab_txt_with_odd_tokens_fits_the_corpus_made_with_it(source: str, tmp_path: Path) -> None:
    (tmp_path / "init").mkdir()
    vocabulary = tmp_path / "init" / "vocab.txt"
    if source == "made here":
        odd = ["\u2028", "##\u2028", "a\x85", "b\x1cc", "\x0c"]
        tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *odd, "a", "b"]
        vocabulary.write_text("".join(f"{token}\n" for token in tokens), encoding="utf-8")
    else:
        shutil.copyfile(shared("vocab/bert-base-chinese.vocab.txt"), vocabulary)
    load_tokenizer(vocabulary, TokenizerSettings(path=vocabulary)).save(tmp_path / "corpus")
    check_vocabulary(tmp_path / "init", tmp_path / "corpus")
    lines = vocabulary.read_text(encoding="utf-8").split("\n")
    lines[-3:-1] = lines[-2:-4:-1]
    vocabulary.write_text("\n".join(lines), encoding="utf-8")
    expected = f"`{lines[-2]}`, number {len(lines) - 3} in the corpus' and {len(lines) - 2} in the other"
    with pytest.raises(UserError, match=re.escape(expected)):  # the first of them
        check_vocabulary(tmp_path / "init", tmp_path / "corpus")


@pytest.mark.parametrize(
    ("classes", "kept"),
    [(["neg", "pos"], True), (["pos", "neg"], False), (["bad", "good"], False), (["neg", "pos", "none"], False)],
)
@pytest.mark.parametrize("name", ["nezha", "roberta"])
def test_a_head_of_other_classes_begins_at_random(tmp_path: Path, caplog, name, classes, kept) -> None:
    spec, folder = model_spec(name), tmp_path / "start"
    head, last = spec.heads["classify"], "classifier" if name == "nezha" else "classifier.out_proj"
    learned = spec.config(**TINY, id2label={0: "neg", 1: "pos"})
    write_huggingface(folder, head(learned), None, "")
    config = model_config(spec, {}, 50, folder)
    config.id2label = dict(enumerate(classes))
    with caplog.at_level("INFO", "reread"):
        found = dict(build_model(head, config, folder, 0).named_parameters())
    weights = load_file(folder / "model.safetensors")
    same = {one for one in weights if found[one].shape == weights[one].shape and torch.equal(found[one], weights[one])}
    assert (f"{last}.weight" in same) == kept and weights.keys() - same <= {f"{last}.weight", f"{last}.bias"}
    told = f"{folder} has learned other classes (neg, pos): {last}.bias, {last}.weight begin at random"
    assert (told in caplog.messages) == (not kept)


def test_transformers_prints_no_report_before_our_line(tmp_path: Path, capfd, caplog) -> None:
    folder = tmp_path / "start"
    write_huggingface(folder, NEZHA.converted(NEZHA.config(**TINY)), None, "")
    weights = {name: one for name, one in load_file(folder / "model.safetensors").items() if "seq_rel" not in name}
    save_file({**weights, "extra.weight": torch.zeros(2)}, folder / "model.safetensors", {"format": "pt"})
    capfd.readouterr()
    with caplog.at_level("INFO", "reread"):
        build_model(NEZHA.converted, model_config(NEZHA, {}, 50, folder), folder, 0)
        with pytest.raises(UserError):
            build_model(NEZHA.converted, model_config(NEZHA, {"num_hidden_layers": 3}, 50, folder), folder, 0)
    random = "cls.seq_relationship.bias, cls.seq_relationship.weight"
    assert caplog.messages == [f"starting from the weights in {folder}; random: {random}; not used: extra.weight"]
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("name", MODELS)
def test_every_number_of_a_model_has_bounds(name: str) -> None:
    spec = model_spec(name)
    checked = []
    for key, parameter in inspect.signature(spec.config).parameters.items():
        kinds = {parameter.annotation, *get_args(parameter.annotation)}
        if not kinds & {int, float, Sequence[int]} or parameter.annotation is Sequence[bool]:
            continue
        for value in (-1, 10**30, math.nan, math.inf):
            given = [value] if Sequence[int] in kinds else value
            with pytest.raises(UserError, match=rf"^train\.model\.{key}: ") as raised:
                model_config(spec, {key: given}, 100, None)
            assert "\n" not in str(raised.value)
        checked.append(key)
    assert len(checked) >= 10


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["train.model.hiden_size=64"], "`hiden_size` for nezha; did you mean `train.model.hidden_size`?"),
        (["train.model.num_hidden_layers=-1"], "train.model.num_hidden_layers: is 1 to 1,024 (got -1)"),
        (["train.model.type=[1]"], "train.model.type: model type `[1]` is unknown"),
        (["train.model.hidden_size=127"], "train.model: hidden_size 127 is no multiple of num_attention_heads 4"),
        (["train.model.type=ernie_doc"], "train.model: unknown key `max_relative_position` for ernie_doc"),
    ],
)
def test_a_wrong_model_is_reported_before_anything_is_preprocessed(
    overrides: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("reread.pipeline.commands.preprocess.preprocess", pytest.fail)
    with pytest.raises(UserError, match=re.escape(message)):
        run("quickstart", overrides)


def test_every_built_in_recipe_has_a_model_that_can_be() -> None:
    for name in available_recipes():
        train = load_recipe(name, []).train
        assert train is not None
        check_model(train)


@pytest.mark.parametrize(
    ("model", "data", "message"),
    [
        ("ran", {"kind": "packed"}, r"data\.kind: packed, but ran learns from rows or stream"),
        ("nezha", {"kind": "stream"}, r"data\.kind: stream, but nezha learns from rows or packed"),
        ("nezha", {"objective": "causal_lm"}, r"objective: causal_lm, but nezha has heads for masked_lm"),
        (
            "ran",
            {"objective": "causal_lm", "special_tokens": False},
            "causal_lm does not learn from data.kind rows",
        ),
        ("nezha", {"objective": "masked_ml"}, r"objective `masked_ml` is unknown; did you mean `masked_lm`"),
    ],
)
def test_a_model_an_objective_and_data_that_do_not_go_together_are_refused(model, data, message) -> None:
    objective = data.pop("objective", None)
    values = {"corpus": "x", "next_sentence": False, **data} if "kind" not in data else {"corpus": "x", **data}
    train = {"model": {"type": model}, "objective": objective, "data": values, "steps": 1, "global_batch": 1}
    train |= {"micro_batch": 1, "optimizer": {"learning_rate": 1e-3}}
    with pytest.raises(UserError, match=message):
        check_model(TrainSettings.parse(train, "test"))


@pytest.mark.parametrize("damage", ["cut", "empty", "missing", "a shard less"])
def test_weights_that_are_not_whole_are_one_line(damage: str, tmp_path: Path) -> None:
    config = model_config(NEZHA, {"type": "nezha", **TINY}, 50, None)
    write_huggingface(tmp_path / "init", build_model(NEZHA.converted, config, None, 0), None, "")
    path = tmp_path / "init" / "model.safetensors"
    data, weights = path.read_bytes(), load_file(path)
    path.unlink()
    if damage in ("cut", "empty"):
        path.write_bytes(data[: len(data) // 2] if damage == "cut" else b"")
    elif damage == "a shard less":
        save_file(dict(list(weights.items())[1::2]), tmp_path / "init" / "model-00002-of-00002.safetensors")
    with pytest.raises(
        UserError, match=r"^train\.init: .*init(/model\.safetensors cannot be read|.* holds no | .*lacks )"
    ):
        build_model(NEZHA.converted, config, tmp_path / "init", 0)
    save_file(dict(list(weights.items())[::2]), tmp_path / "init" / "model-00001-of-00002.safetensors")
    if damage == "a shard less":
        model = build_model(NEZHA.converted, config, tmp_path / "init", 0)
        assert all(torch.equal(tensor, model.state_dict()[name]) for name, tensor in weights.items())
