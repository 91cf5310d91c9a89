#!/usr/bin/env python3
"""The end of a batch script: python3 supervise.py RUN COMMAND...   (plain Python 3.7, for the host's own interpreter)

Runs COMMAND, an srun, and decides what becomes of the job:

- SIGUSR1 (Slurm's warning before the time limit) or SIGTERM (preemption) is handed to the processes as SIGTERM: they
  save a checkpoint and end with 75; the job is requeued and goes on with the same samples;
- a mistake in the settings (status 2) ends the job, since another try would end alike;
- any other end is a fault: the job is requeued, until three faults have come without a new checkpoint between them.

Each attempt is a line of RUN/attempts.jsonl. Where a node dies Slurm itself ends this process and requeues the job.
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

STOPPED, REFUSED = 75, 2
KILLED_BY_TERM = 128 + signal.SIGTERM
FAULTS = 3


def main(run, command):
    attempts = run / "attempts.jsonl"
    job = own_job(os.environ)
    attempt = {
        "job": job,
        "restart": int(os.environ.get("SLURM_RESTART_COUNT", "0")),
        "nodes": os.environ.get("SLURM_JOB_NODELIST", ""),
        "began": now(),
    }
    say("attempt {} of job {} on {}".format(attempt["restart"] + 1, job, attempt["nodes"]))
    status, asked = run_to_end(command, job)
    attempt.update(ended=now(), status=status, asked=asked, step=last_step(run), checkpoint=last_checkpoint(run))
    try:
        before = earlier(attempts, job)
        write_down(attempts, attempt)
        again, reason = decide([*before, attempt])
    except OSError as error:
        say(f"{attempts}: {error.strerror}; this attempt is not counted")
        again, reason = decide([attempt])
        if again and not stopped(attempt):  # uncounted, faults would come for ever
            again, reason = False, f"not requeued: status {status}, and faults cannot be counted"
    say(reason)
    if again and not requeue(job):
        say("not requeued; submit the script again to go on")
    return status


def own_job(environment):
    """A task of an array by its own name: the number of its last task means the whole array to scontrol and scancel."""
    if "SLURM_ARRAY_JOB_ID" in environment:
        return environment["SLURM_ARRAY_JOB_ID"] + "_" + environment["SLURM_ARRAY_TASK_ID"]
    return environment["SLURM_JOB_ID"]


def earlier(attempts, job):
    """The attempts of this job that have ended; a line cut short by a node's death or a full disk is no attempt."""
    found = []
    for line in attempts.read_bytes().splitlines() if attempts.exists() else []:
        try:
            attempt = json.loads(line.decode())
        except (ValueError, RecursionError):
            continue
        if is_attempt(attempt) and attempt["job"] == job:
            found.append(attempt)
    return found


def is_attempt(value):
    """Whether it has what `decide` needs."""
    kinds = {"status": int, "asked": bool, "step": (int, type(None)), "checkpoint": (int, type(None))}
    return (
        isinstance(value, dict)
        and "job" in value
        and all(name in value and isinstance(value[name], kind) for name, kind in kinds.items())
    )


def write_down(attempts, attempt):
    """As a line of its own, also after one that was cut short."""
    attempts.parent.mkdir(parents=True, exist_ok=True)
    with attempts.open("ab+") as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                file.write(b"\n")
        file.write(json.dumps(attempt).encode() + b"\n")


def run_to_end(command, job):
    """The status of `command`, as a shell gives it, and whether the job was asked to stop.

    Signals go to the processes that srun started, not to srun, which would kill them.
    """
    asked = []

    def pass_on(number, frame):
        asked.append(number)
        say(f"{signal.Signals(number).name}: the processes are asked to save a checkpoint")
        subprocess.Popen(["scancel", "--signal=TERM", job])

    for number in (signal.SIGUSR1, signal.SIGTERM):
        signal.signal(number, pass_on)
    status = subprocess.Popen(command).wait()
    for number in (signal.SIGUSR1, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    return status if status >= 0 else 128 - status, bool(asked) or preempted(job)


def preempted(job):
    """Whether this attempt is; Slurm's SIGTERM goes to the processes alone then."""
    times = dict(re.findall(r"(StartTime|PreemptTime)=(\S+)", output(["scontrol", "show", "job", "-o", job])))
    return times.get("PreemptTime", "")[:1].isdigit() and times["PreemptTime"] >= times["StartTime"]


def decide(attempts):
    """(requeue?, why) from the job's attempts so far, the last of which has just ended.

    Processes that srun ends because another failed may say that they were asked to stop: it counts where it is true.
    """
    last = attempts[-1]
    status = last["status"]
    if status == 0:
        return False, "done"
    if status == REFUSED:
        return False, "not requeued: the settings or the input are at fault, as the log says"
    point = last["checkpoint"]
    since = "no checkpoint yet" if point is None else f"the last checkpoint is of step {point}"
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
    """Put the job back into the queue, unless it is being cancelled or was put back already."""
    state = re.search(r"JobState=(\w+)", output(["scontrol", "show", "job", "-o", job]))
    if state is None or state.group(1) != "RUNNING":
        say("left as it is: Slurm says {}".format(state.group(1) if state else "nothing of this job"))
        return True
    if subprocess.call(["scontrol", "requeue", job]) != 0:
        return False
    time.sleep(60)  # Slurm ends this script; an end of its own could pass for the job's
    return True


def output(command):
    done = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    return done.stdout.decode(errors="replace")


def last_step(run):
    """The furthest step that a process of the run says it was at; None if none has begun."""
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


def say(line):
    print("supervise: " + line, flush=True)


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1]), sys.argv[2:]))
