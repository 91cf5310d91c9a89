"""The Makefile's choices that no other test runs."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.conftest import ROOT


@pytest.mark.parametrize(
    ("here", "tested"),
    [
        (["3.10", "3.11", "3.13"], ["3.10", "3.13"]),
        (["3.12"], ["3.12"]),
        ([], []),
    ],
    ids=str,
)
def test_the_oldest_and_the_newest_python_that_runs_are_tested(
    tmp_path: Path, here: list[str], tested: list[str]
) -> None:
    for version in ("3.10", "3.11", "3.12", "3.13"):  # pyenv puts all on the PATH; those not chosen print an error
        shim = tmp_path / f"python{version}"
        shim.write_text(f"#!/bin/sh\nexit {0 if version in here else 127}\n")
        shim.chmod(0o755)
    done = subprocess.run(
        ["make", "test-versions", "MAKE=echo would make"],
        cwd=ROOT,
        env={"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    made = [line for line in done.stdout.splitlines() if line.startswith("would make")]
    assert made == [f"would make test-fast VENV=.venv-{one} INTERPRETER=python{one}" for one in tested]
    assert bool(tested) == (done.returncode == 0) == ("nothing was tested" not in done.stdout)
