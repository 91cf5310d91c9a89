"""What a model reads and what it fills in: samples with their masks, and the recipe's examples at each checkpoint."""

import importlib.util
import json
import logging
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

from markupsafe import Markup, escape
from rich.text import Text

from pipeline.inspect import KEPT, MASKED, REPLACED, samples_of
from pipeline.inspect_task import windows_of
from pipeline.report.runs import Run, read_json
from preprocessing.errors import UserError
from preprocessing.files import write_atomically
from training.data.kinds import KINDS
from training.data.settings import CorpusSettings
from training.data.tasks.dataset import TaskDataset

log = logging.getLogger("reread")

SAMPLES = 3
FILLS = "fills.json"
"""In the run folder: what the model filled in at each checkpoint that a report has seen."""
CLASSES = {MASKED: "masked", REPLACED: "replaced", KEPT: "kept"}
"""rich's style -> class in the style sheet; labels of tasks have the same colours, and one more."""

Fill = list[tuple[str, float]]
"""The likeliest tokens and their probabilities."""


def samples(run: Run) -> list[tuple[str, Markup]]:
    """Titles and texts of the first samples, as `reread inspect` shows them.

    Raises `UserError` where there is nothing to read.
    """
    data = run.train.data
    if isinstance(data, CorpusSettings) and not all(isinstance(part.corpus, Path) for part in data.parts):
        raise UserError(f"{data.place} is not fetched for a report")
    dataset = KINDS[data.kind].open(data, run.train.seed, "train")
    shown = windows_of(dataset) if isinstance(dataset, TaskDataset) else samples_of(dataset)
    return [(title, as_html(text)) for title, text in islice(shown, SAMPLES)]


def as_html(text: Text) -> Markup:
    """A text with a `mark` element for each of its styled parts."""
    found, place = Markup(), 0
    for span in sorted(text.spans):
        found += escape(text.plain[place : span.start])
        name = CLASSES.get(str(span.style), "")
        found += Markup('<mark class="{}">{}</mark>').format(name, text.plain[span.start : span.end])
        place = span.end
    return found + escape(text.plain[place:])


def fills(run: Run) -> dict[int, dict[str, Fill]]:
    """Step of a checkpoint -> example of the recipe -> what the model fills in; kept for later reports.

    Each checkpoint is exported to a temporary folder and loaded as a user would load it.
    """
    kept = _kept(run)
    missing = {step: [one for one in run.recipe.examples if one not in kept.get(step, {})] for step in _steps(run)}
    if any(missing.values()) and all(map(importlib.util.find_spec, ("torch", "transformers"))):
        try:
            for step in _checkpoints(run):
                if missing.get(step):
                    kept[step] = {**kept.get(step, {}), **dict(_filled(run, step, missing[step]))}
        except UserError as error:
            log.warning("%s: the report lacks what the model fills in (%s)", run.folder, error)
        try:
            write_atomically(run.folder / FILLS, json.dumps(kept, ensure_ascii=False, indent=1).encode())
        except OSError as error:  # the page may be written elsewhere
            log.warning("%s: what the model fills in is not kept (%s)", run.folder / FILLS, error.strerror)
    return {step: kept[step] for step in sorted(kept)}


def _kept(run: Run) -> dict[int, dict[str, Fill]]:
    """The content of RUN/fills.json; nothing if the run was begun again after it was written."""
    path, begun = run.folder / FILLS, max((one.began for one in run.attempts if one.first_step == 0), default=0.0)
    if not path.exists() or path.stat().st_mtime < begun:
        return {}
    try:
        return {
            int(step): {str(text): [(str(word), float(share)) for word, share in fill] for text, fill in found.items()}
            for step, found in read_json(path).items()
        }
    except (ValueError, TypeError, AttributeError):
        return {}


def _steps(run: Run) -> list[int]:
    """The steps of the run's checkpoints by their names, found without importing torch."""
    with suppress(OSError):
        names = os.listdir(run.folder / "checkpoints")
        return [int(found[1]) for name in names if (found := re.fullmatch(r"step-(\d+)", name))]
    return []


def _checkpoints(run: Run) -> list[int]:
    """The steps of those that are whole; none if the model fills in nothing."""
    from training.checkpoint.store import CheckpointStore
    from training.objectives import objective_of
    from training.parallel.mesh import Mesh

    if objective_of(run.train).card.pipeline != "fill-mask":
        return []
    store = CheckpointStore(run.folder / "checkpoints", run.train.checkpoint.keep, Mesh())
    return [step for step in store.steps() if store.fault(step) is None]


def _filled(run: Run, step: int, sentences: list[str]) -> list[tuple[str, Fill]]:
    from training.exchange.run_export import export_run

    with tempfile.TemporaryDirectory(prefix="reread-") as folder:
        export_run(run.folder, Path(folder) / "model", run.train, [], step)
        return list(fill_masks(Path(folder) / "model", sentences))


def fill_masks(folder: Path, sentences: list[str], top: int = 5) -> Iterator[tuple[str, Fill]]:
    """For each sentence with [MASK], the `top` tokens for the first mask with their probabilities.

    Loads the exported folder as a user would: through transformers' Auto classes.
    """
    import torch
    from transformers import AutoModelForMaskedLM, AutoTokenizer
    from transformers.utils import logging as reports

    reports.disable_progress_bar()
    # trust_remote_code: the file is the one that the export wrote
    tokenizer: Any = AutoTokenizer.from_pretrained(folder, trust_remote_code=True, local_files_only=True)
    model = AutoModelForMaskedLM.from_pretrained(folder, trust_remote_code=True, local_files_only=True).eval()
    for sentence in sentences:
        inputs = tokenizer(sentence.replace("[MASK]", tokenizer.mask_token), return_tensors="pt")
        place = (inputs["input_ids"][0] == tokenizer.mask_token_id).nonzero()
        if len(place) == 0:
            raise UserError(f"example `{sentence}`: holds no [MASK]")
        with torch.no_grad():
            probabilities = model(**inputs).logits[0, place[0, 0]].softmax(-1)
        best = probabilities.topk(top)
        words = [str(tokenizer.convert_ids_to_tokens(int(token))) for token in best.indices]
        yield sentence, list(zip(words, best.values.tolist(), strict=True))
