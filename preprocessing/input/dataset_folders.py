"""Finds the data files in folders that Hugging Face `datasets` has written, by `save_to_disk` or as its cache."""

import json
import logging
import os
from contextlib import suppress

from reread.preprocessing.errors import UserError

log = logging.getLogger("reread")

_METADATA = ("state.json", "dataset_info.json", "dataset_dict.json")
_PASSING = ("cache-", "tmp")
"""Prefixes of the names of intermediate results in a cache."""


def data_files(folder: str, names: list[str]) -> list[str]:
    """The data files among the files `names` in `folder`: the Arrow files of a dataset, or else all files.

    Raises `UserError` for a state.json that does not list the files of the dataset.
    """
    if "dataset_dict.json" in names:
        splits = _read(folder, "dataset_dict.json").get("splits", [])
        log.info("input: %s: a dataset, all splits of which are read (%s); else name one", folder, _listed(splits))
    elif "dataset_info.json" not in names:
        return names
    if "state.json" in names:
        listed = _read(folder, "state.json").get("_data_files")
        if not isinstance(listed, list) or not all(isinstance(file, dict) for file in listed):
            path = os.path.join(folder, "state.json")
            raise UserError(f"{path}: does not list the dataset's files (`_data_files`); save the dataset again")
        return [name for name in (file.get("filename") for file in listed) if name in names]
    arrow = [name for name in names if name.endswith(".arrow") and not name.startswith(_PASSING)]
    return arrow or [name for name in names if name not in _METADATA]


def _read(folder: str, name: str) -> dict:
    with suppress(OSError, ValueError, RecursionError), open(os.path.join(folder, name), encoding="utf-8") as file:
        values = json.load(file)
        return values if isinstance(values, dict) else {}
    return {}


def _listed(names: object) -> str:
    return ", ".join(map(str, names)) if isinstance(names, list) else str(names)
