"""The scripts of slurm/ filled in for a run and a cluster."""

import shlex
import sys
from pathlib import Path
from typing import Any

from reread.pipeline.recipe.slurm import SlurmSettings
from reread.pipeline.slurm.jobs import Element, Job
from reread.preprocessing.errors import CONTROL, UserError

SCRIPTS = Path(__file__).resolve().parents[2] / "slurm"


def render(job: Job, folder: Path) -> str:
    """The complete script of `job`, which can be submitted again by itself; `folder` is where it will be written.

    Raises `UserError` for a working folder whose name has line ends or other control characters.
    """
    if CONTROL.search(str(Path.cwd())):
        raise UserError(f"{Path.cwd()}: a job's folder has no control characters in its name; rename it")
    settings, number = job.settings, "%A_%a" if "array" in job.options else "%j"
    options = {
        "job-name": job.run if job.script == "pretrain" else f"{job.run}-{job.name}",
        "partition": settings.partition,
        "account": settings.account,
        "qos": settings.qos,
        "chdir": Path.cwd(),
        "output": folder / f"{job.name}-{number}.log",
        **job.options,
    }
    # above `set -eu`, which setup lines of sites seldom survive
    lines = [f"module load {module} || exit 1" for module in settings.modules]
    lines += [*_environment(settings), *settings.setup]
    lines.append(f"export SLURM_FOLDER={shlex.quote(str(folder))} RUN={shlex.quote(f'runs/{job.run}')}")
    lines.append(f"export TASKS_PER_NODE={settings.tasks} CPUS_PER_TASK={settings.cpus_per_task}")
    if settings.container:
        lines.append(f"export CONTAINER={shlex.quote(settings.container)}")
    lines += _table(job.elements) if job.elements else [f"set -- {shlex.join(job.arguments)}"]
    text = (SCRIPTS / f"{job.script}.sbatch").read_text(encoding="utf-8")
    return _with_options(text, options, settings.options).replace("#SITE\n", "\n".join(lines) + "\n")


def _table(elements: list[Element]) -> list[str]:
    """The shell lines with which each task of an array finds its run and arguments; Slurm keeps them with the job."""
    tasks = [f"    {at}) set -- {shlex.join([one.run, *one.arguments])} ;;" for at, one in enumerate(elements)]
    head = ["# task of the array: run, recipe, overrides", 'case "$SLURM_ARRAY_TASK_ID" in']
    other = '    *) echo "this script has no task $SLURM_ARRAY_TASK_ID" >&2; exit 2 ;;'
    return [*head, *tasks, other, "esac", 'export RUN="runs/$1"', "shift"]


def submit_script(jobs: list[Job], folder: Path) -> str:
    """submit.sh, which submits the chain; if one job is refused, those before it are cancelled."""
    lines = [_submission(job, jobs[at - 1].name if at else None) for at, job in enumerate(jobs)]
    return f"""#!/bin/bash
# Submits {folder.parent.name}: {in_order(jobs)}. What is done already is not done again.
set -euo pipefail
cd {shlex.quote(str(Path.cwd()))}
# Variables of the job that this may run in: sbatch would pass them on
unset ${{!SLURM_JOB@}} ${{!SLURM_ARRAY@}} ${{!SLURM_STEP@}} ${{!SLURM_NTASKS@}} ${{!SLURM_MEM@}} SLURM_RESTART_COUNT
declare -A jobs=()
trap 'status=$?; if [ $status -ne 0 ] && [ ${{#jobs[@]}} -gt 0 ]; then scancel "${{jobs[@]}}"; fi' EXIT
submit() {{
    job=$(sbatch --parsable --kill-on-invalid-dep=yes "${{@:2}}" {shlex.quote(str(folder))}/"$1.sbatch")
    jobs[$1]=${{job%%;*}}
    echo "$1 ${{jobs[$1]}}"
}}
{chr(10).join(lines)}
"""


def in_order(jobs: list[Job], numbers: dict[str, str] | None = None) -> str:
    """Names of `jobs` and their `numbers`, with arrows between those that wait for each other and commas elsewhere."""
    text = ""
    for at, job in enumerate(jobs):
        waits = at and (job.after is None or jobs[at - 1].name in job.after)
        text += " -> " if waits else ", " if at else ""
        text += f"{job.name} ({numbers[job.name]})" if numbers else job.name
    return text


def _submission(job: Job, before: str | None) -> str:
    """The line of submit.sh that submits `job`; `before` is the job of the line before."""
    after = job.after if job.after is not None else {before: "afterok"} if before else {}
    if not after:
        return f"submit {shlex.quote(job.name)}"
    waits = [f"{kind}:${{jobs[{name}]}}" for name, kind in after.items()]
    if job.options.get("dependency") == "singleton":
        waits.append("singleton")  # sbatch's --dependency replaces that of the script
    return f'submit {shlex.quote(job.name)} --dependency="{",".join(waits)}"'


def _environment(settings: SlurmSettings) -> list[str]:
    if settings.container and settings.environment is None:
        return []
    folder = settings.environment / "bin" if settings.environment else Path(sys.executable).parent
    return [f"export PATH={shlex.quote(str(folder.absolute()))}:$PATH"]


def _with_options(text: str, options: dict[str, Any], others: list[str]) -> str:
    """`text` with its #SBATCH lines replaced by these options, or these added after them."""
    lines = text.split("\n")
    for name, value in options.items():
        new = [] if value is None else [f"#SBATCH --{name}={shlex.quote(str(value))}"]
        at = [number for number, line in enumerate(lines) if line.startswith(f"#SBATCH --{name}=")]
        if at:
            lines[at[0] : at[0] + 1] = new
        else:
            end = lines.index("#SITE")
            lines[end:end] = new
    end = lines.index("#SITE")
    lines[end:end] = [f"#SBATCH {option}" for option in others]
    return "\n".join(lines)
