"""`python -m tests.fuzz [TARGET] [NUMBER]`: all fuzzers in turn, a target alone, or one case with its traceback.

FUZZ_CASES (default 500,000) is how many cases are tried together, from number FUZZ_FIRST on. Each process may take two
gigabytes of memory more than it begins with. The exit status is 1 if anything but one line was raised.
"""

import logging
import os
import resource
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from random import Random

from tests.fuzz.common import fault
from tests.fuzz.targets import TARGETS

_ROUND = 1000
_MEMORY = 2 << 30


def main() -> int:
    logging.disable()
    with open("/proc/self/statm") as file:
        space = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (space + _MEMORY, resource.RLIM_INFINITY))
    chosen = sys.argv[1:2] or [*TARGETS]
    with tempfile.TemporaryDirectory(prefix="reread-fuzz-") as folder:
        cases = {}
        for name in chosen:
            (Path(folder) / name).mkdir()
            cases[name] = TARGETS[name](Path(folder) / name)
        if len(sys.argv) > 2:
            cases[chosen[0]](Random(int(sys.argv[2])))
            return 0
        most, begin = int(os.environ.get("FUZZ_CASES", "500000")), int(os.environ.get("FUZZ_FIRST", "0"))
        tried, faults, seen = Counter[str](), Counter[str](), set[str]()
        while sum(tried.values()) < most:
            for name, case in cases.items():
                started = time.process_time()
                for number in range(begin + tried[name], begin + tried[name] + min(_ROUND, most)):
                    if (error := fault(case, number)) is not None:
                        faults[name] += 1
                        kind = f"{name} {type(error).__name__} {str(error)[:60]}"
                        if kind not in seen:
                            seen.add(kind)
                            print(f"  {name} {number}: {error!r:.300}", flush=True)
                tried[name] += min(_ROUND, most)
                cost = time.process_time() - started
                print(f"{name}: {tried[name]:,} cases, {faults[name]:,} uncaught ({cost:.0f} s of CPU)", flush=True)
        print(f"{sum(tried.values()):,} cases, {sum(faults.values()):,} uncaught")
    return int(sum(faults.values()) > 0)


if __name__ == "__main__":
    sys.exit(main())
