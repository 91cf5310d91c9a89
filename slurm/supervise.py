#!/usr/bin/env python3
"""Runs the srun of a batch script: python3 supervise.py RUN COMMAND...   (plain Python 3.7, for the host's interpreter)

Decides what happens to the job when COMMAND ends:

- SIGUSR1 (Slurm's warning before the time limit) or SIGTERM (preemption) is passed to the processes as SIGTERM: they
  save a checkpoint and exit with 75; the job is requeued and continues with the same samples, unless the warning has
  come three times before a training did its first step;
- what only a person can change, as a mistake in the settings (status 2), ends the job;
- any other end is a fault: the job is requeued, until there were three faults without a new checkpoint between them.

Each attempt becomes a line of RUN/history.jsonl, with "event": "job". If a node dies, Slurm itself ends this process
and requeues the job.
"""

import datetime
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

HISTORY, EARLIER_HISTORY = "history.jsonl", "attempts.jsonl"  # the second one is that of earlier versions
STOPPED, REFUSED = 75, 2
KILLED_BY_TERM = 128 + signal.SIGTERM
FAULTS = 3


def main(run, command):
    job = own_job(os.environ)
    attempt = {
        "event": "job",
        "job": job,
        "restart": int(os.environ.get("SLURM_RESTART_COUNT", "0")),
        "nodes": os.environ.get("SLURM_JOB_NODELIST", ""),
        "began": now(),
    }
    report("attempt {} of job {} on {}: {}".format(attempt["restart"] + 1, job, attempt["nodes"], run))
    began_with = last_checkpoint(run)
    status, asked, warned = run_to_end(command, job)
    attempt.update(ended=now(), status=status, asked=asked, step=last_step(run), checkpoint=last_checkpoint(run))
    # A training that has done a step saves it when it is asked to stop
    attempt["too_short"] = warned and stopped(attempt) and "train" in command and attempt["checkpoint"] == began_with
    try:
        before = [*earlier(run / EARLIER_HISTORY, job), *earlier(run / HISTORY, job)]
        write_down(run / HISTORY, attempt)
        again, reason = decide([*before, attempt])
    except OSError as error:
        report(f"{run / HISTORY}: {error.strerror}; this attempt is not counted")
        again, reason = decide([attempt])
        if again and not stopped(attempt):  # uncounted faults could repeat forever
            again, reason = False, f"not requeued: status {status}, and faults cannot be counted"
    report(reason)
    if again and not requeue(job):
        report("not requeued; submit the script again to continue")
    return status


def own_job(environment):
    """The job's id; for a task of an array ARRAY_TASK, since the last task's own id names the whole array to Slurm."""
    if "SLURM_ARRAY_JOB_ID" in environment:
        return environment["SLURM_ARRAY_JOB_ID"] + "_" + environment["SLURM_ARRAY_TASK_ID"]
    return environment["SLURM_JOB_ID"]


def earlier(history, job):
    """The ended attempts of this job. Others are skipped, as are lines cut short by a node's death or a full disk."""
    found = []
    for line in history.read_bytes().splitlines() if history.exists() else []:
        try:
            attempt = json.loads(line.decode())
        except (ValueError, RecursionError):
            continue
        if is_attempt(attempt) and attempt["job"] == job:
            found.append(attempt)
    return found


def is_attempt(value):
    """Whether a line has the fields that `decide` needs."""
    kinds = {"status": int, "asked": bool, "step": (int, type(None)), "checkpoint": (int, type(None))}
    return (
        isinstance(value, dict)
        and "job" in value
        and all(name in value and isinstance(value[name], kind) for name, kind in kinds.items())
    )


def write_down(history, attempt):
    """Append the attempt as a line of its own, also after one that was cut short."""
    history.parent.mkdir(parents=True, exist_ok=True)
    with history.open("ab+") as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                file.write(b"\n")
        file.write(json.dumps(attempt).encode() + b"\n")


def run_to_end(command, job):
    """The exit status of `command`, as a shell gives it, whether the job was asked to stop, and whether by SIGUSR1.

    Signals go to the processes that srun started, not to srun, which would kill them.
    """
    asked = []

    def pass_on(number, frame):
        asked.append(number)
        report(f"{signal.Signals(number).name}: the processes are asked to save a checkpoint")
        subprocess.Popen(["scancel", "--signal=TERM", job])

    for number in (signal.SIGUSR1, signal.SIGTERM):
        signal.signal(number, pass_on)
    status = subprocess.Popen(command).wait()
    for number in (signal.SIGUSR1, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    return status if status >= 0 else 128 - status, bool(asked) or preempted(job), signal.SIGUSR1 in asked


def preempted(job):
    """Whether this attempt is being preempted; Slurm then sends SIGTERM only to the processes."""
    times = dict(re.findall(r"(StartTime|PreemptTime)=(\S+)", output(["scontrol", "show", "job", "-o", job])))
    return times.get("PreemptTime", "")[:1].isdigit() and times["PreemptTime"] >= times["StartTime"]


def decide(attempts):
    """(requeue?, reason) from the job's attempts so far, the last of which has just ended.

    Processes that srun ends because another failed may exit with 75, too: it counts only if the job was asked to stop.
    """
    last = attempts[-1]
    status = last["status"]
    if status == 0:
        return False, "done"
    if status == REFUSED:
        return False, "not requeued: something has to be corrected, as the log says"
    point = last["checkpoint"]
    since = "no checkpoint yet" if point is None else f"the last checkpoint is of step {point}"
    short = [one for one in attempts if one.get("too_short") is True and one["checkpoint"] == point]
    if last.get("too_short") is True and len(short) >= FAULTS:
        ways = "raise slurm.hours (--time), or lower slurm.warning_seconds (--signal)"
        return False, f"not requeued: no attempt of {FAULTS} did a step before its time limit was near; {ways}; {since}"
    if stopped(last):
        return True, f"requeue: it was asked to stop; {since}"
    faults = [one for one in attempts if one["checkpoint"] == point and not stopped(one)]
    if len(faults) < FAULTS:
        return True, f"requeue: status {status}, fault {len(faults)} of {FAULTS} at step {last['step']}; {since}"
    steps = ", ".join(str(fault["step"]) for fault in faults)
    return False, f"not requeued: status {status}, {FAULTS} faults without a new checkpoint, at steps {steps}; {since}"


def stopped(attempt):
    return attempt["asked"] and attempt["status"] in (STOPPED, KILLED_BY_TERM)


def requeue(job):
    """Requeue the job, unless it is being cancelled or was requeued already."""
    state = re.search(r"JobState=(\w+)", output(["scontrol", "show", "job", "-o", job]))
    if state is None or state.group(1) != "RUNNING":
        report("not requeued here: its state is {}".format(state.group(1) if state else "unknown to Slurm"))
        return True
    if subprocess.call(["scontrol", "requeue", job]) != 0:
        return False
    time.sleep(60)  # until Slurm ends this script: an exit of its own could be taken for the end of the job
    return True


def output(command):
    done = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    return done.stdout.decode(errors="replace")


def last_step(run):
    """The furthest step in the progress files of the run's processes; None if none has begun."""
    steps = []
    for path in (run / "progress").glob("rank-*.json"):
        try:
            step = json.loads(path.read_bytes().decode())["step"]
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            continue
        if isinstance(step, int):
            steps.append(step)
    return max(steps, default=None)


def last_checkpoint(run):
    names = (re.match(r"step-(\d+)$", path.name) for path in (run / "checkpoints").glob("step-*"))
    return max((int(name.group(1)) for name in names if name), default=None)


def now():
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")


def report(line):
    print("supervise: " + line, flush=True)


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1]), sys.argv[2:]))
