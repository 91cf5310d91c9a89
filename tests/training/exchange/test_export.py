"""Exported folders load through transformers' Auto classes, elsewhere, with the same logits."""

import errno
import inspect
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from hypothesis import example, given
from hypothesis import strategies as st
from safetensors import safe_open
from torch import nn

from reread.preprocessing.config import CleanSettings, TokenizerSettings, VocabularySettings
from reread.preprocessing.errors import UserError
from reread.preprocessing.files import unfinished
from reread.preprocessing.text.clean import Cleaner
from reread.preprocessing.tokens.tokenizer import load_tokenizer
from reread.preprocessing.tokens.vocabulary import train_vocabulary
from reread.preprocessing.tokens.wordlevel import train_words
from reread.training.data.kinds import KINDS
from reread.training.exchange import export
from reread.training.exchange.card import model_card
from reread.training.exchange.export import write_huggingface
from reread.training.models import MODELS, model_spec
from reread.training.models.build import copy_projections
from reread.training.models.ernie_doc import ErnieDocConfig, ErnieDocForPreTraining
from reread.training.models.longformer import LongformerConfig, LongformerForMaskedLM
from reread.training.models.nezha import NezhaConfig, NezhaForPreTraining
from reread.training.models.ran import RanConfig, RanForCausalLM, RanForMaskedLM
from reread.training.models.transformer_xl import TransformerXLConfig, TransformerXLForCausalLM
from reread.training.objectives import OBJECTIVES
from tests.elsewhere import run_elsewhere

FORMS: list[dict[str, Any]] = [
    {"max_relative_position": 3, "hidden_act": "gelu_new"},
    {"max_relative_position": None},
    {"position_type": "parametric_absolute"},
    {"position_type": "parametric_relative", "max_relative_position": 3},
]
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "中", "国", "##a", "a"]
IDS = torch.arange(18).view(2, 9) % 9
MASK = torch.tensor([[1] * 9, [1] * 5 + [0] * 4])

LOAD = """
import sys, torch
from transformers import AutoModel, AutoModelForMaskedLM, AutoModelForPreTraining, AutoTokenizer
assert not any(name.split(".")[0] in ("training", "preprocessing") for name in sys.modules)
ids, mask = torch.load(sys.argv[1])
for folder in sys.argv[2:]:
    load = dict(pretrained_model_name_or_path=folder, trust_remote_code=True)
    model = AutoModelForMaskedLM.from_pretrained(**load).eval()
    assert model.cls.predictions.decoder.weight is model.nezha.embeddings.word_embeddings.weight
    assert model.cls.predictions.decoder.bias is model.cls.predictions.bias
    both = AutoModelForPreTraining.from_pretrained(**load).eval()(ids, attention_mask=mask)
    encoder = AutoModel.from_pretrained(**load).eval()(ids, attention_mask=mask)
    tokens = AutoTokenizer.from_pretrained(**load)("中[MASK]")["input_ids"]
    assert tokens == [2, 5, 4, 3], tokens
    model.save_pretrained(folder + "/again")
    again = AutoModelForMaskedLM.from_pretrained(folder + "/again", trust_remote_code=True).eval()
    logits = [m(ids, attention_mask=mask).logits for m in (model, again)]
    outputs = [*logits, both.prediction_logits, both.seq_relationship_logits, encoder.last_hidden_state]
    torch.save(outputs, folder + "/out")
"""

LOAD_WITH_MEMORY = """
import json, sys, torch
from transformers import (AutoConfig, AutoModel, AutoModelForCausalLM, AutoModelForMaskedLM, AutoModelForPreTraining,
                          AutoTokenizer)
assert not any(name.split(".")[0] in ("training", "preprocessing") for name in sys.modules)
inputs, segments, stream = sys.argv[1:]
ids, document = torch.load(inputs)
load = lambda auto, folder: auto.from_pretrained(folder, trust_remote_code=True)

def twice(model, ids):  # a segment, and the next with the memory of the first
    first = model(ids)
    second = model(ids.flip(0), mems=first.mems)
    return [output[name] for output in (first, second) for name in output.keys() if "logits" in name] + [*second.mems]

with torch.no_grad():
    encoder = load(AutoModel, segments).eval()
    pretraining = twice(load(AutoModelForPreTraining, segments).eval(), ids)
    masked = twice(load(AutoModelForMaskedLM, segments).eval(), ids)
    causal = twice(load(AutoModelForCausalLM, stream).eval(), ids)
    read = encoder.read(document)
torch.save([pretraining, masked, causal, [read.last_hidden_state, read.pooler_output]], inputs + ".out")
tokenizer = load(AutoTokenizer, segments)
tokens = tokenizer(["中国[MASK]", "中"], padding=True)
pair = tokenizer("中", "国国")
config = load(AutoConfig, segments)
told = [tokens["input_ids"], tokens["attention_mask"], pair["input_ids"], pair["token_type_ids"],
        [config.pad_token_id, config.cls_token_id, config.sep_token_id],
        load(AutoTokenizer, stream)("中国")["input_ids"]]
json.dump(told, open(inputs + ".json", "w"))
"""

LOAD_WITHOUT_CODE = """
import json, sys, torch
from transformers import AutoModelForMaskedLM, AutoTokenizer
assert not any(name.split(".")[0] in ("training", "preprocessing") for name in sys.modules)
told = []
for folder in sys.argv[2:]:
    ours = folder.endswith("ran")  # its code lies in the folder
    load = dict(pretrained_model_name_or_path=folder, trust_remote_code=True) if ours else dict(
        pretrained_model_name_or_path=folder)
    model, found = AutoModelForMaskedLM.from_pretrained(**load, output_loading_info=True)
    assert not any(found[name] for name in ("missing_keys", "unexpected_keys", "mismatched_keys")), found
    assert ours or type(model).__module__ == "transformers.models.longformer.modeling_longformer"
    ids, mask = torch.load(sys.argv[1])
    with torch.no_grad():
        torch.save(model.eval()(ids, attention_mask=mask).logits, folder + "/out")
    tokenizer = AutoTokenizer.from_pretrained(**load)
    pair, batch = tokenizer("a", "国")["input_ids"], dict(tokenizer(["a", "a国"], padding=True))
    told.append([dict(tokenizer("a 国a")), pair, batch, tokenizer.model_max_length,
                 tokenizer.decode(tokenizer("国a")["input_ids"], skip_special_tokens=True)])
json.dump(told, open(sys.argv[1] + ".json", "w"))
"""


def card_of(name: str, kind: str, *of: Any, **more: Any) -> str:
    """The card of a model that learned from data of this kind."""
    lengths = {"window_size": 48, "sequence_length": 96}
    return model_card(model_spec(name), OBJECTIVES[KINDS[kind].objective], *of, lengths=lengths, **more)


def pretraining(**form: Any) -> NezhaForPreTraining:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"vocab_size": 9, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = NezhaConfig(**sizes, intermediate_size=24, max_position_embeddings=32, initializer_range=0.2, **form)
    model = NezhaForPreTraining(config).eval()
    nn.init.normal_(model.cls.predictions.bias)
    return model


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    (folder / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n", encoding="utf-8")
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer", "do_lower_case": true}')
    return folder


@pytest.mark.slow
def test_exported_models_give_the_logits_of_training_in_another_process(tmp_path: Path, tokenizer: Path) -> None:
    folders, expected = [], []
    for number, form in enumerate(FORMS):
        model = pretraining(**form)
        folder = tmp_path / f"export-{number}"
        write_huggingface(folder, model, tokenizer, "card")
        with torch.no_grad():
            output = model(IDS, attention_mask=MASK, output_hidden_states=True)
        logits = output.prediction_logits
        folders.append(folder)
        expected.append([logits, logits, logits, output.seq_relationship_logits, output.hidden_states[-1]])
    torch.save((IDS, MASK), tmp_path / "inputs")
    run_elsewhere(tmp_path, LOAD, tmp_path / "inputs", *folders)
    for folder, tensors in zip(folders, expected, strict=True):
        for loaded, trained in zip(torch.load(folder / "out"), tensors, strict=True):
            assert torch.equal(loaded, trained)


def with_memory() -> tuple[Any, Any]:
    """A tiny ERNIE-Doc and a tiny Transformer-XL."""
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"vocab_size": 9, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = ErnieDocConfig(**sizes, max_position_embeddings=9, memory_length=4, initializer_range=0.2)
    config.cls_token_id, config.sep_token_id = 2, 3
    lengths: dict[str, Any] = {"d_model": 16, "n_head": 2, "d_head": 8, "d_inner": 24, "n_layer": 2, "mem_len": 4}
    stream = TransformerXLForCausalLM(TransformerXLConfig(vocab_size=9, **lengths, cutoffs=(4, 6), div_val=2))
    return ErnieDocForPreTraining(config).eval(), stream.eval()


@pytest.mark.slow
def test_models_with_memory_carry_it_in_another_process(tmp_path: Path, tokenizer: Path) -> None:
    segments, stream = with_memory()
    write_huggingface(tmp_path / "segments", segments, tokenizer, "card")
    write_huggingface(tmp_path / "stream", stream, tokenizer, "card")
    document = torch.arange(20) % 9
    torch.save((IDS, document), tmp_path / "inputs")
    run_elsewhere(tmp_path, LOAD_WITH_MEMORY, *(tmp_path / name for name in ("inputs", "segments", "stream")))
    with torch.no_grad():
        first = segments(IDS)
        second = segments(IDS.flip(0), mems=first.mems)
        heads = [(output.prediction_logits, output.reorder_logits) for output in (first, second)]
        words, then = stream(IDS), stream(IDS.flip(0), mems=stream(IDS).mems)
        read = segments.ernie_doc.read(document)
    assert not torch.equal(second.prediction_logits, segments(IDS.flip(0)).prediction_logits)
    expected = [
        [*heads[0], *heads[1], *second.mems],
        [heads[0][0], heads[1][0], *second.mems],
        [words.logits, then.logits, *then.mems],
        [read.last_hidden_state, read.pooler_output],
    ]
    for loaded, trained in zip(torch.load(tmp_path / "inputs.out"), expected, strict=True):
        for ours, theirs in zip(loaded, trained, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)  # a product may be summed in another order
    tokens, mask, pair, types, ids, plain = json.loads((tmp_path / "inputs.json").read_text())
    assert tokens == [[5, 6, 4, 3, 2], [0, 0, 5, 3, 2]]  # [CLS] last, padding before
    assert mask == [[1, 1, 1, 1, 1], [0, 0, 1, 1, 1]]
    assert (pair, types) == ([5, 3, 6, 6, 3, 2], [0, 0, 1, 1, 1, 0])
    assert ids == [0, 2, 3]
    assert plain == [5, 6]


def random_weights(model: Any) -> Any:
    """`model` with all its parameters drawn anew, biases too, and no dropout."""
    torch.manual_seed(0)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.2)
    return model.eval()


def longformer(**changes: Any) -> LongformerForMaskedLM:
    """Positions for 30 tokens, windows of 4."""
    sizes: dict[str, Any] = {"vocab_size": 400, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    sizes |= {"intermediate_size": 24, "attention_window": 4, "max_position_embeddings": 31, "pad_token_id": 0}
    return random_weights(LongformerForMaskedLM(LongformerConfig(**{**sizes, **changes})))


def ran() -> RanForMaskedLM:
    sizes: dict[str, Any] = {"vocab_size": 400, "hidden_size": 16, "num_attention_heads": 2, "head_size": 8}
    return random_weights(RanForMaskedLM(RanConfig(**sizes, window_size=4, min_window_size=2)))


@pytest.fixture
def tokenizers(tmp_path: Path, tokenizer: Path) -> dict[str, Path]:
    """Tokenizers as a corpus has them, by kind."""
    (tmp_path / "vocabulary").mkdir()
    bpe = train_vocabulary(["a a a 国"], VocabularySettings(type="bpe", size=270), True, tmp_path / "vocabulary")
    for kind, path in (("wordpiece", tokenizer), ("bpe", bpe)):
        load_tokenizer(path, TokenizerSettings(path=path)).save(tmp_path / kind)
    return {kind: tmp_path / kind for kind in ("wordpiece", "bpe")}


@pytest.mark.slow
def test_a_longformer_is_transformers_own_and_tokenizers_frame_as_the_rows_were(
    tmp_path: Path, tokenizers: dict[str, Path]
) -> None:
    models: dict[str, Any] = {"longformer": longformer(), "ran": ran()}
    kinds = [(kind, name) for kind in tokenizers for name in models]
    for kind, name in kinds:
        write_huggingface(tmp_path / f"{kind}-{name}", models[name], tokenizers[kind], card_of(name, "rows", "", {}))
    ids, mask = torch.arange(58).view(2, 29) + 1, torch.ones(2, 29, dtype=torch.int64)
    ids[1, 20:] = mask[1, 20:] = 0
    torch.save((ids, mask), tmp_path / "inputs")
    folders = [f"{kind}-{name}" for kind, name in kinds]
    run_elsewhere(tmp_path, LOAD_WITHOUT_CODE, tmp_path / "inputs", *(tmp_path / name for name in folders))
    told = json.loads((tmp_path / "inputs.json").read_text())
    for folder, (kind, name), row in zip(folders, kinds, told, strict=True):
        with torch.no_grad():
            expected = models[name](ids, attention_mask=mask).logits
        found = torch.load(tmp_path / folder / "out")
        torch.testing.assert_close(found[mask.bool()], expected[mask.bool()], rtol=0, atol=1e-4)
        a, both, other = (corpus_ids(tokenizers[kind], text) for text in ("a", "a 国a", "国"))
        begin, between, end = {"wordpiece": ([2], [3], [3]), "bpe": ([0], [2, 2], [2])}[kind]
        if name == "ran":
            begin, between, end = [], [], []
        single, pair, batch, longest, text = row
        assert single == {"input_ids": begin + both + end, "attention_mask": [1] * len(begin + both + end)}
        assert pair == begin + a + between + other + end
        padded = len(batch["attention_mask"][0]) - len(begin + a + end)
        assert padded > 0
        assert batch["attention_mask"][0] == [1] * len(begin + a + end) + [0] * padded
        assert longest == 30 if name == "longformer" else longest > 10**9
        assert text.replace(" ", "") == "国a"


def corpus_ids(folder: Path, text: str) -> list[int]:
    return load_tokenizer(folder, TokenizerSettings(path=folder)).encode(text)[0].tolist()


def test_what_transformers_has_itself_is_exported_without_code(tmp_path: Path, tokenizer: Path) -> None:
    card = card_of("longformer", "packed", "Pretrained.", {})
    write_huggingface(tmp_path / "out", longformer(type_vocab_size=1), tokenizer, card)
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {"README.md", "config.json", "model.safetensors", "tokenizer_config.json", "vocab.txt"}
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert "auto_map" not in config
    assert (config["architectures"], config["model_type"]) == (["LongformerForMaskedLM"], "longformer")
    settings = json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())
    assert settings["model_input_names"] == ["input_ids", "attention_mask"]
    assert settings["model_max_length"] == 30
    assert "`trust_remote_code` is not needed" in card
    assert "trust_remote_code=True" not in card
    assert "global_attention_mask" in card


def test_global_projections_get_what_the_local_ones_learnt() -> None:
    model = longformer()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    copy_projections(model, model_spec("longformer").copied)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name.replace("_global", "")]), name
    layers = model.longformer.encoder.layer
    assert not torch.equal(
        before["longformer.encoder.layer.0.attention.self.query_global.weight"], layers[0].attention.self.query.weight
    )
    with torch.no_grad():
        layers[0].attention.self.query.weight.zero_()  # copies are of their own
    assert layers[0].attention.self.query_global.weight.any()


def test_the_folder_holds_what_transformers_needs_and_no_tied_copies(tmp_path: Path, tokenizer: Path) -> None:
    write_huggingface(tmp_path / "out", pretraining(), tokenizer, "# card")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "README.md",
        "attention_nezha.py",
        "blocks.py",
        "config.json",
        "configuration_nezha.py",
        "coreference.py",
        "crf.py",
        "heads.py",
        "model.safetensors",
        "modeling_nezha.py",
        "head_options.py",
        "tokenizer_config.json",
        "vectors.py",
        "vocab.txt",
    }
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["auto_map"] == {
        "AutoConfig": "configuration_nezha.NezhaConfig",
        "AutoModel": "modeling_nezha.NezhaModel",
        "AutoModelForMaskedLM": "modeling_nezha.NezhaForMaskedLM",
        "AutoModelForMultipleChoice": "modeling_nezha.NezhaForMultipleChoice",
        "AutoModelForPreTraining": "modeling_nezha.NezhaForPreTraining",
        "AutoModelForQuestionAnswering": "modeling_nezha.NezhaForQuestionAnswering",
        "AutoModelForSequenceClassification": "modeling_nezha.NezhaForSequenceClassification",
        "AutoModelForTokenClassification": "modeling_nezha.NezhaForTokenClassification",
    }
    assert config["architectures"] == ["NezhaForPreTraining"]
    assert config["model_type"] == "nezha"
    with safe_open(tmp_path / "out" / "model.safetensors", "pt") as weights:
        assert not [name for name in weights.keys() if "decoder" in name]  # noqa: SIM118


@pytest.mark.parametrize("name", MODELS)
def test_transformers_4_finds_all_files_of_code(name: str) -> None:
    """It copies what the modeling and the configuration file import, and not what those files import."""
    spec = model_spec(name)
    own = [one for one in (spec.config, *spec.variants.values()) if not export.in_transformers(one)]
    if not own:
        return
    files = [Path(inspect.getfile(one)) for one in (own[0], next(iter(spec.heads.values())))]
    known = {file.name for one in files for file in [one, *direct_imports(one)]}
    assert known == {file.name for file in export._with_imports(files[1])}


def direct_imports(file: Path) -> list[Path]:
    found = re.findall(r"^from (\.+)([\w.]+) import", file.read_text(), re.MULTILINE)
    return [file.parents[len(dots) - 1] / f"{module}.py" for dots, module in found]


def test_vocabulary_padding_is_removed(tmp_path: Path) -> None:
    model = pretraining()
    expected = model(IDS).prediction_logits
    embedding, head = model.nezha.embeddings.word_embeddings, model.cls.predictions
    padded = nn.Parameter(torch.cat([embedding.weight, torch.full((119, 16), 7.0)]))
    bias = nn.Parameter(torch.cat([head.bias, torch.full((119,), 7.0)]))
    embedding.weight = head.decoder.weight = padded
    head.bias = head.decoder.bias = bias
    write_huggingface(tmp_path / "out", model, None, "card")
    loaded = NezhaForPreTraining.from_pretrained(tmp_path / "out").eval()
    assert torch.equal(loaded(IDS).prediction_logits, expected)


def test_a_failed_export_leaves_nothing_behind(
    tmp_path: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError("No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(export, "_config_json", fail)
        with pytest.raises(OSError, match="No space"):
            write_huggingface(tmp_path / "out", pretraining(), tokenizer, "card")
    assert not list(tmp_path.glob("*out*"))
    settings = tokenizer / "tokenizer_config.json"
    settings.rename(tokenizer / "whole")
    settings.write_text("{")
    with pytest.raises(UserError, match=r"tokenizer_config\.json: not readable as JSON \(Expecting"):
        write_huggingface(tmp_path / "out", pretraining(), tokenizer, "card")
    assert not list(tmp_path.glob("*out*"))
    (tokenizer / "whole").rename(settings)
    write_huggingface(tmp_path / "out", pretraining(), tokenizer, "card")
    assert [path.name for path in tmp_path.glob("*out*")] == ["out"]


TAGGED = "---\ntags: [reread]\n---\n"


def test_an_earlier_export_is_replaced_and_anything_else_is_not(tmp_path: Path) -> None:
    write_huggingface(tmp_path / "out", pretraining(), None, TAGGED + "first")
    write_huggingface(tmp_path / "out", pretraining(), None, TAGGED + "second")
    assert (tmp_path / "out" / "README.md").read_text() == TAGGED + "second"
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").write_text("someone else's model")
    with pytest.raises(UserError, match="is not an exported model"):
        write_huggingface(tmp_path / "mine", pretraining(), None, "card")
    assert (tmp_path / "mine" / "config.json").read_text() == "someone else's model"


def test_only_what_a_killed_export_left_is_removed_beside_it(tmp_path: Path) -> None:
    write_huggingface(tmp_path / "out", pretraining(), None, TAGGED + "first")
    for name in ("out.old", "out.tmp"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "thesis").write_text("mine")
    left = unfinished(tmp_path / "out") / "new"
    left.mkdir(parents=True)
    (left / "model.safetensors").write_text("half")
    write_huggingface(tmp_path / "out", pretraining(), None, TAGGED + "second")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "out.old", "out.tmp"]
    assert [(tmp_path / name / "thesis").read_text() for name in ("out.old", "out.tmp")] == ["mine", "mine"]


def test_an_export_that_cannot_be_put_in_place_leaves_the_earlier_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_huggingface(tmp_path / "out", pretraining(), None, TAGGED + "first")
    rename = Path.rename

    def fail(path: Path, target: Path) -> Path:
        if path.name == "new":
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", fail)
    with pytest.raises(OSError, match="Input/output"):
        write_huggingface(tmp_path / "out", pretraining(), None, TAGGED + "second")
    assert (tmp_path / "out" / "README.md").read_text() == TAGGED + "first"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_an_export_is_known_by_its_tag(tmp_path: Path) -> None:
    card = card_of("longformer", "packed", "Pretrained.", {})
    write_huggingface(tmp_path / "out", longformer(), None, card)
    write_huggingface(tmp_path / "out", longformer(), None, card + "second")
    assert (tmp_path / "out" / "README.md").read_text() == card + "second"
    write_huggingface(tmp_path / "out", pretraining(), None, "another model")
    assert (tmp_path / "out" / "configuration_nezha.py").exists()
    for number, other in enumerate(
        (card.replace("- reread\n", ""), "reread", "---\n- reread\n---\n", "---\ntags: 3\n---")
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "README.md").write_text(other)
        with pytest.raises(UserError, match="is not an exported model"):
            write_huggingface(folder, longformer(), None, card)
        assert [path.name for path in folder.iterdir()] == ["README.md"]


@pytest.mark.parametrize(
    ("name", "kind", "tag", "auto", "use"),
    [
        ("ernie_doc", "segments", "fill-mask", "AutoModelForMaskedLM", "read = model.read(ids)"),
        ("transformer_xl", "stream", "text-generation", "AutoModelForCausalLM", "mems = output.mems"),
        ("ran", "rows", "fill-mask", "AutoModelForMaskedLM", "puts no special"),
        ("ran", "stream", "text-generation", "AutoModelForCausalLM", "mems = output.mems"),
    ],
)
def test_the_card_of_a_model_with_memory_says_how_to_use_it(
    name: str, kind: str, tag: str, auto: str, use: str
) -> None:
    card = card_of(name, kind, "Pretrained.", {}, ["今天天[MASK]真好"])
    header = yaml.safe_load(card.split("---\n")[1])
    assert header["pipeline_tag"] == tag
    assert ("widget" in header) == (tag == "fill-mask")
    assert f"model = {auto}.from_pretrained" in card
    assert use in card
    assert ("indows of 48 tokens" in card) == (name == "ran")  # its own
    assert ("split(96)" in card) == (name == "ran" and kind == "stream")


@pytest.mark.slow
def test_what_the_cards_of_models_with_memory_tell_to_run_runs(tmp_path: Path, tokenizer: Path) -> None:
    segments, _ = with_memory()
    words = train_words(["= a =", "a b . b a ? a"], 9, False, tmp_path)
    load_tokenizer(words, TokenizerSettings(path=words)).save(tmp_path / "words")
    sizes: dict[str, Any] = {"d_model": 16, "n_head": 2, "d_head": 8, "d_inner": 24, "n_layer": 2, "mem_len": 4}
    stream = TransformerXLForCausalLM(TransformerXLConfig(vocab_size=7, **sizes, positions="segatron-exact"))
    program = 'text = "= a =\\n \\nb a . a . \\na 中 ?"\n'
    words_folder = tmp_path / "words"
    cells = RanForCausalLM(RanConfig(vocab_size=7, hidden_size=16, num_attention_heads=2, head_size=8))
    sizes = {"vocab_size": 7, "hidden_size": 16, "num_attention_heads": 2, "head_size": 8}
    adaptive = RanForCausalLM(RanConfig(**sizes, cutoffs=[2, 4], div_val=2)).eval()
    models: tuple[Any, ...] = (
        ("ran", "stream", cells, words_folder),
        ("ran_words", "stream", adaptive, words_folder),
        ("ernie_doc", "segments", segments, tokenizer),
        ("transformer_xl", "stream", stream, words_folder),
    )
    for name, kind, model, files in models:
        card = card_of(name.removesuffix("_words"), kind, "Pretrained.", {})
        write_huggingface(tmp_path / name, model, files, card)
        blocks = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
        assert len(blocks) == 2
        program += "\n".join(blocks).replace("this/folder", str(tmp_path / name))
        program += f"\n{name} = output.logits.shape\n" if kind == "stream" else ""
    program += """
tokens = tokenizer.convert_ids_to_tokens(ids)
assert tokens == ["=", "a", "=", "<eos>", "b", "a", ".", "a", ".", "<eos>", "a", "<unk>", "?", "<eos>"], tokens
assert [place for place, ends in enumerate(sentence_ends) if ends] == [3, 6, 9, 13]
assert [place for place, ends in enumerate(paragraph_ends) if ends] == [3, 9, 13]
assert transformer_xl == ran == ran_words == (1, 14, 7) and not read.last_hidden_state.requires_grad
"""
    with torch.no_grad():
        torch.save(adaptive(IDS % 7).logits, tmp_path / "logits")
    program += f"""
ours = AutoModelForCausalLM.from_pretrained({str(tmp_path / "ran_words")!r}, trust_remote_code=True)
torch.testing.assert_close(ours(torch.tensor({(IDS % 7).tolist()})).logits, torch.load({str(tmp_path / "logits")!r}))
"""
    run_elsewhere(tmp_path, program)
    own = ("attention_ran.py", "characters_ran.py", "configuration_ran.py", "modeling_ran.py", "windows_ran.py")
    assert {file.name for file in (tmp_path / "ran_words").glob("*.py")} == {
        "adaptive.py",
        "beams.py",
        "blocks.py",
        "coreference.py",
        "crf.py",
        "heads.py",
        "head_options.py",
        "vectors.py",
        *own,
    }


def test_the_model_card_tells_where_the_model_comes_from() -> None:
    sections: dict[str, dict[str, Any]] = {
        "Corpus": {"documents": 3, "tokens": 400},
        "Final losses": {"loss": 1.5},
        "Recipe": {},
    }
    card = card_of("nezha", "rows", "Pretrained for 10 steps.", sections, ["今天天[MASK]真好"])
    header = yaml.safe_load(card.split("---\n")[1])
    assert header["pipeline_tag"] == "fill-mask"
    assert header["widget"] == [{"text": "今天天[MASK]真好"}]
    assert "Pretrained for 10 steps." in card
    assert "## Corpus\n\n```yaml\ndocuments: 3\ntokens: 400\n```" in card
    assert "Recipe" not in card


@given(st.text(st.sampled_from("，。！？：；（）～…．船票１２３ＡＢａＣ．5x①ﬁ％＋㎏豈ｶﾞé")))
@example("３．５元，ＡＢ．ＣＤ。完．")
def test_the_card_gives_text_the_characters_that_it_had_in_training(text: str) -> None:
    card = card_of("nezha", "rows", "", {}, cleaning=["nfkc", "html"])
    assert "(`preprocess.clean`: nfkc, html)" in card
    names = {"text": text}
    exec(card.split("```python\n")[-1].split("```")[0], names)
    assert names["text"] == Cleaner(CleanSettings()).clean(text)
    assert "normalize" not in card_of("nezha", "rows", "", {}, cleaning=["html"])
