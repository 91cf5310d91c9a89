"""The papers' claims, judged by fine-tuning: one table.

    python benchmarks/claims/tuned.py --novels A.txt B.txt C.txt --only far

Models that differ in one thing are pretrained, fine-tuned and scored by the functions of `reread preprocess`, `train`,
`finetune` and `evaluate`, by the recipes in benchmarks/claims/recipes. The last checkpoint is scored, once, on texts
that nothing was chosen by. A claim holds if the one row is better than the other by two standard errors, of seeds and
test texts together, and does not if it is worse by as much; with fewer than eight seeds it is undecided. It is made in
parts: what is published is not run again, OUT/results.jsonl gets each result as it is done, and runs are kept, so a run
that was killed goes on; `--publish` writes the table of all parts into docs/claims.md. An experiment whose data is not
given is left out. OUT/log has what the commands log. One thread.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import logging
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from benchmarks.claims.tuned_experiment import DATA, SEEDS, Judged, Tuned
from benchmarks.claims.tuned_table import RESULTS, TUNED, publish, table
from benchmarks.harness import add_result, parser, read_results
from reread.pipeline.recipe.schema import Ablation
from reread.preprocessing.errors import one_line

OPTIONS = {
    "novels": "Chinese novels, .txt or .txt.xz",
    "ner": "People's Daily: train.txt or train.txt.xz",
    "reviews": "ChnSentiCorp: train.tsv and dev.tsv",
    "books": "English books, .txt or .txt.xz",
    "imdb": "aclImdb/train, or a tar archive of it",
    "articles": "Hyperpartisan: articles-training-byarticle.xml, the ground truth beside it",
}


class Figure(NamedTuple):
    """What there is to run."""

    experiment: Tuned
    row: Ablation
    judged: Judged
    result: dict[str, Any]
    """The line of results, without scores."""


IDENTITY = "experiment", "row", "task", "seed", "key"


def figures(chosen: Sequence[Tuned], seeds: Sequence[int]) -> Iterator[Figure]:
    """All of a seed before those of the next."""
    for seed in sorted({seed for one in chosen for judged in one.tasks.values() for seed in judged.seeds(seeds)}):
        for one in chosen:
            for row, task, judged in one.cells():
                if seed in judged.seeds(seeds):
                    values = one.name, row.name, task, seed, one.key(row, judged)
                    yield Figure(one, row, judged, dict(zip(IDENTITY, values, strict=True)))


def identity(result: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(result[name] for name in IDENTITY)


def current(results: list[dict[str, Any]], seeds: Sequence[int]) -> list[dict[str, Any]]:
    """The results with these seeds and the settings that the recipes have now."""
    wanted = {identity(one.result) for one in figures(TUNED, seeds)}
    return [one for one in results if identity(one) in wanted]


@one_line()
def main() -> None:
    arguments = parser(__doc__)
    for name, about in OPTIONS.items():
        arguments.add_argument(f"--{name}", nargs="+", type=Path, default=[], help=about)
    arguments.add_argument("--only", nargs="+", choices=[one.name for one in TUNED])
    arguments.add_argument("--seeds", nargs="+", type=int, default=SEEDS)
    arguments.add_argument("--out", type=Path, default=Path("runs/claims-tuned"))
    arguments.add_argument("--publish", action="store_true")
    options = arguments.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    import torch

    torch.set_num_threads(1)
    data = {name: [path.resolve() for path in getattr(options, name)] for name in OPTIONS}
    chosen = []
    for one in TUNED:
        if lacks := [name for name in one.needs if not data[name]]:
            print(f"{one.name}: left out, because --{' and --'.join(lacks)} is not given")
        elif one.name in (options.only or [one.name]):
            chosen.append(one)
    options.out.mkdir(parents=True, exist_ok=True)
    os.chdir(options.out)
    logging.basicConfig(level=logging.INFO, format="%(message)s", filename="log")
    path = Path("results.jsonl")
    for one in chosen:
        one.write(DATA / one.name, data, options.seeds)
    published = current(read_results(RESULTS), SEEDS)
    there = {identity(one) for one in [*published, *read_results(path)]}
    for one, row, judged, result in figures(chosen, options.seeds):
        if identity(result) in there:
            continue
        begin = time.process_time()
        scores = one.run(row, result["seed"], judged)
        spent = round(time.process_time() - begin, 1)
        print(f"{' | '.join(map(str, result.values()))}: {sum(scores) / len(scores):.1f}, {spent} s", flush=True)
        add_result(path, {**result, "scores": [round(score, 2) for score in scores], "cpu_seconds": spent})
    known = {identity(one) for one in published}
    results = published + [one for one in current(read_results(path), SEEDS) if identity(one) not in known]
    print(f"\n{table(results)}")
    if options.publish:
        publish(results)


if __name__ == "__main__":
    main()
