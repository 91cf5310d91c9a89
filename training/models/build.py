"""The model that a recipe asks for."""

import inspect
import json
import logging
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from pydantic import TypeAdapter, ValidationError
from tokenizers import Tokenizer
from transformers import PretrainedConfig, PreTrainedModel
from transformers.utils import logging as reports

from preprocessing.errors import UserError, nearest
from preprocessing.tokens.vocabulary import read_vocabulary
from training.config import AnyData, DataSettings, SegmentSettings, TrainSettings
from training.data.segments import reorder_classes
from training.models import ModelSpec, model_spec
from training.models.bounds import LARGEST, check_number

log = logging.getLogger("reread")


def model_config(
    spec: ModelSpec, values: dict[str, Any], vocab_size: int, init: Path | None, special: Mapping[str, int] = {}
) -> PretrainedConfig:
    """The configuration of the model to train: that of `init` if given, with the recipe's keys over it.

    `special` are the corpus' ids of special tokens by name (pad, cls, sep, eos); those that the model knows it keeps.

    Raises `UserError` for keys and values that the constructor does not take, for an `init` of another model, and for
    a vocabulary smaller than the corpus'.
    """
    given = _checked(spec, {key: value for key, value in values.items() if key != "type"})
    start = _config_of(spec, init) if init else {}
    try:
        known = inspect.signature(spec.config).parameters
        tokens = {f"{name}_token_id": number for name, number in special.items()}
        tokens = {name: number for name, number in tokens.items() if name in known}
        config = spec.config(**{"vocab_size": vocab_size, **start, **tokens, **given})
    except Exception as error:  # ValueError of ours; what transformers' own configurations raise depends on the version
        raise UserError(f"train.model: {' '.join(str(error).split())}") from None
    if config.vocab_size < vocab_size:
        raise UserError(f"train.model.vocab_size: {config.vocab_size} is smaller than the corpus' {vocab_size}")
    return config


def check_model(settings: TrainSettings) -> None:
    """Raises `UserError` for a model that training would refuse whatever the corpus, before there is one."""
    spec = model_spec(settings.model.get("type", ""))
    init = settings.init if settings.init and (settings.init / "config.json").exists() else None
    given = _checked(spec, {key: value for key, value in settings.model.items() if key != "type"})
    if init is None and settings.init is not None:
        spec.head(settings.data.kind)  # the rest is known when the recipe's `start` has made it
        return
    vocab_size = 1 if init else given.get("vocab_size", LARGEST)
    check_data(spec, model_config(spec, settings.model, vocab_size, init), settings.data)


def check_data(spec: ModelSpec, config: PretrainedConfig, data: AnyData) -> None:
    """Raises `UserError` if the model does not learn from such data, has too few positions or classes for it, or would
    read documents twice and remember nothing."""
    spec.head(data.kind)
    if isinstance(data, DataSettings) and data.special_tokens == (spec.frame == "bare"):
        raise UserError(
            f"train.data.special_tokens: {str(data.special_tokens).lower()}, but {spec.name} reads text "
            f"{'without' if data.special_tokens else 'with'} [CLS] and [SEP]; set it to "
            f"{str(not data.special_tokens).lower()}"
        )
    longest = spec.longest(config)
    if longest is not None and data.sequence_length > longest:
        raise UserError(
            f"train.data.sequence_length: {data.sequence_length}, but this model's positions end at {longest}; lower "
            "it, or raise train.model.max_position_embeddings (of a Longformer's start: `reread convert --length`)"
        )
    if isinstance(data, SegmentSettings) and data.retrospective and not config.slots:
        raise UserError(
            "train.data.retrospective: documents would be read twice by a model without memory, which learns nothing "
            "from it; set it to false, or give the model a recurrence and a memory_length"
        )
    if isinstance(data, SegmentSettings) and config.reorder_classes < reorder_classes(data.reorder_chunks):
        raise UserError(
            f"train.model.reorder_classes: {config.reorder_classes}, but {data.reorder_chunks} chunks have "
            f"{reorder_classes(data.reorder_chunks)} orders; raise it, or lower train.data.reorder_chunks"
        )


def check_vocabulary(init: Path, tokenizer: Path) -> None:
    """Raises `UserError` if the corpus in whose folder `tokenizer` is was not made with the vocabulary of `init`."""
    ours, theirs = _vocabulary(tokenizer), _vocabulary(init)
    if not ours or not theirs:
        return
    # No text gives a token of blanks, and of transformers' two readers of vocab.txt one drops them
    given = (token for token in sorted(ours, key=ours.__getitem__) if token.removeprefix("##").strip())
    if other := next((token for token in given if theirs.get(token) != ours[token]), None):
        raise UserError(
            f"train.init: the vocabulary in {init} differs from the corpus' in {tokenizer}, for example in `{other}`, "
            f"number {ours[other]} in the corpus' and {theirs.get(other, 'none')} in the other: the weights would meet "
            f"other tokens; preprocess with tokenizer.path={init}"
        )


def build_model(head: type[PreTrainedModel], config: PretrainedConfig, init: Path | None, seed: int) -> PreTrainedModel:
    """A model of the class `head`: random weights from `seed`, or those of the folder `init`; on CPU in fp32, whole.

    Raises `UserError` for a configuration that contradicts itself, and if `init` does not fit; heads alone may be
    missing there.
    """
    torch.manual_seed(seed)
    if init is None:
        return _random(head, config)
    try:
        with _without_reports():
            model, found = cast(Any, head).from_pretrained(
                init,
                config=config,
                output_loading_info=True,
                ignore_mismatched_sizes=True,
                use_safetensors=True,  # what `reread convert` and `export` write; a pickle is not opened
                local_files_only=True,
            )
    except (ValueError, RuntimeError, OSError) as error:
        raise UserError(f"train.init: {init} does not fit train.model: {' '.join(str(error).split())[:300]}") from None
    if mismatched := sorted(found["mismatched_keys"]):
        tensors = ", ".join(
            f"{name} {tuple(theirs)} there, {tuple(ours)} here" for name, theirs, ours in mismatched[:3]
        )
        raise UserError(f"train.init: {init} does not fit train.model: {tensors}; leave its sizes as they are there")
    missing = sorted(found["missing_keys"])
    body = [name for name in missing if name.startswith(f"{model.base_model_prefix}.") and ".pooler." not in name]
    if body:
        raise UserError(f"train.init: {init} does not fit train.model: it lacks {_some(body)}")
    parts = {"random": missing, "not used": sorted(found["unexpected_keys"])}
    told = "".join(f"; {what}: {_some(names)}" for what, names in parts.items() if names)
    log.info("starting from the weights in %s%s", init, told)
    return model.float()  # transformers 5 keeps the type of the file


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")


@contextmanager
def _without_reports() -> Iterator[None]:
    """What transformers would print of missing and mismatched tensors, in dozens of lines, we say in one."""
    before, bar = reports.get_verbosity(), reports.is_progress_bar_enabled()
    reports.set_verbosity_error()
    reports.disable_progress_bar()
    try:
        yield
    finally:
        reports.set_verbosity(before)
        if bar:
            reports.enable_progress_bar()


def _random(head: type[PreTrainedModel], config: PretrainedConfig) -> PreTrainedModel:
    try:
        return head(config)
    except Exception as error:  # transformers' own configurations check less than ours
        text = " ".join(str(error).split())
        raise UserError(f"train.model: {text if isinstance(error, ValueError) else repr(error)}") from None


def freeze(model: PreTrainedModel, trainable: Sequence[str] | None, copied: Collection[str]) -> None:
    """Let only parameters learn whose names match one of the globs `trainable`, where it is given, and none of modules
    named in `copied` (`ModelSpec.copied`).

    After a glob `[n:]` leaves the first n rows as they are: their gradient is zero, and `MasterWeights.learning` gives
    the optimiser the other rows alone, by the parameter's attribute `first_row`.
    Raises `UserError` for a glob that matches none that could learn, or that leaves no row, and if there are no globs.
    """
    names = [name for name, _ in model.named_parameters() if not set(name.split(".")) & set(copied)]
    if trainable is not None and not trainable:
        raise UserError("train.trainable: names no parameter, so nothing would learn; null lets all learn")
    globs = [
        (_ROWS.sub("", pattern), int(found[1]) if (found := _ROWS.search(pattern)) else 0)
        for pattern in trainable or ()
    ]
    for glob, _ in globs:
        if not any(fnmatchcase(name, glob) for name in names):
            raise UserError(
                f"train.trainable: `{glob}` matches no parameter that can learn; these can: {', '.join(names[:4])}, ..."
            )
    learning = {}
    for name, parameter in model.named_parameters():
        rows = [row for glob, row in globs if fnmatchcase(name, glob)]
        parameter.requires_grad_(name in names and (trainable is None or bool(rows)))
        first = min(rows, default=0)
        if first and first >= len(parameter):
            raise UserError(f"train.trainable: {name} has {len(parameter)} rows, so none is left from row {first} on")
        if first:
            parameter.first_row = first  # type: ignore[attr-defined]
            parameter.register_hook(partial(_without_rows, first))
        if parameter.requires_grad:
            told = f"{name} from row {first} on" if first else name
            learning[told] = parameter[first:].numel() if first else parameter.numel()
    if trainable is not None:
        total = sum(parameter.numel() for parameter in model.parameters())
        log.info("training %s of %s parameters: %s", f"{sum(learning.values()):,}", f"{total:,}", ", ".join(learning))


_ROWS = re.compile(r"\[(\d+):\]$")


def _without_rows(first: int, gradient: torch.Tensor) -> torch.Tensor:
    gradient = gradient.clone()
    gradient[:first] = 0
    return gradient


def copy_projections(model: torch.nn.Module, copied: Mapping[str, str]) -> None:
    """Give modules that pretraining did not reach the weights of those beside them, by `ModelSpec.copied`."""
    for parent in model.modules():
        for copy_of, original in copied.items():
            if hasattr(parent, copy_of):
                parent.get_submodule(copy_of).load_state_dict(parent.get_submodule(original).state_dict())


def _checked(spec: ModelSpec, given: dict[str, Any]) -> dict[str, Any]:
    """`given` as the constructor's annotations want it: YAML reads 1e-5 as text."""
    known = {name: one for name, one in inspect.signature(spec.config).parameters.items() if name != "kwargs"}
    checked = {}
    for key, value in given.items():
        if key not in known:
            names = [f"train.model.{name}" for name in sorted(known)]
            hint = nearest(f"train.model.{key}", names, cutoff=0.8)
            raise UserError(f"train.model: unknown key `{key}` for {spec.name}; {hint}")
        try:
            checked[key] = TypeAdapter(known[key].annotation).validate_python(value)
            check_number(key, checked[key])
        except ValueError as error:  # pydantic's is one
            problem = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
            raise UserError(f"train.model.{key}: {problem[:1].lower()}{problem[1:]} (got {value!r})") from None
    return checked


def _config_of(spec: ModelSpec, init: Path) -> dict[str, Any]:
    path = init / "config.json"
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"train.init: {init} holds no config.json; make the folder with `reread convert`") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"train.init: {path} is not readable as JSON ({error})") from None
    if not isinstance(values, dict):
        raise UserError(
            f"train.init: {path} is not the configuration of a model; make the folder with `reread convert`"
        )
    kind = values.get("model_type")
    if kind != spec.config.model_type:
        raise UserError(f"train.init: {path} is of a model of type {kind}, not {spec.name}; use `reread convert` first")
    known = inspect.signature(spec.config).parameters
    return {key: value for key, value in values.items() if key in known}


def _vocabulary(folder: Path) -> dict[str, int]:
    """Token -> id, by whichever of a tokenizer's files is there; empty if none is."""
    for name in ("tokenizer.json", "vocab.json", "vocab.txt"):
        if not (folder / name).exists():
            continue
        if name == "vocab.txt":
            return {token: number for number, token in enumerate(read_vocabulary(folder / name))}
        try:
            text = (folder / name).read_text(encoding="utf-8")
            return dict(json.loads(text)) if name == "vocab.json" else Tokenizer.from_str(text).get_vocab()
        except Exception as error:  # `tokenizers` raises nothing narrower
            raise UserError(f"{folder / name}: not readable as a vocabulary ({error})") from None
    return {}
