"""Forms of other projects' weights, which each model's convert.py lists."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from importlib import import_module
from pathlib import Path
from typing import Any

from torch import Tensor

from reread.preprocessing.errors import UserError
from reread.training.models import MODELS, converter_of, model_spec
from reread.training.models.conversion import SIZES, Conversion

TORCH = ("model.safetensors", "pytorch_model.bin", "*.safetensors", "*.bin", "*.pt", "*.pth", "*.ckpt")
TENSORFLOW = ("*.index",)
PADDLE = ("model_state.pdparams", "*.pdparams")
PADDLE_STATIC = ("word_embedding", "params/word_embedding")
"""Values of `Form.files`."""


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
    """The forms that a model of type `model` can be converted from, by the `options` of `Conversion`.

    Its convert.py has them as FORMS, or makes them from options by `forms`. Raises `UserError` for options that are
    wrong, or that it does not take.
    """
    checked = Conversion.parse(options, "convert")
    if checked.sizes() and model_spec(model).fused is None:
        takers = ", ".join(taker for taker in MODELS if model_spec(taker).fused is not None)
        raise UserError(f"--{_option(checked.sizes())}: not for {model}; models that take it: {takers}")
    others = [option for option in options if option not in SIZES]
    module = import_module(converter_of(model))
    forms: tuple[Form, ...]
    if hasattr(module, "forms"):
        forms = module.forms(checked)
    elif others:
        takers = ", ".join(taker for taker in MODELS if hasattr(import_module(converter_of(taker)), "forms"))
        raise UserError(f"--{_option(others)}: not for {model}; models that take it: {takers}")
    else:
        forms = module.forms_of(model) if hasattr(module, "forms_of") else module.FORMS
    return forms


def _option(options: Iterable[str]) -> str:
    """The first one as it is written on the command line."""
    return next(iter(options)).replace("_", "-")


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
    if made:
        return f"`reread convert --model` makes {' or '.join(made)} of it"
    return f"`reread convert` makes nothing of it; models here are {', '.join(MODELS)}"


def kind_of(source: Mapping[str, Any]) -> str:
    """The model_type, guessed for old configurations, which lack it; Google's have no `architectures` either."""
    if "model_type" in source:
        return str(source["model_type"]).removeprefix("reread_")  # our own export with dilated windows
    named = source.get("architectures")
    names = " ".join(map(str, named)) if isinstance(named, list) else ""
    return "roberta" if "Roberta" in names else "bert" if "Bert" in names or "type_vocab_size" in source else ""
