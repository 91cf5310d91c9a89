"""Programs that know transformers and not this project, as users of an exported folder have them. They are forked from
a process that has imported transformers, which takes ten seconds."""

import json
import os
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

_SERVER = """
import json, os, sys, traceback
import torch, transformers, transformers.dynamic_module_utils
from transformers import AutoConfig, AutoModelForMaskedLM, AutoTokenizer, PreTrainedModel

def run(folder, program, arguments):
    os.chdir(folder)
    output = os.open("output", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    transformers.dynamic_module_utils.HF_MODULES_CACHE = os.path.join(folder, "modules")
    sys.argv = ["-c", *arguments]
    status = 1
    try:
        exec(compile(program, "program", "exec"), {"__name__": "__main__"})
        status = 0
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)

for line in sys.stdin:
    child = os.fork() or run(*json.loads(line))
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@cache
def _server() -> subprocess.Popen[str]:
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    environment.pop("PYTHONPATH", None)
    folder = tempfile.mkdtemp()  # whose packages would be imported: it has none
    command = [sys.executable, "-c", _SERVER]
    return subprocess.Popen(
        command, cwd=folder, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def run_elsewhere(folder: Path, program: str, *arguments: str | Path) -> None:
    """Run `program` in `folder` in a process that has not imported this project, and complains of no weights."""
    server = _server()
    assert server.stdin is not None and server.stdout is not None
    print(json.dumps([str(folder), program, [str(one) for one in arguments]]), file=server.stdin, flush=True)
    status, output = server.stdout.readline().strip(), (folder / "output").read_text()
    assert status == "0", output[-3000:]
    for word in ("newly initialized", "not initialized", "UNEXPECTED", "MISSING"):
        assert word not in output
