"""Runs a library on an untrusted file in a child process, whose memory and CPU time are bounded.

A file of a few hundred bytes can make pyarrow allocate gigabytes, and so can a page of 50 kB with resiliparse; neither
library has a limit of its own. A child is started once and reads one file after another.
"""

import atexit
import os
import pickle
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from typing import Any

from reread.preprocessing.errors import UserError

CPU_SECONDS = 60
"""The CPU time that the work may take between two results."""
_LEAST_ROOM = 1 << 28
_DOCUMENTS = 3
"""The memory limit in documents of the greatest length: one packed, one unpacked, and one as text."""
_START = "import sys; sys.path[:] = sys.argv[1:]; from reread.preprocessing.input.confined import serve; serve()"
_SETTINGS = {
    # Other allocators reserve address space, which is what the system bounds.
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "MALLOC_ARENA_MAX": "1",
    "OMP_NUM_THREADS": "1",
}
_SIZES = "/proc/self/statm"
_FAULTS = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP)
"""Signals that end a program because of its own fault."""


class ConfinedError(Exception):
    """The work needs more memory or time than is permitted, or it crashed the child."""


def confined(module: str, name: str, limit: int, *arguments: Any) -> Iterator[Any]:
    """The results of the generator `name` of `module`, called with `arguments` in a child process.

    `limit` is the greatest size of a document in bytes. The module's function `load` imports the libraries, whose
    address space is not counted. Raises `ConfinedError`, any error of the generator, and `UserError` on other systems
    than Linux. Earlier work of a child makes no difference: what fails in a used child is tried again in a new one.
    """
    if not os.path.exists(_SIZES):
        raise UserError(
            "this format is read on Linux alone, where the memory of the library that reads it can be bounded; convert "
            "the files to text or JSON lines"
        )
    room = max(_LEAST_ROOM, _DOCUMENTS * limit)
    done = 0
    while True:
        child = _idle.pop() if _idle else _Child()
        is_new = child.is_new
        try:
            for number, result in enumerate(child.results(module, name, room, arguments)):
                if number >= done:
                    done += 1
                    yield result
            return
        except ConfinedError:
            if is_new:
                raise
            end_all()
        finally:
            if child.is_idle:
                _idle.append(child)


class _Child:
    def __init__(self) -> None:
        self.is_new = True
        """Whether the child has done no work before."""
        self.is_idle = False
        self._process = subprocess.Popen(
            [sys.executable, "-c", _START, *sys.path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=os.environ | _SETTINGS,
            start_new_session=True,  # Ctrl-C is for this process
        )

    def results(self, module: str, name: str, room: int, arguments: tuple[Any, ...]) -> Iterator[Any]:
        """The results of the generator; the child is ended if the caller stops before the last one."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self.is_idle = False
        try:
            with suppress(BrokenPipeError):  # the child has ended, which shows when its answer is read
                pickle.dump((module, name, room, arguments), self._process.stdin, pickle.HIGHEST_PROTOCOL)
                self._process.stdin.flush()
            while True:
                kind, value = pickle.load(self._process.stdout)
                if kind == "result":
                    yield value
                    continue
                self.is_idle, self.is_new = True, False
                if kind == "error":
                    raise value
                return
        except (EOFError, pickle.UnpicklingError):
            raise self._ended(room) from None
        finally:
            if not self.is_idle:
                self.end()

    def _ended(self, room: int) -> Exception:
        """The error for a child that has ended before its last result."""
        status = self._process.wait()
        if status == _NO_MEMORY:
            return ConfinedError(f"needs more than {room:,} bytes of memory (see `input.maximum_document_bytes`)")
        if status == -signal.SIGXCPU:
            return ConfinedError(f"needs more than {CPU_SECONDS} s of CPU time")
        if -status in _FAULTS or status == _PANIC:
            return ConfinedError("makes the library that reads it crash")
        return UserError(
            f"a process that reads a file was killed (status {status}), perhaps for lack of memory; run the same "
            "command again",
            OSError(),
        )

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            with suppress(BrokenPipeError):
                pipe.close()  # type: ignore[union-attr]


_idle: list[_Child] = []
os.register_at_fork(after_in_child=_idle.clear)


@atexit.register
def end_all() -> None:
    """End the children that wait for work."""
    while _idle:
        _idle.pop().end()


_NO_MEMORY, _PANIC = 3, 4
"""Exit statuses of a child."""


def serve() -> None:
    """The main function of a child: answers one request after another until its parent ends."""
    # Set up the process: no signals, no core files, and nothing printed among the answers.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # Slurm sends it to all; this process ends with its parent
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    requests, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # else a library that prints would print into the answers
    before = _address_space()
    with suppress(EOFError):
        while True:
            name_of_module, name, room, arguments = pickle.load(requests)
            last: tuple[str, Exception | None] = "end", None
            try:
                # Load the libraries without a limit, then do the work within it.
                held = _address_space()
                module = import_module(name_of_module)
                module.load()
                before += _address_space() - held
                work = getattr(module, name)
                _bound(resource.RLIMIT_AS, before + room)
                _bound(resource.RLIMIT_CPU, _cpu_seconds() + CPU_SECONDS)
                for result in work(*arguments):
                    _answer(answers, "result", result)
                    _bound(resource.RLIMIT_CPU, _cpu_seconds() + CPU_SECONDS)
            except MemoryError:
                os._exit(_NO_MEMORY)
            except Exception as error:
                last = "error", error
            except BaseException:  # a panic of Rust
                os._exit(_PANIC)
            # Lift the limit before the next request.
            arguments = None
            _bound(resource.RLIMIT_AS, sys.maxsize)
            _answer(answers, *last)


def _answer(answers: Any, kind: str, value: Any) -> None:
    pickle.dump((kind, value), answers, pickle.HIGHEST_PROTOCOL)
    answers.flush()


def _bound(what: int, most: int) -> None:
    _, hard = resource.getrlimit(what)
    resource.setrlimit(what, (min(most, sys.maxsize if hard == resource.RLIM_INFINITY else hard), hard))


def _address_space() -> int:
    with open(_SIZES) as file:
        return int(file.read().split()[0]) * resource.getpagesize()


def _cpu_seconds() -> int:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return int(used.ru_utime + used.ru_stime) + 1
