"""`reread convert`: released weights to a Hugging Face folder that training starts from."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from reread.preprocessing.errors import writing
from reread.training.exchange.hub import hub_name


def convert(source: Path, output: Path, model: str, options: Mapping[str, Any]) -> None:
    """Write `output` from the weights in `source`; options that are None have their defaults."""
    from reread.training.exchange.convert import convert as convert_weights

    with writing(output):
        convert_weights(
            hub_name(source) or source,
            output,
            model,
            **{name: value for name, value in options.items() if value is not None},
        )
