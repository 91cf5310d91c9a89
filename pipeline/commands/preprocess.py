"""`reread preprocess`: raw text to a corpus."""

import logging
from pathlib import Path
from typing import cast

from reread.pipeline.recipe.layers import SAMPLES
from reread.pipeline.recipe.schema import Recipe, preprocess_section, train_section
from reread.preprocessing.errors import UserError
from reread.training.data.rows.samples import RowSettings

log = logging.getLogger("reread")


def preprocess(recipe: Recipe, materialize: Path | None = None) -> None:
    """Make the corpus, and with `materialize` a folder of all masked copies of its rows."""
    from reread.preprocessing.execution.build import build

    settings = preprocess_section(recipe)
    for path in (path for section in settings.inputs for path in section.paths):
        if Path(path).is_relative_to(SAMPLES):
            log.info("input: %s, which the package brings, since the working folder has no such file", path)
    build(settings)
    if materialize is not None:
        from reread.training.data.materialize import materialize as write_copies

        train = train_section(recipe)
        if train.data.kind != "rows":
            raise UserError(f"recipe {recipe.name}: train.data.kind is {train.data.kind}; --materialize writes rows")
        data = cast(RowSettings, train.data)
        if data.corpora:
            raise UserError(f"recipe {recipe.name}: --materialize writes one corpus; give data.corpora such folders")
        write_copies(settings.output, materialize, data, train.seed, settings.workers)


def preprocess_share(recipe: Recipe, stage: str, share: str) -> None:
    """Do one machine's share of one stage. When all are done, the command without --stage merges them."""
    from reread.preprocessing.execution.build import build_share
    from reread.preprocessing.execution.executors.base import Share

    build_share(preprocess_section(recipe), stage, Share.parse(share))
