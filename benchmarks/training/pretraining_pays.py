"""What pretraining for minutes is worth: scores of a token task and of a text task by the tokens pretrained on.

    python benchmarks/training/pretraining_pays.py --text novels/ --ner train.txt --reviews train.tsv dev.tsv

A small NEZHA (recipes/pays.yaml) is pretrained once on `--text` and on the reviews without their labels, and fine-tuned
from random weights and from checkpoints on the way: entities of the People's Daily (1,500 sentences; strict F1 on the
file's last 750) and the opinion of ChnSentiCorp's reviews (800 and 120 labels, the first 62 tokens; accuracy on its
dev texts). A seed draws the labelled examples, the head, the order, and of random starts all weights. Simple baselines
learn from the same examples. The last checkpoint is scored, once. Columns are ways to fine-tune; figures are means over
seeds and their standard errors.

OUT/results.jsonl gets each figure as it is done, and the pretraining continues, so a run that was killed goes on. One
thread. OUT/log has what the commands log.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import json
import logging
import os
import shutil
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from hashlib import md5
from typing import Any, NamedTuple

import numpy as np

from benchmarks.claims.tuned_experiment import score_of, write_lines
from benchmarks.claims.tuned_table5 import labelled, read_reviews, tagged
from benchmarks.harness import add_result, heading, parser, read_results, row
from reread.pipeline.commands.preprocess import preprocess
from reread.pipeline.recipe.load import load_recipe, recipe_values
from reread.pipeline.recipe.task import finetune_recipe
from reread.pipeline.run_folder.export import export
from reread.pipeline.run_folder.train import train
from reread.preprocessing.errors import one_line
from reread.preprocessing.labelled.read import read_examples
from reread.training.run.files import RUNS
from reread.training.scoring.baselines import BagOfGrams, KnownEntities
from reread.training.scoring.entities import entities

RECIPES = Path(__file__).resolve().parent / "recipes"
PRETRAINING = str(RECIPES / "pays.yaml")
SENTENCES, TESTED = 1500, 750
TASKS = {"ner": (SENTENCES, 3), "reviews-800": (800, 4), "reviews-120": (120, 12)}
"""The labelled examples of each task, and epochs."""
READ = 62
"""Characters of a review that the bag reads, as many as the models."""
BASELINE = "-"
"""The start of a baseline."""


class Way(NamedTuple):
    """A way to fine-tune."""

    name: str
    overrides: tuple[str, ...] = ()
    head_first: bool = False
    """Whether the head alone learns in the first epoch."""


FAST_HEAD = ("optimizer.learning_rate=4e-3", "optimizer.layer_decay=0.35")
"""4e-3 for the head, and 1.4e-3, 4.9e-4 and 1.7e-4 for the layers and the embeddings below it."""
CLS, MEAN = ("task.pooling=cls",), ("task.pooling=mean",)
FAST = "optimizer.learning_rate=2e-3"
PLAIN = ("tokens", "[CLS]", "mean", "[CLS], 2e-3", "mean, 2e-3")
"""The ways for random weights; the others are for what pretraining leaves."""
ALL_WAYS = {
    "ner": [Way("tokens")],
    "reviews": [
        Way("[CLS]", CLS),
        Way("mean", MEAN),
        Way("[CLS], faster head", (*CLS, *FAST_HEAD)),
        Way("mean, faster head", (*MEAN, *FAST_HEAD)),
        Way("[CLS], head first", CLS, True),
        Way("mean, head first", MEAN, True),
        Way("[CLS], 2e-3", (*CLS, FAST)),
        Way("mean, 2e-3", (*MEAN, FAST)),
    ],
}


class Cell(NamedTuple):
    task: str
    start: str
    """Steps of pretraining, "0" for random weights."""
    way: Way
    seed: int

    @property
    def recipe(self) -> str:
        return str(RECIPES / f"pays-{self.task.partition('-')[0]}.yaml")

    @property
    def result(self) -> dict[str, Any]:
        """The line of results, without its figure; `key` is a hash of the settings."""
        pretraining, task = recipe_values(PRETRAINING, [], "train"), recipe_values(self.recipe, [], "train")
        settings = [pretraining["train"], task, TASKS[self.task], self.way]
        key = md5(json.dumps(settings, sort_keys=True, default=str).encode()).hexdigest()[:8]
        return {"task": self.task, "start": self.start, "way": self.way.name, "seed": self.seed, "key": key}


def write(data: Mapping[str, Sequence[Path]], seeds: Sequence[int]) -> None:
    """Write reviews.txt for pretraining and the examples of each task and seed, if they are not there."""
    if all(Path(f"data/{task}-{seed}.jsonl").exists() for task in TASKS for seed in seeds):
        return
    sentences = read_examples(data["ner"][0], "tag", "conll").examples
    reviews, dev = read_reviews(data["reviews"])
    text = "".join(one.text.strip() + "\n" for one in reviews)
    if not Path("reviews.txt").exists():
        Path("reviews.txt").write_text(text, encoding="utf-8")
    tags, labels = [tagged(one) for one in sentences], [labelled(one) for one in reviews]
    write_lines(Path("data/ner-test.jsonl"), tags[-TESTED:])
    write_lines(Path("data/reviews-test.jsonl"), [labelled(one) for one in dev])
    for task, (count, _) in TASKS.items():
        lines = tags[:-TESTED] if task == "ner" else labels
        for seed in seeds:
            drawn = np.random.default_rng(seed).permutation(len(lines))[:count]
            write_lines(Path(f"data/{task}-{seed}.jsonl"), [lines[place] for place in drawn])


def test_of(task: str) -> Path:
    return Path(f"data/{task.partition('-')[0]}-test.jsonl")


def pretrained(start: str, seed: int, text: Sequence[Path]) -> Path:
    """The export of a checkpoint, which is made if it is not there."""
    run = RUNS / (f"pays-random-{seed}" if start == "0" else "pays")
    output = run / f"export-{start}"
    if (output / "config.json").exists():
        return output
    sources = [{"paths": [str(path) for path in text]}, {"paths": ["reviews.txt"], "format": "document-per-line"}]
    given = [f"preprocess.input={json.dumps(sources, ensure_ascii=False)}"]
    if start == "0":
        given += [f"name={run.name}", f"train.seed={seed}", "train.steps=0"]
    recipe = load_recipe(PRETRAINING, given)
    if not (run / "checkpoints" / f"step-{int(start):08d}").exists():
        preprocess(recipe)
        train(recipe, [])
    return export(run, output, int(start))


def tuned(cell: Cell, init: Path) -> float:
    """Fine-tune as the cell says; the score of the last checkpoint."""
    name = f"tuned-{os.getpid()}"
    base = [*cell.way.overrides, f"task.train=data/{cell.task}-{cell.seed}.jsonl", f"train.seed={cell.seed}"]
    epochs = TASKS[cell.task][1]
    if cell.way.head_first:
        learning = ["classifier.*", *["*.pooler.*"] * ("mean" not in cell.way.name)]
        first = [f"train.trainable={json.dumps(learning)}", "finetune.epochs=1", f"name={name}-head", f"init={init}"]
        train(finetune_recipe(cell.recipe, [*base, *first]), [])
        init, epochs = export(RUNS / f"{name}-head", None), epochs - 1
    last = [f"finetune.epochs={epochs}", f"name={name}", f"init={init}"]
    train(finetune_recipe(cell.recipe, [*base, *last]), [])
    found = score_of(RUNS / name, test_of(cell.task))
    for folder in RUNS.glob(f"{name}*"):
        shutil.rmtree(folder)
    return found


def baseline(cell: Cell) -> float:
    """Of reviews a bag of one and two characters; of entities those of the examples, found again."""
    kind = "tag" if cell.task == "ner" else "classify"
    files = Path(f"data/{cell.task}-{cell.seed}.jsonl"), test_of(cell.task)
    known, tested = (list[Any](read_examples(path, kind, "jsonl").examples) for path in files)
    if kind == "tag":
        dictionary = KnownEntities([(one.tokens, one.tags) for one in known])
        pairs = [(set(entities(dictionary.tags(one.tokens))), set(entities(one.tags))) for one in tested]
        right = sum(len(found & gold) for found, gold in pairs)
        return 200 * right / sum(len(found) + len(gold) for found, gold in pairs)
    bag = BagOfGrams([one.text[:READ] for one in known], [one.label for one in known], unit="char")
    predicted = bag.predict([one.text[:READ] for one in tested])
    return 100 * statistics.fmean(a == one.label for a, one in zip(predicted, tested, strict=True))


def cells(starts: Sequence[str], tasks: Sequence[str], ways: Sequence[str], seeds: Sequence[int]) -> Iterator[Cell]:
    """All of a seed before those of the next."""
    for seed in seeds:
        for task in tasks:
            yield Cell(task, BASELINE, Way("baseline"), seed)
            for start in starts:
                for way in ALL_WAYS[task.partition("-")[0]]:
                    if (way.name in (ways or [way.name]) or task == "ner") and (start != "0" or way.name in PLAIN):
                        yield Cell(task, start, way, seed)


def figure(scores: Sequence[float]) -> str:
    if len(scores) < 2:
        return " ".join(f"{score:.1f}" for score in scores)
    return f"{statistics.fmean(scores):.1f} ± {statistics.stdev(scores) / len(scores) ** 0.5:.1f} ({len(scores)})"


def is_current(result: Mapping[str, Any]) -> bool:
    """Whether it is of the settings that the recipes have now."""
    known = {way.name: way for ways in ALL_WAYS.values() for way in ways} | {"baseline": Way("baseline")}
    way = known.get(result["way"])
    return way is not None and Cell(result["task"], result["start"], way, 0).result["key"] == result["key"]


def report(results: Sequence[Mapping[str, Any]]) -> None:
    """A table for each task: a row for each start, a column for each way."""
    for task in TASKS:
        found: dict[tuple[str, str], list[float]] = {}
        for one in results:
            if one["task"] == task and is_current(one):
                found.setdefault((one["start"], one["way"]), []).append(one["score"])
        ways = list(dict.fromkeys(way for _, way in found if way != "baseline"))
        heading(f"{task}: steps", *ways)
        for start in sorted({start for start, _ in found} - {BASELINE}, key=int):
            row(start, *(figure(found.get((start, way), [])) for way in ways))
        row("baseline", figure(found.get((BASELINE, "baseline"), [])), *[""] * (len(ways) - 1))
        print()


@one_line()
def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--text", nargs="+", type=Path, required=True, help="text to pretrain on")
    arguments.add_argument("--ner", nargs=1, type=Path, required=True, help="People's Daily: train.txt, or .xz")
    arguments.add_argument("--reviews", nargs=2, type=Path, required=True, help="ChnSentiCorp: train.tsv and dev.tsv")
    arguments.add_argument("--starts", nargs="+", default=["0", "250", "500", "1000", "2000", "4000"], help="steps")
    arguments.add_argument("--tasks", nargs="+", default=list(TASKS), choices=TASKS)
    arguments.add_argument("--ways", nargs="+", default=[], choices=[way.name for way in ALL_WAYS["reviews"]])
    arguments.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    arguments.add_argument("--out", type=Path, default=Path("runs/pretraining-pays"))
    options = arguments.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    import torch

    torch.set_num_threads(1)
    text = [path.resolve() for path in options.text]
    data = {name: [path.resolve() for path in getattr(options, name)] for name in ("ner", "reviews")}
    options.out.mkdir(parents=True, exist_ok=True)
    os.chdir(options.out)
    logging.basicConfig(level=logging.INFO, format="%(message)s", filename="log")
    write(data, options.seeds)
    path = Path("results.jsonl")
    results = read_results(path)
    there = {tuple(one[name] for name in ("task", "start", "way", "seed", "key")) for one in results}
    for cell in cells(options.starts, options.tasks, options.ways, options.seeds):
        if tuple(cell.result.values()) in there:
            continue
        begin = time.process_time()
        score = baseline(cell) if cell.start == BASELINE else tuned(cell, pretrained(cell.start, cell.seed, text))
        result = {**cell.result, "score": round(score, 2), "cpu_seconds": round(time.process_time() - begin, 1)}
        print(*result.values(), flush=True)
        add_result(path, result)
        results.append(result)
    report(results)


if __name__ == "__main__":
    main()
