"""Folders that Hugging Face `datasets` has written, by `save_to_disk` or as its cache: which of the files are data."""

import json
import logging
import os
from contextlib import suppress

log = logging.getLogger("reread")

_METADATA = ("state.json", "dataset_info.json", "dataset_dict.json")
_PASSING = ("cache-", "tmp")
"""Names of intermediate results in a cache begin so."""


def data_files(folder: str, names: list[str]) -> list[str]:
    """Those of the files `names` in `folder` that are data: of a dataset's folder its Arrow files, of others all."""
    if "dataset_dict.json" in names:
        splits = _read(folder, "dataset_dict.json").get("splits", [])
        log.info("input: %s: a dataset, all splits of which are read (%s); give one as a path", folder, _listed(splits))
    elif "dataset_info.json" not in names:
        return names
    if "state.json" in names:
        listed = [file.get("filename") for file in _read(folder, "state.json").get("_data_files", [])]
        return [name for name in listed if name in names]
    arrow = [name for name in names if name.endswith(".arrow") and not name.startswith(_PASSING)]
    return arrow or [name for name in names if name not in _METADATA]


def _read(folder: str, name: str) -> dict:
    with suppress(OSError, ValueError, RecursionError), open(os.path.join(folder, name), encoding="utf-8") as file:
        values = json.load(file)
        return values if isinstance(values, dict) else {}
    return {}


def _listed(names: object) -> str:
    return ", ".join(map(str, names)) if isinstance(names, list) else str(names)
