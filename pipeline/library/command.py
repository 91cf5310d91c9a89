"""Runs a `reread` command for a program: in a process of its own, so that it may start others and be interrupted."""

import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

import reread
from reread.preprocessing.errors import UserError

_ERROR = "reread: "
"""How the line of an error begins."""


def run_command(arguments: Iterable[str]) -> None:
    """Run `reread ARGUMENTS` to its end; what it prints is printed here, in a notebook's cell, too.

    An interruption (Ctrl-C, a notebook's stop) reaches the command, which saves what it has, and is then raised here.
    Raises `UserError` with the command's own line if it fails.
    """
    # By its file: with -m a folder `reread` in the working folder, such as a clone's, would be taken for it.
    command = [sys.executable, str(Path(reread.__file__).with_name("__main__.py")), *arguments]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, encoding="utf-8", errors="replace"
    )
    last = ""
    assert process.stdout is not None
    try:
        for line in process.stdout:
            print(line, end="", flush=True)
            last = line.removeprefix(_ERROR).strip() if line.startswith(_ERROR) else last
        status = process.wait()
    except KeyboardInterrupt:
        process.send_signal(signal.SIGTERM)
        print(process.communicate()[0], end="", flush=True)
        raise
    finally:
        process.kill()  # of a process that has ended this does nothing
    if status:
        raise UserError(last or f"`reread {command[2]}` ended with status {status}; the lines above say why")


def path_of(given: Any, what: str) -> Path:
    """The path of a run, or of the folder of a model. Raises `UserError` for what is none; `what` it was given for."""
    if not isinstance(given, str | Path) or not str(given):
        raise UserError(
            f"{what}: {given!r} is a {type(given).__name__}; give the name or folder of a run (of a Run its `folder`), "
            "or the folder of a model"
        )
    return Path(given)


def overrides_of(values: Mapping[str, Any], section: str = "") -> list[str]:
    """Nested values as the overrides of a command: {"data": {"corpus": "c"}} -> ["data.corpus=c"].

    Raises `UserError` for a value that no recipe can hold.
    """
    found: list[str] = []
    for name, value in values.items():
        key = f"{section}.{name}" if section else str(name)
        if isinstance(value, Mapping) and value:
            found += overrides_of(value, key)
        else:
            found.append(f"{key}={_written(value, key)}")
    return found


def _written(value: Any, key: str) -> str:
    """A value as the YAML of an override."""
    try:
        return yaml.safe_dump([_plain(value)], default_flow_style=True, allow_unicode=True, width=1 << 30).strip()[1:-1]
    except yaml.representer.RepresenterError:
        raise UserError(
            f"{key}: {value!r} is a {type(value).__name__}; give text, a number, a list or a dict"
        ) from None


def _plain(value: Any) -> Any:
    """`value` with paths as text, in lists and mappings, too."""
    if isinstance(value, Mapping):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return str(value) if isinstance(value, Path) else value
