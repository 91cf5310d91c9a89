"""`reread predict`: labels, tags, answers, options, key phrases, clusters or targets for documents of any length."""

import re
import sys
from pathlib import Path

from reread.pipeline.recipe.layers import fine_tunes
from reread.pipeline.recipe.load import override_learned, recipe_of
from reread.pipeline.recipe.schema import Recipe, train_section
from reread.pipeline.run_folder.launch import launch
from reread.preprocessing.errors import UserError
from reread.preprocessing.labelled.file import STANDARD_INPUT
from reread.preprocessing.labelled.formats.table import FORMATS
from reread.training.parallel.process import this_process
from reread.training.run.files import RunFile


def predict(
    model: Path, file: Path, overrides: list[str], output: Path | None, step: int | None, echo: bool = False
) -> None:
    """Write the predictions for the examples of `file`, or `-`, as JSON lines, with their texts if `echo` is set;
    `overrides` are as `task.format=tsv`.

    If `parallel.processes` is above 1, that many processes are started.
    """
    from reread.training.prediction import predict as predict_examples
    from reread.training.prediction import task_of_export

    if RunFile.RECIPE.of(model).exists():
        values = recipe_of(model).model_dump(mode="json")
        if not fine_tunes(values):
            raise UserError(
                f"{model}: is a pretraining run, which has no head for a task; fine-tune it with `reread finetune`"
            )
    else:
        values = {"name": "export", "train": task_of_export(model)}
    override_learned(values, overrides)
    if not fine_tunes(values):
        raise UserError(
            f"{model}: {' '.join(overrides)}: no task is left after this; set single keys, such as task.format=tsv"
        )
    data = values["train"]["data"]
    data["train"] = str(file)
    if (form := FORMATS.get(str(data.get("format")))) and not form.columns and not _names("task.columns", overrides):
        data["columns"] = {}  # those of the file that the model was trained on
    settings = train_section(Recipe.parse(values, str(model)))
    processes = settings.parallel.processes or 1
    if file == STANDARD_INPUT and (processes > 1 or this_process().launcher):
        raise UserError("standard input: only one process can read it; set parallel.processes=1, or give a file")
    if processes > 1 and not this_process().launcher:
        status = launch(sys.argv[1:], processes)
        if status:
            sys.exit(status)
        return
    predict_examples(model, settings, output, step, echo)


def _names(key: str, overrides: list[str]) -> bool:
    """Whether an override sets `key`, or a part of it."""
    return any(re.match(rf"{re.escape(key)}[.=]", override) for override in overrides)
