"""The bounds of numbers in configurations, of recipes and of folders to start from."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from reread.preprocessing.errors import UserError
from reread.training.models import MODELS, model_spec
from reread.training.models.bounds import settings_of
from reread.training.models.build import model_config


@pytest.mark.parametrize("name", MODELS)
def test_a_saved_configuration_is_within_its_bounds(name: str) -> None:
    config = model_spec(name).config
    values = json.loads(config().to_json_string())
    settings = settings_of(config, {**values, "another_key": -1})
    assert len(settings) >= 10
    assert all(settings[key] == values[key] for key in settings)


@pytest.mark.parametrize("value", [0, -1, 10**30, math.inf, math.nan])
@pytest.mark.parametrize("name", MODELS)
def test_numbers_of_a_start_have_bounds(name: str, value: float, tmp_path: Path) -> None:
    spec = model_spec(name)
    key = {"transformer_xl": "n_layer", "bart": "encoder_layers", "led": "encoder_layers"}.get(
        name, "num_hidden_layers"
    )
    values: dict[str, Any] = {**json.loads(spec.config().to_json_string()), key: value}
    (tmp_path / "config.json").write_text(json.dumps(values))
    with pytest.raises(UserError, match=rf"^train\.init: .*config\.json: {key} is 1 to 1,024 \(got ") as raised:
        model_config(spec, {}, 1, tmp_path)
    assert "\n" not in str(raised.value)
