"""Recipes: YAML over typed settings, with `base:` inheritance and dotted `key=value` overrides."""

import os
from collections.abc import Sequence
from functools import reduce
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import AfterValidator, Field, model_validator

from pipeline.slurm.settings import SlurmSettings
from pipeline.values import as_yaml, read_override, read_values
from preprocessing.config import OneOrMore, PreprocessSettings
from preprocessing.errors import UserError, nearest
from preprocessing.files import write_atomically
from preprocessing.settings import Line, Settings
from training.config import TrainSettings
from training.data.kinds import KINDS
from training.data.tasks.settings import TaskSettings

BUILT_IN = Path(__file__).parent / "recipes"
FINETUNING = BUILT_IN / "finetune"
"""The recipes of `reread finetune`."""
PACKAGE = BUILT_IN.parents[1]
SAMPLES = BUILT_IN.parent / "sample"
TASK = "task"
"""Another name for the section `train.data`, in recipes of `reread finetune`."""
SCALES, SCALE = "scales", "scale"
"""`scales` of a recipe has values by name; the override `scale=NAME` puts them over the recipe's own."""


def _of_a_folder(name: str) -> str:
    if name in (".", ".."):
        raise ValueError("is the name of a folder in runs/, not a path to another")
    return name


class Ablation(Settings):
    """One row of a table of ablations: the recipe with some overrides, and its published figures."""

    name: Line
    """The row of the table, and the end of the name of its run folder."""
    overrides: list[str] = []
    """Overrides of `train`, as on the command line."""
    published: dict[str, float] = {}
    """The paper's figures by name."""


class Conversion(Settings):
    """Options of `reread convert` for this recipe's type of model; null: the default."""

    length: int | None = Field(default=None, ge=1, le=1 << 20)
    """`longformer`: tokens that the model reads."""
    window: int | None = Field(default=None, ge=1, le=1 << 20)
    """`longformer`: width of local attention in tokens, both sides together."""
    positions: str | None = None
    """`longformer`: positions are `copied` from the short model, or `random`."""

    def given(self) -> dict[str, Any]:
        return self.model_dump(exclude_none=True)


class Start(Settings):
    """How `train.init` is made if it does not exist: released weights, or those of another recipe, are converted."""

    recipe: str | None = None
    """Recipe that is trained: a built-in one, or a path that is relative to this recipe's file, as that of `base`."""
    weights: Path | None = None
    """Instead of a recipe: a folder or file of weights that `reread convert` reads."""
    overrides: list[str] = []
    """Overrides of that recipe, as on the command line; it is trained on this recipe's corpus."""
    convert: Conversion = Conversion()

    @model_validator(mode="after")
    def _one_of_both(self) -> "Start":
        if (self.recipe is None) == (self.weights is None):
            raise ValueError("give either recipe or weights")
        return self


class Published(Settings):
    """A paper's scores, printed beside ours."""

    model: Line
    """Its name in the paper."""
    scores: dict[str, float]
    """Score -> value, in the units of ours."""
    differs: Line = ""
    """What is not as it was there: split, size, number of seeds."""


class Finetuning(Settings):
    """How long `reread finetune` trains, in epochs; it computes the steps of `train` from the examples."""

    epochs: float = Field(default=3.0, gt=0, le=1_000_000)
    """Passes over the training examples."""
    warmup_share: float = Field(default=0.1, ge=0, lt=1)
    """Share of the steps in which the learning rate rises."""
    evaluations: float = Field(default=1.0, gt=0, le=1_000_000)
    """Evaluations an epoch, after each of which the best checkpoint is kept."""
    seeds: int = Field(default=1, ge=1, le=10_000)
    """Runs with seeds train.seed, train.seed + 1, ...; mean and standard deviation are printed."""
    published: list[Published] = []
    """The papers' scores."""


class Following(Settings):
    """A fine-tuning after pretraining, of the model that this recipe makes."""

    recipe: str
    """Name of a recipe of `reread finetune`, or a path that is relative to this recipe's file, as that of `base`."""
    train: Path | None = None
    """File or folder of training examples in the folder `tasks`; it may be compressed there (train.tsv.xz). The task is
    left out, with one line, if it or `dev` is not there."""
    dev: Path | None = None
    """The same of the examples that choose the checkpoint."""
    test: Path | None = None
    """The same of labelled examples that the chosen checkpoint is scored on, too; left out if it is not there."""
    owner: Line = ""
    """The data's name, authors and homepage, printed where the data are not there."""
    overrides: list[str] = []
    """Overrides of that recipe, as on the command line: task.train=FILE, task.dev=FILE."""


class Recipe(Settings):
    """What `reread run` does: preprocess and train are sections; an absent section is skipped."""

    name: Annotated[str, AfterValidator(_of_a_folder)] = Field(pattern=r"^[A-Za-z0-9._-]+$", max_length=150)
    """Names the run folder, runs/<name>."""
    description: str = ""
    """One line for `reread recipes` and the report."""
    preprocess: PreprocessSettings | None = None
    start: Start | None = None
    train: TrainSettings | None = None
    finetune: Finetuning | None = None
    then: list[Following] = []
    """What `reread run` fine-tunes the model for after pretraining, each in runs/<name>-<that recipe's name>."""
    tasks: Path = Path("tasks")
    """The folder of the labelled data that `then` names by `train` and `dev`."""
    published: list[Published] = []
    """The paper's figures of the pretrained model; `reread run` computes ours on all held-out text."""
    slurm: SlurmSettings | None = None
    """Settings of `reread run --slurm`, over those of slurm/site.yaml."""
    ablations: list[Ablation] = []
    """The rows of `reread ablate`."""
    examples: Annotated[list[str], OneOrMore] = []
    """Sentences with [MASK] that the exported model fills in at the end of `reread run`, and on its model card."""


def load_recipe(
    recipe: str, overrides: list[str], section: str | None = None, beneath: dict[str, Any] | None = None
) -> Recipe:
    """Read a recipe by built-in name or path, over the values `beneath`, apply `key=value` overrides and check it.

    A key is dotted from the root (`train.steps=100`); the keys of `section` may leave its name out (`steps=100`).
    `scale=NAME` takes values of the recipe's `scales` before the other overrides, and of those of `then`, too.
    Raises `UserError` naming the recipe and each wrong key with the nearest right one, and for a recipe that only
    `reread finetune` can complete.
    """
    values = recipe_values(recipe, overrides, section, beneath)
    if fine_tunes(values) and values["train"]["data"].get("tokenizer") is None:  # that of the model to fine-tune
        raise UserError(
            f"recipe {recipe}: fine-tunes a model; start it by "
            f"`reread finetune {recipe} init=FOLDER task.train=FILE task.dev=FILE`"
        )
    return Recipe.parse(values, f"recipe {recipe}")


def recipe_values(
    recipe: str, overrides: list[str], section: str | None = None, beneath: dict[str, Any] | None = None
) -> dict[str, Any]:
    """The values of `load_recipe` before they are checked."""
    scale, others = split_scale(overrides)
    values = reduce(_merge, (given for _, given in recipe_layers(recipe, scale)), beneath or {})
    apply_overrides(values, others, section)
    if scale is not None and isinstance(values.get("then"), list):
        values["then"] = [_at_scale(one, scale) for one in values["then"]]
    return values


def _at_scale(following: Any, scale: str) -> Any:
    """An entry of `then` whose recipe is read at the scale of this one."""
    if not isinstance(following, dict) or not isinstance(following.get("overrides", []), list):
        return following  # which the settings refuse
    return {**following, "overrides": [f"{SCALE}={scale}", *following.get("overrides", [])]}


def apply_overrides(values: dict[str, Any], overrides: list[str], section: str | None = None) -> None:
    """Set `a.b=value` in nested `values`; a key that begins with no field of a recipe belongs to `section`, or to the
    other of `preprocess` and `train` if only that one has it.

    A value that is not YAML is text: `input.paths=*.txt`.
    """
    for override in overrides:
        key, separator, text = override.partition("=")
        if not separator:
            raise UserError(f"`{override}`: an override is written key=value, for example train.steps=100")
        path = key.split(".")
        if path[0] == TASK:
            if path[1:] != ["kind"] and (kind := _data_kind(values)) and not _is_task(kind):
                raise UserError(f"`{override}`: only fine-tuning has a task, and this pretrains (data.kind: {kind})")
            path = ["train", "data", *path[1:]]
        elif section and path[0] not in Recipe.model_fields:
            path = [_section_of(path[0], section), *path]
        _assign(values, path, read_override(text, f"`{override}`"), override)


def _section_of(key: str, section: str) -> str:
    """The section that a key without one belongs to: `preprocess` or `train` if one of them alone has it."""
    sections: dict[str, type[Settings]] = {"preprocess": PreprocessSettings, "train": TrainSettings}
    having = [name for name, settings in sections.items() if key in settings.model_fields]
    return having[0] if len(having) == 1 and section in sections else section


def split_scale(overrides: Sequence[str]) -> tuple[str | None, list[str]]:
    """The last `scale=NAME` among overrides, and the others."""
    begin = f"{SCALE}="
    named = [one.removeprefix(begin) for one in overrides if one.startswith(begin)]
    return named[-1] if named else None, [one for one in overrides if not one.startswith(begin)]


def override(key: str, path: Path | str) -> str:
    """`key=path` for `apply_overrides`, quoted where YAML needs it."""
    return f"{key}={as_yaml(str(path))}"


def train_section(recipe: Recipe) -> TrainSettings:
    if recipe.train is None:
        raise UserError(f"recipe {recipe.name}: has no `train` section")
    return recipe.train


def preprocess_section(recipe: Recipe) -> PreprocessSettings:
    if recipe.preprocess is None:
        raise UserError(f"recipe {recipe.name}: has no `preprocess` section")
    return recipe.preprocess


def fine_tunes(values: dict[str, Any]) -> bool:
    """Whether the values are those of a recipe whose data is a task."""
    kind = _data_kind(values)
    return kind is not None and _is_task(kind)


def _data_kind(values: dict[str, Any]) -> str | None:
    """The kind of data that the values name, if it is one of `KINDS`."""
    train = values.get("train")
    data = train.get("data") if isinstance(train, dict) else None
    kind = str(data.get("kind")) if isinstance(data, dict) else ""
    return kind if kind in KINDS else None


def _is_task(kind: str) -> bool:
    return issubclass(KINDS[kind].settings, TaskSettings)


def available_recipes() -> list[str]:
    """The built-in recipes that pretrain."""
    return sorted(path.stem for path in BUILT_IN.glob("*.yaml"))


def finetuning_recipes() -> list[str]:
    """The built-in recipes of `reread finetune`."""
    return sorted(path.stem for path in FINETUNING.glob("*.yaml"))


def write_recipe(recipe: Recipe, path: Path) -> None:
    """Write the resolved recipe, which is enough to run it again."""
    values = recipe.model_dump(mode="json")
    write_atomically(path, yaml.safe_dump(values, allow_unicode=True, sort_keys=False).encode())


def differences(old: Any, new: Any, path: str = "") -> list[str]:
    """`field: old -> new` for each leaf that differs between two nested dicts."""
    if isinstance(old, dict) and isinstance(new, dict):
        return [
            line
            for key in sorted({*old, *new})
            for line in differences(old.get(key), new.get(key), f"{path}.{key}" if path else key)
        ]
    return [] if old == new else [f"{path}: {old!r} -> {new!r}"]


def written_recipe(path: Path) -> Recipe:
    """A recipe that `write_recipe` wrote. Raises `UserError` for anything else."""
    return Recipe.parse(_values_of(path), str(path))


def recipe_layers(recipe: str, scale: str | None = None) -> list[tuple[str, dict[str, Any]]]:
    """What a recipe is made of, each over those before it: the values of its `base` and its own, with the names of the
    files, and the values of a scale.

    Raises `UserError` for a scale that the recipe does not have.
    """
    files = _files_of(recipe)
    scales: dict[str, Any] = reduce(_merge, (values.pop(SCALES, {}) for _, values in files))
    layers = [(path.name, values) for path, values in files]
    if scale is None:
        return layers
    if scale not in scales:
        hint = nearest(scale, scales, "its scales") if scales else "the recipe has no `scales`"
        raise UserError(f"recipe {recipe}: {SCALE}={scale}: {hint}")
    return [*layers, (f"{SCALE}={scale}", scales[scale])]


def _files_of(recipe: str, above: tuple[Path, ...] = ()) -> list[tuple[Path, dict[str, Any]]]:
    """The file of a recipe and its values, after those of its `base`; `above` are the files whose base it is."""
    path = Path(recipe) if recipe.endswith((".yaml", ".yml")) else _built_in(recipe)
    if path.resolve() in above:
        raise UserError(f"{above[0]}: its `base` leads back to {path}; a recipe cannot be its own base")
    try:
        values = _values_of(path)
    except FileNotFoundError:
        hint = nearest(recipe, [*available_recipes(), *finetuning_recipes()], "built in", cutoff=0.4)
        raise UserError(f"recipe {recipe}: no such file or built-in recipe; {hint}") from None
    scales = values.get(SCALES, {})
    if not isinstance(scales, dict) or not all(isinstance(one, dict) for one in scales.values()):
        raise UserError(f"{path}: {SCALES}: a mapping of names to sections, for example tiny: {{train: {{steps: 10}}}}")
    for one in (values, *scales.values()):
        _resolve(one, path)
    base = values.pop("base", None)
    below = [] if base is None else _files_of(_beside(path, base), (*above, path.resolve()))
    return [*below, (path, values)]


def _resolve(values: dict[str, Any], path: Path) -> None:
    """Replace what the values of the file at `path` abbreviate: paths beside it, samples, the section `task`."""
    if path.parent == BUILT_IN:
        _find_samples(values)
    start = values.get("start")
    if isinstance(start, dict) and start.get("recipe") is not None:
        values["start"] = {**start, "recipe": _beside(path, start["recipe"])}
    if isinstance(values.get("then"), list):
        values["then"] = [
            {**one, "recipe": _beside(path, one["recipe"])} if isinstance(one, dict) and "recipe" in one else one
            for one in values["then"]
        ]
    if TASK in values:
        values["train"] = {**(values.get("train") or {}), "data": values.pop(TASK)}


def _built_in(name: str) -> Path:
    """The file of a built-in recipe, which may not be there."""
    return (FINETUNING if name in finetuning_recipes() else BUILT_IN) / f"{name}.yaml"


def _values_of(path: Path) -> dict[str, Any]:
    try:
        values = read_values(path.read_text(encoding="utf-8"), str(path))
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: byte {error.start} is not UTF-8; save the file as UTF-8") from None
    if not isinstance(values, dict):
        raise UserError(f"{path}: a recipe is a mapping of sections (name, preprocess, train)")
    return values


def _find_samples(values: dict[str, Any]) -> None:
    """Use the installed package's inputs of a built-in recipe where the working folder does not have them."""
    given = values.get("preprocess", {}).get("input", {})
    for key in ("paths", "validation_paths"):
        if key in given:
            given[key] = [path if os.path.exists(path) else _shipped(path) for path in given[key]]
    if "tasks" in values and not os.path.exists(values["tasks"]):
        values["tasks"] = _shipped(values["tasks"])


def _shipped(path: str) -> str:
    inside = PACKAGE / path
    return str(inside) if inside.exists() else path


def _beside(path: Path, recipe: Any) -> str:
    """The recipe that the one at `path` names: a path is relative to that file."""
    return str(path.parent / recipe) if str(recipe).endswith((".yaml", ".yml")) else str(recipe)


def _merge(base: dict[str, Any], values: dict[str, Any], section: str = "") -> dict[str, Any]:
    """`values` over `base`; data of another `kind` and a model of another `type` take nothing from the base's."""
    kind = base.get("kind", "rows")  # the default of `data`
    if section == "data" and values.get("kind", kind) != kind:
        return values
    if section == "model" and values.get("type", base.get("type")) != base.get("type"):
        return values
    merged = dict(base)
    for key, value in values.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = _merge(merged[key], value, key) if both else value
    return merged


def _assign(values: dict[str, Any], path: list[str], value: Any, override: str) -> None:
    for part in path[:-1]:
        values = values.setdefault(part, {})
        if not isinstance(values, dict):
            raise UserError(f"`{override}`: `{part}` holds a value, not a section")
    values[path[-1]] = value
