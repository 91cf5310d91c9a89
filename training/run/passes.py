"""What a forward pass costs beside its tokens: chosen once, at the first start, and kept in RUN/fitted.json."""

import logging
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import PretrainedConfig

from reread.training.config import TrainSettings
from reread.training.data.dataset import Dataset
from reread.training.data.rows.trimming import PASS_SHARE
from reread.training.parallel.mesh import Mesh
from reread.training.run.auto import read_auto

log = logging.getLogger("reread")

ChooseShare = Callable[[TrainSettings, PretrainedConfig, Mesh, torch.dtype, Dataset[Any]], float]
"""(settings without `auto`, configuration, mesh, type to compute in, training data) -> the constant cost of a forward
and backward pass, as a share of the cost of a full one. The function must not communicate."""

PARTS = 1024
"""A share is a multiple of 1 / PARTS, which processes send each other as an integer."""


def pass_share(run: Path, begun: bool, mesh: Mesh, choose: Callable[[], float] | None) -> float:
    """The share of this run, which process 0 finds for all (collective).

    The rows of a pass share their dropout, so a run that has `begun` goes on with its own; if it has none, as before
    there was a choice, with `PASS_SHARE`.
    """
    parts = round(PASS_SHARE * PARTS)
    with mesh.together():
        if mesh.rank == 0 and begun:
            parts = _kept(run) or parts
            log.info("padding: a pass counts as %.3g of a full one, as this run began with", parts / PARTS)
        elif mesh.rank == 0 and choose:
            parts = round(choose() * PARTS)
    return mesh.gather(parts)[0][0] / PARTS


def _kept(run: Path) -> int:
    """The parts in the entry `passes` of RUN/fitted.json; 0 if it has none."""
    found = read_auto(run).get("passes")
    share = found.get("share") if isinstance(found, dict) else None
    return max(0, round(share * PARTS)) if isinstance(share, int | float) and math.isfinite(share) else 0
