"""The forms in which weights of others come, as each model's convert.py lists them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from torch import Tensor

TORCH = ("model.safetensors", "pytorch_model.bin", "*.safetensors", "*.bin", "*.pt", "*.pth")
TENSORFLOW = ("*.index",)
PADDLE = ("model_state.pdparams", "*.pdparams")
PADDLE_STATIC = ("word_embedding", "params/word_embedding")
"""`Form.files` of the kinds that can be read."""


def _as_they_are(weights: Mapping[str, Tensor], source: Mapping[str, Any], config: Any) -> dict[str, Tensor]:
    return dict(weights)


@dataclass(frozen=True)
class Form:
    """One form in which weights of others come, and the way from there to a model of ours."""

    name: str
    """As the log and refusals call it."""
    files: tuple[str, ...]
    """Globs of its weights file in a folder, the likeliest first; without a suffix, it is one variable of many."""
    reason: Callable[[Mapping[str, Any]], str]
    """Why weights with such a configuration are of this form, for the log; empty if they are not."""
    config: Callable[[Mapping[str, Any]], dict[str, Any]]
    """A configuration -> keys of ours. Raises ValueError for a model that ours cannot be."""
    weights: Callable[[Mapping[str, Any]], dict[str, Tensor]]
    """Tensors or arrays by their names there -> ours, float32."""
    heads: tuple[str, ...] = ()
    """Beginnings of names that it may lack; they are left out of the folder."""
    new: tuple[str, ...] = ()
    """Globs of names that it cannot have; they are drawn at random."""
    fit: Callable[[Mapping[str, Tensor], Mapping[str, Any], Any], dict[str, Tensor]] = _as_they_are
    """Weights with our names, the source's configuration and ours -> weights of the sizes that ours asks for."""

    def holds(self, path: Path) -> bool:
        """Whether a weights file is of this form by its name."""
        return any(fnmatchcase(path.name, Path(pattern).name) for pattern in self.files)
