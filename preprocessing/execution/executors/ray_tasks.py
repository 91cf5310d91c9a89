"""Runs the tasks of a stage as Ray tasks, on a running cluster or, if there is none, on this machine."""

import logging
import os
import secrets
import socket
from collections import Counter, deque
from collections.abc import Callable
from hashlib import md5
from pathlib import Path
from typing import Any

from reread.preprocessing.errors import UserError
from reread.preprocessing.execution.executors.base import Executor
from reread.preprocessing.execution.stages import Stage
from reread.preprocessing.execution.tasks import run_task
from reread.preprocessing.execution.work import Work
from reread.preprocessing.machine import cores

log = logging.getLogger("reread")

RETRIES = 3
"""How often a task is done again after its worker or node was lost."""


class RayExecutor(Executor):
    """Does tasks on a Ray cluster, at most `workers` at once, 0 for as many as there are CPUs.

    Raises `UserError` if Ray is not installed, if the cluster of RAY_ADDRESS cannot be reached, or if it takes tasks
    without a token, that is from anyone who reaches it.
    """

    def __enter__(self) -> "RayExecutor":
        self._ray = _connected(self.workers)
        return self

    def __exit__(self, *_: object) -> None:
        self._ray.shutdown()

    def _do(self, work: Work, stage: Stage, numbers: list[int], show: Callable[[int], None]) -> None:
        ray, size = self._ray, stage.size(work) // stage.task_count(work)
        # Ray's own retries are off, since they would leave no line in the log.
        task = ray.remote(num_cpus=1, max_retries=0)(do_task)
        folder = work.folder.absolute()
        common = (Path.cwd(), folder, md5((folder / "plan.json").read_bytes()).hexdigest(), stage.name)
        waiting, lost = deque(numbers), Counter[int]()
        running: dict[Any, int] = {}
        # Keep twice as many tasks in flight as there are CPUs; tasks of lost workers wait again
        while waiting or running:
            room = self.workers or 2 * int(ray.cluster_resources().get("CPU", 1))
            while waiting and len(running) < room:
                number = waiting.popleft()
                running[task.remote(*common, number)] = number
            for done in ray.wait(list(running))[0]:
                number = running.pop(done)
                try:
                    mistake = ray.get(done)
                except ray.exceptions.RayTaskError:  # a bug of ours, no failure of the cluster
                    raise
                except ray.exceptions.RayError as error:
                    lost[number] += 1
                    self._check_lost(work, stage.name, number, lost[number], str(error).partition("\n")[0])
                    waiting.append(number)
                else:
                    if mistake is not None:
                        raise UserError(mistake)
            show(size * (len(numbers) - len(waiting) - len(running)))

    def _check_lost(self, work: Work, stage: str, number: int, times: int, reason: str) -> None:
        if times > RETRIES:
            raise UserError(
                f"{work.output}: part {number} of `{stage}` lost its Ray worker {times} times ({reason}), most likely "
                "for lack of memory; set smaller `part_bytes` and run the same command again"
            )
        log.warning("a Ray worker or its node was lost; part %d of %s is done again (%s)", number, stage, reason)


def do_task(here: Path, folder: Path, work_plan: str, stage: str, number: int) -> str | None:
    """Do a task on any node; returns the message if it raises `UserError`, else None.

    `here` is the folder that relative paths start from, `work_plan` the MD5 of plan.json.
    """
    try:
        os.chdir(here)
        seen = md5((folder / "plan.json").read_bytes()).hexdigest() == work_plan
    except OSError:
        seen = False
    if not seen:
        return (
            f"{folder}: the Ray worker on {socket.gethostname()} does not see it; `preprocess.executor: ray` needs a "
            f"file system that all nodes see under the same path, for the corpus, its input and {here}"
        )
    try:
        run_task(folder, stage, number)
    except UserError as error:
        return str(error)
    return None


def _auth_mode() -> str:
    """How a cluster checks who may use it: `token` or `disabled` (Ray's documentation, "Ray token authentication")."""
    return os.environ.get("RAY_AUTH_MODE", "disabled").lower()


def _connected(workers: int) -> Any:
    """The module `ray`, connected to a cluster that takes tasks only with a token; `workers` are for a local one."""
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    if _auth_mode() == "disabled":
        raise UserError(
            "RAY_AUTH_MODE: disabled, so anyone who reaches the Ray cluster could run commands on it; unset it, or "
            "set executor=processes"
        )
    # Send no usage statistics, and hide Ray's own lines about each lost worker, among which ours would be lost.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")
    # Each attempt to reach a cluster that does not answer takes 40 seconds, and Ray makes 20.
    os.environ.setdefault("RAY_NUM_REDIS_GET_RETRIES", "5")
    try:
        import ray
        from ray._private.services import canonicalize_bootstrap_address
        from ray.exceptions import AuthenticationError  # of those that know tokens
    except ImportError as error:
        raise UserError(
            f"preprocess.executor: ray cannot be used ({error}); install it by `pip install 'reread[ray]'`, or set "
            "executor=processes"
        ) from None
    # Connect to the cluster of RAY_ADDRESS, or to one that runs on this machine
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    address = found = os.environ.get("RAY_ADDRESS", "")
    try:
        found = address or canonicalize_bootstrap_address("auto") or ""
        _check_answers(found)
        ray.init(address=address or "auto", **quiet)
        if ray.get(ray.remote(num_cpus=0)(_auth_mode).remote()) == "disabled":
            ray.shutdown()
            raise RuntimeError("it takes tasks without a token; start its nodes with RAY_AUTH_MODE=token")
    except (OSError, RuntimeError, ValueError, AuthenticationError) as error:
        if address:
            reason = " ".join(str(error).split())
            raise UserError(f"RAY_ADDRESS: the Ray cluster at `{address}` cannot be used: {reason}") from None
        if found:  # Ray keeps the address of a cluster whose processes were killed
            log.warning("ray: the last cluster of this machine, %s, is not used: %s", found, error)
        # Else start one on this machine. Without this token Ray would write one to ~/.ray, for others to read.
        if "RAY_AUTH_TOKEN_PATH" not in os.environ:
            os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
        cpus = workers or cores()
        store = 100_000_000  # bytes; only the numbers of tasks pass through Ray's object store
        ray.init(address="local", num_cpus=cpus, object_store_memory=store, include_dashboard=False, **quiet)
        log.info("ray: no cluster is running and RAY_ADDRESS is not set, so one is started here for %d tasks", cpus)
    else:
        nodes = [node for node in ray.nodes() if node["Alive"]]
        cpus = int(ray.cluster_resources().get("CPU", 0))
        log.info("ray: the cluster at %s, %d nodes, %d CPUs", ray.get_runtime_context().gcs_address, len(nodes), cpus)
    return ray


def _check_answers(address: str) -> None:
    """Raises OSError if nothing listens at `address` (HOST:PORT); Ray itself would try for many minutes."""
    host, colon, port = address.rpartition(":")
    if colon and "/" not in address:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
