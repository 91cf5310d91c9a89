"""Converts weights of other projects into a Hugging Face folder like those of `reread export`."""

import logging
import re
import tempfile
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from reread.preprocessing.errors import UserError
from reread.training.exchange.export import model_card, write_huggingface
from reread.training.exchange.formats import about, find_source
from reread.training.exchange.tokenizer import copy_tokenizer, name_special_tokens
from reread.training.models import model_spec
from reread.training.models.bounds import settings_of
from reread.training.models.forms import Form, forms_of
from reread.training.objectives import OBJECTIVES

log = logging.getLogger("reread")


def convert(source: Path, out: Path, model: str = "nezha", **options: Any) -> None:
    """Convert weights into the Hugging Face folder `out` of a model of type `model`.

    `options` are those that this type's conversion takes (training/models/<model>/convert.py).
    `source` is a weights file, the prefix of a TensorFlow checkpoint, or a folder that holds one; configuration and
    vocabulary are beside it. The forms that can be read are FORMS in training/models/<model>/convert.py. Pretraining
    heads that the source lacks are left out, and parameters that its form never has are drawn at random, both with a
    line in the log.
    Raises `UserError` for an option that the model does not take, and for a source that cannot be read, would run code,
    or does not fit its configuration.
    """
    spec = model_spec(model)
    found = find_source(source, forms_of(model, options), model)
    if out.resolve() in {folder.resolve() for folder in found.folders}:
        raise UserError(f"{out}: holds the weights to convert; give another output folder")
    log.info("reading %s as %s: %s", found.weights, found.form.name, found.reason)
    raw = found.read()
    with about(found.config_path):
        config = spec.config(**settings_of(spec.config, found.form.config(found.config)))
        if config.num_hidden_layers > len(raw):
            raise UserError(
                f"{found.config_path}: {config.num_hidden_layers:,} layers, but {found.weights.name} holds "
                f"{len(raw):,} tensors in all; use the configuration that belongs to it"
            )
        torch.manual_seed(0)  # parameters that the source never has are the same each time
        weights = found.form.fit(found.form.weights(raw), found.config, config)
        with torch.device("meta"):  # shapes alone: a wrong configuration may ask for more than memory holds
            _check_shapes(spec.converted(config), weights, found.form, found.weights)
        converted = spec.converted(config)
    absent = _load(converted, weights, found.form)
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = copy_tokenizer(found.folders, Path(folder), config.vocab_size, found.config.get("model_type", ""))
        if tokenizer:
            name_special_tokens(config, tokenizer)
        objective = OBJECTIVES[next(iter(spec.heads))]
        summary = f"Converted by reread from `{found.weights.name}` ({found.form.name})."
        card = model_card(spec, objective, summary, {}, lengths={"sequence_length": 512, **config.to_dict()})
        write_huggingface(out, converted, tokenizer, card, absent)
    log.info("converted %s to %s", found.weights, out)


def _expected(model: PreTrainedModel) -> dict[str, Tensor]:
    tied: dict[str, Any] = model._tied_weights_keys or {}
    return {name: tensor for name, tensor in model.state_dict().items() if name not in tied}


def _missing(expected: Mapping[str, Tensor], weights: Mapping[str, Tensor], form: Form) -> tuple[list[str], ...]:
    """The names that `weights` lacks: all, those of heads, and those that a source of this form never has."""
    missing = [name for name in expected if name not in weights]
    absent = [name for name in missing if name.startswith(form.heads)]
    return missing, absent, [name for name in missing if any(fnmatchcase(name, pattern) for pattern in form.new)]


def _check_shapes(model: PreTrainedModel, weights: Mapping[str, Tensor], form: Form, source: Path) -> None:
    """Raises `UserError` unless `weights` fill `model`, which may be on the meta device."""
    expected = _expected(model)
    missing, absent, new = _missing(expected, weights, form)
    problems = [f"{name} is missing" for name in missing if name not in absent and name not in new]
    problems += [f"{name} is unexpected" for name in weights if name not in expected]
    problems += [
        f"{name} is {list(weights[name].shape)}, but by the configuration {list(tensor.shape)}"
        for name, tensor in expected.items()
        if name in weights and weights[name].shape != tensor.shape
    ]
    if problems:
        more = f" and {len(problems) - 8} more like it" if len(problems) > 8 else ""
        raise UserError(f"{source}: {'; '.join(problems[:8])}{more}")


def _load(model: PreTrainedModel, weights: dict[str, Tensor], form: Form) -> list[str]:
    """Fill `model`; returns the names of head parameters that `weights` lacks."""
    _, absent, new = _missing(_expected(model), weights, form)
    if absent:
        log.info("left out, as the source lacks them: %s", ", ".join(absent))
    if new:
        named = dict.fromkeys(re.sub(r"\.layer\.\d+\.", ".layer.N.", name) for name in new)
        log.info("drawn at random, as %s has no such parameters: %s", form.name, ", ".join(named))
    model.load_state_dict(weights, strict=False)
    return absent
