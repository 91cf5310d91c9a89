"""The checksums in a `manifest.json`: one of its own values, and one of each file of the tokenizer beside it.

The manifest also holds the checksums of the shards, so no byte of a corpus can change unnoticed.
"""

import json
from hashlib import md5
from pathlib import Path
from typing import Any

from reread.preprocessing.corpus.job import trusting
from reread.preprocessing.errors import DamagedError, UserError, first_line
from reread.preprocessing.files import open_file
from reread.preprocessing.json_values import loads

CHECKSUM, TOKENIZER_FILES = "checksum", "tokenizer_files"
LARGEST = 1 << 28
"""The maximum size of a manifest in bytes, and of the values that are parsed from it."""


def add_checksum(folder: Path, values: dict[str, Any]) -> bytes:
    """`values` as JSON, with the MD5 of each file in `folder`/tokenizer and an MD5 over all of these values."""
    values = {**values, TOKENIZER_FILES: {path.name: _md5(path) for path in _tokenizer_files(folder)}}
    values = json.loads(json.dumps(values))  # as they will be read: keys are text, tuples are lists
    return json.dumps({CHECKSUM: _checksum(values), **values}, ensure_ascii=False, indent=1).encode()


def read_manifest(folder: Path) -> dict[str, Any]:
    """The values in `folder`/manifest.json, which `verify_checksum` then checks.

    Raises `DamagedError` if the file is not a JSON object, `UserError` if it is missing or cannot be read now.
    """
    path = folder / "manifest.json"
    try:
        with open_file(path) as file:
            values = _loads(file.read(LARGEST + 1))
    except FileNotFoundError:
        raise UserError(f"{path}: not there; is `{folder}` a corpus made by `reread preprocess`?") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})", error) from None
    except (ValueError, RecursionError) as error:
        raise DamagedError(
            f"{path}: not readable as JSON ({first_line(error)}); run `reread preprocess` again"
        ) from None
    if not isinstance(values, dict):
        raise DamagedError(f"{path}: not the manifest of a corpus; run `reread preprocess` again")
    return values


def has_valid_checksum(data: bytes) -> bool:
    """Whether `data` is a complete manifest that matches its checksum and names the files of its tokenizer."""
    try:
        values = _loads(data)
    except (ValueError, RecursionError):
        return False
    if not isinstance(values, dict) or not isinstance(values.get(TOKENIZER_FILES), dict):
        return False
    return bool(values.pop(CHECKSUM, None) == _checksum(values))


def verify_checksum(folder: Path, values: dict[str, Any], command: str) -> dict[str, Any]:
    """The values that `read_manifest` returned, without the checksums, after verifying them.

    The files of the tokenizer are not read if another process of a job has verified them.
    `command` is the command that made the folder, for the error message. Raises `DamagedError` if the values or the
    tokenizer's files differ from what was written, `UserError` if a file cannot be read now.
    """
    remedy = f"copy it again, or run `{command}` again"
    values = dict(values)
    if values.pop(CHECKSUM, None) != _checksum(values):
        raise DamagedError(f"{folder / 'manifest.json'}: its checksum does not match its contents; {remedy}")
    written = values.pop(TOKENIZER_FILES, None)
    if not isinstance(written, dict):
        raise DamagedError(f"{folder / 'manifest.json'}: names no files of a tokenizer; {remedy}")
    if trusting():
        return values
    try:
        found = {path.name: _md5(path) for path in _tokenizer_files(folder)}
    except OSError as error:
        raise UserError(f"{error.filename}: cannot be read ({error.strerror})", error) from None
    for name in sorted({*written, *found}):
        if written.get(name) != found.get(name):
            state = "altered since it was written" if name in written else "was not there when it was written"
            state = state if name in found else "missing"
            raise DamagedError(f"{folder / 'tokenizer' / name}: {state}; {remedy}")
    return values


def _loads(data: bytes | bytearray) -> Any:
    """Parse JSON; raises ValueError or RecursionError if `data` is not JSON, or is too large or too deeply nested."""
    if len(data) > LARGEST:
        raise ValueError(f"more than {LARGEST:,} bytes")
    return loads(data.decode(), LARGEST)


def _tokenizer_files(folder: Path) -> list[Path]:
    """The files of the tokenizer, except hidden files, which a file system or a file viewer may add."""
    tokenizer = folder / "tokenizer"
    return sorted(path for path in tokenizer.iterdir() if path.name[0] != ".") if tokenizer.is_dir() else []


def _md5(path: Path) -> str:
    return md5(path.read_bytes()).hexdigest()


def _checksum(values: dict[str, Any]) -> str:
    """The MD5 of `values` as read from JSON, whatever the order of their keys."""
    return md5(json.dumps(values, sort_keys=True).encode()).hexdigest()
