"""A file of lines that is written part by part, and that a repeated command continues."""

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from glob import escape
from pathlib import Path
from typing import BinaryIO, NamedTuple

from reread.preprocessing.errors import UserError, writing
from reread.preprocessing.files import sync_folder, unfinished


class Continued(NamedTuple):
    lines: int
    """Lines that an interrupted command has left: whole parts."""
    write: Callable[[Iterable[str]], object]
    """Writes the lines of the next part, which stay whatever happens afterwards."""


@contextmanager
def continued_file(output: Path, key: str, part: int) -> Iterator[Continued]:
    """A file that lines are written to, `part` at a time; it becomes `output` when the block ends without an error.

    Until then it has a hidden name, by which the next command with the same `key` finds it. What is left of commands
    with other keys is removed. Raises `UserError` if it cannot be written.
    """
    path = unfinished(output.with_name(f"{output.name}.{key}"))
    if output.is_dir():
        raise UserError(f"{output}: is a folder; give the name of a file")
    with writing(output):
        output.parent.mkdir(parents=True, exist_ok=True)
        for other in output.parent.glob(unfinished(Path(f"{escape(output.name)}.*")).name):
            if other != path:
                other.unlink(missing_ok=True)
        with path.open("a+b") as file:
            lines, end = _whole_parts(file, part)
            file.truncate(end)

            def write(texts: Iterable[str]) -> None:
                file.writelines(f"{text}\n".encode() for text in texts)
                file.flush()
                os.fsync(file.fileno())

            yield Continued(lines, write)
        os.replace(path, output)
        sync_folder(output.parent)


def _whole_parts(file: BinaryIO, part: int) -> tuple[int, int]:
    """The lines and the bytes of the whole parts that a file begins with."""
    file.seek(0)
    lines, end, position = 0, 0, 0
    for number, line in enumerate(file, 1):
        position += len(line)
        if number % part == 0 and line.endswith(b"\n"):
            lines, end = number, position
    return lines, end
