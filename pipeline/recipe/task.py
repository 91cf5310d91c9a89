"""The recipe of a fine-tuning, completed from its model and its examples."""

import json
import logging
import math
import os
from collections.abc import Sequence
from functools import partial
from hashlib import md5
from itertools import chain
from pathlib import Path
from typing import Any

from reread.pipeline.recipe.layers import fine_tunes
from reread.pipeline.recipe.load import recipe_values
from reread.pipeline.recipe.repeats import first_runs
from reread.pipeline.recipe.schema import Finetuning, Recipe, Start, WordStart, task_section, train_section
from reread.preprocessing.arrays import only_process
from reread.preprocessing.errors import UserError, writing
from reread.preprocessing.labelled.folds import Fold, fold_files
from reread.preprocessing.labelled.mapped import fingerprint_of
from reread.preprocessing.labelled.splits import check_labels, labels_of
from reread.preprocessing.tokens.base import read_backend, with_tokens
from reread.training.data.kinds import KINDS
from reread.training.data.tasks.examples import examples_of
from reread.training.data.tasks.settings import TaskSettings
from reread.training.exchange.hub import HubName, fetch, hub_name, not_looked_for
from reread.training.models import MODELS, model_spec
from reread.training.parallel.process import this_process
from reread.training.run.files import RUNS, RunFile, find_run, has_checkpoints, read_mapping
from reread.training.scoring.task_scores import chosen_score

log = logging.getLogger("reread")


WINDOW = 512
"""Tokens of a window if the model has no limit of positions."""


_WORDS_MADE_BY = 1
"""Increment if the same examples and vectors make another model of words."""

FOLLOWS = frozenset(
    ["steps", "model", "validate_every", "checkpoint", "best_by", "activation_checkpointing", "schedule.warmup_steps"]
    + [f"data.{name}" for name in ("tokenizer", "frame", "labels", "sequence_length", "split", "choices", "pairs")]
    + ["data.characters", "data.measure"]
)
"""Fields of `train` that `finetune_recipe` computes from the model and the examples where the recipe has none."""


def finetune_recipe(name: str, overrides: list[str], pretraining: Recipe | None = None) -> Recipe:
    """The recipe, completed by what follows from `train.init` and the examples: model, tokenizer, labels, steps,
    warm-up.

    `pretraining` is the recipe that makes `train.init`; until its run has begun the tokenizer is not known. Raises
    `UserError` for a recipe without a task, examples that are wrong, and a label that the training examples lack.
    """
    # The recipe as it stands, with the files of a fold
    values = recipe_values(name, overrides, "train")
    chosen = Recipe.parse({key: value for key, value in values.items() if key != "train"}, f"recipe {name}")
    finetuning = chosen.finetune
    if finetuning is None or not fine_tunes(values):
        kinds = [kind for kind, row in KINDS.items() if row.settings.is_task]
        raise UserError(
            f"recipe {name}: `reread finetune` needs a section `finetune` and a `task` whose kind is "
            f"one of {', '.join(kinds)}"
        )
    Recipe.check_keys(values, f"recipe {name}")
    _expand_home(values["train"])
    train, task = values["train"], values["train"]["data"]
    _settle_files(name, finetuning, task)
    if not isinstance(given := train.get("model", {}), dict):
        raise UserError(f"recipe {name}: train.model: a section with keys, for example model.classifier_dropout=0")
    # The model that it begins with
    if (model_to_fetch := _to_fetch(values)) is not None:
        raise UserError(
            f"init: {model_to_fetch} of the Hub is not in {train['init']} yet; `reread finetune` fetches it, without "
            f"torchrun or srun, and so does `reread convert {model_to_fetch} {train['init']} --model TYPE`"
        )
    run, words = RUNS / chosen.name, finetuning.words if train.get("init") is None else None
    init, folder = _start(train, run, pretraining) if words is None else (None, None)
    model = _type_of_model(name, given, folder, pretraining)
    filled = {
        "steps": 0,
        "global_batch": 32,
        "activation_checkpointing": "auto",
        **train,
        "init": init and str(init),
        "model": {**given, "type": model},
        "data": {**task, "tokenizer": folder and str(folder)},
    }
    parsed = Recipe.parse({**values, "train": filled}, f"recipe {name}")
    settings, data = train_section(parsed), task_section(parsed)
    # What the examples determine
    examples, held_out = (examples_of(data, split) for split in ("train", "validation"))
    found = data.found_in(examples)
    filled["data"] |= found
    data = data.model_copy(update=found)
    filled["data"]["labels"] = _known_labels(data, examples, finetuning.folds is not None)
    # What the model determines. It imports torch, which takes seconds: mistakes in files are found before.
    if words is not None:
        init, folder = _start_of_words(words, data.kind, examples, given, settings.seed, run)
        filled["init"], filled["data"]["tokenizer"] = str(init), str(folder)
    if "characters" in type(data).model_fields:
        filled["data"]["characters"] = _reads_characters(given, folder)
    filled["data"]["frame"] = frame = model_spec(model).frame
    if "sequence_length" not in task and folder is not None:
        filled["data"]["sequence_length"] = _window(model, folder)
    own_tokens = data.model_copy(update={"frame": frame}).own_tokens
    if own_tokens and folder is not None and "vocab_size" not in given:
        filled["model"]["vocab_size"] = _vocabulary(folder, own_tokens)
    # How long it trains, and which checkpoint counts
    an_epoch = len(examples) / settings.global_batch
    steps = settings.steps if "steps" in train else math.ceil(finetuning.epochs * an_epoch)
    every = max(1, round(an_epoch / finetuning.evaluations))
    filled = {
        "validate_every": every,
        "checkpoint": {"every_steps": every, "keep": 1},
        **filled,
        "best_by": chosen_score(data.scored_as, settings.best_by)[0] if held_out else None,
        "steps": steps,
        "schedule": {"warmup_steps": round(finetuning.warmup_share * steps), **train.get("schedule", {})},
    }
    return Recipe.parse({**values, "train": filled}, f"recipe {name}")


def _known_labels(data: TaskSettings, train: Sequence[Any], divided: bool) -> list[str]:
    """The labels of a task: as stated, or of the training examples, of a `divided` file those of all its parts.

    Raises `UserError` for an example without a label, and for one with another label."""
    others = [examples_of(one, "validation") for one in data.splits.values()]
    labels = data.labels or labels_of([*chain(train, *others)] if divided else train)
    for of_split in (train, *others):
        check_labels(labels, of_split, bool(data.labels))
    return labels


def _settle_files(name: str, finetuning: Finetuning, task: dict[str, Any]) -> None:
    """Take the files of a fold, if there are folds. Raises `UserError` for files that are not given."""
    if "train" not in task:
        raise UserError(f"recipe {name}: task.train: the file of training examples; give task.train=FILE")
    if finetuning.folds is not None:
        _take_fold(finetuning, task)
    if finetuning.grid and task.get("dev") is None:
        raise UserError(f"recipe {name}: finetune.grid: its points are compared on task.dev; give task.dev=FILE")


def _take_fold(finetuning: Finetuning, task: dict[str, Any]) -> None:
    """Set the files of a task to those of its fold, to the first one's where all folds are asked for; a test that is
    null stays so."""
    assert finetuning.folds is not None
    if task.get("test") is not None:
        raise UserError(
            "finetune.folds: each fold is the test of a run, and task.test is given, too; set one of them to null"
        )
    columns = {str(field): str(column) for field, column in (task.get("columns") or {}).items()}
    stratify = task.get("kind") == "classify" and task.get("answer", "one") == "one"
    of_file = Path(str(task["train"])), str(task["kind"]), task.get("format"), columns
    fold = Fold(*of_file, finetuning.folds, finetuning.fold or 1, finetuning.group, stratify, finetuning.fold_seed)
    found = fold_files(fold, RUNS / ".folds", task.get("dev") is not None)
    task |= {"train": str(found.train), "dev": str(found.dev or task["dev"])}
    task.setdefault("test", str(found.test))
    if found.is_our_form:
        task |= {"format": None, "columns": {}}


def _start_of_words(
    words: WordStart, kind: str, examples: Any, model: dict[str, Any], seed: int, run: Path
) -> tuple[Path, Path]:
    """As `_start`, of a model of the words of the training examples, which is made if it is not there and the run has
    not begun. The name of its folder is a hash of all that it depends on."""
    stamp = words.vectors.stat() if words.vectors and words.vectors.exists() else None
    depends = (
        *(_WORDS_MADE_BY, fingerprint_of(examples), kind, sorted(model.items()), seed, words.model_dump_json()),
        *((stamp.st_size, stamp.st_mtime_ns) if stamp else ()),
    )
    folder = RUNS / ".starts" / f"words-{md5(repr(depends).encode()).hexdigest()}"
    if has_checkpoints(run) and (RunFile.MODEL.of(run) / "config.json").exists():
        return folder, RunFile.MODEL.of(run)
    if not (folder / "config.json").exists():
        from reread.training.exchange.words import start_from_words  # which imports torch

        with writing(folder):
            folder.parent.mkdir(parents=True, exist_ok=True)
            with only_process(folder):
                if not (folder / "config.json").exists():
                    how = partial(start_from_words, size=words.size, path=words.vectors, seed=seed)
                    how(folder, model, kind, examples)
    return folder, folder


def _type_of_model(name: str, model: dict[str, Any], folder: Path | None, pretraining: Recipe | None) -> str:
    """The type of the model in `folder`; without one that of the run that makes it, or, of a model that begins as
    words, what recipe `name` states in its `model`. Raises `UserError` if it states none, or another."""
    if folder is None and pretraining is not None:
        return str(train_section(pretraining).model.get("type", ""))
    if folder is None:
        if "type" not in model:
            raise UserError(f"recipe {name}: finetune.words makes a new model; say which by model.type, such as ran")
        return str(model["type"])
    found = _type_of(folder)
    if (stated := model.get("type", found)) != found:
        raise UserError(
            f"init: {folder} holds a model of type {found}, but recipe {name} is for {stated} (train.model.type); if "
            f"it can become one, `reread convert {folder} OUT --model {stated}` makes it, and init=OUT"
        )
    return found


def _reads_characters(given: dict[str, Any], folder: Path | None) -> bool:
    """Whether the model of a fine-tuning reads the characters of words."""
    stated = {} if folder is None else read_mapping(folder / "config.json")
    return bool({**stated, **given}.get("character_filters"))


def fetch_init(name: str, overrides: list[str]) -> None:
    """Fetch the model of the Hub that a fine-tuning starts from (`init=OWNER/NAME`), unless that has been done.

    It is converted to the type of model that `model.type` names, else to its own. Raises `UserError` if it cannot be.
    """
    values = recipe_values(name, overrides, "train")
    Recipe.check_keys(values, f"recipe {name}")
    _expand_home(values["train"])
    model = _to_fetch(values)
    if model is None or this_process().launcher or "train" not in values["train"]["data"]:
        return  # without examples `finetune_recipe` refuses it
    train, options = values["train"], Start.parse(values["start"], f"recipe {name}: start").convert.given()
    folder = fetch(model)
    kind = (train.get("model") or {}).get("type") or _type_of(folder, f"{model} is", "; choose by model.type=TYPE")
    from reread.training.exchange.convert import convert

    convert(model, Path(train["init"]), kind, **options)


def _expand_home(train: dict[str, Any]) -> None:
    """Expand `~` in the paths of raw values, as parsing them does."""
    for section, names in ((train, ("init",)), (train["data"], ("train", "dev", "test"))):
        for name in names:
            if isinstance(path := section.get(name), str):
                section[name] = os.path.expanduser(path)


def _to_fetch(values: dict[str, Any]) -> HubName | None:
    """The model of the Hub in `start` whose folder `train.init` is not made yet, and that a run has not begun with."""
    start, init = values.get("start"), values["train"].get("init") if fine_tunes(values) else None
    if not isinstance(start, dict) or init is None or (Path(init) / "config.json").exists():
        return None
    return None if has_checkpoints(RUNS / str(values.get("name"))) else hub_name(str(start.get("weights")))


def export_missing(recipe: Recipe) -> bool:
    init = train_section(recipe).init
    begun = all(has_checkpoints(RUNS / run.name) for run in first_runs(recipe, []))
    return not begun and init is not None and not (init / "config.json").exists() and has_checkpoints(init.parent)


def _start(train: dict[str, Any], run: Path, pretraining: Recipe | None) -> tuple[Path, Path | None]:
    """`train.init`, and the folder with config.json and tokenizer of that model, None until `pretraining` has begun.

    A run has these in RUN/model, and its weights in RUN/export, which `make_export` makes. A fine-tuning that has begun
    has its own RUN/model. Raises `UserError` if there is no model.
    """
    if train.get("init") is None:
        raise UserError("init: the model to fine-tune; give init=FOLDER, a run, an export or a converted model")
    init = folder = find_run(Path(str(train["init"])))
    if pretraining is not None or RunFile.CHECKPOINTS.of(init).exists():
        folder = next((one for one in (RunFile.MODEL.of(init), RunFile.EXPORT.of(init)) if one.exists()), init)
        init = RunFile.EXPORT.of(init)
    if has_checkpoints(run) and ((own := RunFile.MODEL.of(run)) / "config.json").exists():
        if (folder / "config.json").exists() and (new := _type_of(folder)) != (began := _type_of(own)):
            raise UserError(
                f"{run}: this run was begun with a model of type {began}, and {init} is of type {new}; give the new "
                "run a name of its own with name=..."
            )
        folder = own
    if (folder / "config.json").exists():
        return init, folder
    if pretraining is None:
        raise UserError(
            f"init: {init} holds no config.json; give a run, an export, or a folder of `reread convert`"
            f"{not_looked_for(init)}"
        )
    return init, None


def _window(model: str, folder: Path) -> int:
    """Tokens of a window if the recipe does not set them: as many as the model in `folder` has positions."""
    from reread.training.models.build import model_config

    spec = model_spec(model)
    longest = spec.longest(model_config(spec, {}, 1, folder))
    reason = "where its positions end" if longest else "since its positions do not end"
    log.info("task.sequence_length: %d tokens, %s", longest or WINDOW, reason)
    return longest or WINDOW


def _vocabulary(folder: Path, own_tokens: Sequence[str]) -> int:
    """Rows of the embedding that the model in `folder` needs with tokens of the task's own."""
    backend = read_backend(folder / "tokenizer.json")
    ids = with_tokens(backend, own_tokens)
    rows = int(json.loads((folder / "config.json").read_text(encoding="utf-8")).get("vocab_size", 0))
    log.info("train.model.vocab_size: %d, with %s", max(rows, *(1 + one for one in ids)), " ".join(own_tokens))
    return max(rows, *(1 + one for one in ids))


def _type_of(folder: Path, shown: str = "", more: str = "") -> str:
    """The name in `MODELS` of the model in `folder`. Raises `UserError` for any other model, `shown` as what holds it,
    with `more` of the way out."""
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        kind = str(config["model_type"])
    except (OSError, ValueError, RecursionError, KeyError, TypeError) as error:
        raise UserError(f"init: {path}: not the configuration of a model ({error!r})") from None
    model = kind.removeprefix("reread_")
    if model not in MODELS:
        from reread.training.models.forms import way_out  # which imports torch

        way = way_out(folder, config)
        raise UserError(
            f"init: {shown or f'{folder} holds'} a model of type {kind}; {way}{'' if 'nothing' in way else more}"
        )
    return model
