"""Finds weights of other projects, recognises their form, and reads them without running code from the files."""

import json
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from reread.preprocessing.errors import UserError, first_line
from reread.training.exchange import megatron, states
from reread.training.exchange.hub import CONFIGS, not_looked_for
from reread.training.exchange.inert import read_inert
from reread.training.exchange.paddle import StaticFolder, read_pdparams
from reread.training.models.forms import Form, way_out


@dataclass(frozen=True)
class Source:
    """Weights and a configuration to convert, as `find_source` found them."""

    form: Form
    weights: Path
    config_path: Path
    config: dict[str, Any]
    folders: tuple[Path, ...]
    """Where the configuration and the vocabulary may be."""
    reason: str

    def read(self) -> Mapping[str, Any]:
        """The tensors or arrays by name. Raises `UserError` for a file that cannot be read or would run code."""
        if not self.weights.suffix:
            return StaticFolder(self.weights.parent)
        if self.weights.suffix in _READERS:
            return _READERS[self.weights.suffix](self.weights)
        tensors: Mapping[str, Tensor]
        if self.weights.name == megatron.FILE:
            tensors = megatron.read_weights(self.weights, self.config)
        else:
            tensors = _read_torch(self.weights)
        rows = self.config.get("vocab_size")
        return states.unpadded(tensors, rows) if isinstance(rows, int) else tensors


def find_source(path: Path, forms: Sequence[Form], model: str) -> Source:
    """The weights at `path` (a file, the prefix of a TensorFlow checkpoint or a folder), and which of `forms` they are.

    Raises `UserError` if there are no weights, none of these forms, or no configuration beside them.
    """
    patterns = tuple(dict.fromkeys(pattern for form in forms for pattern in form.files))
    weights = megatron.first_part(path) or _find_weights(path, patterns)
    folders = tuple(dict.fromkeys((weights.parent, path if path.is_dir() else weights.parent)))
    config_path, config = _configuration(weights, folders)
    with about(config_path):
        for form in forms:
            if form.holds(weights) and (reason := form.reason(config)):
                return Source(form, weights, config_path, config, folders, reason)
    known = "; ".join(f"{form.name} ({', '.join(dict.fromkeys(map(_suffix, form.files)))})" for form in forms)
    kind = config.get("model_type", "unknown")
    raise UserError(
        f"{weights}: weights of a model of type {kind} cannot be converted to {model}; these can: {known}; "
        f"{way_out(weights.parent, config)}"
    )


def _configuration(weights: Path, folders: Sequence[Path]) -> tuple[Path, dict[str, Any]]:
    """The configuration of `weights` and the file that it is in: what a training state brings along, and what lies
    beside it. Raises `UserError` if there is none."""
    found = [folder / name for folder in folders for name in CONFIGS if (folder / name).exists()]
    if weights.name == megatron.FILE:
        inside = megatron.settings_in(weights)
    elif weights.suffix in (".pt", ".ckpt"):
        inside = states.settings_in(weights, read_inert(weights))
    else:
        inside = {}
    if not found and not inside:
        raise UserError(f"{weights.parent}: no {' or '.join(CONFIGS)} beside the weights; put it there")
    if not found:
        return weights, inside
    config_path = found[0]
    try:
        config = json.loads(config_path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{config_path}: not readable as JSON ({first_line(error)})") from None
    if not isinstance(config, dict):
        raise UserError(f"{config_path}: not the configuration of a model; use the one that belongs to {weights.name}")
    return config_path, {**config, **inside}


@contextmanager
def about(config_path: Path) -> Iterator[None]:
    """Raises `UserError` with one line about the configuration for any error that its values cause."""
    try:
        yield
    except (ValueError, TypeError) as error:
        raise UserError(f"{config_path}: {' '.join(str(error).split())}") from None
    except (ArithmeticError, LookupError, AttributeError, RuntimeError, MemoryError) as error:
        reason = f"{type(error).__name__}: {first_line(error)}"
        raise UserError(f"{config_path}: no model can be built from it ({reason})") from None


def _suffix(pattern: str) -> str:
    return f"*{Path(pattern).suffix}" if Path(pattern).suffix else f"a folder with {pattern}"


def _find_weights(source: Path, patterns: Sequence[str]) -> Path:
    index = source.with_name(source.name + ".index")
    if index.exists():
        return index
    if source.is_file():
        suffixes = sorted({Path(pattern).suffix for pattern in patterns} - {""})
        if source.suffix in suffixes:
            return source
        raise UserError(
            f"{source}: not a known kind of weights; give a file with suffix {', '.join(suffixes)} or their folder"
        )
    for pattern in patterns:
        found = sorted(source.glob(pattern))
        if len(found) > 1:
            raise UserError(f"{source}: holds {', '.join(path.name for path in found)}; name the one to convert")
        if found:
            return found[0]
    raise UserError(
        f"{source}: {'holds no weights' if source.is_dir() else 'not there'}; looked for {', '.join(patterns)}"
        f"{not_looked_for(source)}"
    )


def _read_torch(path: Path) -> Mapping[str, Tensor]:
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        state = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        if "unsupported" in str(error).lower():
            try:
                state = read_inert(path)
            except UserError:
                state = None
            return _of_state(
                path,
                state,
                "refused, since it holds more than tensors and reading them can run code; if you trust it, save its "
                "tensors as safetensors",
            )
        raise UserError(f"{path}: not a PyTorch file; was the download complete?") from None
    except (SafetensorError, RuntimeError, OSError, EOFError) as error:
        raise UserError(f"{path}: cannot be read ({first_line(error)}); was the download complete?") from None
    if isinstance(state, dict) and all(isinstance(value, Tensor) for value in state.values()):
        return state
    return _of_state(path, state, "not a dictionary of tensors; save the model's state_dict() alone")


def _of_state(path: Path, state: Any, else_refused: str) -> Mapping[str, Tensor]:
    """The weights in a training state of a known program. Raises `UserError` with this line for any other content."""
    weights = states.weights_in(path, state)
    if weights is None:
        raise UserError(f"{path}: {else_refused}")
    return weights


class _TensorFlowCheckpoint(Mapping[str, NDArray[Any]]):
    """Variables by name, read on access, so that the optimizer's slots, twice the weights, are never read."""

    def __init__(self, index: Path) -> None:
        prefix = index.with_suffix("")
        try:
            import tensorflow
        except ImportError:
            raise UserError(
                f"{prefix}: a TensorFlow checkpoint; to read it, install the extra reread[tensorflow]"
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
        return UserError(f"{self._prefix}: cannot be read ({first_line(error)}); was the download complete?")

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


_READERS: dict[str, Callable[[Path], Mapping[str, Any]]] = {".index": _TensorFlowCheckpoint, ".pdparams": read_pdparams}
"""Suffix of the weights file -> reader; `_read_torch` reads those of PyTorch and safetensors."""
