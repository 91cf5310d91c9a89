"""Reads PyTorch's files with the objects that training states hold beside tensors, and runs no code from them.

A training state has its program's settings as an argparse.Namespace or as omegaconf's nodes, and often an optimizer's
or a tokenizer's objects. Unpickling looks up each class that a file names and calls it. Here only what rebuilds tensors
is looked up; every other name becomes a class made on the spot that keeps what it is given and does nothing.
"""

import pickle
import re
import tarfile
import zipfile
from collections import OrderedDict
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO

import torch

from reread.preprocessing.errors import UserError, first_line

_REBUILD = ("_rebuild_tensor", "_rebuild_tensor_v2", "_rebuild_parameter")
_KNOWN: dict[tuple[str, str], Any] = {
    ("collections", "OrderedDict"): OrderedDict,
    ("torch", "Size"): torch.Size,
    **{("torch._utils", name): getattr(torch._utils, name) for name in _REBUILD},
}
"""What may be called: that of torch.load(weights_only=True), but for names that other tensors than dense ones need."""


class _Inert:
    """An object of a class that was not looked up: what it was given."""

    held: dict[Any, Any]
    """Its state, as far as that is a dictionary, and its items."""

    def __new__(cls, *arguments: Any, **named: Any) -> Any:
        made = super().__new__(cls)
        made.held = {}
        return made

    def __init__(self, *arguments: Any, **named: Any) -> None:
        """Whatever the class would need."""

    def __call__(self, *arguments: Any) -> Any:
        """What a function of an object gives, as a method by `getattr`."""
        return _Inert()

    def __setstate__(self, state: Any) -> None:
        if isinstance(state, dict):
            self.held.update(state)

    def __setitem__(self, key: Any, value: Any) -> None:
        self.held[key] = value

    def append(self, item: Any) -> None:
        """A list's; its items are not needed."""

    def extend(self, items: Any) -> None:
        """A list's; its items are not needed."""

    def add(self, item: Any) -> None:
        """A set's; its items are not needed."""


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _KNOWN:
            return _KNOWN[module, name]
        found = getattr(torch, name, None) if module == "torch" else None
        if isinstance(found, torch.dtype) or (
            isinstance(found, type) and re.fullmatch(r"[A-Z][A-Za-z0-9]*Storage", name)
        ):
            return found
        return type(name, (_Inert,), {})


def _load(file: BinaryIO, **settings: Any) -> Any:
    return _Unpickler(file, **settings).load()


def read_inert(path: Path) -> Any:
    """The content of a file of torch.save, whose tensors are on the CPU and, where the format allows it, read on use.

    See `entries` for objects of other classes. Raises `UserError` for a file that cannot be read.
    """
    pickles: Any = SimpleNamespace(Unpickler=_Unpickler, load=_load, __name__="inert")
    try:
        zipped = zipfile.is_zipfile(path)
        if (zipped and _is_program(path)) or (not zipped and tarfile.is_tarfile(path)):
            raise UserError(
                f"{path}: refused, since it holds a program or is of PyTorch before 0.1.10; save its tensors"
            )
        return torch.load(path, map_location="cpu", pickle_module=pickles, weights_only=False, mmap=zipped or None)
    except UserError:
        raise
    except Exception as error:  # a damaged pickle raises whatever its instructions lead to
        raise UserError(f"{path}: cannot be read ({first_line(error)}); was the download complete?") from None


def _is_program(path: Path) -> bool:
    """Whether torch.load would hand the file to TorchScript, which has its own instructions."""
    return "constants.pkl" in torch._C.PyTorchFileReader(str(path)).get_all_records()


def entries(value: Any) -> dict[Any, Any]:
    """What a dictionary, a Namespace or a node of omegaconf holds, by name; empty for anything else."""
    held = getattr(value, "held", value)
    held = held.get("_content", held) if isinstance(held, dict) else {}
    return (
        {key: getattr(one, "held", {}).get("_val", one) for key, one in held.items()} if isinstance(held, dict) else {}
    )
