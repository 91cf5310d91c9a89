"""Names and texts of others on a terminal: nothing in them moves the cursor, renames the window or forges a line."""

import io
import logging
import sys
from pathlib import Path

import pytest
from rich.table import Table
from rich.text import Text

from reread.pipeline.cli import _status_of_command
from reread.pipeline.display.terminal import Terminal
from reread.preprocessing.errors import LineFormatter

EVIL = "a\x1b]0;owned\x07\x1b[2J\x9b31m\nb.txt"
SHOWN = r"a\x1b]0;owned\x07\x1b[2J\x9b31m\nb.txt"


def controls(text: str) -> set[str]:
    return {one for one in text if one != "\n" and not one.isprintable()}


def test_a_log_line_shows_control_characters_as_python_writes_them() -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(LineFormatter("%(message)s"))
    log = logging.Logger("test")
    log.addHandler(handler)
    log.info("%s: left out, and https://me:hush@host/x too", EVIL)
    try:
        raise ValueError(EVIL)
    except ValueError:
        log.exception("failed")
    first, *rest = stream.getvalue().splitlines()
    assert first == f"{SHOWN}: left out, and https://...@host/x too"
    assert rest[0] == "failed" and rest[-1] == "b.txt" and r"ValueError: a\x1b]0;owned" in rest[-2]
    assert not controls(stream.getvalue())


def test_only_colours_of_our_own_control_the_terminal() -> None:
    stream = io.StringIO()
    console = Terminal(file=stream, force_terminal=True, width=200, highlight=False)
    table = Table(title=EVIL)
    table.add_row(Text(EVIL, style="bold"))
    console.print(table)
    console.print(Text(EVIL, style="bold red"))
    written = stream.getvalue()
    assert "\x1b[1;31m" in written and "\x1b]" not in written and "\x1b[2J" not in written
    assert not {"\x07", "\x9b"} & set(written) and r"a\x1b]0;owned\x1b[2J\x9b31m" in written


def test_a_file_with_control_characters_in_its_name_and_text_can_be_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / EVIL).write_text(f"Some text, {EVIL}, and more.\n")
    (tmp_path / f"{EVIL}.jsonl").write_text("no JSON\n")
    monkeypatch.setattr(sys, "argv", ["reread", "peek", str(tmp_path)])
    assert _status_of_command(False) == 0
    shown = capsys.readouterr()
    assert SHOWN.partition("\\n")[0] in shown.out and not controls(shown.out + shown.err)
    monkeypatch.setattr(sys, "argv", ["reread", "peek", str(tmp_path / f"not {EVIL}")])
    assert _status_of_command(False) == 2
    line = capsys.readouterr().err
    assert line.count("\n") == 1 and SHOWN in line and not controls(line)
