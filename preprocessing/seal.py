"""What a `manifest.json` says, sealed: one checksum over all of it, and one over each file of the tokenizer beside it.

The shards have checksums of their own in the manifest; so no byte of a corpus can change unnoticed.
"""

import json
from hashlib import md5
from pathlib import Path
from typing import Any

from preprocessing.errors import DamagedError, UserError, first_line

CHECKSUM, TOKENIZER_FILES = "checksum", "tokenizer_files"


def seal(folder: Path, values: dict[str, Any]) -> bytes:
    """`values` as JSON with the MD5 of each file in `folder`/tokenizer, and of all this together."""
    values = {**values, TOKENIZER_FILES: {path.name: _md5(path) for path in _tokenizer_files(folder)}}
    return json.dumps({CHECKSUM: _checksum(values), **values}, ensure_ascii=False, indent=1).encode()


def read_manifest(folder: Path) -> dict[str, Any]:
    """What `folder`/manifest.json says, its seal not looked at yet.

    Raises `DamagedError` if it is no JSON of a dictionary, `UserError` if it is not there or cannot be read now.
    """
    path = folder / "manifest.json"
    try:
        values = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise UserError(f"{path}: not there; is `{folder}` a corpus made by `reread preprocess`?") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError) as error:
        raise DamagedError(
            f"{path}: not readable as JSON ({first_line(error)}); run `reread preprocess` again"
        ) from None
    if not isinstance(values, dict):
        raise DamagedError(f"{path}: not the manifest of a corpus; run `reread preprocess` again")
    return values


def unseal(folder: Path, values: dict[str, Any], command: str) -> dict[str, Any]:
    """`values`, as `read_manifest` gave them, without the seal; `command` makes the folder.

    Raises `DamagedError` unless they, and the files of the tokenizer, are as they were written; `UserError` where a
    file cannot be read now.
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
        raise UserError(f"{error.filename}: cannot be read ({error.strerror})") from None
    for name in sorted({*written, *found}):
        if written.get(name) != found.get(name):
            state = "altered since it was written" if name in written else "was not there when it was written"
            state = state if name in found else "missing"
            raise DamagedError(f"{folder / 'tokenizer' / name}: {state}; {remedy}")
    return values


def _tokenizer_files(folder: Path) -> list[Path]:
    """But for hidden ones, which a file system or a viewer may leave."""
    tokenizer = folder / "tokenizer"
    return sorted(path for path in tokenizer.iterdir() if path.name[0] != ".") if tokenizer.is_dir() else []


def _md5(path: Path) -> str:
    return md5(path.read_bytes()).hexdigest()


def _checksum(values: dict[str, Any]) -> str:
    """Of what JSON keeps: keys become text there."""
    return md5(json.dumps(json.loads(json.dumps(values)), sort_keys=True).encode()).hexdigest()
