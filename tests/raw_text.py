"""Small raw text for the tests of `reread preprocess`, and processes that work on it."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from reread.preprocessing.config import PreprocessSettings
from reread.preprocessing.corpus import Manifest
from reread.preprocessing.execution.build import build
from tests.conftest import ROOT

EVERY_STAGE: dict[str, Any] = {"dedup": {"near": {"similarity": 0.34, "ngram": 2}, "paragraphs": True}}
"""Settings of the fixture `reference`; of its texts, which are random, six have this similarity with an earlier one."""
STAGES = [
    "read",
    "duplicates",
    "signatures",
    "near-duplicates",
    "clusters",
    "paragraphs",
    "duplicate-paragraphs",
    "encode",
]
"""Their stages."""
WORDS = [
    "我们", "喜欢", "研究", "生命", "起源", "大厦", "天气", "今天", "明天", "历史",
    "文化", "图书馆", "银行", "经济", "发展", "问题", "学生", "老师", "城市", "火车",
]  # fmt: skip


def sentences(generator: random.Random, count: int) -> str:
    return "".join("".join(generator.choices(WORDS, k=8)) + "。" for _ in range(count))


def write_raw(folder: Path) -> None:
    generator = random.Random(0)
    texts = folder / "texts"
    texts.mkdir()
    documents = ["\n".join(sentences(generator, 3) for _ in range(4)) for _ in range(60)]
    for number in range(20):
        (texts / f"novel-{number:02d}.txt").write_text(documents[number], encoding="utf-8")
    (texts / "novel-98.txt").write_text("")
    (texts / "novel-99.txt").write_text(documents[3], encoding="utf-8")  # a duplicate
    lines = [json.dumps({"text": text}, ensure_ascii=False) for text in documents[15:]]  # 5 duplicates
    lines.insert(7, '{"text": ')
    (texts / "web.jsonl").write_text("\n".join(lines), encoding="utf-8")
    characters = sorted(set("".join(WORDS)) | {"。"})
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *characters]
    (folder / "vocab.txt").write_text("\n".join(vocabulary) + "\n", encoding="utf-8")


def values(raw: Path, output: Path, **changes: Any) -> dict[str, Any]:
    return {
        "input": {"paths": [str(raw / "texts")]},
        "output": str(output),
        "tokenizer": {"path": str(raw / "vocab.txt")},
        "validation_share": 0.2,
        "part_bytes": 6_000,
        "workers": 1,
    } | changes


def make(raw: Path, output: Path, **changes: Any) -> Manifest:
    return build(PreprocessSettings.parse(values(raw, output, **changes), "test"))


def contents(corpus: Path) -> dict[str, bytes]:
    return {str(path.relative_to(corpus)): path.read_bytes() for path in sorted(corpus.rglob("*")) if path.is_file()}


_COMMAND = """
if __name__ == "__main__":
    logging.basicConfig(format="%(message)s", level=logging.INFO)
    settings = PreprocessSettings.parse(json.loads(sys.argv[1]), "test")
    try:
        if sys.argv[2:]:
            build_share(settings, sys.argv[2], Share.parse(sys.argv[3]))
        else:
            build(settings)
    except UserError as error:
        sys.exit(str(error))
"""
_IMPORTS = """
import json, logging, sys
from reread.preprocessing.execution.build import build, build_share
from reread.preprocessing.config import PreprocessSettings
from reread.preprocessing.errors import UserError
from reread.preprocessing.execution.executors.base import Share
"""


def start(raw: Path, output: Path, *arguments: str, before: str = "", **changes: Any) -> subprocess.Popen[str]:
    """`build`, or `build_share` of STAGE I/N, in a process of its own; a `UserError` is its last line, and status 1.

    `before` is Python that runs first.
    """
    program = [sys.executable, "-X", "faulthandler", "-c", _IMPORTS + before + _COMMAND]
    return subprocess.Popen(
        [*program, json.dumps(values(raw, output, **changes)), *arguments],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def errors_of(process: subprocess.Popen[str], timeout: float = 300) -> str:
    """What a process of `start` prints until it ends. One that hangs is ended, and its stacks are in the failure."""
    try:
        return process.communicate(timeout=timeout)[1]
    except subprocess.TimeoutExpired:
        ended = process.poll()
        process.send_signal(signal.SIGABRT)  # faulthandler prints the stacks
        with suppress(subprocess.TimeoutExpired):
            process.wait(10)
        process.kill()
        try:
            errors = process.communicate(timeout=10)[1]
        except subprocess.TimeoutExpired as held:  # by another process that has inherited the pipe
            errors = (held.stderr or b"").decode(errors="replace")
        state = "hangs" if ended is None else f"ended with {ended}, but others hold its output open"
        raise AssertionError(f"after {timeout:.0f} s the process {state}:\n{errors}") from None


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    while not condition() and process.poll() is None:
        time.sleep(0.002)


def children(parent: int) -> list[int]:
    """Process ids of the pool's workers (and of multiprocessing's resource tracker)."""
    return [int(pid) for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]


def workers_of(parent: int) -> list[int]:
    found = []
    for pid in children(parent):
        with suppress(OSError):  # it has just ended
            if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return found


def kill(pid: int) -> None:
    """SIGKILL to a process of others', which may have just ended."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


needs_proc = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds the workers through /proc")
