"""Checkpoints of fairseq, Megatron-LM, NVIDIA and PyTorch Lightning give the outputs of their own layouts.

Each reference is a plain formula on the tensors as the other program stores them; nothing is shared with what reads.
"""

import argparse
import itertools
import json
import logging
import pickle
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from reread.pipeline.commands.convert import convert as command
from reread.preprocessing.errors import UserError
from reread.training.exchange.convert import convert, to_megatron
from reread.training.models.longformer import LongformerForMaskedLM
from reread.training.models.nezha import NezhaForPreTraining
from tests.conftest import GOLDEN

D, HEADS, INNER, WORDS, LENGTH, LAYERS = 16, 4, 24, 40, 12, 2
IDS = torch.randint(4, WORDS, (2, LENGTH), generator=torch.Generator().manual_seed(1))
TYPES = (torch.arange(LENGTH) > 6).long().expand(2, -1)


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=GENERATOR) * 0.3


GENERATOR = torch.Generator().manual_seed(0)


def linear(out: int, inner: int) -> dict[str, Tensor]:
    return {"weight": drawn(out, inner), "bias": drawn(out)}


def norm() -> dict[str, Tensor]:
    return {"weight": 1 + drawn(D), "bias": drawn(D)}


def apply(states: Tensor, owner: dict[str, Tensor], name: str) -> Tensor:
    return states @ owner[f"{name}.weight"].double().T + owner[f"{name}.bias"].double()


def normed(states: Tensor, owner: dict[str, Tensor], name: str) -> Tensor:
    centred = states - states.mean(-1, keepdim=True)
    scaled = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    return scaled * owner[f"{name}.weight"].double() + owner[f"{name}.bias"].double()


def erf_gelu(x: Tensor) -> Tensor:
    return x * 0.5 * (1 + torch.erf(x / 2**0.5))


def tanh_gelu(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3)))


def attended(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """[B, L, heads, size] each -> [B, L, D]."""
    scores = torch.einsum("bihs,bjhs->bhij", q, k) / q.shape[-1] ** 0.5
    return torch.einsum("bhij,bjhs->bihs", scores.softmax(-1), v).flatten(2)


# ---- Megatron-LM ----


@pytest.fixture(scope="module")
def megatron() -> dict[str, Any]:
    """The `model` of a checkpoint of version 3 in one part."""
    encoder = {}
    parts = {"self_attention.query_key_value": linear(3 * D, D), "self_attention.dense": linear(D, D)}
    for number in range(LAYERS):
        parts |= {"mlp.dense_h_to_4h": linear(INNER, D), "mlp.dense_4h_to_h": linear(D, INNER)}
        parts |= {"input_layernorm": norm(), "post_attention_layernorm": norm()}
        parts |= {"self_attention.query_key_value": linear(3 * D, D), "self_attention.dense": linear(D, D)}
        encoder |= {f"layers.{number}.{name}.{leaf}": one for name, two in parts.items() for leaf, one in two.items()}
    encoder |= {f"final_layernorm.{leaf}": one for leaf, one in norm().items()}
    head = {"dense": linear(D, D), "layernorm": norm()}
    return {
        "language_model": {
            "embedding": {
                "word_embeddings": {"weight": drawn(WORDS, D)},
                "position_embeddings": {"weight": drawn(LENGTH, D)},
                "tokentype_embeddings": {"weight": drawn(2, D)},
            },
            "encoder": encoder,
            "pooler": {f"dense.{leaf}": one for leaf, one in linear(D, D).items()},
        },
        "lm_head": {"bias": drawn(WORDS)}
        | {f"{n}.{leaf}": one for n, two in head.items() for leaf, one in two.items()},
        "binary_head": linear(2, D),
    }


def megatron_outputs(model: dict[str, Any], gelu: Any, types: Tensor = TYPES) -> tuple[Tensor, Tensor]:
    """Logits of words and of pairs by ParallelTransformerLayer's formula, with norms' outputs as residuals."""
    language, layers = model["language_model"], model["language_model"]["encoder"]
    tables = {name: one["weight"].double() for name, one in language["embedding"].items()}
    words = tables["word_embeddings"]
    states = words[IDS] + tables["position_embeddings"][:LENGTH] + tables["tokentype_embeddings"][types]
    for number in range(LAYERS):
        layer = {name.split(".", 2)[2]: one for name, one in layers.items() if name.startswith(f"layers.{number}.")}
        residual = normed(states, layer, "input_layernorm")
        mixed = apply(residual, layer, "self_attention.query_key_value").unflatten(-1, (HEADS, 3, D // HEADS))
        context = attended(*mixed.unbind(3))
        residual = normed(residual + apply(context, layer, "self_attention.dense"), layer, "post_attention_layernorm")
        states = residual + apply(gelu(apply(residual, layer, "mlp.dense_h_to_4h")), layer, "mlp.dense_4h_to_h")
    states = normed(states, layers, "final_layernorm")
    head = model["lm_head"]
    logits = normed(erf_gelu(apply(states, head, "dense")), head, "layernorm") @ words.T + head["bias"].double()
    pooled = apply(states[:, 0], language["pooler"], "dense").tanh()
    return logits, apply(pooled, {f"b.{leaf}": one for leaf, one in model["binary_head"].items()}, "b")


class LossScaler:
    """Of a module that nobody else has."""

    def __reduce__(self) -> Any:
        return Path.touch, (Path("exploded"),)


def staged(model: dict[str, Any], stages: int, stage: int) -> dict[str, Any]:
    """What a pipeline stage of Megatron-LM holds of `model`: its layers, counted from 0, and at the ends the rest."""
    language, last = model["language_model"], stage == stages - 1
    layers: dict[str, Tensor] = {}
    for name, tensor in language["encoder"].items():
        first, *rest = name.split(".")
        if first == "layers" and int(rest[0]) // (LAYERS // stages) == stage:
            layers[".".join([first, str(int(rest[0]) % (LAYERS // stages)), *rest[1:]])] = tensor
        elif first != "layers" and last:
            layers[name] = tensor
    made: dict[str, Any] = {"language_model": {"encoder": layers}}
    if stage == 0:
        made["language_model"]["embedding"] = language["embedding"]
    if last:
        made["language_model"]["pooler"] = language["pooler"]
        made |= {name: model[name] for name in ("lm_head", "binary_head")}
    if last and stage:
        made["word_embeddings_for_head"] = language["embedding"]["word_embeddings"]
    return made


def written(
    folder: Path, model: dict[str, Any], version: float, ranks: int = 1, stages: int = 1, **changes: Any
) -> Path:
    """A checkpoint as Megatron-LM writes one, in so many tensor-parallel parts of so many pipeline stages."""
    given: dict[str, Any] = {
        "num_layers": LAYERS,
        "hidden_size": D,
        "ffn_hidden_size": INNER,
        "num_attention_heads": HEADS,
        "max_position_embeddings": LENGTH,
        "padded_vocab_size": WORDS,
        "tensor_model_parallel_size": ranks,
        "pipeline_model_parallel_size": stages,
        "apply_residual_connection_post_layernorm": True,
        "bias_gelu_fusion": False,
        "params_dtype": torch.float32,
    }

    def part(name: str, tensor: Tensor, rank: int) -> Tensor:
        if "query_key_value" in name:
            heads = tensor.chunk(ranks)[rank].unflatten(0, (HEADS // ranks, 3, -1))
            order = {0: (1, 0, 2), 1: (0, 2, 1)}.get(int(version), (0, 1, 2))
            return heads.permute(*order, *range(3, heads.dim())).flatten(0, 2)
        if name.endswith(("self_attention.dense.weight", "4h_to_h.weight")):
            return tensor.chunk(ranks, 1)[rank].clone()
        if "h_to_4h." in name or "word_embeddings" in name or name == ".lm_head.bias":
            return tensor.chunk(ranks)[rank].clone()
        return tensor

    def cut(value: Any, rank: int, name: str = "") -> Any:
        if isinstance(value, dict):
            return {key: cut(one, rank, f"{name}.{key}") for key, one in value.items()}
        return part(name, value, rank)

    for stage, rank in itertools.product(range(stages), range(ranks)):
        target = folder / "iter_0000007" / (f"mp_rank_{rank:02d}" + (f"_{stage:03d}" if stages > 1 else ""))
        target.mkdir(parents=True)
        part_of = cut(staged(model, stages, stage), rank)
        state = {"args": argparse.Namespace(**{**given, **changes}), "iteration": 7, "model": part_of}
        state |= {"optimizer": {"loss_scaler": LossScaler()}, "rng_state": [{"torch_rng_state": torch.get_rng_state()}]}
        state |= {"checkpoint_version": version} if version else {}
        torch.save(state, target / "model_optim_rng.pt")
    (folder / "latest_checkpointed_iteration.txt").write_text("7")
    return folder


@pytest.mark.parametrize(("version", "ranks", "stages"), [(0.0, 2, 1), (1.0, 4, 1), (3.0, 1, 1), (3.0, 2, 2)])
def test_a_bert_of_megatron_gives_its_outputs_from_every_order_and_its_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, megatron: dict[str, Any], version: float, ranks: int, stages: int
) -> None:
    monkeypatch.chdir(tmp_path)
    convert(written(tmp_path / "source", megatron, version, ranks, stages), tmp_path / "out")
    assert not Path("exploded").exists()
    model = NezhaForPreTraining.from_pretrained(tmp_path / "out").double().eval()
    ours = model(IDS, token_type_ids=TYPES)
    logits, pairs = megatron_outputs(megatron, erf_gelu)
    torch.testing.assert_close(ours.prediction_logits, logits, rtol=0, atol=1e-12)
    torch.testing.assert_close(ours.seq_relationship_logits, pairs, rtol=0, atol=1e-12)


def test_a_longformer_of_megatron_has_the_fused_gelu_in_its_layers_alone(
    tmp_path: Path, megatron: dict[str, Any]
) -> None:
    source = written(tmp_path / "source", megatron, 3.0, bias_gelu_fusion=True)
    convert(source, tmp_path / "out", "longformer", length=32, window=32)
    model: Any = LongformerForMaskedLM.from_pretrained(tmp_path / "out").double().eval()
    logits, _ = megatron_outputs(megatron, tanh_gelu, torch.zeros_like(TYPES))
    torch.testing.assert_close(model(IDS).logits, logits, rtol=0, atol=1e-12)


def test_back_in_megatrons_form_it_gives_the_same_outputs_and_comes_back_bit_for_bit(
    tmp_path: Path, megatron: dict[str, Any]
) -> None:
    convert(written(tmp_path / "source", megatron, 1.0, 2), tmp_path / "ours")
    command(tmp_path / "ours", tmp_path / "back", "megatron", {})
    state = torch.load(tmp_path / "back" / "release" / "mp_rank_00" / "model_optim_rng.pt", weights_only=False)
    assert state["checkpoint_version"] == 3.0 and state["args"].padded_vocab_size == 128
    logits, pairs = megatron_outputs(state["model"], erf_gelu)
    expected, expected_pairs = megatron_outputs(megatron, erf_gelu)
    torch.testing.assert_close(logits[..., :WORDS], expected, rtol=0, atol=1e-12)
    assert torch.equal(pairs, expected_pairs)
    convert(tmp_path / "back", tmp_path / "again")
    assert (tmp_path / "again" / "model.safetensors").read_bytes() == (
        tmp_path / "ours" / "model.safetensors"
    ).read_bytes()


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"apply_residual_connection_post_layernorm": False}, "its layers norm first, which no model here does"),
        ({"tensor_model_parallel_size": 3}, r"lacks mp_rank_02/model_optim_rng.pt of 3 parts"),
        ({"num_layers": 3}, "not a BERT of 3 of Megatron-LM's own layers"),
        ({"num_attention_heads": 3}, "3 heads in 2 parts"),
        ({"padded_vocab_size": 400}, r"word_embeddings.weight is \[40, 16\], but by the configuration \[400, 16\]"),
        ({"checkpoint_version": 4.5}, "checkpoint_version 4.5; those that can be read: 0, 1, 2, 3"),
        ("other words", "its parts do not fit together"),
        ("other norms", "differs, though each has it whole"),
        ("cut", "cannot be read .*was the download complete"),
        ("no args", "no config.json .* beside the weights"),
        ("pieces", "a stage of several pieces .* join them with Megatron's tools/checkpoint"),
        ("lacks a stage", r"lacks mp_rank_01_001/model_optim_rng.pt of 4 parts"),
        ("other head", "word_embeddings_for_head.weight of a stage is not that of another"),
    ],
)
def test_a_megatron_that_is_not_whole_or_not_a_bert_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, megatron: dict[str, Any], change: Any, line: str
) -> None:
    monkeypatch.chdir(tmp_path)  # where LossScaler leaves its file when this test reads what it wrote
    version = change.pop("checkpoint_version", 2.0) if isinstance(change, dict) else 2.0
    staged = change in ("pieces", "lacks a stage", "other head")
    changes = change if isinstance(change, dict) else {}
    source = written(tmp_path / "source", megatron, version, 2, 2 if staged else 1, **changes)
    second = source / "iter_0000007" / ("mp_rank_01_001" if staged else "mp_rank_01") / "model_optim_rng.pt"
    state = torch.load(second, weights_only=False)
    language = state["model"]["language_model"]
    if change == "other words":
        state["model"]["lm_head"]["bias"] = torch.ones(1, 1)
    elif change == "other norms":
        language["encoder"]["final_layernorm.bias"] = torch.ones(D)
    elif change == "no args":
        del state["args"]
        torch.save(state, source / "iter_0000007" / "mp_rank_00" / "model_optim_rng.pt")
    elif change == "other head":
        state["model"]["word_embeddings_for_head"]["weight"] += 1
    elif change == "pieces":
        for file in (source / "iter_0000007").glob("*/model_optim_rng.pt"):
            one = torch.load(file, weights_only=False)
            torch.save({**one, "model0": one.pop("model")}, file)
    if change == "lacks a stage":
        second.unlink()
    elif change != "pieces":
        torch.save(state, second)
    if change == "cut":
        second.write_bytes(second.read_bytes()[:5000])
    with pytest.raises(UserError, match=line) as error:
        convert(source, tmp_path / "out")
    assert "\n" not in str(error.value) and not (tmp_path / "out").exists()


def test_what_megatron_cannot_hold_is_one_line(tmp_path: Path) -> None:
    config = {
        "model_type": "nezha",
        "vocab_size": 9,
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    torch.save({"nezha.x": torch.ones(1)}, tmp_path / "pytorch_model.bin")
    with pytest.raises(UserError, match="positions of type functional, which Megatron's BERT does not have"):
        to_megatron(tmp_path, tmp_path / "out")
    with pytest.raises(UserError, match="--window: not for megatron"):
        command(tmp_path, tmp_path / "out", "megatron", {"window": 4})


# ---- fairseq ----


def fairseq_model() -> dict[str, Tensor]:
    body = "encoder.sentence_encoder."
    weights = {f"{body}embed_tokens.weight": drawn(WORDS, D), f"{body}embed_positions.weight": drawn(LENGTH + 2, D)}
    owners = {
        f"{body}emb_layer_norm": norm(),
        "encoder.lm_head.dense": linear(D, D),
        "encoder.lm_head.layer_norm": norm(),
    }
    for number in range(LAYERS):
        layer = f"{body}layers.{number}."
        owners |= {f"{layer}self_attn.{name}": linear(D, D) for name in ("q_proj", "k_proj", "v_proj", "out_proj")}
        owners |= {f"{layer}fc1": linear(INNER, D), f"{layer}fc2": linear(D, INNER)}
        owners |= {f"{layer}self_attn_layer_norm": norm(), f"{layer}final_layer_norm": norm()}
    weights |= {f"{name}.{leaf}": one for name, two in owners.items() for leaf, one in two.items()}
    words = weights[f"{body}embed_tokens.weight"]
    return weights | {"encoder.lm_head.weight": words, "encoder.lm_head.bias": drawn(WORDS)}


def fairseq_outputs(model: dict[str, Tensor]) -> Tensor:
    """Logits by RobertaEncoder's formula; the first token's position is padding_idx + 1."""
    body = {name.removeprefix("encoder.sentence_encoder."): one for name, one in model.items()}
    words = body["embed_tokens.weight"].double()
    states = normed(words[IDS] + body["embed_positions.weight"][2:].double(), body, "emb_layer_norm")
    for number in range(LAYERS):
        layer = {name.split(".", 2)[2]: one for name, one in body.items() if name.startswith(f"layers.{number}.")}
        q, k, v = (apply(states, layer, f"self_attn.{name}_proj").unflatten(-1, (HEADS, -1)) for name in "qkv")
        states = normed(states + apply(attended(q, k, v), layer, "self_attn.out_proj"), layer, "self_attn_layer_norm")
        inner = apply(erf_gelu(apply(states, layer, "fc1")), layer, "fc2")
        states = normed(states + inner, layer, "final_layer_norm")
    features = normed(erf_gelu(apply(states, model, "encoder.lm_head.dense")), model, "encoder.lm_head.layer_norm")
    return features @ words.T + model["encoder.lm_head.bias"].double()


def as_in_2019(model: dict[str, Tensor]) -> dict[str, Tensor]:
    """The names of the first releases: a decoder, with query, key and value in one."""
    old = {name.replace("encoder.", "decoder.", 1): one for name, one in model.items() if "_proj." not in name}
    old |= {name.replace("encoder.", "decoder.", 1): one for name, one in model.items() if ".out_proj." in name}
    for name in [name for name in model if ".q_proj." in name]:
        three = torch.cat([model[name.replace(".q_proj.", f".{part}_proj.")] for part in "qkv"])
        old[name.replace("encoder.", "decoder.", 1).replace("q_proj.", "in_proj_")] = three
    return old | {"decoder.sentence_encoder.embed_positions._float_tensor": torch.zeros(1)}


def fairseq_folder(folder: Path, model: dict[str, Tensor], zipped: bool = True, **change: Any) -> Path:
    """model.pt, dict.txt and GPT-2's BPE: the ids of tokens in dict.txt are turned around."""
    folder.mkdir()
    args = argparse.Namespace(encoder_attention_heads=HEADS, activation_fn="gelu", dropout=0.1, arch="roberta_base")
    state = {"args": args, "model": model, "extra_state": {"meters": LossScaler()}, "optimizer_history": [], **change}
    torch.save(state, folder / "model.pt", _use_new_zipfile_serialization=zipped)
    letters = [chr(ord("a") + number) for number in range(26)] + ["ab", "abc"]
    (folder / "encoder.json").write_text(json.dumps({token: number for number, token in enumerate(letters)}))
    (folder / "vocab.bpe").write_text("#version: 0.2\na b\nab c\n")
    lines = [f"{number} {number + 1}\n" for number in reversed(range(len(letters)))]
    (folder / "dict.txt").write_text("".join(lines) + "madeupword0000 0\n")
    return folder


@pytest.mark.parametrize(("old", "zipped"), [(False, True), (True, False)])
def test_a_roberta_of_fairseq_gives_its_logits_and_tokens_and_nothing_of_it_is_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: bool, zipped: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    weights = fairseq_model()
    source = fairseq_folder(tmp_path / "source", as_in_2019(weights) if old else weights, zipped)
    convert(source, tmp_path / "out", "longformer", length=32, window=32)
    assert not Path("exploded").exists()
    model: Any = LongformerForMaskedLM.from_pretrained(tmp_path / "out").double().eval()
    torch.testing.assert_close(model(IDS).logits, fairseq_outputs(weights), rtol=0, atol=1e-12)
    assert (model.config.bos_token_id, model.config.pad_token_id, model.config.eos_token_id) == (0, 1, 2)
    vocabulary = json.loads((tmp_path / "out" / "vocab.json").read_text())
    assert vocabulary["<mask>"] == 4 + 28 + 1 and vocabulary["abc"] == 4 and vocabulary["a"] == 4 + 27
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out", local_files_only=True)
    assert tokenizer("abca").input_ids == [0, 4, 31, 2]


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ("no encoder.json", "dict.txt: numbers of GPT-2's BPE; put its encoder.json and vocab.bpe beside it"),
        ("words", "dict.txt: not of GPT-2's BPE"),
        ("longer", "dict.txt: 94 tokens with fairseq's own, but the model has 40 words"),
        ("no args", "no config.json or .* beside the weights"),
        ("norm first", "norms before each part of a layer"),
        (
            "no positions",
            r"not a whole RoBERTa of fairseq \('roberta.embeddings.position_embeddings.weight' is missing\)",
        ),
        ("heads", "hidden_size 16 is no multiple of 5 heads"),
        ("program", "refused, since it holds a program"),
    ],
)
def test_a_fairseq_that_cannot_be_converted_is_one_line(tmp_path: Path, change: str, line: str) -> None:
    weights = fairseq_model()
    if change == "norm first":
        weights["encoder.sentence_encoder.layer_norm.weight"] = torch.ones(D)
    if change == "no positions":
        del weights["encoder.sentence_encoder.embed_positions.weight"]
    changes = {"no args": {"args": None}, "heads": {"args": argparse.Namespace(encoder_attention_heads=5)}}
    source = fairseq_folder(tmp_path / "source", weights, **changes.get(change, {}))
    if change == "no encoder.json":
        (source / "encoder.json").unlink()
    if change in ("words", "longer"):
        lines = ["the 5\n"] if change == "words" else [f"{number} 1\n" for number in range(89)]
        (source / "dict.txt").write_text("".join(lines))
    if change == "program":
        torch.jit.script(torch.nn.Linear(1, 1)).save(str(source / "model.pt"))
    with pytest.raises(UserError, match=line) as error:
        convert(source, tmp_path / "out", "longformer", length=32, window=32)
    assert "\n" not in str(error.value) and not (tmp_path / "out").exists()


# ---- NVIDIA's BERT and PyTorch Lightning ----


def test_nvidias_bert_gives_its_outputs_without_the_rows_that_pad_its_words(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from transformers import BertConfig, BertForPreTraining

    torch.manual_seed(0)
    sizes: dict[str, Any] = {
        "hidden_size": D,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": INNER,
    }
    theirs = BertForPreTraining(BertConfig(vocab_size=WORDS, max_position_embeddings=LENGTH, **sizes)).double().eval()
    model = {
        re.sub(r"\.(intermediate|pooler|transform)\.dense\.", r".\1.dense_act.", name): tensor
        for name, tensor in theirs.float().state_dict().items()
    }
    (tmp_path / "source").mkdir()
    state = {
        "model": model,
        "optimizer": {"state": {}},
        "master params": [drawn(2)],
        "files": [1, "a.hdf5"],
        "epoch": 0,
    }
    torch.save(state, tmp_path / "source" / "ckpt_7038.pt")
    config = {"vocab_size": WORDS - 3, "max_position_embeddings": LENGTH, "type_vocab_size": 2, "hidden_act": "gelu"}
    (tmp_path / "source" / "bert_config.json").write_text(json.dumps(config | sizes))
    with caplog.at_level(logging.INFO, "reread"):
        convert(tmp_path / "source", tmp_path / "out")
    assert "position_type parametric_absolute: BERT's positions" in caplog.text
    ours = NezhaForPreTraining.from_pretrained(tmp_path / "out").double().eval()
    found, expected = (one(IDS % 37, token_type_ids=TYPES) for one in (ours, theirs.double()))
    torch.testing.assert_close(found.prediction_logits, expected.prediction_logits[..., :-3], rtol=0, atol=1e-12)
    torch.testing.assert_close(found.seq_relationship_logits, expected.seq_relationship_logits, rtol=0, atol=1e-12)


def test_a_longformer_in_a_checkpoint_of_lightning_is_the_model_inside(tmp_path: Path) -> None:
    import numpy as np

    arrays = np.load(GOLDEN / "longformer.npz")
    config = {**json.loads(str(arrays["config"])), "model_type": "longformer"}
    weights = {key[7:]: torch.from_numpy(arrays[key]) for key in arrays if key.startswith("weight/")}
    outputs = []
    for name, state in {
        "pytorch_model.bin": weights,
        "_ckpt_epoch_4_v2.ckpt": {
            "epoch": 4,
            "state_dict": {
                **{f"model.{key}": one for key, one in weights.items()},
                "qa_outputs.weight": torch.ones(2, 2),
            },
            "hparams": argparse.Namespace(seqlen=4096),
            "callbacks": LossScaler(),
        },
        "model.ckpt": {"state_dict": weights},
    }.items():
        source = tmp_path / name / "source"
        source.mkdir(parents=True)
        (source / "config.json").write_text(json.dumps(config))
        torch.save(state, source / name)
        convert(source, tmp_path / name / "out", "longformer")
        outputs.append((tmp_path / name / "out" / "model.safetensors").read_bytes())
    assert outputs[0] == outputs[1] == outputs[2]


def test_objects_of_other_classes_are_never_made_even_where_they_are_called_or_hold_the_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    source = fairseq_folder(tmp_path / "source", fairseq_model())
    for state in (LossScaler(), {"model": LossScaler()}, {"model": {"a": LossScaler()}}, pickle.dumps(LossScaler())):
        if isinstance(state, bytes):
            (source / "model.pt").write_bytes(state)
        else:
            torch.save(state, source / "model.pt")
        with pytest.raises(UserError) as error:
            convert(source, tmp_path / "out", "longformer", length=32, window=32)
        assert "\n" not in str(error.value)
    assert not Path("exploded").exists()
