"""`make gpus` at toy sizes on CPU: this runs the code; only several GPUs show whether they agree."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch
import torch.distributed as dist

from benchmarks.gpu import measure, run, several
from benchmarks.gpu.cases import CASES
from benchmarks.gpu.several import Outcome, Place
from tests.forks import Job, context, free_port


class Forked:
    """A `subprocess.Popen` whose `python -m reread` is forked from a server that has imported it, as are the processes
    that sum by Horovod. Those that sum by gloo are started."""

    def __init__(self, command: list[str], cwd: Path, stdout: Any, **options: Any) -> None:
        if command[1:3] == ["-m", "reread"]:
            self.job = Job(cwd, *command[3:], processes=1)
            self.pid = self.job.pids[0]
            self.poll, self.wait = lambda: self.job.statuses(timeout=0)[0], self.job.statuses
        elif command[-1] == "horovod":
            port = free_port()
            forked = [
                context().Process(target=sum_by_horovod, args=(rank, port, stdout.name), daemon=True) for rank in (0, 1)
            ]
            for process in forked:
                process.start()
            self.pid = forked[0].pid
            self.poll = lambda: None if any(one.is_alive() for one in forked) else max(one.exitcode for one in forked)
            self.wait = lambda: [one.join() for one in forked]
        else:
            started = subprocess.Popen(command, cwd=cwd, stdout=stdout, **options)
            self.pid, self.poll, self.wait = started.pid, started.poll, started.wait


def sum_by_horovod(rank: int, port: int, log: str) -> None:
    output = os.open(log, os.O_WRONLY | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", CUDA_VISIBLE_DEVICES="")
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    several.as_rank("horovod")


@pytest.mark.long
def test_toy_sizes_agree_on_two_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(several, "subprocess", SimpleNamespace(Popen=Forked, STDOUT=subprocess.STDOUT))
    monkeypatch.setattr(several, "STEPS", 40)
    monkeypatch.setattr(several, "KILLED_FROM", (8, 20))
    assert several.check(Place(tmp_path, tmp_path, 0, True))
    table = (tmp_path / "table.md").read_text()
    assert table in capsys.readouterr().out
    assert re.match(r"CPU, torch \S+, toy sizes\n", table)
    for part in ("gradients summed by gloo", "tensor-parallel 2 as 1", "killed, data-parallel 2 to tensor-parallel 2"):
        assert re.search(rf"^\| {part}.* \| equal \| ", table, re.MULTILINE), table
    first, second = map(int, re.findall(r"killed at steps (\d+) and (\d+) of 40", table)[0])
    assert 8 <= first < 20 <= second < 40
    assert "| gradients summed by NCCL | left out | fewer than two GPUs" in table
    assert "| speed at 4 | left out | 2 processes here |" in table
    assert [line.split()[1] for line in table.splitlines()[-2:]] == ["1", "2"]
    assert float(re.findall(r"^\| 1 \|.*\| ([\d.]+) % \| ", table, re.MULTILINE)[0]) == 100


def test_a_part_that_fails_or_differs_leaves_the_others_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(place: Place) -> Outcome:
        raise several.FailedError("status 1: no | route")

    def speed(place: Place, processes: int) -> dict[str, Any]:
        if processes == 2:
            raise OSError("no room")
        return {"tokens_per_second": 1000.0 * processes, "seconds_per_step": 0.5, "mfu": 0.25}

    monkeypatch.setattr(several, "reduction", lambda place, by: Outcome("differs", "by 0.1"))
    monkeypatch.setattr(several, "tensor", fails)
    monkeypatch.setattr(several, "killed", lambda place: Outcome("equal", "to the end"))
    monkeypatch.setattr(several, "speed", speed)
    monkeypatch.setattr(several, "machine", lambda gpus: f"{gpus} x some GPU")
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 27, 5))
    assert not several.check(Place(tmp_path, tmp_path, 4, True))
    lines = (tmp_path / "table.md").read_text().splitlines()
    assert lines[0] == "4 x some GPU, NCCL 2.27.5, toy sizes"
    assert "| gradients summed by NCCL | **differs** | by 0.1 |" in lines
    assert "| tensor-parallel 2 as 1 | **failed** | FailedError: status 1: no / route |" in lines
    assert "| killed, data-parallel 2 to tensor-parallel 2 and back | equal | to the end |" in lines
    assert "| speed at 2 | **failed** | OSError: no room |" in lines
    assert lines[-2:] == ["| 1 | 0.500 | 1,000 | 100 % | 25.0 % |", "| 4 | 0.500 | 4,000 | 100 % | 25.0 % |"]


@pytest.mark.parametrize("is_equal", [True, False])
def test_the_status_says_whether_anything_differs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_equal: bool
) -> None:
    monkeypatch.setattr(several, "check", lambda place: is_equal)
    monkeypatch.setattr(sys, "argv", ["several.py", "--toy", "--out", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        several.main()
    assert ended.value.code == (0 if is_equal else 1)
    assert list(tmp_path.iterdir()) == [], "corpora and runs are removed"


def test_one_gpu_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(sys, "argv", ["several.py"])
    with pytest.raises(SystemExit) as ended:
        several.main()
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("reread: make gpus: torch sees 1 GPUs here")


def test_processes_that_hang_are_ended_with_their_children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(several, "PART_SECONDS", 1.0)
    place = Place(tmp_path, tmp_path, 0, True)
    with pytest.raises(several.FailedError, match=r"not done in 1 s; hang.log says: \d+"):
        place.run(["sh", "-c", "sleep 600 & echo $!; wait"], "hang")
    child, begin = int((tmp_path / "hang.log").read_text()), time.monotonic()
    while psutil.pid_exists(child) and psutil.Process(child).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < begin + 10
        time.sleep(0.01)
    with pytest.raises(several.FailedError, match="status 3: OSError: no route"):
        place.run(["sh", "-c", "echo OSError: no route; echo the ranks ended; exit 3"], "fails")


def curve(losses: list[float]) -> list[dict[str, Any]]:
    return [{"step": s, "tokens": 9, "loss": loss, "gradient_norm": 2.0} for s, loss in enumerate(losses, 1)]


def test_another_loss_or_a_missing_step_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(several, "STEPS", 3)
    whole = curve([3.0, 2.0, 1.0])
    assert several.compared(curve([3.0, 2.0, 1.0005]), whole, "").result == "equal"
    assert several.compared(curve([3.0, 2.003, 1.0]), whole, "").result == "differs"
    assert several.compared(curve([3.0, float("nan"), 1.0]), whole, "").result == "differs"
    assert several.compared(whole[:2], whole, "").result == "differs"
    assert several.compared(whole[:2], whole[:2], "").result == "differs", "both ended early"
    assert several.compared([{**line, "gradient_norm": 2.1} for line in whole], whole, "").result == "differs"


def test_a_sum_that_is_off_by_more_than_rounding_differs() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        own = torch.randn(1000)
        assert several.differences(own.clone(), own, 1)["equal"]
        for wrong in (own * (1 + 1e-6), own * torch.nan, torch.zeros(1000)):
            assert not several.differences(wrong, own, 1)["equal"]
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize(
    ("hip", "cuda", "driver", "expected"),
    [
        (None, "12.8", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Thu", "CUDA 12.8, driver 570.86.15"),
        (
            None,
            "13.0",
            "NVRM version: Open Kernel Module for x86_64  580.65.06  Release",
            "CUDA 13.0, driver 580.65.06",
        ),
        ("6.4", None, "6.12.12\n", "ROCm 6.4, driver 6.12.12"),
        ("6.4", None, None, "ROCm 6.4"),
    ],
)
def test_the_machine_is_named_with_its_platform_and_driver(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    hip: str | None,
    cuda: str | None,
    driver: str | None,
    expected: str,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "some GPU")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (7, 0))
    monkeypatch.setattr(torch.version, "hip", hip)
    monkeypatch.setattr(torch.version, "cuda", cuda)
    _, patterns = zip(*run.DRIVERS.items(), strict=True)
    files = dict(zip((tmp_path / "nvidia", tmp_path / "amdgpu"), patterns, strict=True))
    monkeypatch.setattr(run, "DRIVERS", files)
    if driver:
        (tmp_path / ("amdgpu" if hip else "nvidia")).write_text(driver)
    assert run.machine(2) == f"2 x some GPU, torch {torch.__version__}, {expected}"
    assert measure.precision_of(CASES[0]) == ("bf16" if hip else "fp16")
