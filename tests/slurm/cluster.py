"""A real Slurm on this machine: slurmctld and two slurmd over loopback, in a folder of their own."""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil

PROGRAMS = ("slurmctld", "slurmd", "sbatch", "srun", "scontrol", "sinfo", "squeue", "scancel")

_CONFIGURATION = """\
ClusterName=reread
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
CredType=cred/none
AuthInfo=cred_expire=5
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
MailProg=/bin/true
SlurmctldPort={controller_port}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
StateSaveLocation={folder}/state
SlurmdPidFile={folder}/%n.pid
SlurmdSpoolDir={folder}/%n
SlurmdLogFile={folder}/%n.log
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=sched_interval=2,bf_interval=2,batch_sched_delay=0
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobRequeue=1
ReturnToService=2
SlurmdTimeout=10
SlurmctldTimeout=5
MinJobAge=3600
KillWait=5
GresTypes=gpu
{nodes}
PartitionName=main Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP PriorityTier=1 GraceTime=60
PartitionName=urgent Nodes=n1,n2 MaxTime=INFINITE State=UP PriorityTier=2 PreemptMode=OFF
"""
_NODE = "NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=16 RealMemory=4000 Gres=gpu:8"


class Cluster:
    """Slurm on two nodes, n1 and n2, with 8 simulated GPUs each; `run` runs Slurm's commands on it."""

    nodes = ("n1", "n2")

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}

    def start(self) -> None:
        """Raises `RuntimeError` with the end of the daemons' logs if they do not start."""
        host = socket.gethostname().split(".")[0]
        devices = [self.folder / f"gpu{number}" for number in range(8)]
        for device in devices:
            os.mknod(device, 0o20666, os.makedev(1, 3))
        gres = f"Name=gpu File={self.folder}/gpu[0-7]\n"
        (self.folder / "gres.conf").write_text("".join(f"NodeName={node} {gres}" for node in self.nodes))
        nodes = "\n".join(_NODE.format(name=node, host=host, port=_free_port()) for node in self.nodes)
        text = _CONFIGURATION.format(folder=self.folder, host=host, controller_port=_free_port(), nodes=nodes)
        (self.folder / "slurm.conf").write_text(text)
        (self.folder / "state").mkdir()
        self.run("slurmctld", "-c")
        for node in self.nodes:
            self.start_node(node)
        self.wait(lambda: self.run("sinfo", "-h", "-t", "idle", "-o", "%D").strip() == "2", "two idle nodes", 30)

    def start_node(self, node: str) -> None:
        (self.folder / node).mkdir(exist_ok=True)
        self.run("slurmd", "-N", node)

    def kill_node(self, node: str) -> None:
        """Kill a node as a power cut does: its slurmd and all its processes end without a message."""
        daemon = psutil.Process(int((self.folder / f"{node}.pid").read_text()))
        tasks = _processes_of(node, self.folder)
        steps: set[psutil.Process] = set()
        for task in tasks:
            with suppress(psutil.NoSuchProcess):
                steps |= {parent for parent in task.parents() if parent.name() == "slurmstepd"}
        for process in (daemon, *steps, *tasks):  # slurmstepd before its tasks, or it would report their end
            with suppress(psutil.NoSuchProcess):
                process.kill()

    def stop(self) -> None:
        for node in self.nodes:
            with suppress(OSError, ValueError, psutil.NoSuchProcess):
                self.kill_node(node)
        with suppress(OSError, ValueError, psutil.NoSuchProcess):
            psutil.Process(int((self.folder / "slurmctld.pid").read_text())).kill()

    def run(self, *command: str, cwd: Path | None = None) -> str:
        """Standard output of a command that sees this cluster; raises `RuntimeError` with its standard error."""
        done = subprocess.run(
            command, env=self.environment, cwd=cwd, capture_output=True, text=True, timeout=600, check=False
        )
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}: status {done.returncode}: {done.stderr or done.stdout}")
        return done.stdout

    def state(self, job: str) -> dict[str, str]:
        """The fields of `scontrol show job`."""
        words = self.run("scontrol", "show", "job", "-o", job).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def wait(self, condition: Callable[[], bool], what: str, seconds: float = 600) -> None:
        """Wait until `condition` holds. The limit is generous (the machine may be busy): it only catches what hangs."""
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                log = (self.folder / "slurmctld.log").read_text()[-3000:]
                raise RuntimeError(f"{what}: not within {seconds} s\n{log}\n{self.run('squeue', '-a')}")
            time.sleep(0.3)

    def ended(self, job: str) -> str:
        """Wait for a job's end and return its state."""
        running = ("PENDING", "RUNNING", "COMPLETING", "CONFIGURING", "REQUEUED", "PREEMPTED", "SUSPENDED", "NODE_FAIL")
        self.wait(lambda: self.state(job)["JobState"] not in running, f"the end of job {job}")
        return self.state(job)["JobState"]


def why_not() -> str | None:
    """The reason why Slurm cannot start here; None if it can."""
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    if missing:
        return f"{', '.join(missing)} not installed (`make slurm`)"
    return None if os.geteuid() == 0 else "slurmctld and slurmd are started as root here"


def _processes_of(node: str, folder: Path) -> list[psutil.Process]:
    """The processes of a node: Slurm puts the node's name into their environment."""
    mine = {"SLURMD_NODENAME": node, "SLURM_CONF": str(folder / "slurm.conf")}
    return [p for p in psutil.process_iter(["environ"]) if mine.items() <= (p.info["environ"] or {}).items()]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
