"""`reread.train` and `reread.finetune`: runs started by programs."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reread.pipeline.display.grid import read_grid
from reread.pipeline.library.command import overrides_of, path_of, run_command
from reread.pipeline.recipe.continuation import training_recipe
from reread.pipeline.recipe.load import recipe_of
from reread.pipeline.recipe.repeats import folds_of, seeds_of
from reread.pipeline.recipe.schema import train_section
from reread.pipeline.recipe.task import finetune_recipe
from reread.preprocessing.errors import UserError
from reread.training.run.files import RUNS, find_run
from reread.training.run.metrics import read_metrics

if TYPE_CHECKING:
    from reread.pipeline.library.reader import Reader


class Run:
    """The folder of a run (docs/run-folder.md), by its name or its folder."""

    def __init__(self, folder: str | Path) -> None:
        """Raises `UserError` if there is no such run."""
        self.folder = find_run(path_of(folder, "reread.Run"))
        recipe_of(self.folder)

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r})"

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl: step, loss, learning rate, tokens/s, validation_loss, ..."""
        return list(read_metrics(self.folder))

    def evaluate(
        self, step: int | None = None, *, average: int | Sequence[int] | None = None, **changed: Any
    ) -> dict[str, float]:
        """The figures of a checkpoint, by default the best or the last, on all held-out text or examples, as `reread
        evaluate`; `changed` settings name others: `run.evaluate(data={"corpus": ...})`. average: as in `export`."""
        from reread.training.evaluation import evaluate_run

        overrides = overrides_of(changed)
        settings = train_section(recipe_of(self.folder, overrides, step))
        return evaluate_run(self.folder, settings, step, overrides, _average(average))

    def export(
        self,
        output: str | Path | None = None,
        step: int | None = None,
        *,
        average: int | Sequence[int] | None = None,
    ) -> Path:
        """Write the Hugging Face folder of a checkpoint, by default RUN/export, and return it.

        average: the number of last checkpoints, up to `step` if it is given, or the steps of those, whose weights are
        averaged. Raises `UserError` if there are not so many.
        """
        from reread.pipeline.run_folder.export import export

        folder = None if output is None else Path(output)
        return export(self.folder, folder, step, average=_average(average))

    def load(self, step: int | None = None, device: str | None = None) -> "Reader":
        """The model of a checkpoint, as `reread.load`."""
        from reread.pipeline.library.reader import load

        return load(self.folder, step=step, device=device)


def _average(given: int | Sequence[int] | None) -> str | None:
    """As `--average` has it."""
    return None if given is None else ",".join(map(str, [given] if isinstance(given, int) else given))


def train(recipe: str | Path, **settings: Any) -> Run:
    """Pretrain by a recipe, as `reread train` does, in processes of its own; the same call again continues.

    recipe: a built-in name or a .yaml file. settings: what changes in it, with sections as dicts:
    `train("nezha-base-wwm", data={"corpus": "corpora/zh"}, steps=1000, name="mine")`.

    Raises `UserError` for settings that cannot work, and as the command does; after an interruption (Ctrl-C) the run
    has a checkpoint of its last step.

    ```python
    run = reread.train("nezha-small", data={"corpus": "corpora/zh"}, steps=1000)
    print(run.metrics[-1]["validation_loss"])
    ```
    """
    overrides = overrides_of(settings)
    name = training_recipe(str(recipe), overrides).name
    run_command(["train", str(recipe), *overrides])
    return Run(RUNS / name)


def finetune(recipe: str | Path, init: str | Path, *, task: Mapping[str, Any], **settings: Any) -> list[Run]:
    """Fine-tune a model by a recipe, as `reread finetune` does; returns a run for each fold and seed, of a
    grid those of its best point.

    init: a run, an export or a converted model. task: the files and how they are read, the section `task`. settings:
    as in `train`.

    ```python
    runs = reread.finetune("classify", "runs/nezha-small", task={"train": "train.tsv", "dev": "dev.tsv"})
    ```
    """
    overrides = overrides_of({"init": path_of(init, "init"), "task": task, **settings})
    run_command(["finetune", str(recipe), *overrides])
    made = finetune_recipe(str(recipe), overrides)
    folds = folds_of(made, overrides)
    best = [part._replace(name=read_grid(RUNS, part.name).chosen or part.name) for part in folds]
    names = [run.name for part in best for run in seeds_of(made, part)]
    if missing := [name for name in names if not (RUNS / name).exists()]:
        raise UserError(f"{RUNS / missing[0]}: not there after `reread finetune`; was it removed?")
    return [Run(RUNS / name) for name in names]
