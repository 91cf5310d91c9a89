"""Checkpoints: one folder per step, with safetensors files and a JSON index; loading one runs no code.

    checkpoints/step-00000100/index.json               step, state, names, shapes, bounds of each part, checksums
    checkpoints/step-00000100/rank-00000.safetensors   the parts that process 0 wrote

Parts are recorded by their bounds in the logical (whole, unpadded) tensor, so a checkpoint loads at any tensor- and
data-parallel size. It is written as `step-00000100.tmp`, synced and renamed: a folder without `.tmp` was complete
once, and its checksums show whether it still is. All processes must see the same file system.
"""

import errno
import json
import logging
import math
import os
import re
import shutil
import threading
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor

from reread.preprocessing.errors import DamagedError, UserError, error_number
from reread.preprocessing.files import sync_folder
from reread.training.checkpoint.files import TensorFiles, checksum, remove, save_tensors
from reread.training.checkpoint.index import CheckpointIndex, checked_index
from reread.training.parallel.layout import Slice
from reread.training.parallel.mesh import Mesh

log = logging.getLogger("reread")

FORMAT_VERSION = 1


@dataclass
class _Save:
    """A save in progress. `failure` is an errno, 0 if there was none."""

    step: int
    index: dict[str, Any]
    path: Path
    """This process' file."""
    thread: threading.Thread | None = None
    failure: int = 0
    bytes: int = 0
    crc32: int = 0


class CheckpointStore:
    """The last `keep` checkpoints of a run, in `folder`; save, poll, wait, latest and load are collective."""

    def __init__(self, folder: Path, keep: int, mesh: Mesh, tick: Callable[[], object] = lambda: None) -> None:
        """`tick` is called as reading and writing proceed."""
        self.folder, self.keep, self.mesh, self._tick = folder, keep, mesh, tick
        self._saving: _Save | None = None

    def save(self, step: int, tensors: dict[str, Tensor], layout: dict[str, Slice], state: dict[str, Any]) -> None:
        """Copy the tensors to the CPU and write them in the background; `poll` or `wait` completes the checkpoint.

        Every part is written once, the writing spread over the ranks that hold it. `state` must be JSON.
        Raises `UserError` if the folder cannot be made, or if the save before this one failed.
        """
        self.wait()
        writers = _writers(layout, self.mesh)
        temporary = self._temporary(step)
        save = _Save(step, _index(step, tensors, layout, state, writers), temporary / _file(self.mesh.rank))
        if self.mesh.rank == 0:
            try:
                for stale in self._listed(r"step-\d+(\.old)?\.tmp"):  # of a killed run
                    remove(self.folder / stale[0])
                temporary.mkdir(parents=True)
            except OSError as error:
                save.failure = error.errno or errno.EIO
        self._agree_on(save)
        mine = {
            name: layout[name].inside(tensor.detach()).to("cpu", copy=True).contiguous()
            for name, tensor in tensors.items()
            if self.mesh.rank in writers[name] and tensor.numel()
        }
        save.thread = threading.Thread(target=_write, args=(save, mine), daemon=True)
        save.thread.start()
        self._saving = save

    def poll(self) -> None:
        """Complete the save in progress if every rank has written its part; costs nothing when there is none.

        Raises `UserError` on all ranks if one could not write (disk full); older checkpoints are untouched.
        """
        if self._saving is not None:
            self._complete(self._saving)

    def wait(self) -> None:
        """`poll` until the save in progress is complete."""
        if self._saving is not None and self._saving.thread is not None:
            self._join(self._saving, self._saving.thread)
        while self._saving is not None:  # a process whose write is done may still wait for others'
            self._complete(self._saving)

    def _join(self, save: _Save, thread: threading.Thread) -> None:
        """Wait for the writing thread; call `tick` while the file grows."""
        size = 0
        while thread.is_alive():
            thread.join(1.0)
            grown = save.path.stat().st_size if save.path.exists() else 0
            if grown != size:
                self._tick()
            size = grown

    def latest(self) -> int | None:
        """The last step whose checkpoint is intact; damaged ones are logged and skipped.

        Raises `UserError` if all checkpoints are damaged, since a run must not silently restart from zero. Also raises
        it if a checkpoint cannot be read now or has another format version: it may be intact, and a run that continued
        from an earlier one would overwrite it.
        """
        with self.mesh.together():
            steps = self.steps()
        damaged = 0
        while True:
            step = self.mesh.gather(steps[-1 - damaged] if damaged < len(steps) else -1)[0][0]
            if step < 0:
                break
            with self.mesh.together():
                fault = self.fault(step)
            faulty = [rank for rank, (found,) in enumerate(self.mesh.gather(int(fault is not None))) if found]
            if not faulty:
                return step
            damaged += 1
            if self.mesh.rank in (0, faulty[0]):
                reason = fault or f"as process {faulty[0]} found"
                log.info("%s is damaged (%s): taking the checkpoint before it", self._path(step), reason)
        if damaged:
            raise self.mesh.reported_once(
                UserError(f"{self.folder}: every checkpoint is damaged; move them away to start from zero")
            )
        return None

    def chosen(self) -> int | None:
        """The best of the intact checkpoints, if the run compared them (`train.best_by`), else the last."""
        latest = self.latest()
        best = None if latest is None else _best(self.state(latest))
        return latest if best is None else best

    def load(self, step: int, tensors: dict[str, Tensor], layout: dict[str, Slice]) -> None:
        """Fill `tensors` in place with their parts of the checkpoint, padding with zeros (collective).

        Every part is read once, by the rank that would write it, and sent to the others that hold it. Raises
        `UserError` if a tensor is not in the checkpoint or has another shape there.
        """
        mesh, writers = self.mesh, _writers({name: layout[name] for name in tensors}, self.mesh)
        sources = {name: _own(_holders(layout[name], mesh), ranks, mesh.rank) for name, ranks in writers.items()}
        with mesh.together():
            index, files = self._index(step), TensorFiles(self._path(step))
            for name, tensor in tensors.items():
                entry = index["tensors"].get(name)
                if entry is None:
                    raise UserError(f"{self._path(step)}: holds no tensor {name}; it is of another model or objective")
                if tuple(entry["shape"]) != layout[name].shape:
                    raise UserError(
                        f"{self._path(step)}: {name} has shape {tuple(entry['shape'])}, but {layout[name].shape} in "
                        "this run; give it the settings it began with"
                    )
                if sources[name][1] == mesh.rank:
                    files.fill(name, entry, tensor.detach(), layout[name])
                    self._tick()
        for name, tensor in tensors.items():
            mesh.send(tensor.detach(), *sources[name])
            self._tick()

    def fits(self, step: int, layout: dict[str, Slice]) -> bool:
        """Whether a checkpoint holds all tensors of `layout`, in these shapes."""
        entries = self._index(step)["tensors"]
        return all(name in entries and tuple(entries[name]["shape"]) == one.shape for name, one in layout.items())

    def steps(self) -> list[int]:
        """Steps of all checkpoints, damaged ones too. Raises `UserError` if the folder cannot be listed."""
        try:
            return self._steps()
        except OSError as error:
            raise _unreadable(self.folder, error) from None

    def fault(self, step: int) -> str | None:
        """The damage to this rank's share of a checkpoint's files; None if it is intact.

        Raises `UserError` if a file cannot be read now, or is of another format version.
        """
        try:
            files = sorted(self._index(step)["files"].items())
        except DamagedError as error:
            return str(error)
        for name, expected in files[self.mesh.rank :: self.mesh.world]:
            path = self._path(step) / name
            try:
                size, crc = checksum(path, self._tick)
            except FileNotFoundError:
                return f"{name} is missing"
            except OSError as error:
                raise _unreadable(path, error) from None
            if size != expected["bytes"]:
                return f"{name} has {size} bytes, not {expected['bytes']}"
            if crc != expected["crc32"]:
                return f"{name}: checksum differs"
        return None

    def state(self, step: int) -> dict[str, Any]:
        """The `state` that was given to `save`."""
        return self._index(step)["state"]

    def read_full(self, step: int, prefix: str = "") -> dict[str, Tensor]:
        """The whole tensors, on the CPU, whose names begin with `prefix`, by the rest of their names."""
        whole, files = {}, TensorFiles(self._path(step))
        for name, entry in self._index(step)["tensors"].items():
            if name.startswith(prefix):
                tensor = torch.empty(entry["shape"], dtype=getattr(torch, entry["dtype"]))
                files.fill(name, entry, tensor, Slice(tuple(entry["shape"])))
                whole[name.removeprefix(prefix)] = tensor
        return whole

    def _listed(self, pattern: str) -> list[re.Match[str]]:
        """Names in the folder that match; none if it does not exist. Path.glob would hide errors."""
        try:
            names = os.listdir(self.folder)
        except (FileNotFoundError, NotADirectoryError):
            return []
        return [match for match in map(re.compile(pattern).fullmatch, names) if match]

    def _steps(self) -> list[int]:
        return sorted(int(name[1]) for name in self._listed(r"step-(\d+)"))

    def _path(self, step: int) -> Path:
        return self.folder / f"step-{step:08d}"

    def _temporary(self, step: int) -> Path:
        return self.folder / f"step-{step:08d}.tmp"

    def _agree_on(self, save: _Save) -> None:
        """Raise the first failure, if any, on all ranks."""
        failures = [(rank, failure) for rank, (failure,) in enumerate(self.mesh.gather(save.failure)) if failure]
        if failures:
            self._saving = None
            if self.mesh.rank == 0:
                shutil.rmtree(self._temporary(save.step), ignore_errors=True)
            rank, failure = failures[0]
            try:
                last = self._steps()[-1:]
                kept = f"the checkpoint of step {last[0]} is untouched" if last else "there is no older checkpoint"
            except OSError:
                kept = "older checkpoints are untouched"
            raise self.mesh.reported_once(
                UserError(
                    f"{self.folder}: cannot write the checkpoint of step {save.step} "
                    f"(process {rank}: {os.strerror(failure)}); make room or fix the folder and start again; {kept}",
                    OSError(failure, os.strerror(failure)),
                )
            )

    def _complete(self, save: _Save) -> None:
        assert save.thread is not None
        written = int(not save.thread.is_alive())
        everyone = self.mesh.gather(written, save.bytes, save.crc32)
        if not all(done for done, _, _ in everyone):
            return
        self._agree_on(save)
        if self.mesh.rank == 0:
            files = {_file(rank): {"bytes": size, "crc32": crc} for rank, (_, size, crc) in enumerate(everyone) if size}
            try:
                self._commit(save.step, {**save.index, "files": files})
            except OSError as error:
                save.failure = error.errno or errno.EIO
        self._agree_on(save)
        self._saving = None

    def _commit(self, step: int, index: dict[str, Any]) -> None:
        temporary, path = self._temporary(step), self._path(step)
        with (temporary / "index.json").open("w", encoding="utf-8") as file:
            # not json.dump, which writes thousands of entries one by one
            file.write(json.dumps({**index, "crc32": zlib.crc32(json.dumps(index).encode())}))
            file.flush()
            os.fsync(file.fileno())
        sync_folder(temporary)
        replaced = self.folder / f"{path.name}.old.tmp"
        if path.exists():  # it was damaged, and the run continued from an earlier one
            path.rename(replaced)
        temporary.rename(path)
        sync_folder(self.folder)
        # Later steps than this one were skipped as damaged, so they do not count as kept
        best = _best(index["state"])
        old = [other for other in self._steps() if other <= step and other != best][: -self.keep]
        for stale in [*map(self._path, old), replaced]:
            shutil.rmtree(stale, ignore_errors=True)

    def _index(self, step: int) -> CheckpointIndex:
        path = self._path(step) / "index.json"
        try:
            index = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise DamagedError(f"{path.name} is missing") from None
        except OSError as error:
            raise _unreadable(path, error) from None
        except (ValueError, RecursionError) as error:
            raise DamagedError(f"{path}: cannot be read ({error})") from None
        # Before the checksum, which another version may compute differently
        if isinstance(index, dict) and index.get("version", FORMAT_VERSION) != FORMAT_VERSION:
            raise UserError(
                f"{path}: checkpoint format {index['version']}, this program reads {FORMAT_VERSION}; continue with the "
                "program that wrote it, or begin a new run with name=..."
            )
        if not isinstance(index, dict) or zlib.crc32(json.dumps(_but_crc32(index)).encode()) != index.get("crc32"):
            raise DamagedError(f"{path}: checksum differs")
        return checked_index(index, path)


def _best(state: dict[str, Any]) -> int | None:
    """The best step so far, if the run compares its checkpoints."""
    best = state.get("best")
    step = best.get("step") if isinstance(best, dict) else None
    return step if isinstance(step, int) else None


def _but_crc32(index: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in index.items() if name != "crc32"}


def _unreadable(path: Path, error: OSError) -> UserError:
    return UserError(
        f"{path}: cannot be read now ({error.strerror}); it may be intact, so nothing is written over it; start again "
        "when it can be read, or move it away",
        error,
    )


def _file(rank: int) -> str:
    return f"rank-{rank:05d}.safetensors"


def _writers(layout: dict[str, Slice], mesh: Mesh) -> dict[str, list[int]]:
    """The ranks that write the parts of each tensor, in the parts' order; the same on all ranks.

    Largest parts first, each by the least loaded of the ranks that hold it.
    """
    load = [0] * mesh.world
    writers = {}
    holders = {name: _holders(part, mesh) for name, part in layout.items()}
    sizes = {name: [_size(layout[name], number) for number in range(len(parts))] for name, parts in holders.items()}
    for name in sorted(layout, key=lambda name: (-max(sizes[name]), name)):
        writers[name] = [min(ranks, key=load.__getitem__) for ranks in holders[name]]
        for rank, size in zip(writers[name], sizes[name], strict=True):
            load[rank] += size
    return writers


def _holders(part: Slice, mesh: Mesh) -> list[range]:
    """The ranks that hold each part of a tensor."""
    if part.rows and part.dim is not None:
        return [range(rank, rank + 1) for rank in range(mesh.world)]
    if part.dim is None and not part.rows:
        return [range(mesh.world)]
    if part.rows or part.over == "data":  # tensor-parallel ranks hold the same
        return [range(number * mesh.tensor_size, (number + 1) * mesh.tensor_size) for number in range(mesh.data_size)]
    return [range(number, mesh.world, mesh.tensor_size) for number in range(mesh.tensor_size)]


def _own(holders: list[range], writers: list[int], rank: int) -> tuple[range, int]:
    """The ranks that hold the same part as `rank`, and the one of them that writes it."""
    return next(one for one in zip(holders, writers, strict=True) if rank in one[0])


def _size(part: Slice, number: int) -> int:
    """Elements of a part."""
    return math.prod(bounds.stop - bounds.start for bounds in part.region(number))


def _index(
    step: int,
    tensors: dict[str, Tensor],
    layout: dict[str, Slice],
    state: dict[str, Any],
    writers: dict[str, list[int]],
) -> dict[str, Any]:
    """The content of `index.json` without checksums."""
    entries = {}
    for name, tensor in tensors.items():
        part, parts = layout[name], []
        for number, rank in enumerate(writers[name]):
            region = part.region(number)
            if all(bounds.start < bounds.stop for bounds in region):
                parts.append({"file": _file(rank), "region": [[bounds.start, bounds.stop] for bounds in region]})
        dtype = str(tensor.dtype).removeprefix("torch.")
        entries[name] = {"shape": list(part.shape), "dtype": dtype, "parts": parts}
    state = json.loads(json.dumps(state))  # it may change while the tensors are written
    return {"version": FORMAT_VERSION, "step": step, "state": state, "tensors": entries}


def _write(save: _Save, tensors: dict[str, Tensor]) -> None:
    """Write, sync and checksum one file, in the background; a failure is kept as its errno."""
    save.failure = errno.EIO  # until the write has succeeded
    try:
        if tensors:
            save_tensors(tensors, save.path)
            save.bytes, save.crc32 = checksum(save.path)
        save.failure = 0
    except (OSError, SafetensorError) as error:
        save.failure = error_number(error) or errno.EIO
