"""Samples of a run's data with their masks, and the words that the model fills into the recipe's examples."""

import importlib.util
import json
import logging
import os
import re
from contextlib import suppress
from itertools import islice
from pathlib import Path

from markupsafe import Markup, escape
from rich.text import Text

from reread.pipeline.display.rows import KEPT, MASKED, REPLACED, samples_of
from reread.pipeline.display.windows import windows_of
from reread.pipeline.report.runs import Run
from reread.preprocessing.errors import UserError
from reread.preprocessing.files import write_atomically
from reread.training.data.kinds import KINDS
from reread.training.run.files import RunFile, read_mapping

log = logging.getLogger("reread")

SAMPLES = 3
CLASSES = {MASKED: "masked", REPLACED: "replaced", KEPT: "kept"}
"""rich's style -> class in the style sheet; labels of tasks have the same colours, and one more."""

Fill = list[tuple[str, float]]
"""The likeliest tokens and their probabilities."""


def samples(run: Run) -> list[tuple[str, Markup]]:
    """Titles and texts of the first samples, as `reread inspect` shows them.

    Raises `UserError` if the data cannot be read here.
    """
    data = run.train.data
    if not all(isinstance(part.corpus, Path) for part in data.parts):
        raise UserError(f"{data.location} is not fetched for a report")
    if run.learned is not None:
        shown = windows_of(run.learned)
    else:
        shown = samples_of(KINDS[data.kind].open(data, run.train.seed, "train"))
    return [(title, as_html(text)) for title, text in islice(shown, SAMPLES)]


def as_html(text: Text) -> Markup:
    """A text with a `mark` element for each of its styled parts."""
    found, position = Markup(), 0
    for span in sorted(text.spans):
        found += escape(text.plain[position : span.start])
        name = CLASSES.get(str(span.style), "")
        found += Markup('<mark class="{}">{}</mark>').format(name, text.plain[span.start : span.end])
        position = span.end
    return found + escape(text.plain[position:])


def fills(run: Run) -> dict[int, dict[str, Fill]]:
    """Step of a checkpoint -> example of the recipe -> what the model fills in; kept for later reports."""
    kept, path = _kept(run), RunFile.FILLS.of(run.folder)
    missing = {step: [one for one in run.recipe.examples if one not in kept.get(step, {})] for step in _steps(run)}
    if any(missing.values()) and all(map(importlib.util.find_spec, ("torch", "transformers"))):
        try:
            for step in _checkpoints(run):
                if missing.get(step):
                    kept[step] = {**kept.get(step, {}), **dict(_filled(run, step, missing[step]))}
        except UserError as error:
            log.warning("%s: the report lacks what the model fills in (%s)", run.folder, error)
        try:
            write_atomically(path, json.dumps(kept, ensure_ascii=False, indent=1).encode())
        except OSError as error:  # the page may be written elsewhere
            log.warning("%s: what the model fills in is not kept (%s)", path, error.strerror)
    return {step: kept[step] for step in sorted(kept)}


def _kept(run: Run) -> dict[int, dict[str, Fill]]:
    """The content of RUN/fills.json; nothing if the run was begun again after it was written."""
    path = RunFile.FILLS.of(run.folder)
    begun = max((one.began for one in run.attempts if one.first_step == 0), default=0.0)
    if not path.exists() or path.stat().st_mtime < begun:
        return {}
    try:
        return {
            int(step): {str(text): [(str(word), float(share)) for word, share in fill] for text, fill in found.items()}
            for step, found in read_mapping(path).items()
        }
    except (ValueError, TypeError, AttributeError):
        return {}


def _steps(run: Run) -> list[int]:
    """The steps of the run's checkpoints by their names, found without importing torch."""
    with suppress(OSError):
        names = os.listdir(RunFile.CHECKPOINTS.of(run.folder))
        return [int(found[1]) for name in names if (found := re.fullmatch(r"step-(\d+)", name))]
    return []


def _checkpoints(run: Run) -> list[int]:
    """The steps of the undamaged checkpoints; none if the model has no masked-token head."""
    from reread.training.checkpoint.store import CheckpointStore
    from reread.training.objectives import objective_of
    from reread.training.parallel.mesh import Mesh

    if objective_of(run.train).card.pipeline != "fill-mask":
        return []
    store = CheckpointStore(RunFile.CHECKPOINTS.of(run.folder), run.train.checkpoint.keep, Mesh())
    return [step for step in store.steps() if store.fault(step) is None]


def _filled(run: Run, step: int, sentences: list[str]) -> list[tuple[str, Fill]]:
    """What the checkpoint's model fills in, with the special tokens of its export; by our own classes.

    Somebody else may have written the run: transformers' Auto classes would run the code that its files name.
    """
    from reread.training.filling import fill_masks, framed_tokenizer
    from reread.training.run.model import read_run_model
    from reread.training.run.restore import restore_model

    kept = read_run_model(run.folder, run.train)
    model, _ = restore_model(run.folder, kept, step)
    tokenizer = framed_tokenizer(kept.tokenizer_folder, model)
    return list(fill_masks(model.eval(), tokenizer, sentences))
