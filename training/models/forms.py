"""Forms of other projects' weights, which each model's convert.py lists."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from importlib import import_module
from pathlib import Path
from typing import Any

from torch import Tensor

from preprocessing.errors import UserError
from training.models import MODELS

TORCH = ("model.safetensors", "pytorch_model.bin", "*.safetensors", "*.bin", "*.pt", "*.pth")
TENSORFLOW = ("*.index",)
PADDLE = ("model_state.pdparams", "*.pdparams")
PADDLE_STATIC = ("word_embedding", "params/word_embedding")
"""Values of `Form.files`."""
OPTIONS = {"longformer": ("length", "window", "positions")}
"""Model -> options of its conversion: the arguments of `forms` in its convert.py. Other models have FORMS there."""


def _as_they_are(weights: Mapping[str, Tensor], source: Mapping[str, Any], config: Any) -> dict[str, Tensor]:
    return dict(weights)


@dataclass(frozen=True)
class Form:
    """A form of other projects' weights, and how it is converted."""

    name: str
    """Its name in the log and in errors."""
    files: tuple[str, ...]
    """Globs of its weights file in a folder, in order of preference; one without a suffix is one variable of many."""
    reason: Callable[[Mapping[str, Any]], str]
    """Configuration -> why its weights are of this form, for the log; empty if they are not."""
    config: Callable[[Mapping[str, Any]], dict[str, Any]]
    """Configuration -> keys of ours. Raises ValueError for a variant that is not supported."""
    weights: Callable[[Mapping[str, Any]], dict[str, Tensor]]
    """Tensors or arrays by the form's names -> tensors by ours, float32."""
    heads: tuple[str, ...] = ()
    """Prefixes of names that it may lack; they are left out of the folder."""
    new: tuple[str, ...] = ()
    """Globs of names that it never has; they are drawn at random."""
    fit: Callable[[Mapping[str, Tensor], Mapping[str, Any], Any], dict[str, Tensor]] = _as_they_are
    """Weights by our names, the form's configuration and ours -> weights with the shapes of our configuration."""

    def holds(self, path: Path) -> bool:
        """Whether a weights file can be of this form, by its name."""
        return any(fnmatchcase(path.name, Path(pattern).name) for pattern in self.files)


def forms_of(model: str, options: Mapping[str, Any]) -> tuple[Form, ...]:
    """The forms that a model of type `model` can be converted from. Raises `UserError` for options it does not take."""
    for name in options:
        if name not in OPTIONS.get(model, ()):
            takers = ", ".join(taker for taker, names in OPTIONS.items() if name in names)
            raise UserError(f"--{name}: not for {model}; models that take it: {takers}")
    module = import_module(f"training.models.{model}.convert")
    forms: tuple[Form, ...] = module.forms(**options) if model in OPTIONS else module.FORMS
    return forms


def way_out(folder: Path, config: Mapping[str, Any], wanted: str = "") -> str:
    """For an error about the model in `folder`, with this configuration, where another is `wanted`: what it can be
    converted to."""
    files = list(folder.iterdir())
    made = [
        model
        for model in MODELS
        if any(form.reason(config) and any(map(form.holds, files)) for form in forms_of(model, {}))
    ]
    if wanted in made:
        return "use `reread convert` first"
    return (
        f"`reread convert --model` makes {' or '.join(made)} of it" if made else "`reread convert` makes nothing of it"
    )
