"""A run's model without its weights, kept in the run folder: with a checkpoint, RUN/model is the whole model.

RUN/model holds config.json and the tokenizer's files, RUN/corpus.json the facts about the corpus that a model card
shows. Both are written before the first step, so that a run can be resumed, evaluated and exported without the folder
it started from, and exported without its corpus.
"""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import PretrainedConfig

from preprocessing.errors import UserError
from preprocessing.files import write_atomically
from preprocessing.tokens.base import FILES
from training.assembly import spec_of
from training.checkpoint.files import replacing
from training.checkpoint.store import CheckpointStore
from training.config import TrainSettings
from training.data.dataset import Dataset
from training.data.kinds import KINDS
from training.models.build import model_config
from training.objectives import objective_of
from training.parallel.mesh import Mesh


@dataclass(frozen=True)
class RunModel:
    config: PretrainedConfig
    tokenizer_folder: Path
    corpus: dict[str, Any]
    """`Dataset.card` of the data that the run began with."""


def new_run_model(settings: TrainSettings, dataset: Dataset[Any]) -> RunModel:
    """The model that recipe, `init` and corpus define; `dataset` is a split of that corpus.

    Raises `UserError` if they do not fit each other (`model_config`).
    """
    config = model_config(spec_of(settings), settings.model, dataset.vocab_size, settings.init, dataset.special)
    objective_of(settings).configure(config, settings.data)
    return RunModel(config, dataset.tokenizer_folder, dataset.card())


def read_run_model(run: Path, settings: TrainSettings) -> RunModel:
    """The model of a run that has begun; the keys of `settings.model` override its configuration.

    A run begun by an earlier version has no RUN/model: its model comes from the corpus and `init`.
    Raises `UserError` for files that cannot be read.
    """
    folder = run / "model"
    if not folder.exists():
        return _from_corpus(run, settings)
    corpus, _ = (_read_json(path, folder) for path in (run / "corpus.json", folder / "config.json"))
    config = model_config(spec_of(settings), settings.model, 1, folder)
    objective_of(settings).configure(config, settings.data)
    return RunModel(config, folder, corpus)


def write_run_model(run: Path, model: RunModel) -> None:
    """Write RUN/corpus.json and, atomically, RUN/model; earlier ones are replaced.

    Raises `UserError` if the run folder cannot be written.
    """
    folder = run / "model"
    try:
        with replacing(folder) as temporary:
            write_atomically(run / "corpus.json", json.dumps(model.corpus, ensure_ascii=False, indent=1).encode())
            for file in model.tokenizer_folder.glob("*.*"):
                if file.name in FILES or file.suffix == ".model":  # a model's weights may be beside them
                    shutil.copyfile(file, temporary / file.name)
            # all values, so that defaults of a later version change nothing
            text = model.config.to_json_string(use_diff=False)
            (temporary / "config.json").write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(
            f"{folder}: cannot be written ({error.strerror}); make room or fix the run folder, then start again", error
        ) from None


def _from_corpus(run: Path, settings: TrainSettings) -> RunModel:
    """Corpus facts come from the last checkpoint, so that another corpus is not mistaken for the run's."""
    model = new_run_model(settings, KINDS[settings.data.kind].open(settings.data, settings.seed, "train"))
    store = CheckpointStore(run / "checkpoints", settings.checkpoint.keep, Mesh())
    for step in store.steps()[-1:]:
        model.corpus.update(store.state(step)["corpus"])
    return model


def _read_json(path: Path, folder: Path) -> dict[str, Any]:
    try:
        values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError, RecursionError) as error:
        raise UserError(
            f"{path}: not readable as JSON ({error}); remove {folder}, and `reread train` rewrites both from corpus "
            "and train.init"
        ) from None
    return values
