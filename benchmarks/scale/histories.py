"""The history of a long run: what a resume, a report and an export cost by the lines of metrics.jsonl, and a report by
the number of attempts.

    python benchmarks/scale/histories.py --folder /somewhere/with/1/GB

The run is a tiny NEZHA's of one step, whose checkpoint is put at the last step of a made file of metrics. A resume
opens its log a hundred lines before the end. Each cell is a process of its own: CPU seconds with imports, and the peak
of its anonymous memory (pages that are no file's), with what torch and matplotlib take. What lines cost is the
difference to the first row, which has next to none.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import json
import math
import tempfile
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from io import StringIO

from benchmarks.harness import Measured, exponent, heading, measured, parser, row
from benchmarks.random_corpus import random_corpus
from reread.preprocessing.errors import one_line

TAIL = 100
"""Lines past the checkpoint from which a run resumes."""
SECONDS = 60
"""Between two lines."""


def train_a_step(folder: Path) -> Path:
    """A run folder with a checkpoint of step 1."""
    from reread.pipeline.recipe.load import write_recipe
    from reread.pipeline.recipe.schema import Recipe, train_section
    from reread.training.trainer import train

    corpus = random_corpus(folder / "corpus", 100, [200] * 40)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    values = {
        "model": {"type": "nezha", **sizes},
        "data": {"corpus": str(corpus), "sequence_length": 48},
        "global_batch": 8,
        "micro_batch": 8,
        "steps": 1,
        "optimizer": {"learning_rate": 1e-3},
        "peak_tflops": 1.0,
        "threads": 1,
        "writers": [],
    }
    run = folder / "run"
    run.mkdir()
    recipe = Recipe.parse({"name": "run", "train": values}, "histories.py")
    write_recipe(recipe, run / "recipe.yaml")
    train(train_section(recipe), run)
    return run


def write_history(run: Path, lines: int, attempts: int) -> None:
    """Metrics of `lines` steps, each hundredth of held-out text too, and attempts that divide them equally."""
    with (run / "metrics.jsonl").open("w") as file:
        for step in range(1, lines + 1):
            loss = 2 + 8 / math.sqrt(step) + step * 7919 % 1000 / 1e4
            figures = {
                "loss": loss,
                "masked_lm_loss": loss,
                "masked_lm_accuracy": 1 / loss,
                "bits_per_token": loss / math.log(2),
                "learning_rate": 1e-4 * (1 - step / lines),
                "gradient_norm": 1 + loss / 7,
                "loss_scale": 1.0,
                "tokens": 12288.0,
                "tokens_per_second": 2e5 / loss,
                "seconds_per_step": loss / 16,
                "data_wait_share": 0.01 * loss / 3,
                "mfu": 0.4 + loss / 1000,
                "seconds_left": (lines - step) / 3,
                "skipped_steps": 0.0,
                "total_tokens": 12288.0 * step,
            }
            file.write(json.dumps({"step": step, "time": 1e9 + SECONDS * step, **figures}) + "\n")
            if step % 100 == 0:
                file.write(json.dumps({"step": step, "time": 1e9 + SECONDS * step, "validation_loss": loss}) + "\n")
    with (run / "history.jsonl").open("w") as file:
        for attempt in range(attempts):
            first, last = (lines * number // attempts for number in (attempt, attempt + 1))
            begin, end = (1e9 + SECONDS * (step + 0.5) for step in (first, last))
            how = "killed or lost (computing)" if attempt + 1 < attempts else "done"
            file.write(json.dumps({"event": "start", "time": begin, "step": first, "processes": 8}) + "\n")
            file.write(json.dumps({"event": "end", "time": end, "step": last, "how": how}) + "\n")
    (checkpoint,) = (run / "checkpoints").iterdir()
    checkpoint.rename(checkpoint.with_name(f"step-{lines:08d}"))


def resume(run: Path, lines: int) -> None:
    from reread.training.run.metrics import MetricsLog

    MetricsLog(run, lines - TAIL).close()


def report(run: Path, lines: int) -> None:
    from reread.pipeline.report.page import report as write_page

    with redirect_stdout(StringIO()):
        write_page([run])


def export(run: Path, lines: int) -> None:
    from reread.pipeline.run_folder.export import export as write_folder

    write_folder(run, None)


def compare(sides: Sequence[Callable[[Path, int], None]], run: Path, sizes: Sequence[tuple[int, int]]) -> None:
    """A row for each (lines, attempts), then the exponents between the rows after the first, by what varies."""
    names = [f"{side.__name__}: {unit}" for side in sides for unit in ("CPU s", "MB")]
    heading("lines", "attempts", *names)
    found = []
    for lines, attempts in sizes:
        costs = []
        for side in sides:
            write_history(run, lines, attempts)
            costs += cost(measured(side, run, lines))
        found.append(costs)
        row(f"{lines:,}", f"{attempts:,}", *(f"{one:.1f}" for one in costs))
    varied = 0 if sizes[1][0] != sizes[-1][0] else 1
    grown = [size[varied] for size in sizes]
    leasts = (0.3, 3.0) * len(sides)
    row("exponent", "", *map(exponent, [grown] * len(leasts), zip(*found, strict=True), leasts))


def cost(one: Measured) -> tuple[float, float]:
    return one.cpu_seconds, one.anonymous_megabytes


@one_line()
def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--folder", type=Path, default=Path("."), help="where 0.6 KB a line find room for a while")
    arguments.add_argument("--lines", type=int, nargs="*", default=[10_000, 100_000, 1_000_000])
    arguments.add_argument("--attempts", type=int, nargs="*", default=[30, 300, 3000], help="with 100,000 lines")
    options = arguments.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        run = train_a_step(Path(name))
        compare((resume, report, export), run, [(1000, 1), *((lines, 1) for lines in options.lines)])
        print()
        compare((report,), run, [(100_000, attempts) for attempts in [1, *options.attempts]])


if __name__ == "__main__":
    main()
