"""The model of a run without its weights, as kept in the run folder. With a checkpoint, it is the whole model.

RUN/model holds config.json and the tokenizer's files, RUN/corpus.json the facts about the corpus that a model card
shows. Both are written before the first step, so that a run can be resumed, evaluated and exported without the folder
it started from, and exported without its corpus.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reread.preprocessing.errors import UserError
from reread.preprocessing.files import write_atomically
from reread.preprocessing.tokens.base import copy_tokenizer_files, read_backend, with_tokens
from reread.training.assembly import Resolved, resolve
from reread.training.checkpoint.files import replacing
from reread.training.config import TrainSettings
from reread.training.data.dataset import Dataset
from reread.training.data.tasks.settings import task_of
from reread.training.models.build import UNTRAINED_POOLER, has_untrained_pooler
from reread.training.run.files import RunFile, read_json


@dataclass(frozen=True)
class RunModel(Resolved):
    """The resolved settings of a run, and the files that its folder keeps beside the weights."""

    tokenizer_folder: Path
    corpus: dict[str, Any]
    """`Dataset.card` of the data that the run began with."""
    untrained_pooler: bool = False
    """Whether no loss reaches a pooler, in this run or before."""


def new_run_model(settings: TrainSettings, dataset: Dataset[Any]) -> RunModel:
    """The model that the recipe, `init` and the corpus define; `dataset` is a split of that corpus.

    Raises `UserError` if they contradict each other (`model_config`).
    """
    resolved = resolve(settings, dataset.vocab_size, settings.init, dataset.special, grows=bool(dataset.new_rows))
    untrained = leaves_pooler(resolved) and (settings.init is None or has_untrained_pooler(settings.init))
    return RunModel(
        **vars(resolved), tokenizer_folder=dataset.tokenizer_folder, corpus=dataset.card(), untrained_pooler=untrained
    )


def leaves_pooler(resolved: Resolved) -> bool:
    """Whether no loss of the run reaches a pooler."""
    return "pooler" in resolved.objective.unreached(resolved.settings.data)


def read_run_model(run: Path, settings: TrainSettings) -> RunModel:
    """The model of a run that has begun; the keys of `settings.model` override its configuration.

    Raises `UserError` for files that are missing, as in runs of unreleased versions, or cannot be read.
    """
    folder = RunFile.MODEL.of(run)
    if not folder.exists():
        raise UserError(f"{folder}: not there; `reread train` writes it again from {settings.data.location}")
    corpus, values = (_read_json(path, folder) for path in (RunFile.CORPUS.of(run), folder / "config.json"))
    resolved = resolve(settings, 1, folder)
    return RunModel(
        **vars(resolved), tokenizer_folder=folder, corpus=corpus, untrained_pooler=bool(values.get(UNTRAINED_POOLER))
    )


def write_run_model(run: Path, model: RunModel) -> None:
    """Write RUN/corpus.json and, atomically, RUN/model; earlier ones are replaced.

    Raises `UserError` if the run folder cannot be written.
    """
    folder = RunFile.MODEL.of(run)
    try:
        with replacing(folder) as temporary:
            facts = json.dumps(model.corpus, ensure_ascii=False, indent=1).encode()
            write_atomically(RunFile.CORPUS.of(run), facts)
            copy_tokenizer_files(model.tokenizer_folder, temporary)
            task = task_of(model.settings.data)
            if task is not None and task.own_tokens:
                backend = read_backend(temporary / "tokenizer.json")
                with_tokens(backend, task.own_tokens)
                backend.save(str(temporary / "tokenizer.json"))
            # all values, so that defaults of a later version change nothing
            values = json.loads(model.config.to_json_string(use_diff=False))
            values |= {UNTRAINED_POOLER: True} if model.untrained_pooler else {}
            (temporary / "config.json").write_text(
                json.dumps(values, indent=2, sort_keys=True) + "\n", encoding="utf-8"
            )
    except OSError as error:
        raise UserError(
            f"{folder}: cannot be written ({error.strerror}); make room or fix the run folder, then start again", error
        ) from None


def _read_json(path: Path, folder: Path) -> dict[str, Any]:
    values = read_json(path, missing=FileNotFoundError)
    if not isinstance(values, dict):
        raise UserError(
            f"{path}: not readable as JSON (missing or damaged); remove {folder}, and `reread train` rewrites both "
            "from corpus and train.init"
        )
    return values
