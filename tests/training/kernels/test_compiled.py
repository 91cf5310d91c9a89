"""Every kernel compiles for the GPUs that users have, with none here."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from reread.training import kernels
from tests.conftest import ROOT, extra


def launched() -> set[str]:
    """The functions of training/kernels that are launched, `file.name`, by its source."""
    found = set()
    for path in Path(kernels.__path__[0]).glob("*.py"):
        tree = ast.parse(path.read_text())
        calls = [
            one.func.value
            for one in ast.walk(tree)
            if isinstance(one, ast.Call) and isinstance(one.func, ast.Subscript)
        ]
        found |= {f"{path.stem}.{call.id}" for call in calls if isinstance(call, ast.Name) and call.id.startswith("_")}
    return found


@pytest.mark.parametrize(
    "capability",
    [pytest.param(70, id="V100"), *(pytest.param(one, marks=pytest.mark.long) for one in (75, 80, 90, 100))],
)
@pytest.mark.slow
def test_every_kernel_compiles(tmp_path: Path, capability: int) -> None:
    extra("kernels", "triton")
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.training.kernels.compiling", str(capability)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(launched()) > 15
    needs_tensor_cores = {name for name in launched() if name.startswith("attention.")}
    assert set(done.stdout.split()) == launched() - (needs_tensor_cores if capability < 80 else set())
