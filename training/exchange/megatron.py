"""Megatron-LM's checkpoints of BERT: read with their parallel parts joined, and written.

A checkpoint is ITERATION/mp_rank_XX/model_optim_rng.pt, one file for each tensor-parallel rank, below a folder that
names the iteration in latest_checkpointed_iteration.txt; with pipeline stages mp_rank_XX_YYY, one for each rank of each
stage. Layers are BERT's where they were trained with --apply-residual-connection-post-layernorm: what Megatron calls a
layer's input norm is then the one that BERT has at the end of the layer before, or after the embeddings. Without it
they norm first, and no model here is the same.
"""

import argparse
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from reread.preprocessing.errors import UserError
from reread.training.exchange.inert import entries, read_inert

log = logging.getLogger("reread")

FILE = "model_optim_rng.pt"
TRACKER = "latest_checkpointed_iteration.txt"
MULTIPLE = 128
"""Megatron pads its vocabulary to a multiple of this and of the ranks (make_vocab_size_divisible_by)."""
IN_LAYER = {
    "post_attention_layernorm": "attention.output.LayerNorm",
    "self_attention.query": "attention.self.query",
    "self_attention.key": "attention.self.key",
    "self_attention.value": "attention.self.value",
    "self_attention.dense": "attention.output.dense",
    "mlp.dense_h_to_4h": "intermediate.dense",
    "mlp.dense_4h_to_h": "output.dense",
}
"""Megatron's name in a layer -> BERT's."""
ENCODER = "language_model.encoder."
TABLES = {
    "language_model.embedding.word_embeddings.weight": "bert.embeddings.word_embeddings.weight",
    "language_model.embedding.position_embeddings.weight": "bert.embeddings.position_embeddings.weight",
    "language_model.embedding.tokentype_embeddings.weight": "bert.embeddings.token_type_embeddings.weight",
    "lm_head.bias": "cls.predictions.bias",
}
HEADS = {
    "language_model.pooler.dense": "bert.pooler.dense",
    "lm_head.dense": "cls.predictions.transform.dense",
    "lm_head.layernorm": "cls.predictions.transform.LayerNorm",
    "binary_head": "cls.seq_relationship",
}
ROWS = re.compile(
    r"\.(?:(?:query|key|value)\.\w+|dense_h_to_4h\.\w+)$|word_embeddings(?:_for_head)?\.weight$|^lm_head\.bias$"
)
"""Parameters whose rows are spread over tensor-parallel ranks."""
COLUMNS = re.compile(r"\.(?:self_attention\.dense|dense_4h_to_h)\.weight$")
"""Those whose columns are."""
WORDS = ("language_model.embedding.word_embeddings.weight", "lm_head.bias")
WORDS_OF_HEAD = "word_embeddings_for_head.weight"
"""A copy that the last of several pipeline stages has."""
LAYER = re.compile(rf"{re.escape(ENCODER)}layers\.(\d+)\.")
ORDERS = {0.0: (0, 1, 2), 1.0: (2, 0, 1), 2.0: (1, 0, 2), 3.0: (1, 0, 2)}
"""checkpoint_version -> where query/key/value, head and row of a head stand among the three factors of a matrix's rows:
0 has [3, heads, size], 1 [heads, size, 3], later ones [heads, 3, size]."""


def first_part(path: Path) -> Path | None:
    """The file of the first tensor-parallel rank of the checkpoint at `path`: a folder with all, of an iteration or of
    a rank, or a file. None if there is none."""
    if path.name == FILE:
        return path if path.is_file() else None
    if not path.is_dir():
        return None
    tracker = path / TRACKER
    if tracker.is_file():
        name = tracker.read_text(encoding="utf-8").strip()
        path = path / (f"iter_{int(name):07d}" if name.isdecimal() else name)
    found = sorted([*path.glob(FILE), *path.glob(f"mp_rank_*/{FILE}")])
    return found[0] if found else None


def _parts(first: Path, settings: Mapping[str, Any]) -> list[list[Path]]:
    """The files of each pipeline stage, one for each tensor-parallel rank, beside that of the first; `settings` are
    the checkpoint's args, and where they name no numbers, as many as there are.

    Raises `UserError` for one that is missing."""
    ranks = _number(settings, "tensor_model_parallel_size", "model_parallel_size")
    stages = _number(settings, "pipeline_model_parallel_size")
    found, folder = re.fullmatch(r"mp_rank_\d\d(_\d{3})?", first.parent.name), first.parent.parent
    if not found:
        if (number := (ranks or 1) * (stages or 1)) == 1:
            return [[first]]
        raise UserError(f"{first}: one of {number} parts; give the folder with mp_rank_00, mp_rank_01 and so on")
    numbered = found[1] is not None or (stages or 1) > 1
    ranks = ranks or len(list(folder.glob(f"mp_rank_*{'_000' if numbered else ''}/{FILE}")))
    stages = stages or (len(list(folder.glob(f"mp_rank_00_*/{FILE}"))) if numbered else 1)

    def part(stage: int, rank: int) -> Path:
        return folder / f"mp_rank_{rank:02d}{f'_{stage:03d}' if numbered else ''}" / FILE

    every = (part(stage, rank) for stage in range(stages) for rank in range(ranks))
    if missing := [f"{one.parent.name}/{FILE}" for one in islice((one for one in every if not one.is_file()), 3)]:
        raise UserError(f"{folder}: lacks {', '.join(missing)} of {ranks * stages} parts")
    return [[part(stage, rank) for rank in range(ranks)] for stage in range(stages)]


def _number(settings: Mapping[str, Any], *names: str) -> int | None:
    """The first of these settings that a checkpoint's args have, None without any of them."""
    found = next((settings[name] for name in names if settings.get(name) is not None), None)
    return found if isinstance(found, int) and found > 0 else None


def settings_in(first: Path) -> dict[str, Any]:
    """The configuration, in transformers' form, that the args of a checkpoint state; empty for an old one without args.

    `head_act` is the activation of the masked-word head, which is not always that of the layers.
    Raises `UserError` for layers that are not BERT's.
    """
    state = entries(read_inert(first))
    given = entries(state.get("args"))
    if not given:
        return {}
    if not given.get("apply_residual_connection_post_layernorm"):
        raise UserError(
            f"{first}: its layers norm first, which no model here does; one that was trained with "
            "--apply-residual-connection-post-layernorm is a BERT"
        )
    try:
        words = given["padded_vocab_size"]
        tanh = given.get("bias_gelu_fusion", True) or given.get("openai_gelu", False)
        return {
            "model_type": "bert",
            "vocab_size": given["vocab_size"] if isinstance(given.get("vocab_size"), int) else words,
            "hidden_size": given["hidden_size"],
            "num_hidden_layers": given["num_layers"],
            "num_attention_heads": given["num_attention_heads"],
            "intermediate_size": given.get("ffn_hidden_size") or 4 * given["hidden_size"],
            "hidden_act": "gelu_new" if tanh else "gelu",
            "head_act": "gelu_new" if given.get("openai_gelu", False) else "gelu",
            "hidden_dropout_prob": given.get("hidden_dropout", 0.1),
            "attention_probs_dropout_prob": given.get("attention_dropout", 0.1),
            "max_position_embeddings": given["max_position_embeddings"],
            "type_vocab_size": 2,
            "initializer_range": given.get("init_method_std", 0.02),
            "layer_norm_eps": given.get("layernorm_epsilon", 1e-5),
            "pad_token_id": 0,
        }
    except (KeyError, TypeError) as error:
        raise UserError(f"{first}: its args lack {error}; is it a BERT of Megatron-LM?") from None


def read_weights(first: Path, config: Mapping[str, Any]) -> dict[str, Tensor]:
    """The weights of a checkpoint by BERT's names in transformers; `config` is BERT's, of which heads are used.

    Raises `UserError` for a part that is missing or does not fit, an unknown version and a model that is no BERT.
    """
    state = entries(read_inert(first))
    paths = _parts(first, entries(state.get("args")))
    states = [[state if path == first else entries(read_inert(path)) for path in stage] for stage in paths]
    version, ranks = float(state.get("checkpoint_version", 0)), len(paths[0])
    if version not in ORDERS:
        raise UserError(f"{first}: checkpoint_version {version:g}; those that can be read: 0, 1, 2, 3")
    if "model0" in state:
        raise UserError(
            f"{first}: a stage of several pieces (--num-layers-per-virtual-pipeline-stage); join them with Megatron's "
            "tools/checkpoint first"
        )
    log.info(
        "Megatron's checkpoint version %g: %d pipeline stages, %d tensor-parallel parts", version, len(paths), ranks
    )
    heads, layers = config.get("num_attention_heads"), config.get("num_hidden_layers")
    if not isinstance(heads, int) or not isinstance(layers, int) or heads < 1 or heads % ranks:
        raise UserError(f"{first}: {heads} heads in {ranks} parts; fix num_attention_heads or num_hidden_layers")
    try:
        order = ORDERS[version]
        whole = _stacked(
            _joined([_split(_flat(part.get("model")), order, heads // ranks) for part in stage]) for stage in states
        )
    except (RuntimeError, ValueError) as error:
        raise UserError(f"{first.parent.parent}: its parts do not fit together ({error})") from None
    return _as_bert(first, whole, layers)


def _stacked(stages: Iterable[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The weights of all pipeline stages, each of which counts its layers from 0. Raises ValueError for a tensor that
    two of them have, but for the words of the last one's head, which are those of the first."""
    made: dict[str, Tensor] = {}
    for stage in stages:
        below = len({found[1] for name in made if (found := LAYER.match(name))})
        for name, tensor in stage.items():
            found = LAYER.match(name)
            here = f"{ENCODER}layers.{below + int(found[1])}.{name[found.end() :]}" if found else name
            if name == WORDS_OF_HEAD:
                here = WORDS[0]
            if here in made and not (name == WORDS_OF_HEAD and torch.equal(made[here], tensor)):
                raise ValueError(f"{name} of a stage is not that of another")
            made[here] = tensor
    return made


def _flat(model: Any, prefix: str = "") -> dict[str, Tensor]:
    """Tensors of nested dictionaries, by their keys joined by dots. Older names of the encoder become today's."""
    made: dict[str, Tensor] = {}
    for key, value in entries(model).items():
        name = f"{prefix}{key}".replace("language_model.transformer.", "language_model.encoder.")
        name = re.sub(r"(\.layers\.\d+)\.attention\.", r"\1.self_attention.", name)
        if torch.is_tensor(value):
            made[name] = value
        else:
            made |= _flat(value, f"{name}.")
    return made


def _split(weights: Mapping[str, Tensor], order: tuple[int, ...], heads: int) -> dict[str, Tensor]:
    """`weights` with query, key and value of `heads` heads, one matrix in Megatron's layers, apart."""
    made: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        if ".query_key_value." not in name:
            made[name] = tensor
            continue
        sizes = [0, 0, 0]
        for place, size in zip(order, (3, heads, tensor.shape[0] // (3 * heads)), strict=True):
            sizes[place] = size
        three = tensor.reshape(*sizes, *tensor.shape[1:]).movedim(order, (0, 1, 2)).flatten(1, 2)
        for part, one in zip(("query", "key", "value"), three, strict=True):
            made[name.replace("query_key_value", part)] = one
    return made


def _joined(parts: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The whole tensors. Raises ValueError or RuntimeError for parts with other names or sizes."""
    if any(part.keys() != parts[0].keys() for part in parts):
        raise ValueError("they have other names")
    made = {}
    for name in parts[0]:
        pieces = [part[name] for part in parts]
        if ROWS.search(name) or COLUMNS.search(name):
            made[name] = torch.cat(pieces, dim=1 if COLUMNS.search(name) else 0)
        elif all(torch.equal(piece, pieces[0]) for piece in pieces):
            made[name] = pieces[0]
        else:
            raise ValueError(f"{name} differs, though each has it whole")
    return made


def _as_bert(first: Path, whole: Mapping[str, Tensor], layers: int) -> dict[str, Tensor]:
    if (
        f"{ENCODER}final_layernorm.weight" not in whole
        or f"{ENCODER}layers.{layers - 1}.input_layernorm.weight" not in whole
    ):
        raise UserError(f"{first}: not a BERT of {layers} of Megatron-LM's own layers, which end in a final_layernorm")
    made = {_name_in_bert(name, layers): tensor for name, tensor in whole.items()}
    types, words = (f"bert.embeddings.{table}_embeddings.weight" for table in ("token_type", "word"))
    if types not in made and words in made:  # trained without pairs of texts
        made[types] = torch.zeros(2, made[words].shape[-1])
    return made


def _name_in_bert(name: str, layers: int) -> str:
    """BERT's name of a parameter of a model of so many layers; its own name where BERT has none."""
    if name in TABLES:
        return TABLES[name]
    owner, _, leaf = name.rpartition(".")
    found = re.fullmatch(rf"{re.escape(ENCODER)}(?:layers\.(\d+)\.)?(.+)", owner)
    if found is None:
        return f"{HEADS.get(owner, owner)}.{leaf}"
    number, part = int(found[1] or layers), found[2]
    if part in ("input_layernorm", "final_layernorm"):
        return (
            f"bert.encoder.layer.{number - 1}.output.LayerNorm.{leaf}"
            if number
            else f"bert.embeddings.LayerNorm.{leaf}"
        )
    return f"bert.encoder.layer.{number}.{IN_LAYER.get(part, part)}.{leaf}"


def write(folder: Path, weights: Mapping[str, Tensor], config: Any) -> None:
    """Write a checkpoint of version 3, in one part, that Megatron-LM's pretrain_bert.py loads with --finetune.

    `weights` are BERT's by transformers' names, without copies; `config` has BERT's settings. Rows of words are padded
    with zeros to a multiple of MULTIPLE. The file holds an argparse.Namespace, as Megatron's own.
    """
    layers, padded = config.num_hidden_layers, -config.vocab_size % MULTIPLE
    names = _names_in_megatron(weights, layers)
    flat: dict[str, Tensor] = {}
    for name, new in names.items():
        tensor = weights[name].float()
        flat[new] = torch.cat([tensor, tensor.new_zeros(padded, *tensor.shape[1:])]) if new in WORDS else tensor
    for name in [name for name in flat if ".self_attention.query." in name]:
        three = [flat.pop(name.replace(".query.", f".{part}.")) for part in ("query", "key", "value")]
        split = torch.stack(three).unflatten(1, (config.num_attention_heads, -1))
        flat[name.replace(".query.", ".query_key_value.")] = split.transpose(0, 1).flatten(0, 2).contiguous()
    state = {
        "args": argparse.Namespace(**_args(config, config.vocab_size + padded)),
        "checkpoint_version": 3.0,
        "iteration": 0,
        "model": _nested(flat),
    }
    target = folder / "release" / "mp_rank_00"
    target.mkdir(parents=True)
    torch.save(state, target / FILE)
    (folder / TRACKER).write_text("release", encoding="utf-8")


def _names_in_megatron(weights: Mapping[str, Tensor], layers: int) -> dict[str, str]:
    """BERT's names of `weights` -> Megatron's. Raises `UserError` for one that Megatron's BERT does not have."""
    parts = [*IN_LAYER, "input_layernorm"]
    leaves = ("weight", "bias")
    theirs = [*TABLES, *(f"{owner}.{leaf}" for owner in HEADS for leaf in leaves)]
    theirs += [f"{ENCODER}layers.{n}.{part}.{leaf}" for n in range(layers) for part in parts for leaf in leaves]
    theirs += [f"{ENCODER}final_layernorm.{leaf}" for leaf in leaves]
    names = {_name_in_bert(name, layers): name for name in theirs}
    if others := [name for name in weights if name not in names]:
        raise UserError(f"{others[0]}: Megatron's BERT has no such parameter")
    return {name: names[name] for name in weights}


def _args(config: Any, words: int) -> dict[str, Any]:
    """What Megatron compares with the command line's, and what `settings_in` reads."""
    return {
        "num_layers": config.num_hidden_layers,
        "hidden_size": config.hidden_size,
        "ffn_hidden_size": config.intermediate_size,
        "num_attention_heads": config.num_attention_heads,
        "max_position_embeddings": config.max_position_embeddings,
        "add_position_embedding": True,
        "vocab_size": config.vocab_size,
        "padded_vocab_size": words,
        "make_vocab_size_divisible_by": MULTIPLE,
        "tokenizer_type": "BertWordPieceLowerCase",
        "layernorm_epsilon": config.layer_norm_eps,
        "hidden_dropout": config.hidden_dropout_prob,
        "attention_dropout": config.attention_probs_dropout_prob,
        "init_method_std": config.initializer_range,
        "apply_residual_connection_post_layernorm": True,
        "bias_gelu_fusion": config.hidden_act == "gelu_new",
        "openai_gelu": False,
        "tensor_model_parallel_size": 1,
        "pipeline_model_parallel_size": 1,
        "data_parallel_random_init": False,
        "consumed_train_samples": 0,
        "consumed_valid_samples": 0,
    }


def _nested(flat: Mapping[str, Tensor]) -> dict[str, Any]:
    """The dictionaries of Megatron's state_dict_for_save_checkpoint: modules nested, an encoder's parameters flat."""
    model: dict[str, Any] = {}
    for name, tensor in flat.items():
        depth = 2 if name.startswith((ENCODER, "language_model.pooler")) else 3 if "embedding." in name else 1
        *keys, leaf = name.split(".", depth)
        place = model
        for key in keys:
            place = place.setdefault(key, {})
        place[leaf] = tensor
    return model
