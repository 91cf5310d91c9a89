"""Files of tensors: permissions by the umask, reading by slices, checksums."""

import os
import shutil
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from reread.preprocessing.errors import DamagedError, UserError, error_number
from reread.preprocessing.files import sync_folder, unfinished
from reread.training.checkpoint.index import TensorEntry
from reread.training.parallel.layout import Slice

_CHUNK = 1 << 22


def save_tensors(tensors: dict[str, Tensor], path: Path, metadata: dict[str, str] | None = None) -> None:
    """Write and sync a safetensors file with the permissions of the umask; safetensors itself makes it 0600.

    Raises OSError, or SafetensorError around one.
    """
    path.touch()
    mode = path.stat().st_mode
    save_file(tensors, path, metadata)
    path.chmod(mode)
    with path.open("rb") as file:
        os.fsync(file.fileno())


def checksum(path: Path, tick: Callable[[], object] = lambda: None) -> tuple[int, int]:
    """Size in bytes and CRC-32 of a file; `tick` is called as reading proceeds."""
    size = crc = 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            tick()
            size += len(chunk)
            crc = zlib.crc32(chunk, crc)
    return size, crc


def remove(path: Path) -> None:
    """Remove a file, a folder with its content, or a link but not its target; a missing path is no error."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@contextmanager
def replacing(folder: Path) -> Iterator[Path]:
    """A new folder for files, which is synced and renamed to `folder` at the end, replacing an earlier one.

    After an error `folder` is unchanged. Files of a killed process are removed by the next one.
    """
    beside = unfinished(folder)
    written, earlier = beside / "new", beside / "earlier"
    remove(beside)
    try:
        written.mkdir(parents=True)
        yield written
        for path in written.rglob("*"):
            if path.is_file():
                with path.open("rb") as file:
                    os.fsync(file.fileno())
        for inner in [*filter(Path.is_dir, written.rglob("*")), written]:
            sync_folder(inner)
        if folder.exists():
            folder.rename(earlier)
        try:
            written.rename(folder)
        except OSError:
            if earlier.exists():
                earlier.rename(folder)
            raise
        sync_folder(folder.parent)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


class TensorFiles:
    """The safetensors files of a folder, each opened when it is first needed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._open: dict[str, Any] = {}

    def fill(self, name: str, entry: TensorEntry, tensor: Tensor, part: Slice) -> None:
        """Read a part of the saved tensor `name` into `tensor`; of each saved part only the overlap is read.

        Raises `UserError` for a file that cannot be read, or holds another part than `entry` says.
        """
        inside, wanted = part.inside(tensor), part.region()
        if inside.shape != tensor.shape:
            tensor.zero_()
        for saved in entry["parts"]:
            held = tuple(slice(*bounds) for bounds in saved["region"])
            shared = [slice(max(a.start, b.start), min(a.stop, b.stop)) for a, b in zip(held, wanted, strict=True)]
            if any(both.start >= both.stop for both in shared):
                continue
            try:
                file = self._file(saved["file"])
                if file.get_slice(name).get_shape() != [one.stop - one.start for one in held]:
                    raise DamagedError(f"{self.folder / saved['file']}: the part of {name} has not its shape")
                source = file.get_slice(name)[_within(shared, held)] if shared else file.get_tensor(name)
            except (OSError, SafetensorError) as error:
                cause = error if error_number(error) else None  # else the file is damaged
                raise UserError(f"{self.folder / saved['file']}: cannot be read ({error})", cause) from None
            inside[_within(shared, wanted)].copy_(source)

    def _file(self, name: str) -> Any:
        if name not in self._open:
            self._open[name] = safe_open(self.folder / name, framework="pt")
        return self._open[name]


def _within(shared: list[slice], outer: tuple[slice, ...]) -> tuple[slice, ...]:
    return tuple(slice(a.start - b.start, a.stop - b.start) for a, b in zip(shared, outer, strict=True))
