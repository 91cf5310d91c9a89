"""What a user sees of a pool whose workers are killed."""

import threading

import pytest

from reread.preprocessing.execution.executors.processes import ProcessExecutor


def test_a_pool_that_trips_over_a_killed_worker_prints_no_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        raise RuntimeError("dictionary changed size during iteration")

    class _ExecutorManagerThread(threading.Thread):  # as the standard library calls its own
        pass

    before = threading.excepthook
    seen: list[object] = []
    threading.excepthook = seen.append
    try:
        with ProcessExecutor(2):
            for kind in (_ExecutorManagerThread, threading.Thread):
                thread = kind(target=fail)
                thread.start()
                thread.join()
        assert threading.excepthook == seen.append
    finally:
        threading.excepthook = before
    assert len(seen) == 1
    assert capsys.readouterr().err == ""
