"""Recipes: YAML over typed settings, with `base:` inheritance and dotted `key=value` overrides."""

import os
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import AfterValidator, Field

from pipeline.slurm.scripts import SlurmSettings
from pipeline.values import as_yaml, read_override, read_values
from preprocessing.config import OneOrMore, PreprocessSettings
from preprocessing.corpus import write_atomically
from preprocessing.errors import UserError, nearest
from preprocessing.settings import Line, Settings
from training.config import TrainSettings

BUILT_IN = Path(__file__).parent / "recipes"
PACKAGE = BUILT_IN.parents[1]
SAMPLES = BUILT_IN.parent / "sample"

ELASTIC = {"parallel", "micro_batch", "activation_checkpointing", "checkpoint", "peak_tflops"} | {
    "watchdog_minutes",
    "log_every",
    "validate_every",
    "validation_batches",
}
"""Fields of `train` that a relaunch may change: none of them changes what is learned, but for rounding and dropout."""

ELASTIC_DATA = {"corpus", "evaluation_length", "evaluation_memory", "evaluation_lanes"}
"""The same of `train.data`; the trainer compares the corpus' fingerprint, and a corpus may move."""


def _of_a_folder(name: str) -> str:
    if name in (".", ".."):
        raise ValueError("is the name of a folder in runs/, not a way to another")
    return name


class Ablation(Settings):
    """One row of a table in which a model loses its parts one after the other."""

    name: Line
    overrides: list[str] = []
    """Of `train`, as on the command line."""
    published: dict[str, float] = {}
    """What the paper gives for it, by the name of the figure."""


class Conversion(Settings):
    """Options of `reread convert` for this recipe's type of model; null: as if not given."""

    length: int | None = Field(default=None, ge=1, le=1 << 20)
    window: int | None = Field(default=None, ge=1, le=1 << 20)
    positions: str | None = None

    def given(self) -> dict[str, Any]:
        return self.model_dump(exclude_none=True)


class Start(Settings):
    """How `train.init` is made where it is not there yet: another recipe is carried out and its model converted."""

    recipe: str
    """A built-in one, or a file: in a recipe's file its path is from there, as that of `base` is."""
    overrides: list[str] = []
    """Of that recipe, as on the command line; its corpus is this recipe's."""
    convert: Conversion = Conversion()


class Recipe(Settings):
    """What `reread run` carries out: each section is one stage, absent sections are skipped."""

    name: Annotated[str, AfterValidator(_of_a_folder)] = Field(pattern=r"^[A-Za-z0-9._-]+$", max_length=150)
    """Names the run folder, runs/<name>."""
    description: str = ""
    preprocess: PreprocessSettings | None = None
    start: Start | None = None
    train: TrainSettings | None = None
    slurm: SlurmSettings | None = None
    """Of `reread run --slurm`, over what slurm/site.yaml says."""
    ablations: list[Ablation] = []
    """The rows of `reread ablate`."""
    examples: Annotated[list[str], OneOrMore] = []
    """Sentences with [MASK] that the exported model fills in at the end of `reread run`, and on its model card."""


def load_recipe(
    recipe: str, overrides: list[str], section: str | None = None, beneath: dict[str, Any] | None = None
) -> Recipe:
    """Read a recipe by built-in name or path, apply `key=value` overrides and check it; it stands over `beneath`.

    A key is dotted from the root (`train.steps=100`); the keys of `section` may leave its name out (`steps=100`).
    Raises `UserError` naming the recipe and each wrong key with the nearest right one.
    """
    values = _merge(beneath or {}, _read(recipe))
    apply_overrides(values, overrides, section)
    return Recipe.parse(values, f"recipe {recipe}")


def apply_overrides(values: dict[str, Any], overrides: list[str], section: str | None = None) -> None:
    """Set `a.b=value` in nested `values`; a key that begins no field of a recipe is taken as one of `section`.

    A value that is not YAML is taken as text: `input.paths=*.txt`.
    """
    for override in overrides:
        key, separator, text = override.partition("=")
        if not separator:
            raise UserError(f"`{override}`: an override is written key=value, for example train.steps=100")
        path = key.split(".")
        if section and path[0] not in Recipe.model_fields:
            path = [section, *path]
        _assign(values, path, read_override(text, f"`{override}`"), override)


def override(key: str, path: Path) -> str:
    """`key=path` for `apply_overrides`, whatever the path is called."""
    return f"{key}={as_yaml(str(path))}"


def available_recipes() -> list[str]:
    return sorted(path.stem for path in BUILT_IN.glob("*.yaml"))


def write_recipe(recipe: Recipe, path: Path) -> None:
    """The resolved recipe, enough to run again."""
    values = recipe.model_dump(mode="json")
    write_atomically(path, yaml.safe_dump(values, allow_unicode=True, sort_keys=False).encode())


def differences(old: Any, new: Any, path: str = "") -> list[str]:
    """`field: old -> new` for each leaf in which two nested dicts differ."""
    if isinstance(old, dict) and isinstance(new, dict):
        return [
            line
            for key in sorted({*old, *new})
            for line in differences(old.get(key), new.get(key), f"{path}.{key}" if path else key)
        ]
    return [] if old == new else [f"{path}: {old!r} -> {new!r}"]


def written_recipe(path: Path) -> Recipe:
    """What `write_recipe` wrote. Raises `UserError` for what is no recipe."""
    return Recipe.parse(_values_of(path), str(path))


def check_same_run(run: Path, recipe: Recipe) -> None:
    """Raises `UserError` if the run folder holds checkpoints of a recipe that trains something else."""
    path = run / "recipe.yaml"
    if not path.exists() or not has_checkpoints(run):
        return
    begun = written_recipe(path)  # what came later than it is there with its default
    old, new = (one.model_dump(mode="json")["train"] or {} for one in (begun, recipe))
    changed = differences(_learned(old), _learned(new))
    if changed:
        raise UserError(
            f"{path}: this run was begun with other settings ({'; '.join(changed)}); "
            "take them back, or give the new run a name of its own with name=..."
        )


def has_checkpoints(run: Path) -> bool:
    """Raises `UserError` if their folder cannot be listed now; to Path.glob it would be an empty one."""
    folder = run / "checkpoints"
    try:
        return any(name.startswith("step-") for name in os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise UserError(f"{folder}: cannot be read now ({error.strerror}); start again when it can be") from None


def _learned(train: dict[str, Any]) -> dict[str, Any]:
    data = {key: value for key, value in train.get("data", {}).items() if key not in ELASTIC_DATA}
    return {key: value for key, value in {**train, "data": data}.items() if key not in ELASTIC}


def _read(recipe: str, above: tuple[Path, ...] = ()) -> dict[str, Any]:
    """The values of a recipe over those of its `base`; `above` are the files whose base it is."""
    path = Path(recipe) if recipe.endswith((".yaml", ".yml")) else BUILT_IN / f"{recipe}.yaml"
    if path.resolve() in above:
        raise UserError(f"{above[0]}: its `base` leads back to {path}; a recipe cannot stand over itself")
    try:
        values = _values_of(path)
    except FileNotFoundError:
        hint = nearest(recipe, available_recipes(), "built in", cutoff=0.4)
        raise UserError(f"recipe {recipe}: no such file or built-in recipe; {hint}") from None
    if path.parent == BUILT_IN:
        _find_samples(values)
    start = values.get("start")
    if isinstance(start, dict) and "recipe" in start:
        values["start"] = {**start, "recipe": _beside(path, start["recipe"])}
    base = values.pop("base", None)
    return values if base is None else _merge(_read(_beside(path, base), (*above, path.resolve())), values)


def _values_of(path: Path) -> dict[str, Any]:
    try:
        values = read_values(path.read_text(encoding="utf-8"), str(path))
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: byte {error.start} is not UTF-8; save the file as UTF-8") from None
    if not isinstance(values, dict):
        raise UserError(f"{path}: a recipe is a mapping of sections (name, preprocess, train)")
    return values


def _find_samples(values: dict[str, Any]) -> None:
    """Inputs of a built-in recipe that the working folder does not have are the installed package's."""
    given = values.get("preprocess", {}).get("input", {})
    if "paths" in given:
        given["paths"] = [path if os.path.exists(path) else _shipped(path) for path in given["paths"]]


def _shipped(path: str) -> str:
    inside = PACKAGE / path
    return str(inside) if inside.exists() else path


def _beside(path: Path, recipe: Any) -> str:
    """A recipe that the one at `path` names: a file's path is from there."""
    return str(path.parent / recipe) if str(recipe).endswith((".yaml", ".yml")) else str(recipe)


def _merge(base: dict[str, Any], values: dict[str, Any], section: str = "") -> dict[str, Any]:
    """`values` over `base`; data of another `kind` and a model of another `type` take nothing from the base's."""
    kind = base.get("kind", "rows")  # what `data` is that does not say
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
