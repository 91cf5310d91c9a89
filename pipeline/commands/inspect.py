"""`reread inspect`: samples of a corpus, a run or a task as the model will see them."""

import os
from pathlib import Path
from typing import Any

from reread.pipeline.recipe.layers import TASK, fine_tunes
from reread.pipeline.recipe.load import apply_overrides, load_recipe, override, recipe_of, recipe_values
from reread.pipeline.recipe.schema import train_section
from reread.pipeline.recipe.shell import refuse_commands
from reread.pipeline.recipe.task import finetune_recipe
from reread.preprocessing.errors import UserError, nearest
from reread.training.data.kinds import KINDS
from reread.training.data.settings import DataSettings
from reread.training.data.tasks.settings import TaskSettings, task_of
from reread.training.run.files import RunFile


def inspect(
    what: str, overrides: list[str], recipe: str | None, samples: int, verify: bool, allow_pipe: bool = False
) -> None:
    """Print samples of a corpus, of what a run reads, or of the examples that a model would be fine-tuned on.

    Raises `UserError` for a corpus that a command reads, unless `allow_pipe`.
    """
    from reread.pipeline.display.rows import print_rows
    from reread.pipeline.display.windows import print_windows

    if (task := task_in(Path(what), overrides, recipe)) is not None:
        if verify:
            raise UserError("--verify checks a corpus; labelled examples have no manifest, so leave it out")
        print_windows(task, samples)
        return
    data, seed = _data_of(what, overrides, recipe)
    if not allow_pipe:
        refuse_commands(data)
    print_rows(data, samples=samples, seed=seed, verify=verify)


def _data_of(corpus: str, overrides: list[str], recipe: str | None) -> tuple[DataSettings, int]:
    """The data section and the seed by which a corpus is read: of `overrides`, of a recipe, or of a run."""
    is_run, is_model = (os.path.exists(os.path.join(corpus, name)) for name in ("recipe.yaml", "config.json"))
    if is_model:
        raise UserError(
            f"{corpus}: is a model, not a corpus; give a corpus or a run, or, to see what it would be fine-tuned on, "
            "--recipe RECIPE task.train=FILE with a recipe of `reread finetune`"
        )
    if is_run and recipe is not None:
        raise UserError(
            f"{corpus}: is a run and is shown by its own recipe; leave out --recipe {recipe}, or give a corpus"
        )
    if is_run:
        given = [f"train.data.{one.removeprefix('data.')}" for one in overrides]
        train = train_section(recipe_of(Path(corpus), given))
        return train.data, train.seed
    if recipe is None:
        values: dict[str, Any] = {"corpus": corpus}
        apply_overrides(values, overrides)
        kind = str(values.get("kind", "rows"))
        kinds = [name for name, one in KINDS.items() if not one.settings.is_task]
        if kind in KINDS and kind not in kinds:
            raise UserError(
                f"inspect: kind: {kind} is for labelled examples; instead of a corpus give a model to fine-tune, with "
                "--recipe RECIPE task.train=FILE"
            )
        if kind not in kinds:
            raise UserError(f"inspect: kind: {nearest(kind, kinds, 'is one of')} (got {kind})")
        return KINDS[kind].settings.parse(values, "inspect"), 0
    given = [f"train.data.{one}" for one in [*overrides, override("corpus", corpus)]]
    train = train_section(load_recipe(recipe, given))
    return train.data, train.seed


def task_in(folder: Path, overrides: list[str], recipe: str | None) -> TaskSettings | None:
    """The task of the fine-tuned run in `folder`, or of `recipe` with the model in `folder`; None for a corpus.

    Raises `UserError` for a recipe that cannot fine-tune that model.
    """
    if recipe is None and not os.path.exists(
        RunFile.RECIPE.of(folder)
    ):  # Path.exists raises for a name that is too long
        return None
    given = [f"{TASK}.{one.removeprefix(f'{TASK}.')}" for one in overrides]
    if recipe is None:
        tunes = train_section(recipe_of(folder)).data.is_task
        data = train_section(recipe_of(folder, given if tunes else [])).data
    elif fine_tunes(recipe_values(recipe, [])):
        data = train_section(finetune_recipe(recipe, [*given, override("init", folder)])).data
    else:
        return None
    return task_of(data)
