"""One side of a comparison, in a process of its own, with the Python of its environment (`run.py` starts it).

python benchmarks/peers/side.py MODULE FUNCTION FOLDER ROUND RESULT

FUNCTION gets the folder that text.py has filled and the round's number, which is its seed. Its costs (seconds, bytes:
the less the better) go to the file RESULT.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import json
from importlib import import_module


def main() -> None:
    module, function, folder, seed, result = sys.argv[1:]
    side = getattr(import_module(f"benchmarks.peers.{module}"), function)
    costs: dict[str, float] = side(Path(folder), int(seed))
    Path(result).write_text(json.dumps(costs))


if __name__ == "__main__":
    main()
