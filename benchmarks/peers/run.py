"""Our speed beside that of others at the same jobs, on the same text, in turns: one table of ratios.

    make peers                                         # on the sample that ships; writes the page of peers
    python benchmarks/peers/run.py --text novels/ --vocabulary vocab.txt --train train.tsv --dev dev.tsv [--publish]

Each peer is installed by pip into an environment of its own under OUT/environments, once. Labelled texts (columns
label, text_a) are for fine-tuning, which is not run without them. A side is a process on one thread; sides take turns,
ours first. OUT/results.json gets each case as it is done, `--only` leaves the others' results there as they are. OUT
must be on a disk, with 2 GB free. `--publish` writes benchmarks/peers/README.md and the results that it is made from. A
peer that cannot be installed or run is named in the table with the reason.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import json
import os
import platform
import shutil
import subprocess
import time
from typing import Any

from benchmarks.harness import in_process, in_turns, matching, parser
from benchmarks.peers import side
from benchmarks.peers.cases import CASES, Case
from benchmarks.peers.environments import NotInstalledError, python_of
from benchmarks.peers.table import publish, short
from benchmarks.peers.text import prepare
from reread.preprocessing.errors import one_line

SIDE_SECONDS = 1800.0
ONE_THREAD = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}


class FailedError(Exception):
    """A side did not return costs; the message is the last line that it printed."""


def run_side(python: Path | str, of: tuple[str, str], folder: Path, seed: int, log: Path) -> dict[str, float]:
    """The costs of one round of a side. Raises `FailedError`."""
    result = log.with_suffix(".json")
    result.unlink(missing_ok=True)
    command = [str(python), side.__file__, *of, str(folder), str(seed), str(result)]
    with log.open("w") as printed:
        try:
            environment = os.environ | ONE_THREAD
            subprocess.run(command, stdout=printed, stderr=printed, timeout=SIDE_SECONDS, env=environment, check=False)
        except subprocess.TimeoutExpired:
            raise FailedError(f"{of[1]} was not done in {SIDE_SECONDS:.0f} s") from None
    if not result.exists():
        lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
        raise FailedError(f"{of[1]}: {lines[-1][:200] if lines else 'it printed nothing'}")
    costs: dict[str, float] = json.loads(result.read_text())
    return costs


def run_case(case: Case, work: Path, out: Path, rounds: int) -> dict[str, Any]:
    """Costs of both sides round by round, or why there are none."""
    folder = work / case.folder
    if case.needs and not (folder / case.needs).exists():
        return {"not run": f"no {case.needs} was given"}
    try:
        python = python_of(case.environment, out / "environments")
        written = folder / f"{case.theirs[1]}.written"
        if case.writer and not written.exists():
            run_side(python, case.writer, folder, 0, out / f"{case.name}-writer.log")
            written.touch()
        pythons = {"ours": (Path(sys.executable), case.ours), "theirs": (python, case.theirs)}
        seeds = {name: iter(range(rounds)) for name in pythons}
        return dict(
            in_turns(
                {
                    name: lambda name=name, at=at: run_side(  # type: ignore[misc]
                        *at, folder, next(seeds[name]), out / f"{case.name}-{name}.log"
                    )
                    for name, at in pythons.items()
                },
                rounds,
            )
        )
    except NotInstalledError as error:
        return {"not run": f"pip: {error}".replace("|", "/")}
    except FailedError as error:
        return {"not run": str(error).replace("|", "/")}


def machine() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return f"{len(models)} cores ({models[0] if models else platform.machine()}), Python {platform.python_version()}"


@one_line()
def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--out", type=Path, default=Path("runs/peers"))
    arguments.add_argument(
        "--text", nargs="*", default=[], help="files or folders of text; the sample if none is given"
    )
    arguments.add_argument("--about", default="the sample that ships", help="what --text is, for the page of results")
    arguments.add_argument("--vocabulary", type=Path, help="vocab.txt; trained on the text if it is not given")
    arguments.add_argument("--train", type=Path, help="labelled texts")
    arguments.add_argument("--dev", type=Path)
    arguments.add_argument("--megabytes", type=float, default=10.0, help="text to preprocess")
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--only", default="*", help="glob of cases, for example 'megatron*'")
    arguments.add_argument("--publish", action="store_true")
    options = arguments.parse_args()
    chosen = matching([case.name for case in CASES], [options.only])
    out = options.out.resolve()
    work, kept = out / "text", out / "results.json"
    if not work.exists():
        try:
            out.mkdir(parents=True, exist_ok=True)
            labelled = (options.train, options.dev) if options.train and options.dev else None
            in_process(prepare, work, options.text, options.vocabulary, labelled, options.megabytes)
        except BaseException:
            shutil.rmtree(work, ignore_errors=True)
            raise
    results = json.loads(kept.read_text()) if kept.exists() else {"cases": {}}
    results |= {"machine": machine(), "text": options.about, "rounds": options.rounds}
    for case in CASES:
        if case.name in chosen:
            begin = time.monotonic()
            results["cases"][case.name] = found = run_case(case, work, out, options.rounds)
            kept.write_text(json.dumps(results, indent=1))
            print(f"{case.name}: {found.get('not run', 'done')} ({time.monotonic() - begin:.0f} s)", flush=True)
    print(f"\n{short(results)}")
    if options.publish:
        publish(results)


if __name__ == "__main__":
    main()
