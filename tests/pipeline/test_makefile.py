"""The Makefile's choices that no other test runs."""

import os
import subprocess
import sys
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


@pytest.mark.parametrize(
    ("target", "line"),
    [
        ("build-horovod", "make horovod: not for ROCm, where Horovod was never built"),
        ("apex", "make apex: needs a torch with CUDA, since apex is NVIDIA's"),
    ],
)
def test_by_rocm_what_is_nvidias_is_refused_in_one_line_before_anything_is_built(
    tmp_path: Path, target: str, line: str
) -> None:
    (tmp_path / "torch.py").write_text("class version: cuda, hip = None, '6.4'")
    source = tmp_path / "apex" / "optimizers" / "fused_lamb.py"
    source.parent.mkdir(parents=True)
    source.touch()
    (tmp_path / "pip.py").write_text("raise SystemExit('pip was run')")
    for made in (".torch", ".ready"):  # so that nothing is installed for the target
        (tmp_path / made).touch()
    done = subprocess.run(
        ["make", target, f"PYTHON={sys.executable}", f"VENV={tmp_path}", f"APEX={tmp_path}"],
        cwd=ROOT,
        # without what a make that runs the tests tells those below it
        env={name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
        | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    said = [one for one in done.stderr.splitlines() if not one.startswith("make: ")]
    assert done.returncode == 2 and len(said) == 1 and said[0].startswith(line), done.stderr
