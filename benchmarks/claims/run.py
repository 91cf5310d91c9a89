"""The claims of the papers, each decided by an experiment: one table.

    python benchmarks/claims/run.py                              # the sample that ships is the natural text
    python benchmarks/claims/run.py --only reach skim --seeds 100 101
    python benchmarks/claims/run.py --text books/*.txt --about "English books" --publish

Small models are trained by the trainer on corpora made for a claim, or on natural text, and evaluated as `reread
evaluate` does. A claim holds if a sign test over eight seeds finds all its conditions met, does not hold if it finds
one contradicted, and is undecided otherwise; conditions and seeds were written before the figures.
OUT/results.jsonl gets each result as it is done, so a run that was killed goes on, and settings that changed run again.
The table has all that OUT holds, also what `--only` leaves out; `--publish` writes it and its pictures into
docs/claims.md. One thread.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import os
import shutil
import time
from collections.abc import Sequence
from typing import Any

from benchmarks.claims.experiment import SEEDS, Experiment, read_text
from benchmarks.claims.questions import register
from benchmarks.claims.table import EXPERIMENTS, publish, table
from benchmarks.harness import add_result, parser, read_results
from reread.preprocessing.errors import one_line

SAMPLE = Path(__file__).resolve().parents[2] / "pipeline" / "sample" / "en"


def missing(
    chosen: list[Experiment], seeds: Sequence[int], text: str, results: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """The results that are not there yet, without figures: all of a seed before those of the next."""
    there = {(one["experiment"], one["side"], one["seed"], one["key"]) for one in results}
    wanted = [
        {"experiment": one.name, "side": side, "seed": seed, "key": one.key(side, text)}
        for seed in seeds
        for one in chosen
        for side in one.sides
    ]
    return [one for one in wanted if tuple(one.values()) not in there]


@one_line()
def main() -> None:
    arguments = parser(__doc__)
    names = [one.name for one in EXPERIMENTS]
    arguments.add_argument("--only", nargs="+", choices=names, metavar="NAME", help=", ".join(names))
    arguments.add_argument("--seeds", nargs="+", type=int, default=SEEDS)
    arguments.add_argument("--out", type=Path, default=Path("runs/claims"))
    arguments.add_argument("--text", nargs="+", type=Path, help="files of natural text, .txt or .txt.xz")
    arguments.add_argument("--about", default="the English sample that ships", help="what --text is, for the page")
    arguments.add_argument("--publish", action="store_true")
    options = arguments.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    import torch

    torch.set_num_threads(1)
    register()
    chosen = [one for one in EXPERIMENTS if (one.name in options.only if options.only else one.by_default)]
    text = read_text(options.text or sorted(SAMPLE.glob("*.txt")))
    options.out.mkdir(parents=True, exist_ok=True)
    for stale in options.out.glob("corpus-*"):  # of another text, perhaps, or half written
        shutil.rmtree(stale)
    path = options.out / "results.jsonl"
    by_name = {one.name: one for one in EXPERIMENTS}
    for result in missing(chosen, options.seeds, text, read_results(path)):
        begin = time.process_time()
        figures = by_name[result["experiment"]].run(result["side"], result["seed"], options.out, text)
        spent = round(time.process_time() - begin, 1)
        about = options.about if by_name[result["experiment"]].reads_text else None
        add_result(path, {**result, "figures": figures, "cpu_seconds": spent, "text": about})
        print(f"{result['experiment']}, {result['side']}, seed {result['seed']}: {spent} s", flush=True)
    keys = {(one.name, side): one.key(side, text) for one in EXPERIMENTS for side in one.sides}
    results = [one for one in read_results(path) if keys.get((one["experiment"], one["side"])) == one["key"]]
    results = [one for one in results if one["seed"] in options.seeds]
    print(f"\n{table(results)}")
    if options.publish:
        publish(results)


if __name__ == "__main__":
    main()
