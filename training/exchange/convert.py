"""Converts weights of other projects into a Hugging Face folder like those of `reread export`."""

import json
import logging
import re
import shutil
import tempfile
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from reread.preprocessing.errors import UserError
from reread.preprocessing.tokens.base import copy_tokenizer_files
from reread.training.checkpoint.files import replacing
from reread.training.exchange.card import front_matter, is_export, model_card
from reread.training.exchange.export import write_huggingface
from reread.training.exchange.formats import about, find_source
from reread.training.exchange.hub import HubName, fetch
from reread.training.exchange.megatron import write as write_megatron
from reread.training.exchange.tokenizer import copy_tokenizer, name_special_tokens
from reread.training.models import model_spec
from reread.training.models.bounds import settings_of
from reread.training.models.conversion import Conversion
from reread.training.models.forms import Form, forms_of
from reread.training.models.nezha.configuration_nezha import NezhaConfig
from reread.training.models.tiling import larger_config, larger_weights, repeated_layers
from reread.training.objectives import OBJECTIVES
from reread.training.run.files import read_mapping

log = logging.getLogger("reread")


def convert(source: Path | HubName, out: Path, model: str = "nezha", **options: Any) -> None:
    """Convert weights into the Hugging Face folder `out` of a model of type `model`.

    `options` are those of `Conversion` (training/models/conversion.py), for a type that takes them.
    `source` is a weights file, the prefix of a TensorFlow checkpoint, or a folder that holds one; configuration and
    vocabulary are beside it. The forms that can be read are FORMS in training/models/<model>/convert.py. Pretraining
    heads that the source lacks are left out, and parameters that its form never has are drawn at random, both with a
    line in the log. A model of the Hub is fetched first; an export of this project is taken as it is, with its head.
    Raises `UserError` for an option that the model does not take, and for a source that cannot be read, would run code,
    or does not fit its configuration.
    """
    spec, known, origin = model_spec(model), {}, ""
    sizes = Conversion.parse(options, "convert").sizes()
    if isinstance(source, HubName):
        name, source = source, fetch(source)
        if is_export(source) and not options and _type_in(source) in spec.model_types:
            _take(name, source, out)
            return
        known, origin = _known_of(name, source), f" of `{name.repository}`, revision {source.name}"
    found = find_source(source, forms_of(model, options), model)
    if out.resolve() in {folder.resolve() for folder in found.folders}:
        raise UserError(f"{out}: holds the weights to convert; give another output folder")
    log.info("reading %s as %s: %s", found.weights, found.form.name, found.reason)
    raw = found.read()
    with about(found.config_path):
        values = found.form.config(found.config)
        settings = {key: values[key] for key in spec.own_keys if key in values} | settings_of(spec.config, values)
        config = spec.config_for(settings)(**settings)
        if config.num_hidden_layers > len(raw):
            raise UserError(
                f"{found.config_path}: {config.num_hidden_layers:,} layers, but {found.weights.name} holds "
                f"{len(raw):,} tensors in all; use the configuration that belongs to it"
            )
        torch.manual_seed(0)  # parameters that the source never has are the same each time
        weights = found.form.fit(found.form.weights(raw), found.config, config)
        with torch.device("meta"):  # shapes alone: a wrong configuration may ask for more than memory holds
            _check_shapes(spec.converted(config), weights, found.form, found.weights)
        if sizes:
            larger = larger_config(spec, values, sizes)
            with torch.device("meta"):
                shapes = {name: tensor.shape for name, tensor in _expected(spec.converted(larger)).items()}
            layers = repeated_layers(config.num_hidden_layers, larger.num_hidden_layers)
            config, weights = larger, larger_weights(weights, shapes, layers, spec.fused or {})
        converted = spec.converted(config)
    absent = _load(converted, weights, found.form)
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = copy_tokenizer(found.folders, Path(folder), config.vocab_size, found.config.get("model_type", ""))
        if tokenizer:
            name_special_tokens(config, tokenizer)
        objective = OBJECTIVES[next(iter(spec.heads))]
        summary = f"Converted by reread from `{found.weights.name}`{origin} ({found.form.name})."
        summary += " Its weights are tiled from those of a smaller model." if sizes else ""
        lengths = {"sequence_length": 512, **config.to_dict()}
        card = model_card(spec, objective, summary, {}, lengths=lengths, known=known)
        write_huggingface(out, converted, tokenizer, card, absent)
    log.info("converted %s to %s", found.weights, out)


def to_megatron(source: Path | HubName, out: Path) -> None:
    """Write the BERT in `source` as a checkpoint of Megatron-LM, with the vocabulary, to the new folder `out`.

    A BERT is also a NEZHA with absolute positions, such as `convert` makes, `reread train` trains and `export` writes.
    Raises `UserError` for any other model, and if `out` exists."""
    source = fetch(source) if isinstance(source, HubName) else source
    found = find_source(source, forms_of("nezha", {}), "nezha")
    with about(found.config_path):
        config = NezhaConfig(**settings_of(NezhaConfig, found.form.config(found.config)))
    if config.position_type != "parametric_absolute" or config.hidden_act == "relu":
        what = "relu" if config.hidden_act == "relu" else f"positions of type {config.position_type}"
        raise UserError(f"{found.config_path}: {what}, which Megatron's BERT does not have")
    if config.hidden_act == "gelu_new":
        log.info("gelu_new stays in the layers (bias_gelu_fusion); Megatron's masked-word head has gelu")
    if out.exists():
        raise UserError(f"{out}: exists; give another output or remove it")
    weights = found.form.weights(found.read())
    with torch.device("meta"):
        _check_shapes(model_spec("nezha").converted(config), weights, found.form, found.weights)
    bert = {re.sub(r"^nezha\.", "bert.", name): tensor for name, tensor in weights.items()}
    with replacing(out) as temporary:
        write_megatron(temporary, bert, config)
        for folder in found.folders:
            copy_tokenizer_files(folder, temporary)
    log.info("converted %s to %s, a checkpoint of Megatron-LM", found.weights, out)


def _known_of(name: HubName, folder: Path) -> dict[str, Any]:
    """Front matter about a model of the Hub, which is fetched to `folder`: its name, and what its own card says."""
    stated = front_matter(folder)
    licence, language = stated.get("license"), stated.get("language")
    languages = language if isinstance(language, list) else [language]
    return {
        "license": licence if isinstance(licence, str) else "",
        "language": [one for one in languages if isinstance(one, str)],
        "base_model": name.repository,
    }


def _type_in(folder: Path) -> Any:
    """The `model_type` of the model in `folder`; None if its configuration cannot be read."""
    return read_mapping(folder / "config.json").get("model_type")


def _take(name: HubName, folder: Path, out: Path) -> None:
    """Copy an export of this project that was fetched to `folder`, without code and without what would ask for it."""
    with replacing(out) as temporary:
        for file in ("model.safetensors", "README.md"):
            shutil.copyfile(folder / file, temporary / file)
        copy_tokenizer_files(folder, temporary)
        config = read_mapping(folder / "config.json")
        config.pop("auto_map", None)
        (temporary / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    log.info("%s is an export of reread, taken as it is to %s", name, out)


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
