"""Weights of others -> a Hugging Face folder as `reread export` writes it."""

import json
import logging
import pickle
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from transformers import PreTrainedModel

from preprocessing.errors import UserError
from training.checkpoint.export import model_card, write_huggingface
from training.models import model_spec

log = logging.getLogger("reread")

CONFIGS = ("config.json", "bert_config.json")
TOKENIZER_FILES = ("vocab.txt", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")
WEIGHTS = ("model.safetensors", "pytorch_model.bin", "*.safetensors", "*.bin", "*.pt", "*.pth", "*.index")
"""What is looked for in a folder, the first pattern that fits; *.index is a TensorFlow checkpoint."""


def convert(source: Path, out: Path, model: str = "nezha") -> None:
    """Convert weights of model type `model` into the Hugging Face folder `out`.

    `source` is a PyTorch or safetensors file, the prefix of a TensorFlow checkpoint, or a folder that holds one; its
    configuration and vocabulary lie beside it. Pretraining heads that the source lacks are left out, with a line in
    the log. Raises `UserError` for a source that cannot be read, would run code, or does not fit its configuration.
    """
    spec = model_spec(model)
    tables = import_module(f"training.models.{model}.convert")
    weights_path = _find_weights(source)
    if out.resolve() == weights_path.parent.resolve():
        raise UserError(f"{out}: holds the weights to convert; give another output folder")
    tensorflow = weights_path.suffix == ".index"
    config_path = _beside(weights_path, CONFIGS)
    if config_path is None:
        raise UserError(f"{weights_path.parent}: no config.json or bert_config.json beside the weights; put it there")
    try:
        config = spec.config(**tables.config_values(json.loads(config_path.read_text(encoding="utf-8")), tensorflow))
    except (ValueError, TypeError) as error:
        raise UserError(f"{config_path}: {error}") from None
    if tensorflow:
        weights = tables.from_tensorflow(_TensorFlowCheckpoint(weights_path.with_suffix("")))
    else:
        weights = tables.from_huggingface_like(_read_tensors(weights_path))
    converted = spec.pretraining(config)
    absent = _load(converted, weights, tables.HEADS, weights_path)
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = _tokenizer(weights_path.parent, Path(folder), config.vocab_size)
        card = model_card(model, f"Converted by reread from `{weights_path.name}`.", {})
        write_huggingface(out, converted, tokenizer, card, absent)
    log.info("converted %s to %s", weights_path, out)


def _find_weights(source: Path) -> Path:
    index = source.with_name(source.name + ".index")
    if index.exists():
        return index
    if source.is_file():
        if source.suffix in {pattern[1:] for pattern in WEIGHTS if pattern.startswith("*")}:
            return source
        raise UserError(f"{source}: not known as weights; give *.safetensors, *.bin, *.pt or a TensorFlow prefix")
    for pattern in WEIGHTS:
        found = sorted(source.glob(pattern))
        if len(found) > 1:
            raise UserError(f"{source}: holds {', '.join(path.name for path in found)}; name the one to convert")
        if found:
            return found[0]
    raise UserError(
        f"{source}: {'holds no weights' if source.is_dir() else 'not there'}; looked for {', '.join(WEIGHTS)}"
    )


def _beside(path: Path, names: tuple[str, ...]) -> Path | None:
    return next((path.parent / name for name in names if (path.parent / name).exists()), None)


def _read_tensors(path: Path) -> Mapping[str, Tensor]:
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        state = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        if "unsupported" in str(error).lower():
            raise UserError(
                f"{path}: refused, for it holds more than tensors and reading that can run code; "
                "where you trust it, save its tensors as safetensors"
            ) from None
        raise UserError(f"{path}: not a PyTorch file; was the download complete?") from None
    except (SafetensorError, RuntimeError, OSError, EOFError) as error:
        raise UserError(f"{path}: cannot be read ({_first_line(error)}); was the download complete?") from None
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise UserError(f"{path}: not a dictionary of tensors; save the model's state_dict() alone")
    return state


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


class _TensorFlowCheckpoint(Mapping[str, NDArray[Any]]):
    """Variables by name, each read when it is asked for: optimizer slots, twice the weights, never are."""

    def __init__(self, prefix: Path) -> None:
        try:
            import tensorflow
        except ImportError:
            raise UserError(
                f"{prefix}: a TensorFlow checkpoint; install the extra that reads it: reread[tensorflow]"
            ) from None
        self._prefix = prefix
        self._errors = (tensorflow.errors.OpError, ValueError, RuntimeError)
        try:
            self._reader = tensorflow.train.load_checkpoint(str(prefix))
            self._names = sorted(self._reader.get_variable_to_shape_map())
        except self._errors as error:
            raise self._unreadable(error) from None

    def __getitem__(self, name: str) -> NDArray[Any]:
        try:
            return self._reader.get_tensor(name)
        except self._errors as error:
            raise self._unreadable(error) from None

    def _unreadable(self, error: Exception) -> UserError:
        return UserError(f"{self._prefix}: cannot be read ({_first_line(error)}); was the download complete?")

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _load(model: PreTrainedModel, weights: dict[str, Tensor], heads: tuple[str, ...], source: Path) -> list[str]:
    """Fill `model`; returns the names of head parameters that `weights` lacks."""
    expected = {
        name: tensor for name, tensor in model.state_dict().items() if name not in (model._tied_weights_keys or {})
    }
    missing = [name for name in expected if name not in weights]
    absent = [name for name in missing if name.startswith(heads)]
    problems = [f"{name} is missing" for name in missing if name not in absent]
    problems += [f"{name} is unexpected" for name in weights if name not in expected]
    problems += [
        f"{name} is {list(weights[name].shape)} and by the configuration {list(tensor.shape)}"
        for name, tensor in expected.items()
        if name in weights and weights[name].shape != tensor.shape
    ]
    if problems:
        more = f" and {len(problems) - 8} more like it" if len(problems) > 8 else ""
        raise UserError(f"{source}: {'; '.join(problems[:8])}{more}")
    if absent:
        log.info("left out, as the source lacks them: %s", ", ".join(absent))
    model.load_state_dict(weights, strict=False)
    return absent


def _tokenizer(source: Path, folder: Path, vocab_size: int) -> Path | None:
    """The source's tokenizer files in `folder`, completed so that AutoTokenizer knows them; None if there are none."""
    files = [source / name for name in TOKENIZER_FILES if (source / name).exists()]
    if not files:
        log.info("no tokenizer in the converted folder: neither vocab.txt nor tokenizer.json is beside the weights")
        return None
    for file in files:
        shutil.copyfile(file, folder / file.name)
    vocabulary = source / "vocab.txt"
    settings_path = folder / "tokenizer_config.json"
    settings = json.loads(settings_path.read_text(encoding="utf-8")) if settings_path.exists() else {}
    if vocabulary.exists():
        tokens = vocabulary.read_text(encoding="utf-8").splitlines()
        if len(tokens) > vocab_size:
            raise UserError(f"{vocabulary}: {len(tokens)} tokens, but the configuration's vocab_size is {vocab_size}")
        settings.setdefault("tokenizer_class", "BertTokenizer")
        if "do_lower_case" not in settings:
            cased = sum(token.isascii() and token.isalpha() and not token.islower() for token in tokens)
            settings["do_lower_case"] = cased * 100 < len(tokens)
            log.info("do_lower_case %s: %d tokens have capitals", settings["do_lower_case"], cased)
    settings_path.write_text(json.dumps(settings, ensure_ascii=False, indent=1), encoding="utf-8")
    return folder
