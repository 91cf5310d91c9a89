"""Build the model that a recipe describes."""

import inspect
import json
import logging
import pickle
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from pydantic import TypeAdapter, ValidationError
from safetensors import SafetensorError, safe_open
from transformers import PretrainedConfig, PreTrainedModel
from transformers.utils import logging as reports

from reread.preprocessing.errors import UserError, first_line, nearest
from reread.preprocessing.synonyms import answer, meaning_of
from reread.preprocessing.tokens.base import read_backend
from reread.preprocessing.tokens.vocabulary import read_vocabulary
from reread.training.models import MODELS, config_of_start
from reread.training.models.bounds import check_number, settings_of
from reread.training.models.forms import way_out
from reread.training.models.size import check_size
from reread.training.models.spec import ModelSpec

log = logging.getLogger("reread")

MARKS = ("paragraph_token_id", "sentence_token_id")
"""In config.json: the tokens of whose states a model tells whether a paragraph, or a sentence, supports its answer."""
UNTRAINED_POOLER = "untrained_pooler"
"""In config.json: the model has a pooler that no loss has reached."""


def model_config(
    spec: ModelSpec,
    values: dict[str, Any],
    vocab_size: int,
    init: Path | None,
    special: Mapping[str, int] = {},
    *,
    grows: bool = False,
) -> PretrainedConfig:
    """The configuration of the model to train: that of `init` if given, updated with the recipe's keys.

    With `grows` it has rows for the corpus' words that `init` lacks.

    `special` are the corpus' ids of special tokens by name (pad, cls, sep, eos), or of marks (paragraph, sentence);
    unknown ones are ignored.

    Raises `UserError` for keys and values that the constructor does not take, for an `init` of another model, and for
    a vocabulary smaller than the corpus'.
    """
    given = checked_values(spec, values)
    start = _config_of(spec, init) if init else {}
    if grows and start.get("vocab_size", vocab_size) < vocab_size:
        had = start["vocab_size"]
        log.info("train.model.vocab_size: %d, with new tokens of the corpus; init has %d", vocab_size, had)
        start["vocab_size"] = vocab_size
    _check_only(spec, given, "train.model")
    try:
        known = inspect.signature(spec.config).parameters
        tokens = {
            key: number for name, number in special.items() for key in (f"{name}_token_id", *spec.special.get(name, ()))
        }
        tokens = {name: number for name, number in tokens.items() if name in known or name in MARKS}
        settings = {"vocab_size": vocab_size, **spec.merged({**start, **tokens}, given)}
        config = spec.config_for(settings)(**settings)
    except Exception as error:  # ours raise ValueError; those of transformers depend on the version
        raise UserError(f"train.model: {' '.join(str(error).split())}") from None
    if not isinstance(config.vocab_size, int):
        raise UserError(f"train.model.vocab_size: {config.vocab_size!r}: a whole number")
    if config.vocab_size < vocab_size and "vocab_size" not in given and init:
        raise UserError(
            f"train.init: {init / 'config.json'} has vocab_size {config.vocab_size}, but the corpus' tokenizer has "
            f"{vocab_size} tokens; preprocess with the tokenizer that belongs to the weights"
        )
    if config.vocab_size < vocab_size:
        raise UserError(f"train.model.vocab_size: {config.vocab_size} is smaller than the corpus' {vocab_size}")
    return config


def check_vocabulary(init: Path, tokenizer: Path, new: Collection[int] = ()) -> None:
    """Raises `UserError` if the corpus' folder `tokenizer` and `init` have different vocabularies but for the ids `new`
    of tokens that the corpus has added, which `init` may have too."""
    ours, theirs = vocabulary_of(tokenizer), vocabulary_of(init)
    if not ours or not theirs:
        return
    # Tokens of blanks occur in no text, and one of transformers' two readers of vocab.txt drops them
    given = (token for token in sorted(ours, key=ours.__getitem__) if token.removeprefix("##").strip())
    taken = set(theirs.values())
    given = (token for token in given if token in theirs or ours[token] not in new or ours[token] in taken)
    if other := next((token for token in given if theirs.get(token) != ours[token]), None):
        raise UserError(
            f"train.init: the vocabulary in {init} differs from the corpus' in {tokenizer}, for example in `{other}`, "
            f"number {ours[other]} in the corpus' and {theirs.get(other, 'none')} in the other: the weights would get "
            f"other tokens; preprocess with tokenizer.path={init}"
        )


def build_model(
    head: type[PreTrainedModel],
    config: PretrainedConfig,
    init: Path | None,
    seed: int,
    new_rows: Mapping[int, Sequence[int]] = {},
) -> PreTrainedModel:
    """A whole model of class `head` on CPU in fp32, with random weights from `seed` or those in the folder `init`.

    Each row of `new_rows` whose token `init` lacks begins as the mean of the rows that are named with it, in the
    embedding of tokens and in the head that predicts them.

    Where the head of `init` tells other classes apart, what it has for each class begins at random.

    Raises `UserError` for a configuration that contradicts itself, and if `init` does not fit; only heads may be
    missing in it.
    """
    weights = _weights(init) if init else {}
    if init is not None:
        check_size(head, config, sum(tensor.numel() for tensor in weights.values()), f"train.init: {init}")
    torch.manual_seed(seed)
    if init is None:
        return _random(head, config)
    if getattr(config, "tie_word_embeddings", True):
        weights = without_copies(head, weights, f"train.init: {init}")
    try:
        weights = _without_other_classes(head, config, init, weights)
        with _without_reports():
            # Give the tensors, not the folder, in which some versions of transformers also look for code to run.
            model, found = cast(Any, head).from_pretrained(
                None,
                config=config,
                state_dict=weights,
                output_loading_info=True,
                ignore_mismatched_sizes=True,
                local_files_only=True,
            )
    except (ValueError, RuntimeError, OSError) as error:
        raise UserError(f"train.init: {init} does not fit train.model: {' '.join(str(error).split())[:300]}") from None
    # Refuse weights of another shape, and those that lack more than a head or a pooler.
    mismatched = sorted(found["mismatched_keys"])
    if getattr(config, "own_tokens", None):
        mismatched = _without_grown(model, mismatched, weights)
    taken = set(vocabulary_of(init).values()) if new_rows else set()
    if lacked := {row: old for row, old in new_rows.items() if row not in taken}:
        grown = _begin_rows(model, weights, lacked)
        mismatched = [one for one in mismatched if one[0] not in grown]
    if mismatched:
        tensors = ", ".join(
            f"{name} {tuple(theirs)} there, {tuple(ours)} here" for name, theirs, ours in mismatched[:3]
        )
        raise UserError(f"train.init: {init} does not fit train.model: {tensors}; leave its sizes as they are there")
    missing = sorted(found["missing_keys"])
    prefix = "" if model.base_model is model else f"{model.base_model_prefix}."  # an encoder alone is all body
    body = [name for name in missing if name.startswith(prefix) and ".pooler." not in f".{name}"]
    if body:
        raise UserError(f"train.init: {init} does not fit train.model: it lacks {_some(body)}")
    # Log which parameters are drawn at random, and which weights are not used.
    known = model.state_dict().keys()
    own = f"{model.base_model_prefix}."
    unused = [name for name in sorted(weights) if not {name, f"{own}{name}", name.removeprefix(own)} & known]
    untrained = _json_of(init).get(UNTRAINED_POOLER)
    drawn = [name for name in sorted(known - set(missing)) if untrained and ".pooler." in f".{name}"]
    parts = {"random": missing, "random there, since nothing has trained it": drawn, "not used": unused}
    notes = "".join(f"; {what}: {', '.join(names)}" for what, names in parts.items() if names)
    log.info("starting from the weights in %s%s", init, notes)
    return model.float()  # transformers 5 keeps the type of the file


def _without_other_classes(
    head: type[PreTrainedModel], config: PretrainedConfig, init: Path, weights: dict[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """`weights` without those of the head that have a row for each class, if `init` has other classes or another order
    of them. Classes without names, as in transformers' own models, are others only if they are more or fewer."""
    there, here = _classes(_json_of(init).get("id2label")), _classes(config.id2label)
    if there == here or (len(there) == len(here) and all(name.startswith("LABEL_") for name in there)):
        return weights
    with torch.device("meta"):
        model = head(config)
    body = {id(one) for one in model.base_model.parameters()}
    own = {name for name, one in model.named_parameters() if id(one) not in body}
    other = sorted(name for name in own & weights.keys() if weights[name].ndim and len(weights[name]) == len(there))
    if other:
        log.info("%s has learned other classes (%s): %s begin at random", init, _some(there), ", ".join(other))
    return {name: tensor for name, tensor in weights.items() if name not in other}


def _classes(names: Any) -> list[str]:
    """The classes of a configuration's `id2label` in the order of their numbers; two without names if it has none."""
    if not isinstance(names, dict) or not names or not all(str(number).isdecimal() for number in names):
        return ["LABEL_0", "LABEL_1"]
    return [str(names[number]) for number in sorted(names, key=int)]


def without_copies(head: Any, weights: Mapping[str, torch.Tensor], where: str) -> dict[str, torch.Tensor]:
    """`weights` without those that are tied to others in a model of class `head`: transformers 5 would untie copies
    that differ. A line of the log names those. (transformers 4 has a list of names, and ties whatever differs.)"""
    keys = head._tied_weights_keys
    tied: Mapping[str, str] = keys if isinstance(keys, Mapping) else {}
    bare = {one: next((name for name in (of, of.partition(".")[2]) if name in weights), "") for one, of in tied.items()}
    copies = {one: of for one, of in bare.items() if of and one in weights}
    if other := [one for one, of in copies.items() if not torch.equal(weights[one], weights[of])]:
        log.info("%s: not used, since the model ties them to others, from which they differ: %s", where, _some(other))
    return {name: tensor for name, tensor in weights.items() if name not in copies}


def _without_grown(
    model: PreTrainedModel, mismatched: list[tuple[str, Any, Any]], weights: Mapping[str, torch.Tensor]
) -> list[tuple[str, Any, Any]]:
    """`mismatched` without the embedding of tokens, if it only has more rows here, for a task's own tokens: they are
    drawn from the normal distribution of the other rows' numbers (the authors' code for WikiHop)."""
    table = model.get_input_embeddings().weight
    for one in mismatched:
        name, theirs, ours = one
        rows = theirs[0]
        if model.get_parameter(name) is not table or theirs[1:] != ours[1:] or rows > ours[0] or table.is_meta:
            continue
        known = weights[name] if name in weights else weights[name.partition(".")[2]]
        with torch.no_grad():
            table[:rows] = known
            table[rows:] = torch.normal(float(known.mean()), float(known.std()), tuple(table[rows:].shape))
        log.info("%d rows of %s are drawn, for tokens of the task's own", ours[0] - rows, name)
        return [other for other in mismatched if other is not one]
    return mismatched


@torch.no_grad()
def _begin_rows(
    model: PreTrainedModel, weights: Mapping[str, torch.Tensor], new_rows: Mapping[int, Sequence[int]]
) -> set[str]:
    """Copy the rows of tokens from `weights`, which may have fewer, and begin each new one as the mean of its old ones.

    Returns the names of the tables. Raises `UserError` for a model without one table of tokens.
    """
    head = cast(Any, model.get_output_embeddings())
    tables = [getattr(model.get_input_embeddings(), "weight", None)]
    tables += [getattr(head, "weight", None), getattr(head, "bias", None)] if head is not None else []
    if tables[0] is None:
        raise UserError(
            "train.init: the corpus has new tokens, but this model has several tables of tokens, by how frequent they "
            "are; leave preprocess.tokenizer.extend out"
        )
    grown = set()
    for table in tables:
        names = [name for name, one in model.named_parameters(remove_duplicate=False) if one is table]
        short = [name.removeprefix(f"{model.base_model_prefix}.") for name in names]
        known = next((weights[name] for name in [*names, *short] if name in weights), None)
        if table is None or known is None or table.shape[1:] != known.shape[1:] or len(known) > len(table):
            continue
        table[: len(known)] = known
        table[len(known) :] = known.mean(0)  # rows that no token has, where the table is larger than the vocabulary
        for row, old in new_rows.items():
            table[row] = known[list(old)].float().mean(0)
        grown |= {*names}
    log.info("%d rows of tokens that init lacks begin as the means of their pieces' rows", len(new_rows))
    return grown


def has_untrained_pooler(init: Path) -> bool:
    """Whether the model in a folder has no pooler, or one that nothing has trained."""
    return bool(_json_of(init).get(UNTRAINED_POOLER)) or not any(".pooler." in f".{name}" for name, _ in _tensors(init))


def _weights(folder: Path) -> dict[str, torch.Tensor]:
    """The tensors in a folder, in memory of their own, since the file may be replaced."""
    return {name: read().clone() for name, read in _tensors(folder)}


def _tensors(folder: Path) -> Iterator[tuple[str, Callable[[], torch.Tensor]]]:
    """The tensors of model.safetensors in a folder, else of pytorch_model.bin, or of its parts, by name. Nothing in a
    file is executed.

    Raises `UserError` if there is none, or one cannot be read.
    """
    found = (sorted(folder.glob(pattern)) for pattern in _WEIGHTS)
    paths = next((paths for paths in found if paths), [])
    if not paths:
        raise UserError(
            f"train.init: {folder} holds no model.safetensors or pytorch_model.bin; make the folder with `reread "
            "convert`"
        )
    for path in paths:
        try:
            if path.suffix == ".bin":
                yield from _in_pickle(path)
                continue
            with safe_open(path, "pt") as file:
                names = file.keys()
                yield from ((present_name(name), partial(file.get_tensor, name)) for name in names)
        except (SafetensorError, OSError, RuntimeError, EOFError) as error:
            raise UserError(
                f"train.init: {path} cannot be read ({first_line(error)}); was it copied or downloaded completely?"
            ) from None


_WEIGHTS = ("model.safetensors", "model-*-of-*.safetensors", "pytorch_model.bin", "pytorch_model-*-of-*.bin")
"""Globs of weights in a folder, in order of preference."""


def _in_pickle(path: Path) -> Iterator[tuple[str, Callable[[], torch.Tensor]]]:
    """The tensors in a file of torch.save, read without executing it. Raises `UserError` for other content."""
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        state = None
    if not isinstance(state, dict) or not all(isinstance(tensor, torch.Tensor) for tensor in state.values()):
        raise UserError(
            f"train.init: {path} holds more than tensors, which is not read, since it may run code; `reread convert` "
            "reads the training states of some programs"
        )
    yield from ((present_name(name), partial(lambda tensor: tensor, tensor)) for name, tensor in state.items())


def present_name(name: str) -> str:
    """BERT's first releases call the two vectors of a layer norm gamma and beta."""
    return re.sub(r"\.gamma$", ".weight", re.sub(r"\.beta$", ".bias", name))


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")


@contextmanager
def _without_reports() -> Iterator[None]:
    """Silence transformers' dozens of lines on missing and mismatched tensors; our log has one line."""
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


def freeze(model: PreTrainedModel, trainable: Sequence[str] | None, unreached: Collection[str]) -> dict[str, int]:
    """Freeze all parameters that match none of the globs `trainable`, if given, and those with a part of their name in
    `unreached`, on which no loss depends.

    `[n:]` after a glob freezes the first n rows: their gradient is zero. Returns n by name, for `MasterWeights`, which
    gives the optimiser the other rows alone.
    Raises `UserError` for an empty `trainable`, and for a glob that matches nothing that can learn or leaves no row.
    """
    names = [name for name, _ in model.named_parameters() if not set(name.split(".")) & set(unreached)]
    if trainable is not None and not trainable:
        raise UserError("train.trainable: names no parameter, so nothing would learn; null lets all learn")
    # Each glob with the first row that learns
    globs = [
        (_ROWS.sub("", pattern), int(found[1]) if (found := _ROWS.search(pattern)) else 0)
        for pattern in trainable or ()
    ]
    for glob, _ in globs:
        if not any(fnmatchcase(name, glob) for name in names):
            raise UserError(
                f"train.trainable: `{glob}` matches no parameter that can learn; these can: {', '.join(names[:4])}, ..."
            )
    # Freeze parameters, and rows by zeroing their gradient; count what learns.
    learning: dict[str, int] = {}
    first_rows: dict[str, int] = {}
    for name, parameter in model.named_parameters():
        rows = [row for glob, row in globs if name in names and fnmatchcase(name, glob)]
        parameter.requires_grad_(name in names and (trainable is None or bool(rows)))
        first = min(rows, default=0)
        if first and first >= len(parameter):
            raise UserError(f"train.trainable: {name} has {len(parameter)} rows, so none is left from row {first} on")
        if first:
            first_rows[name] = first
            parameter.register_hook(partial(_without_rows, first))
        if parameter.requires_grad:
            label = f"{name} from row {first} on" if first else name
            learning[label] = parameter[first:].numel() if first else parameter.numel()
    if trainable is not None:
        total = sum(parameter.numel() for parameter in model.parameters())
        log.info("training %s of %s parameters: %s", f"{sum(learning.values()):,}", f"{total:,}", ", ".join(learning))
    return first_rows


_ROWS = re.compile(r"\[(\d+):\]$")


def _without_rows(first: int, gradient: torch.Tensor) -> torch.Tensor:
    gradient = gradient.clone()
    gradient[:first] = 0
    return gradient


def copy_projections(model: torch.nn.Module, copied: Mapping[str, str]) -> None:
    """Copy weights into the modules that pretraining does not train, by `ModelSpec.copied`."""
    for parent in model.modules():
        for copy_of, original in copied.items():
            if hasattr(parent, copy_of):
                parent.get_submodule(copy_of).load_state_dict(parent.get_submodule(original).state_dict())


def checked_values(spec: ModelSpec, values: Mapping[str, Any]) -> dict[str, Any]:
    """A recipe's `model` without `type`, converted to the constructor's annotated types: YAML reads 1e-5 as text."""
    given = {key: value for key, value in values.items() if key != "type"}
    known = {
        name: one.annotation for name, one in inspect.signature(spec.config).parameters.items() if name != "kwargs"
    }
    known |= {name: one.type for name, one in spec.own_keys.items()}
    checked = {}
    for key, value in given.items():
        if key not in known:
            raise UserError(f"train.model: unknown key `{key}` for {spec.name}; {_right_key(key, sorted(known))}")
        try:
            checked[key] = TypeAdapter(known[key]).validate_python(value)
            check_number(key, checked[key])
        except ValueError as error:  # pydantic's is one
            problem = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
            raise UserError(f"train.model.{key}: {problem[:1].lower()}{problem[1:]} (got {value!r})") from None
    return checked


def _right_key(key: str, known: Sequence[str]) -> str:
    """The hint for an unknown key of a configuration: by meaning, then by letters."""
    meaning = meaning_of(key)
    if own := [name for name in (meaning.names.split() if meaning else ()) if name in known]:
        return f"`train.model.{own[0]}` is what you mean"
    if meaning and not meaning.key.startswith("train.model."):
        return answer(meaning)
    return nearest(f"train.model.{key}", [f"train.model.{name}" for name in known], cutoff=0.8)


def _json_of(init: Path) -> dict[str, Any]:
    """The content of config.json in a folder. Raises `UserError` if it is not that of a model."""
    path = config_of_start(init)
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise UserError(f"train.init: {path} is not readable as JSON ({error})") from None
    if not isinstance(values, dict):
        raise UserError(
            f"train.init: {path} is not the configuration of a model; make the folder with `reread convert`"
        )
    return values


def _config_of(spec: ModelSpec, init: Path) -> dict[str, Any]:
    path, values = config_of_start(init), _json_of(init)
    kind = values.get("model_type")
    if kind not in spec.model_types:
        way = way_out(init, values, spec.name)
        if kind in MODELS and "first" not in way:
            way = f"write model.type={kind}, or {way}"
        raise UserError(f"train.init: {path} is of a model of type {kind}, not {spec.name}; {way}")
    _check_only(spec, values, f"train.init: {path}")
    try:
        own = {key: values[key] for key in spec.own_keys if key in values}
        marks = {key: values[key] for key in MARKS if isinstance(values.get(key), int)}
        return settings_of(spec.config, values) | own | marks
    except ValueError as error:
        raise UserError(f"train.init: {path}: {error}") from None


def _check_only(spec: ModelSpec, values: Mapping[str, Any], where: str) -> None:
    """Raises `UserError` for another value of a key that has one (`ModelSpec.only`)."""
    for key, value in spec.only.items():
        if values.get(key, value) != value:
            raise UserError(f"{where}: {key} is {values[key]!r}, but {spec.name} is trained with {value!r} alone")


def vocabulary_of(folder: Path) -> dict[str, int]:
    """Token -> id from the first tokenizer file that exists; empty if none does."""
    for name in ("tokenizer.json", "vocab.json", "vocab.txt"):
        if not (folder / name).exists():
            continue
        if name == "vocab.txt":
            return {token: number for number, token in enumerate(read_vocabulary(folder / name))}
        if name == "tokenizer.json":
            return read_backend(folder / name).get_vocab()
        try:
            return dict(json.loads((folder / name).read_text(encoding="utf-8")))
        except (ValueError, TypeError, RecursionError) as error:
            raise UserError(f"{folder / name}: not readable as a vocabulary ({error})") from None
    return {}
