"""The files of a run folder, as `report`, `show` and a run that continues read them."""

import json
from pathlib import Path
from random import Random

from reread.pipeline.recipe.load import load_recipe, write_recipe
from reread.pipeline.report.curves import attempt_rows
from reread.pipeline.report.page import write_report
from reread.pipeline.report.runs import read_run
from reread.pipeline.report.tables import evaluations, finetunings, recipe_differences, summary
from reread.training.run.history import read_history
from reread.training.run.metrics import read_evaluations, read_metrics
from tests.fuzz.common import Case, changed_bytes, changed_json

METRICS = [
    {"step": step, "loss": 9.0 / step, "lr": 1e-3, "tokens_per_second": 100.0, "total_tokens": 64, "time": 1e9 + step}
    for step in (1, 2, 3)
]  # fmt: skip
HISTORY = [{"time": 1e9, "step": 0, "processes": 1, "host": "a", "end": {"step": 3, "reason": "done", "time": 1e9 + 9}}]
EVALUATIONS = [{"step": 3, "split": "validation", "corpus": "x", "figures": {"loss": 3.0, "accuracy": 0.5}}]


def prepare(folder: Path) -> Case:
    write_recipe(load_recipe("quickstart", []), folder / "recipe.yaml")
    kept = {
        "recipe.yaml": (folder / "recipe.yaml").read_bytes(),
        "metrics.jsonl": b"".join(json.dumps(line).encode() + b"\n" for line in METRICS),
        "history.jsonl": b"".join(json.dumps(line).encode() + b"\n" for line in HISTORY),
        "evaluation.json": json.dumps(EVALUATIONS).encode(),
    }
    for name, data in kept.items():
        (folder / name).write_bytes(data)

    def case(random: Random) -> None:
        name = random.choice(tuple(kept))
        data = kept[name]
        if name.endswith(("l", "n")) and random.random() < 0.7 and name != "recipe.yaml":
            lines = [json.loads(line) for line in data.splitlines()]
            changed = changed_json(random, lines)
            lines = changed if isinstance(changed, list) else [changed]
            data = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
        else:
            data = changed_bytes(random, data)
        (folder / name).write_bytes(data)
        try:
            read_metrics(folder)
            read_history(folder)
            read_evaluations(folder)
            run = read_run(folder, 0)
            summary(run)
            attempt_rows(run)
            evaluations([run])
            finetunings([run])
            recipe_differences([run, run])
            if random.random() < 0.01:
                write_report([folder])
        finally:
            (folder / name).write_bytes(kept[name])

    return case
