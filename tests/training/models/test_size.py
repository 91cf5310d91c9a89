"""A config.json that describes a far larger model than its weights is one line, before memory is taken for it."""

import json
from pathlib import Path

import pytest

from reread.preprocessing.errors import UserError
from reread.training.models import model_spec
from reread.training.models.build import build_model, model_config

SIZES = {
    "vocab_size": 99,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
}


@pytest.mark.parametrize("changes", [{"vocab_size": 1 << 22}, {"hidden_size": 1 << 14}, {"intermediate_size": 1 << 20}])
def test_a_configuration_far_larger_than_its_weights_is_one_line(tmp_path: Path, changes: dict[str, int]) -> None:
    spec = model_spec("nezha")
    head = spec.heads["pretraining"] if "pretraining" in spec.heads else next(iter(spec.heads.values()))
    build_model(head, spec.config(**SIZES), None, 0).save_pretrained(tmp_path)
    build_model(head, model_config(spec, {}, 1, tmp_path), tmp_path, 0)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    with pytest.raises(UserError, match=r"numbers, but the configuration is of a model of \d"):
        build_model(head, model_config(spec, {}, 1, tmp_path), tmp_path, 0)
