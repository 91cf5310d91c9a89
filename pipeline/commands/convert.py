"""`reread convert`: released weights to a Hugging Face folder that training starts from."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from reread.preprocessing.errors import UserError, writing
from reread.training.exchange.hub import fetch, hub_name


def convert(source: Path, output: Path, model: str, options: Mapping[str, Any]) -> None:
    """Write `output` from the weights in `source`; options that are None have their defaults.

    The model "megatron" is a checkpoint of Megatron-LM's BERT."""
    name = hub_name(source)
    if name:
        fetch(name)  # before torch is imported, which takes seconds
    from reread.training.exchange.convert import convert as convert_weights
    from reread.training.exchange.convert import to_megatron

    given = {option: value for option, value in options.items() if value is not None}
    with writing(output):
        if model == "megatron":
            if given:
                raise UserError(f"--{next(iter(given))}: not for megatron, which is written as it is")
            to_megatron(name or source, output)
            return
        convert_weights(name or source, output, model, **given)
