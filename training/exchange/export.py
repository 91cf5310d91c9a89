"""Writes a folder that transformers' Auto classes load with `from_pretrained`.

For a model that transformers does not have, the folder includes its code, for `trust_remote_code=True`.
"""

import copy
import inspect
import re
import sys
from collections.abc import Callable, Collection, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from torch import Tensor
from transformers import PretrainedConfig, PreTrainedModel

from reread.preprocessing.errors import UserError
from reread.preprocessing.tokens.base import copy_tokenizer_files
from reread.training.checkpoint.files import replacing, save_tensors
from reread.training.data.tasks.dataset import special_tokens
from reread.training.exchange.card import in_transformers, is_export
from reread.training.exchange.sentence_transformers import write_sentence_transformers
from reread.training.exchange.tokenizer import FRAMES, frame_tokenizer
from reread.training.models import model_spec
from reread.training.models.build import vocabulary_of
from reread.training.models.heads import TaskHead
from reread.training.models.spec import ModelSpec

AUTO_CLASSES = {
    "AutoModel": "Model",
    "AutoModelForMaskedLM": "ForMaskedLM",
    "AutoModelForPreTraining": "ForPreTraining",
    "AutoModelForCausalLM": "ForCausalLM",
    "AutoModelForSequenceClassification": "ForSequenceClassification",
    "AutoModelForTokenClassification": "ForTokenClassification",
    "AutoModelForQuestionAnswering": "ForQuestionAnswering",
    "AutoModelForMultipleChoice": "ForMultipleChoice",
}
"""transformers' Auto class -> the suffix of the class that it loads, after the model's name."""
OWN_HEADS = {
    "ForEmbedding": "AutoModel",
    "ForKeyPhrases": "AutoModelForTextEncoding",
    "ForCoreference": "AutoModelForNextSentencePrediction",
    "ForConditionalGeneration": "AutoModelForSeq2SeqLM",
}
"""The suffix of a class that no Auto class is for -> the one that loads it, if it is the exported one. No other class
of the same code but the encoder has that one: in a process that has loaded two of it, the Auto class would take the
first for both."""


def write_huggingface(
    folder: Path,
    model: PreTrainedModel,
    tokenizer_folder: Path | None,
    card: str,
    absent: Collection[str] = (),
    further: Callable[[Path], object] = lambda folder: None,
) -> None:
    """Write weights, configuration, tokenizer, README.md and, unless transformers has it, the model's code to `folder`.

    `model` is whole and on CPU. Rows past `config.vocab_size` that pad the vocabulary are left out, and so are tied
    copies and the parameters named in `absent`, which a loader then initialises with a warning. The tokenizer puts
    special tokens around a text as in pretraining and returns the model's inputs. `further` writes more into a folder
    that has all of this. Files are written to a temporary
    folder that is then renamed, so `folder` is complete or not there at all, and replaces an earlier export.
    Raises `UserError` if `folder` holds anything else.
    """
    code = None if in_transformers(type(model.config)) else Path(inspect.getfile(type(model)))
    if folder.exists() and not is_export(folder) and (folder.is_file() or any(folder.iterdir())):
        raise UserError(f"{folder}: exists and is not an exported model; give another output or remove it")
    with replacing(folder) as temporary:
        _write_files(temporary, model, tokenizer_folder, code, absent)
        (temporary / "README.md").write_text(card, encoding="utf-8")
        further(temporary)


def _write_files(
    folder: Path, model: PreTrainedModel, tokenizer_folder: Path | None, code: Path | None, absent: Collection[str]
) -> None:
    """Write everything but README.md."""
    spec = _spec(model.config)
    save_tensors(_weights(model, spec, absent), folder / "model.safetensors", {"format": "pt"})
    for file in _with_imports(code) if code else ():
        (folder / file.name).write_text(_flat(file.read_text(encoding="utf-8")), encoding="utf-8")
    ids = write_tokenizer(folder, model, tokenizer_folder) if tokenizer_folder else {}
    (folder / "config.json").write_text(_config_json(model, ids), encoding="utf-8")
    task = getattr(model.config, "task", None) or {}
    generation: Any = getattr(model, "generation", None)  # of encoder-decoders (models/hub/writing.py)
    if generation and task:
        banned = special_tokens(folder, vocabulary_of(folder)).values()
        generation(task["target_length"], task["beams"], tuple(banned)).save_pretrained(folder)
    if task.get("kind") == "embed":
        write_sentence_transformers(folder, model.config, task)


def write_tokenizer(folder: Path, model: PreTrainedModel, source: Path) -> dict[str, int | None]:
    """Write the tokenizer in `source` to `folder` as `model` reads texts; returns the ids of its special tokens."""
    spec = _spec(model.config)
    copy_tokenizer_files(source, folder)
    inputs = set(inspect.signature(type(model.base_model).forward).parameters)
    if spec.one_token_type:
        inputs.discard("token_type_ids")
    return frame_tokenizer(folder, _frame(model, spec), inputs, _longest(model.config, spec))


def _with_imports(file: Path) -> set[Path]:
    """A module's file and those that it imports relatively."""
    imports = _RELATIVE.findall(file.read_text(encoding="utf-8"))
    files = (file.parents[len(dots) - 1] / f"{name.replace('.', '/')}.py" for dots, name in imports)
    return {file}.union(*map(_with_imports, files))


def _flat(code: str) -> str:
    """`code` with relative imports of files in the same folder: transformers reads no subfolders of a model's."""
    return _RELATIVE.sub(lambda match: f"from .{match[2].rpartition('.')[2]} import", code)


_RELATIVE = re.compile(r"^from (\.+)([\w.]+) import", re.MULTILINE)
"""The dots and the module of a relative import."""


def _spec(config: PretrainedConfig) -> ModelSpec:
    """The model of a configuration, whose type begins with `reread_` if transformers had one of that name."""
    return model_spec(config.model_type.removeprefix("reread_"))


def _weights(model: PreTrainedModel, spec: ModelSpec, absent: Collection[str]) -> dict[str, Tensor]:
    tied = set(model._tied_weights_keys or {})
    # transformers 4's own class loads a tied bias that is not in the file as zeros
    kept = {name for name in tied if name.endswith(".bias") and in_transformers(type(model.config))}
    vocabulary = [pattern for pattern, kind in spec.tensor_plan.items() if kind == "vocabulary"]
    weights = {}
    for name, tensor in model.state_dict().items():
        if name in tied - kept or name in absent:
            continue
        padded = any(fnmatchcase(known, glob) for known in (name, name.rpartition(".")[0]) for glob in vocabulary)
        rows = tensor[: model.config.vocab_size] if padded else tensor
        weights[name] = rows.clone() if name in kept else rows.contiguous()
    return weights


def _frame(model: PreTrainedModel, spec: ModelSpec) -> str:
    """The key of `FRAMES`: heads of tasks read pairs as the task needs them."""
    if not spec.frame or not isinstance(model, TaskHead):
        return spec.frame
    kind = "answer" if model.question_first else "pair"
    return f"{spec.frame} {kind}" if f"{spec.frame} {kind}" in FRAMES else spec.frame


def _longest(config: PretrainedConfig, spec: ModelSpec) -> int | None:
    """The tokenizer's `model_max_length`; None where a text of any length is read.

    Without the reader in windows, which no class of transformers has, that is where positions end, or else the length
    that they were made for."""
    if getattr(config, "reading", None) and not in_transformers(type(config)):
        return None
    return spec.longest(config) or getattr(config, "max_position_embeddings", None)


def _config_json(model: PreTrainedModel, ids: Mapping[str, int | None]) -> str:
    """The model's configuration with `ids` of special tokens, its class, and the files that hold its classes."""
    config: PretrainedConfig = copy.deepcopy(model.config)
    kept = {key for keys in _spec(config).special.values() for key in keys}  # which the decoder was built with
    if in_transformers(type(config)):
        kept.add("pad_token_id")  # Longformer's positions count from the padding id it was built with
    config.update({name: number for name, number in ids.items() if name not in kept})
    config.architectures = [type(model).__name__]
    if in_transformers(type(config)):
        return config.to_json_string()
    classes = vars(sys.modules[type(model).__module__])
    name = type(config).__name__.removesuffix("Config")
    config.auto_map = {"AutoConfig": f"{Path(inspect.getfile(type(config))).stem}.{name}Config"}
    auto: str | None
    for auto, suffix in AUTO_CLASSES.items():
        if name + suffix in classes:
            config.auto_map[auto] = f"{Path(inspect.getfile(type(model))).stem}.{name}{suffix}"
    if auto := OWN_HEADS.get(type(model).__name__.removeprefix(name)):
        config.auto_map[auto] = f"{Path(inspect.getfile(type(model))).stem}.{type(model).__name__}"
    return config.to_json_string()
