"""The models by name. Torch is imported only when one is asked for."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from reread.preprocessing.errors import UserError, close_to
from reread.training.models.hub.encoder_decoders import ENCODER_DECODERS
from reread.training.models.hub.encoders import ENCODERS

if TYPE_CHECKING:
    from pathlib import Path

    from reread.training.models.spec import ModelSpec

OURS = ("nezha", "ernie_doc", "transformer_xl", "ran", "longformer")
"""Models of our own: folders here, each with a spec.py."""
MODELS = (*OURS, *ENCODERS, *ENCODER_DECODERS)
"""What a recipe's `model.type` may be: our own, and transformers' encoders and encoder-decoders as themselves."""


def model_spec(name: str) -> ModelSpec:
    """Raises `UserError` for an unknown name."""
    if name not in MODELS:
        near = close_to(str(name).lower(), MODELS)
        meant = f"did you mean `{near[0]}`? " if near else ""
        raise UserError(f"train.model.type: model type `{name}` is unknown; {meant}known: {', '.join(MODELS)}")
    spec: ModelSpec
    if name in ENCODERS:
        spec = import_module("reread.training.models.hub.spec").hub_spec(name)
    elif name in ENCODER_DECODERS:
        spec = import_module("reread.training.models.hub.writing").writer_spec(name)
    else:
        spec = import_module(f"reread.training.models.{name}.spec").SPEC
    return spec


def converter_of(name: str) -> str:
    """The module with the forms of released weights that a model is made of."""
    room = f"hub.convert_{name}" if name in ENCODER_DECODERS else f"{'hub' if name in ENCODERS else name}.convert"
    return f"reread.training.models.{room}"


def config_of_start(init: Path) -> Path:
    """The config.json of the folder that a run starts from. Raises `UserError` if it has none."""
    path = init / "config.json"
    if path.exists():
        return path
    if init.is_file():
        raise UserError(f"train.init: {init} is a file; give its folder")
    way_out = (
        f"is a run; export it (`reread export {init}`) and give its export, init={init}/export, or continue it by "
        f"from={init}"
        if (init / "recipe.yaml").exists()
        else "holds no config.json; make the folder with `reread convert`"
    )
    raise UserError(f"train.init: {init} {way_out}")
