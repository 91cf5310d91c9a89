"""The seal of a `manifest.json`: a checksum of its values, and one of each file of the tokenizer beside it.

The manifest holds checksums of the shards, so no byte of a corpus can change unnoticed.
"""

import json
from hashlib import md5
from pathlib import Path
from typing import Any

from preprocessing.errors import DamagedError, UserError, first_line

CHECKSUM, TOKENIZER_FILES = "checksum", "tokenizer_files"


def seal(folder: Path, values: dict[str, Any]) -> bytes:
    """`values` as JSON, with the MD5 of each file in `folder`/tokenizer and the MD5 of all of these values."""
    values = {**values, TOKENIZER_FILES: {path.name: _md5(path) for path in _tokenizer_files(folder)}}
    values = json.loads(json.dumps(values))  # as they will be read: keys are text, tuples are lists
    return json.dumps({CHECKSUM: _checksum(values), **values}, ensure_ascii=False, indent=1).encode()


def read_manifest(folder: Path) -> dict[str, Any]:
    """The values in `folder`/manifest.json; `unseal` checks them.

    Raises `DamagedError` if it is not a JSON object, `UserError` if it is not there or cannot be read now.
    """
    path = folder / "manifest.json"
    try:
        values = json.loads(path.read_bytes())
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


def is_sealed(data: bytes) -> bool:
    """Whether these are the bytes of a whole manifest that names the files of its tokenizer."""
    try:
        values = json.loads(data)
    except (ValueError, RecursionError):
        return False
    if not isinstance(values, dict) or not isinstance(values.get(TOKENIZER_FILES), dict):
        return False
    return bool(values.pop(CHECKSUM, None) == _checksum(values))


def unseal(folder: Path, values: dict[str, Any], command: str) -> dict[str, Any]:
    """The values that `read_manifest` returned, checked and without the seal; `command` made the folder.

    Raises `DamagedError` if they or the files of the tokenizer differ from what was written, `UserError` if a file
    cannot be read now.
    """
    remedy = f"copy it again, or run `{command}` again"
    values = dict(values)
    if values.pop(CHECKSUM, None) != _checksum(values):
        raise DamagedError(f"{folder / 'manifest.json'}: its checksum does not match its contents; {remedy}")
    written = values.pop(TOKENIZER_FILES, None)
    if not isinstance(written, dict):
        raise DamagedError(f"{folder / 'manifest.json'}: names no files of a tokenizer; {remedy}")
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


def _tokenizer_files(folder: Path) -> list[Path]:
    """The files of the tokenizer, without hidden ones, which a file system or a viewer may leave."""
    tokenizer = folder / "tokenizer"
    return sorted(path for path in tokenizer.iterdir() if path.name[0] != ".") if tokenizer.is_dir() else []


def _md5(path: Path) -> str:
    return md5(path.read_bytes()).hexdigest()


def _checksum(values: dict[str, Any]) -> str:
    """The MD5 of `values` as read from JSON, whatever the order of their keys."""
    return md5(json.dumps(values, sort_keys=True).encode()).hexdigest()
