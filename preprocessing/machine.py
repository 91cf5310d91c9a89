"""The machine that a process runs on: its system, and how many of its cores the process may use."""

import os
import sys

from reread.preprocessing.errors import UserError


def check_system() -> None:
    """Raises `UserError` on Windows, which lacks our file locks, and signals that stop a run with a checkpoint."""
    if sys.platform == "win32":
        raise UserError("reread runs on Linux and macOS; on Windows, install it in WSL 2 (docs/install.md)")


def cores() -> int:
    """The number of cores that this process may use; macOS cannot say, so there it is all of them."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
