"""transformers' encoders as themselves: beside transformers' own classes, from their folders, and back."""

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from torch.nn.functional import cross_entropy

from reread.pipeline.recipe.load import write_recipe
from reread.pipeline.recipe.schema import Recipe
from reread.pipeline.run_folder.export import export
from reread.preprocessing.errors import UserError
from reread.training.assembly import check_model
from reread.training.config import OptimizerSettings, TrainSettings
from reread.training.data.tasks.tag import TagSettings
from reread.training.exchange.convert import convert
from reread.training.exchange.export import write_huggingface
from reread.training.models import model_spec
from reread.training.models.build import build_model, model_config, without_copies
from reread.training.models.hub.encoders import ENCODERS
from reread.training.optim.build import build_optimizer
from reread.training.parallel.mesh import Mesh
from reread.training.trainer import Trainer

VOCABULARY = 40
SIZES: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 32,
}
OWN: dict[str, dict[str, Any]] = {
    "bert": {},
    "roberta": {},
    "modernbert": {"local_attention": 4, "global_attn_every_n_layers": 2},
    "electra": {"embedding_size": 8},
}
SPECIAL = {"pad": 0, "cls": 1, "sep": 2}


def config_of(name: str, **values: Any) -> Any:
    return model_config(model_spec(name), {**SIZES, **OWN[name], **values}, VOCABULARY, None, SPECIAL)


def model_of(name: str, objective: str = "masked_lm", **values: Any) -> Any:
    torch.manual_seed(0)
    return model_spec(name).heads[objective](config_of(name, **values)).double().eval()


def theirs_of(name: str, model: Any) -> Any:
    """transformers' own class with the same weights."""
    theirs: Any = getattr(transformers, type(model).__name__)
    assert type(model) is not theirs and isinstance(model, theirs)
    other = theirs(model.config).double().eval()
    other.load_state_dict(model.state_dict())
    return other


def rows(length: int = 20) -> dict[str, Tensor]:
    """Two rows, the second one shorter."""
    ids = torch.randint(3, VOCABULARY, (2, length), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[1, 12:] = 0
    return {"input_ids": ids.masked_fill(mask == 0, 0), "attention_mask": mask}


@pytest.mark.parametrize(("name", "attention"), [*((name, "sdpa") for name in ENCODERS), ("roberta", "eager")])
def test_logits_loss_and_gradients_are_those_of_transformers_own_class(name: str, attention: str) -> None:
    """The head runs on predicted tokens alone, and padding is hidden by a mask that is made here."""
    model = model_of(name, attn_implementation=attention)
    theirs, given = theirs_of(name, model), rows()
    ids = given["input_ids"]
    labels = ids.masked_fill((ids % 3 != 0) | (ids == 0), -100)
    expected = theirs(**given, labels=labels)
    expected.loss.backward()
    positions = (labels.flatten() != -100).nonzero()[:, 0]
    logits = model(**given, masked_positions=positions).logits
    torch.testing.assert_close(logits, expected.logits.flatten(0, 1)[positions], rtol=0, atol=1e-12)
    cross_entropy(logits, labels.flatten()[positions]).backward()
    for (key, ours), other in zip(model.named_parameters(), theirs.parameters(), strict=True):
        rounding = (1e-5, 1e-8) if name == "modernbert" else (1e-9, 1e-12)  # which turns in float32, whatever its type
        torch.testing.assert_close(ours.grad, other.grad, rtol=rounding[0], atol=rounding[1], msg=key)


@pytest.mark.parametrize("name", list(ENCODERS))
def test_documents_of_a_row_are_read_as_if_each_were_alone(name: str) -> None:
    model, ids = model_of(name, attn_implementation="sdpa"), rows()["input_ids"][:1]
    parts = [slice(0, 7), slice(7, 9), slice(9, 20)]
    documents = torch.tensor([[0] * 7 + [1] * 2 + [2] * 11])
    found = model(input_ids=ids, documents=documents).logits
    for part in parts:
        torch.testing.assert_close(found[:, part], model(input_ids=ids[:, part]).logits, rtol=0, atol=1e-12)
    ids[:, 7:9] = 5
    changed = (model(input_ids=ids, documents=documents).logits != found).any(-1)[0]
    assert changed.tolist() == documents[0].eq(1).tolist()


def write_source(folder: Path, name: str, kind: str) -> Any:
    """transformers' own model in a folder as one finds it: today's, or one of old names in a pickle, without a head."""
    torch.manual_seed(1)
    theirs: Any = getattr(transformers, f"{ENCODERS[name].stem}ForMaskedLM")(config_of(name)).eval()
    if kind == "safetensors":
        theirs.save_pretrained(folder)
        return theirs
    theirs.config.save_pretrained(folder)
    old = {".LayerNorm.weight": ".LayerNorm.gamma", ".LayerNorm.bias": ".LayerNorm.beta"}
    state = {
        next((key.replace(new, before) for new, before in old.items() if new in key), key): tensor
        for key, tensor in theirs.base_model.state_dict().items()
    }
    torch.save(state | {"embeddings.position_ids": torch.arange(32)[None]}, folder / "pytorch_model.bin")
    return theirs


@pytest.mark.parametrize("name", ["bert", "modernbert"])
def test_a_folder_of_released_weights_is_a_start(name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Two forms of it, also by `reread convert`; what is drawn at random is said in one line."""
    spec, ids = model_spec(name), rows()["input_ids"]
    for kind in ("safetensors", "bin"):
        source, out = tmp_path / kind, tmp_path / f"{kind}-converted"
        source.mkdir()
        theirs = write_source(source, name, kind)
        convert(source, out, name)
        for folder in (source, out):
            caplog.clear()
            with caplog.at_level("INFO", "reread"):
                ours = build_model(spec.heads["masked_lm"], model_config(spec, {}, 1, folder), folder, 3).eval()
            assert torch.equal(ours.base_model(ids)[0], theirs.base_model(ids)[0])
            assert torch.equal(ours(ids).logits, theirs(ids).logits) == (kind == "safetensors")
            (line,) = caplog.messages
            assert ("random: " in line and ENCODERS[name].head[0] in line) == (kind == "bin")


def test_a_copy_that_differs_from_what_it_is_tied_to_is_left_out_in_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """transformers 5 unties it, and the export, which holds no copies, would compute something else. The configuration
    is an old one, without a model_type."""
    caplog.set_level("INFO", "reread")
    spec, source, out = model_spec("bert"), tmp_path / "source", tmp_path / "out"
    theirs = write_source(source, "bert", "safetensors")
    weights = {name: tensor.clone() for name, tensor in theirs.state_dict().items()}
    weights["cls.predictions.decoder.weight"] += 1
    (source / "model.safetensors").unlink()
    torch.save(weights, source / "pytorch_model.bin")
    ids = rows()["input_ids"]
    for folder in (source, out):
        ours = build_model(spec.heads["masked_lm"], model_config(spec, {}, 1, folder), folder, 3).eval()
        assert ours.get_output_embeddings().weight is ours.get_input_embeddings().weight
        assert torch.equal(ours(ids).logits, theirs(ids).logits)
        if folder is source:
            old = json.loads((source / "config.json").read_text())
            del old["model_type"]
            (source / "config.json").write_text(json.dumps(old))
            convert(source, out, "bert")
    lines = [line for line in caplog.messages if "from which they differ: cls.predictions.decoder.weight" in line]
    assert len(lines) == 2 and "BertForPreTraining" in lines[1]
    of_transformers_4 = SimpleNamespace(_tied_weights_keys=["cls.predictions.decoder.weight"])
    assert without_copies(of_transformers_4, weights, "") == weights


def run_values(corpus: Path, name: str, **data: Any) -> dict[str, Any]:
    return {
        "model": {"type": name, **SIZES, **OWN[name]},
        "data": {"kind": "packed", "corpus": str(corpus), "sequence_length": 24, **data},
        "steps": 4,
        "global_batch": 4,
        "micro_batch": 2,
        "optimizer": {"name": "adam", "learning_rate": 0.01},
        "schedule": {"decay": "constant"},
        "checkpoint": {"every_steps": 2},
        "log_every": 1,
        "validate_every": 4,
        "validation_batches": 1,
        "peak_tflops": 1.0,
        "writers": [],
    }


def trained(run: Path, values: dict[str, Any]) -> Any:
    run.mkdir(exist_ok=True)
    trainer = Trainer(TrainSettings.parse(values, "test"), run, Mesh())
    trainer.train()
    return trainer.assembly.model.eval()


@pytest.mark.parametrize(
    ("name", "data", "auto"),
    [
        ("bert", {"kind": "rows", "next_sentence": True}, "AutoModelForPreTraining"),
        ("modernbert", {"separate_documents": True, "masking": {"strategy": "span"}}, "AutoModelForMaskedLM"),
    ],
)
def test_a_run_is_resumed_exactly_and_exported_as_transformers_own_class(
    name: str, data: dict[str, Any], auto: str, sample_corpus: Path, tmp_path: Path
) -> None:
    values, parts = run_values(sample_corpus, name, **data), tmp_path / "parts"
    whole = trained(tmp_path / "whole", values)
    trained(parts, {**values, "steps": 2})
    resumed = trained(parts, values)
    assert all(torch.equal(one, other) for one, other in zip(whole.parameters(), resumed.parameters(), strict=True))
    recipe = Recipe.parse({"name": "parts", "train": values}, "test")
    write_recipe(recipe, parts / "recipe.yaml")
    folder = export(parts, tmp_path / "export")
    config = json.loads((folder / "config.json").read_text())
    assert "auto_map" not in config and config["architectures"] == [type(whole).__name__]
    assert not list(folder.glob("*.py"))
    loaded, found = getattr(transformers, auto).from_pretrained(folder, output_loading_info=True)
    assert loaded.__module__.startswith("transformers.models") and not any(found.values()), found
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    inputs = tokenizer("One text.", return_tensors="pt")
    assert ("token_type_ids" in inputs) == (name == "bert")
    output = loaded.eval()(**inputs)
    assert torch.equal(
        output["prediction_logits" if "NextSentence" in auto or name == "bert" else "logits"], whole(**inputs).logits
    )


@pytest.mark.parametrize(
    ("model", "data", "message"),
    [
        ({"type": "bert", "hiden_size": 8}, {}, "`hiden_size` for bert; did you mean `train.model.hidden_size`?"),
        ({"type": "modernbert", "hidden_act": "gelu"}, {}, "did you mean `train.model.hidden_activation`?"),
        ({"type": "bertt"}, {}, "did you mean `bert`?"),
        ({"type": "bert", "is_decoder": True}, {}, "is_decoder is True, but bert is trained with False alone"),
        ({"type": "bert", "max_position_embeddings": 512}, {"sequence_length": 513}, "positions end at 512"),
        (
            {"type": "roberta", "max_position_embeddings": 514, "pad_token_id": 1},
            {"sequence_length": 513},
            "end at 512",
        ),
        ({"type": "roberta"}, {"kind": "rows", "sequence_length": 64}, "next_sentence: true, but roberta has no head"),
        ({"type": "longformer"}, {"separate_documents": True}, "longformer reads a row as a whole"),
    ],
)
def test_a_mistake_is_one_line(model: dict[str, Any], data: dict[str, Any], message: str) -> None:
    values = run_values(Path("corpus"), "bert", **data) | {"model": model}
    with pytest.raises(UserError, match=re.escape(message)) as raised:
        check_model(TrainSettings.parse(values, "test"))
    assert "\n" not in str(raised.value)


def test_more_mistakes_are_one_line_each(tmp_path: Path) -> None:
    values = run_values(Path("corpus"), "bert") | {"parallel": {"tensor": 2}}
    with pytest.raises(UserError, match=r"^train\.parallel\.tensor: 2, but bert is not split over processes"):
        check_model(TrainSettings.parse(values, "test"))
    write_source(tmp_path, "roberta", "bin")
    with pytest.raises(UserError, match="is of a model of type roberta, not bert"):
        model_config(model_spec("bert"), {}, 1, tmp_path)
    torch.save({"x": Path("code")}, tmp_path / "pytorch_model.bin")
    config = model_config(model_spec("roberta"), {}, 1, tmp_path)
    with pytest.raises(UserError, match="holds more than tensors, which is not read"):
        build_model(model_spec("roberta").heads["masked_lm"], config, tmp_path, 0)


def test_what_modernbert_derives_from_its_keys_follows_them_in_a_continued_run(tmp_path: Path) -> None:
    """As with the base of global positions raised for longer rows; a folder may have the keys of transformers 4."""
    spec = model_spec("modernbert")
    keys = {"global_rope_theta": 20_000.0, "local_rope_theta": 5000.0, "global_attn_every_n_layers": 2}
    old = {"model_type": "modernbert", **SIZES, **keys, "vocab_size": 40, "pad_token_id": 0}
    (tmp_path / "config.json").write_text(json.dumps(old))
    first = model_config(spec, {}, 1, tmp_path)
    (tmp_path / "config.json").write_text(first.to_json_string(use_diff=False))
    for changed in ({}, {"global_rope_theta": 160_000.0}):
        config = model_config(spec, changed, 1, tmp_path)
        thetas = {kind: rope["rope_theta"] for kind, rope in config.rope_parameters.items()}
        assert thetas == {"full_attention": changed.get("global_rope_theta", 20_000.0), "sliding_attention": 5000.0}
        assert config.layer_types == ["full_attention", "sliding_attention"]
    assert model_config(spec, {"num_hidden_layers": 3}, 1, tmp_path).layer_types[2] == "full_attention"
    rotary = spec.heads["masked_lm"](first).to(torch.bfloat16).base_model.rotary_emb
    assert rotary.full_attention_inv_freq.dtype == torch.float32


@pytest.mark.parametrize("name", list(ENCODERS))
def test_our_heads_for_further_options_compute_what_transformers_own_do_without_them(name: str) -> None:
    """So a chain of tags, or an answer with marks, is the same model with more on top."""
    spec, given = model_spec(name), rows()
    for objective in ("tag", "answer"):
        ours = spec.further[objective](config_of(name)).eval()
        theirs = theirs_of(name, model_of(name, objective)).float()
        ours.load_state_dict(theirs.state_dict())
        for key, value in theirs(**given).items():
            torch.testing.assert_close(ours(**given)[key], value, rtol=0, atol=1e-6)
    assert spec.head("tag", TagSettings.model_construct(crf=True)) is spec.further["tag"]
    assert spec.head("tag", TagSettings.model_construct()) is spec.heads["tag"]


@pytest.mark.parametrize("name", ["roberta", "modernbert"])
def test_a_head_of_a_task_is_exported_as_transformers_own(name: str, tmp_path: Path) -> None:
    model = model_of(name, "classify", pad_token_id=0).float()
    model.config.reading = {"length": 16, "step": None, "predict": "mean", "retrospective": False}
    write_huggingface(tmp_path / "out", model, None, "card")
    loaded = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "out").eval()
    assert not list((tmp_path / "out").glob("*.py"))
    assert torch.equal(loaded(**rows()).logits, model(**rows()).logits)


def test_layers_are_compiled_one_by_one_and_norms_are_not_decayed() -> None:
    for name in ENCODERS:
        model = model_of(name)
        layers = [module for module in model.modules() if type(module).__name__ == model_spec(name).layer]
        assert len(layers) == 2
        settings = OptimizerSettings(learning_rate=1.0, layer_decay=0.5)
        for group in build_optimizer(model.named_parameters(), settings, Mesh()).param_groups:
            for parameter in group["params"]:
                (key,) = (key for key, one in model.named_parameters() if one is parameter)
                assert (group["weight_decay"] == 0) == (parameter.dim() == 1), key
                number = re.search(r"\.layers?\.(\d)\.", key)
                below = 2 - int(number[1]) if number else 3 if ".embeddings" in key else 0
                assert group["scale"] == 0.5**below, key
