"""Values for what is `auto` in the recipe: chosen once by the run's devices, and kept in RUN/fitted.json."""

import json
import os
import socket
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PretrainedConfig

from reread.preprocessing.errors import UserError
from reread.preprocessing.files import write_atomically
from reread.training.config import AUTOMATIC, TrainSettings
from reread.training.data.dataset import Dataset
from reread.training.parallel.mesh import Mesh
from reread.training.run.files import RunFile, read_mapping

ChooseAuto = Callable[[TrainSettings, PretrainedConfig, Mesh, torch.dtype, int, Dataset[Any]], TrainSettings]
"""(settings, configuration, mesh, type to compute in, bytes of the smallest device, training data) -> the settings
without `auto`, the same on all processes. The function must not communicate."""


@dataclass(frozen=True)
class AutoSettings:
    """How a run gets values for the settings that are `auto`."""

    choose: ChooseAuto
    memory: int
    """Bytes of the smallest device of the run, for one process."""

    def settings(
        self,
        settings: TrainSettings,
        run: Path,
        begun: bool,
        config: PretrainedConfig,
        mesh: Mesh,
        dtype: torch.dtype,
        dataset: Dataset[Any],
    ) -> TrainSettings:
        """The settings with values for what is `auto`.

        A run that has `begun` on such devices keeps its values; otherwise they are chosen. Another choice changes a run
        as another `micro_batch` in the recipe does: by rounding and dropout.
        """
        kept = read_auto(run) if begun else {}
        if kept.get("chosen_for") == self._reasons(settings, mesh):
            return settings.model_copy(update=kept["values"])
        return self.choose(settings, config, mesh, dtype, self.memory, dataset)

    def keep(self, settings: TrainSettings, chosen: TrainSettings, run: Path, mesh: Mesh) -> None:
        """Write the values of `chosen` to the run folder, where a resumed run and an evaluation read them."""
        values = {name: getattr(chosen, name) for name in settings.automatic}
        keep_auto(run, values=values, chosen_for=self._reasons(settings, mesh))

    def _reasons(self, settings: TrainSettings, mesh: Mesh) -> dict[str, Any]:
        """The values on which the choice depends and which may differ when the run is resumed."""
        stated = {name: getattr(settings, name) for name in AUTOMATIC}
        return {"memory": self.memory, "processes": mesh.world, "tensor": mesh.tensor_size, **stated}


def settings_of_run(settings: TrainSettings, run: Path) -> TrainSettings:
    """The settings with the values that the run chose for those that are `auto`."""
    if not settings.automatic:
        return settings
    values = read_auto(run).get("values", {})
    if missing := [name for name in settings.automatic if name not in values]:
        raise UserError(f"{RunFile.AUTO.of(run)}: has no train.{missing[0]}, which is auto; set it to a value")
    return settings.model_copy(update={name: values[name] for name in settings.automatic})


def smallest_memory(mesh: Mesh) -> int:
    """Bytes of the smallest device of all processes (collective); on CPU processes share their machine equally."""
    if mesh.device.type == "cuda":
        return min(memory for (memory,) in mesh.gather(torch.cuda.get_device_properties(mesh.device).total_memory))
    machine = zlib.crc32(socket.gethostname().encode())
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    everyone = mesh.gather(machine, memory)
    machines = [machine for machine, _ in everyone]
    return min(memory // machines.count(machine) for machine, memory in everyone)


def keep_auto(run: Path, **content: dict[str, Any]) -> None:
    """Merge `content` into RUN/fitted.json if that changes it."""
    kept = read_auto(run)
    if (wanted := {**kept, **content}) != kept:
        write_atomically(RunFile.AUTO.of(run), json.dumps(wanted, indent=1).encode())


def read_auto(run: Path) -> dict[str, Any]:
    """The content of RUN/fitted.json; empty if missing or damaged, so values are chosen again."""
    return read_mapping(RunFile.AUTO.of(run), missing=FileNotFoundError)
