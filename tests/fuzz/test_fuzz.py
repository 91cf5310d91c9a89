"""Whatever a file or a setting holds, it is read or refused in one line; `make fuzz` tries the same for hours."""

import os
from pathlib import Path

import pytest

from tests.fuzz.common import fault
from tests.fuzz.targets import TARGETS

CASES = 4 * int(os.environ.get("REREAD_EXAMPLES", "50"))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("target", TARGETS)
def test_whatever_is_read_ends_in_one_line_at_worst(target: str, tmp_path: Path) -> None:
    case = TARGETS[target](tmp_path)
    for number in range(CASES):
        error = fault(case, number)
        assert error is None, f"{target} {number}: `python -m tests.fuzz {target} {number}` shows it: {error!a}"
