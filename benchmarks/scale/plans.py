"""What `reread plan` takes for a model that does not fit, and for one that does, by the number of layers.

    python benchmarks/scale/plans.py

nezha-large with more and more layers, on one V100 of 16 GB and on one H100. Each cell is a process of its own: CPU
seconds after the imports, and how many steps were rehearsed.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from contextlib import redirect_stdout
from io import StringIO
from unittest.mock import patch

from benchmarks.harness import cpu_seconds, exponent, heading, in_process, parser, row
from reread.preprocessing.errors import UserError, one_line


def planned(layers: int, gpu: str) -> tuple[float, int, str]:
    """CPU seconds, rehearsals, and the chosen micro-batch or what does not fit."""
    from reread.pipeline.commands.plan import plan
    from reread.pipeline.estimate import arrangement

    shown = StringIO()
    with patch.object(arrangement, "rehearse", wraps=arrangement.rehearse) as rehearse, redirect_stdout(shown):
        begin = cpu_seconds()
        try:
            plan("nezha-large", [f"train.model.num_hidden_layers={layers}"], (1, gpu, 8, "ib100"), None)
            answer = next(line for line in shown.getvalue().splitlines() if line.startswith("chosen"))
        except UserError as error:
            answer = str(error)
        return cpu_seconds() - begin, rehearse.call_count, answer.split(";")[-1 if "chosen" in answer else 0]


@one_line()
def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--layers", nargs="+", type=int, default=[24, 48, 96])
    options = arguments.parse_args()
    heading("GPU", "layers", "CPU s", "rehearsals", "answer")
    for gpu in ("v100-16g", "h100-80g"):
        costs = []
        for layers in options.layers:
            spent, count, answer = in_process(planned, layers, gpu)
            costs.append(spent)
            row(gpu, layers, f"{spent:.1f}", count, answer)
        row(gpu, "exponent", exponent(options.layers, costs), "", "")


if __name__ == "__main__":
    main()
