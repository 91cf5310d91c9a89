"""Labelled files: bytes and values of each format that may be others."""

import json
from pathlib import Path
from random import Random
from typing import Any

from reread.preprocessing.labelled.read import read_examples
from reread.preprocessing.labelled.splits import duplicates, labels_of
from tests.fuzz.common import Case, changed_bytes, changed_json
from tests.preprocessing.labelled.test_hostile_files import BYTES, JSON


def prepare(folder: Path) -> Case:
    def case(random: Random) -> None:
        stated: str | None
        task: Any
        if random.random() < 0.5:
            stated, (task, values) = random.choice(tuple(JSON.items()))
            data = json.dumps(changed_json(random, values)).encode()
        else:
            (stated, task), data = random.choice(tuple(BYTES.items()))
            data = changed_bytes(random, data * random.choice((1, 3)))
        path = folder / random.choice(("a.txt", "a.json", "a.tsv", "a.csv", "articles.xml", "a.zst", "a.gz", "a.tar"))
        path.write_bytes(data)
        found = read_examples(
            path,
            task,
            stated if random.random() < 0.8 else None,
            wrong=random.choice(("skip", "skip", "refuse")),
            labels=random.choice(("one", "set", "number")) if task == "classify" else "one",
        )
        duplicates(found.examples, found.examples)
        labels_of(found.examples)

    return case
