"""Near-duplicates by `reread preprocess` and by datatrove's MinHash on the same text: time, memory and what is found.

    python benchmarks/data/near_duplicates.py TEXT... --python runs/peers/environments/datatrove/bin/python
        [--megabytes 10] [--rounds 3]

TEXT are files or folders, cut into documents of about 2,000 characters; a fifth of them get near-duplicates, in which
0.1 to 10 % of the words or Han characters are replaced. Each side reads them as JSON lines in a process of its own, on
one thread, with what it recommends: ours a similarity of 0.8, datatrove 14 bands of 8 rows, which find 92 % at 0.8.
Both take n-grams of 5. datatrove gets words by a regular expression, since its own way needs spaCy and is slower. A
pair is found if both documents are in one cluster. The exact similarity of a pair is that of its sets of n-grams,
computed here in plain Python. CPU seconds are those after the imports; ours also cleans and finds exact duplicates.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import json
import os
import random
import re
import resource
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from itertools import combinations
from typing import Any

from benchmarks.data.preprocess import cut
from benchmarks.harness import cpu_seconds, heading, in_turns, parser, ratio, row
from reread.preprocessing.errors import one_line

CHARACTERS = 2_000
BOUNDS = (0.95, 0.9, 0.85, 0.8, 0.75, 0.7, 0.6, 0.0)
"""Pairs are counted by their exact similarity, from each of these up to the one before."""
_UNIT = re.compile(r"[\u3400-\u9fff]|[^\W_\u3400-\u9fff]+")


def documents_of(paths: list[str]) -> Iterator[str]:
    from reread.preprocessing.config import InputSettings
    from reread.preprocessing.input.read import read
    from reread.preprocessing.input.sources import Piece, find_files

    settings = InputSettings(paths=paths)
    for file in find_files([settings]):
        for document in read(Piece(file.path, file.format), settings, lambda problem: None):
            yield from (piece for piece in cut(document.text, CHARACTERS) if piece.strip())


def with_near_duplicates(texts: list[str], generator: random.Random) -> tuple[list[str], list[list[int]]]:
    """All documents, shuffled, and the families: numbers of documents made from one."""
    made: dict[str, int] = {}  # exact duplicates are no part of this
    for number, text in enumerate(texts):
        made.setdefault(text, number)
        for _ in range(generator.choice((0, 0, 0, 0, 0, 0, 0, 0, 1, 3))):
            made.setdefault(_edited(text, 10 ** generator.uniform(-3, -1), generator), number)
    owned = [(number, text) for text, number in made.items()]
    generator.shuffle(owned)
    families = defaultdict(list)
    for place, (number, _) in enumerate(owned):
        families[number].append(place)
    return [text for _, text in owned], [family for family in families.values() if len(family) > 1]


def _edited(text: str, share: float, generator: random.Random) -> str:
    """Replace units by others of the text."""
    units = _UNIT.findall(text)
    return _UNIT.sub(lambda found: generator.choice(units) if generator.random() < share else found[0], text)


def similarity(first: str, later: str) -> float:
    a, b = ({tuple(units[n : n + 5]) for n in range(len(units) - 4)} for units in map(_units, (first, later)))
    return len(a & b) / max(1, len(a | b))


def _units(text: str) -> list[str]:
    return [unit.lower() for unit in _UNIT.findall(text)]


def reread(folder: Path) -> tuple[dict[int, Any], dict[str, float]]:
    import numpy as np

    from reread.preprocessing.config import PreprocessSettings
    from reread.preprocessing.execution.build import build_share
    from reread.preprocessing.execution.executors.base import Share

    (folder / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n")
    with tempfile.TemporaryDirectory(dir=folder) as output:
        values = {
            "input": {"paths": [str(folder / "documents.jsonl")]},
            "output": output,
            "tokenizer": {"path": str(folder / "vocab.txt")},
            "dedup": {"near": {}},
            "part_bytes": 2_000_000,
            "workers": 1,
        }
        settings = PreprocessSettings.parse(values, "benchmark")
        begin, costs = cpu_seconds(), {}
        for stage in ("read", "duplicates", "signatures", "near-duplicates", "clusters"):
            build_share(settings, stage, Share(0, 1))
            costs[stage] = cpu_seconds() - begin
        work = Path(output) / ".work"
        counts = [len(np.load(path)["documents"]) for path in sorted((work / "read").glob("*.npz"))]
        first = np.concatenate(([0], np.cumsum(counts)))
        parents = dict[int, int]()
        edges = [path for stage in ("signatures", "near-duplicates") for path in sorted((work / stage).glob("*.npz"))]
        for path in edges:
            for a, b, _ in np.load(path)["edges"].tolist():
                one, other = (int(first[number >> 32]) + number % 2**32 for number in (a, b))
                parents[_root(parents, other)] = _root(parents, one)
    taken = {"found": costs["clusters"], "near": costs["clusters"] - costs["duplicates"]}
    return {number: _root(parents, number) for number in list(parents)}, taken


def _root(parents: dict[int, int], number: int) -> int:
    while parents.setdefault(number, number) != number:
        number = parents[number]
    return number


def datatrove(folder: Path) -> tuple[dict[int, Any], dict[str, float]]:
    import struct

    from datatrove.executor.local import LocalPipelineExecutor
    from datatrove.pipeline.dedup import MinhashDedupBuckets, MinhashDedupCluster, MinhashDedupSignature, minhash
    from datatrove.pipeline.readers import JsonlReader

    class Words:
        def word_tokenize(self, text: str) -> list[str]:
            return _UNIT.findall(text)

    minhash.load_word_tokenizer = lambda language: Words()
    config = minhash.MinhashConfig()
    begin = cpu_seconds()
    with tempfile.TemporaryDirectory(dir=folder) as work:

        def run(name: str, tasks: int, *steps: Any) -> None:
            LocalPipelineExecutor([*steps], tasks=tasks, workers=1, logging_dir=f"{work}/{name}").run()

        read = JsonlReader(str(folder), glob_pattern="documents.jsonl")
        run("signatures", 1, read, MinhashDedupSignature(f"{work}/sigs", config))
        run("buckets", config.num_buckets, MinhashDedupBuckets(f"{work}/sigs", f"{work}/buckets", config=config))
        run("cluster", 1, MinhashDedupCluster(f"{work}/buckets", f"{work}/ids", config=config, save_cluster_id=True))
        taken = cpu_seconds() - begin
        data = b"".join(path.read_bytes() for path in sorted(Path(f"{work}/ids").glob("*.clusters")))
    return dict(struct.iter_unpack("<II", data)), {"found": taken, "near": taken}


def side(name: str, folder: Path) -> None:
    """Runs in the side's own interpreter."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    clusters, taken = {"reread": reread, "datatrove": datatrove}[name](folder)
    peak = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    values = {"clusters": clusters, **taken, "megabytes": peak / 1024, "before": before / 1024}
    (folder / f"{name}.json").write_text(json.dumps(values))


def run_side(name: str, python: str, folder: Path) -> dict[str, Any]:
    command = [python, __file__, "--side", name, "--folder", str(folder)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        sys.exit(f"{name}: {done.stderr.strip()[-2000:]}")
    values: dict[str, Any] = json.loads((folder / f"{name}.json").read_text())
    return values


def compare(texts: list[str], families: list[list[int]], sides: dict[str, list[dict[str, Any]]]) -> None:
    clusters = {name: {int(n): c for n, c in rounds[0]["clusters"].items()} for name, rounds in sides.items()}
    planted = {pair for family in families for pair in combinations(sorted(family), 2)}
    found: dict[str, set[tuple[int, int]]] = {}
    for name, of in clusters.items():
        members = defaultdict(list)
        for number, cluster in of.items():
            members[cluster].append(number)
        found[name] = {pair for one in members.values() for pair in combinations(sorted(one), 2)}
    exact = {pair: similarity(texts[pair[0]], texts[pair[1]]) for pair in planted.union(*found.values())}
    heading("exact similarity", "pairs", *(f"{name} finds" for name in clusters), "both")
    above = 1.01
    for bound in BOUNDS:
        pairs = {pair for pair, value in exact.items() if bound <= value < above}
        counts = [len(pairs & found[name]) for name in clusters]
        both = len(pairs.intersection(*found.values()))
        row(f"{bound} to {min(above, 1)}", len(pairs), *(f"{n} ({n / max(1, len(pairs)):.1%})" for n in counts), both)
        above = bound
    print()
    heading("", "CPU seconds", "times ours", "of near-duplicates alone", "times ours", "peak MB", "above the imports")
    ours = sides["reread"]
    for name, rounds in sides.items():
        cells = []
        for cost in ("found", "near"):
            mine, theirs = ([one[cost] for one in some] for some in (ours, rounds))
            cells += [f"{min(theirs):.2f}", ratio(mine, theirs)]
        peak = min(one["megabytes"] for one in rounds)
        row(name, *cells, f"{peak:.0f}", f"{peak - min(one['before'] for one in rounds):.0f}")


@one_line()
def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("text", nargs="*", help="files or folders of text")
    arguments.add_argument("--python", default=sys.executable, help="an interpreter that has datatrove")
    arguments.add_argument("--megabytes", type=float, default=10.0)
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--folder", type=Path, help="of the texts; a temporary one if it is not given")
    arguments.add_argument("--side", help="used by the benchmark itself")
    options = arguments.parse_args()
    if options.side:
        side(options.side, options.folder)
        return
    generator = random.Random(0)
    texts = list(documents_of(options.text))
    generator.shuffle(texts)
    sizes = iter(texts)
    chosen, size = [], 0.0
    while size < options.megabytes * 0.7e6 and (text := next(sizes, None)):
        chosen.append(text)
        size += len(text.encode())
    documents, families = with_near_duplicates(chosen, generator)
    with tempfile.TemporaryDirectory() as name:
        folder = options.folder or Path(name)
        with (folder / "documents.jsonl").open("w", encoding="utf-8") as file:
            file.writelines(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in documents)
        total = sum(len(text.encode()) for text in documents) / 1e6
        print(f"{len(documents):,} documents, {total:.1f} MB, best of {options.rounds} rounds\n")
        pythons = {"reread": sys.executable, "datatrove": options.python}
        sides = in_turns(
            {
                name: lambda name=name, python=python: run_side(name, python, folder)  # type: ignore[misc]
                for name, python in pythons.items()
            },
            options.rounds,
        )
        compare(documents, families, sides)


if __name__ == "__main__":
    main()
