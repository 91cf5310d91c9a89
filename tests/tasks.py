"""Tiny fine-tuning tasks: a vocabulary of letters, examples made of them, and models that read them."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from reread.preprocessing.labelled.examples import Example
from reread.preprocessing.tokens.wordpiece import WordPiece
from reread.training.config import TrainSettings
from reread.training.data.kinds import open_examples
from reread.training.data.tasks.dataset import TaskDataset
from reread.training.data.tasks.settings import TaskSettings
from reread.training.models import model_spec
from reread.training.models.build import model_config
from reread.training.objectives import OBJECTIVES
from reread.training.objectives.task import TaskObjective
from reread.training.parallel.mesh import Mesh

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LETTERS = "abcdefghijklmnopqrstuvwxyz"
WORDS = [*LETTERS, "?"]
"""Each is a token between blanks."""

SIZES: dict[str, dict[str, Any]] = {
    "nezha": {"max_relative_position": 4, "intermediate_size": 48},
    "ernie_doc": {"memory_length": 6, "max_position_embeddings": 64, "intermediate_size": 48},
    "ran": {"head_size": 8, "window_size": 5, "min_window_size": 2},
    "longformer": {"attention_window": 4, "max_position_embeddings": 130, "intermediate_size": 48},
    **{name: {"max_position_embeddings": 130, "intermediate_size": 48} for name in ("bert", "roberta")},
    "electra": {"max_position_embeddings": 130, "intermediate_size": 48, "summary_last_dropout": 0.0},
    "modernbert": {"local_attention": 6, "intermediate_size": 48},
}
"""`train.model` of each tiny model, without what all have."""
_OF_DECODERS: dict[str, Any] = {
    **{f"{part}_layers": 2 for part in ("encoder", "decoder")},
    **{f"{part}_attention_heads": 4 for part in ("encoder", "decoder")},
    **{f"{part}_ffn_dim": 48 for part in ("encoder", "decoder")},
    **{"d_model": 32, "dropout": 0.0, "attention_dropout": 0.0, "init_std": 0.1},
}
DECODERS: dict[str, dict[str, Any]] = {
    "bart": {**_OF_DECODERS, "max_position_embeddings": 130},
    "led": {**_OF_DECODERS, "attention_window": [4, 8], "max_encoder_position_embeddings": 130},
}
"""The same of models with a decoder, whole."""


def write_tokenizer(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.txt").write_text("\n".join([*SPECIAL, *WORDS]), encoding="utf-8")
    WordPiece(folder / "vocab.txt", [*SPECIAL, *WORDS], True).save(folder)
    return folder


def number_of(word: str) -> int:
    """A word's token."""
    return [*SPECIAL, *WORDS].index(word)


def write_lines(path: Path, lines: Sequence[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def task_values(model: str, kind: str, tokenizer: Path, **task: Any) -> dict[str, Any]:
    """A `train` section for a tiny model without dropout; `task` are keys of its `data`, `sequence_length` too."""
    frame = model_spec(model).frame
    data = {
        "kind": kind,
        "train": "train.jsonl",
        "tokenizer": str(tokenizer),
        "frame": frame,
        "head_dropout": 0.0,
        **task,
    }
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, **SIZES.get(model, {})}
    no_dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0} if model != "modernbert" else {}
    of_model = {**sizes, **no_dropout, "initializer_range": 0.1}
    return {
        "model": {"type": model, **DECODERS.get(model, of_model)},
        "data": data,
        "steps": 10,
        "global_batch": 8,
        "micro_batch": 8,
        "optimizer": {"name": "adam", "learning_rate": 0.003},
        "peak_tflops": 1.0,
    }


def dataset_of(values: dict[str, Any], examples: Sequence[Example]) -> TaskDataset[Any, Any]:
    data = TrainSettings.parse(values, "test").data
    assert isinstance(data, TaskSettings)
    return open_examples(data, examples)


def objective_of(values: dict[str, Any], examples: Sequence[Example], mesh: Mesh | None = None) -> TaskObjective:
    """The objective of a model in float64 with random weights, in evaluation mode."""
    settings = TrainSettings.parse(values, "test")
    spec, dataset = model_spec(settings.model["type"]), dataset_of(values, examples)
    config = model_config(spec, settings.model, dataset.vocab_size, None, dataset.special)
    learned = OBJECTIVES[settings.data.kind]
    learned.configure(config, settings.data)
    torch.manual_seed(0)
    model = spec.head(settings.data.kind, settings.data)(config).double().eval()  # type: ignore[arg-type]
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    objective = learned(model, settings, mesh or Mesh(), dataset, dataset)
    assert isinstance(objective, TaskObjective)
    return objective
