"""On PYTHONPATH, makes each training step last half a second in which the cores are idle: jobs that wait for Slurm
should neither be done before it acts nor slow the other tests down."""

import logging
import time


def wait_after_step(record: logging.LogRecord) -> bool:
    if record.getMessage().startswith("step "):
        time.sleep(0.5)
    return True


logging.getLogger("reread").addFilter(wait_after_step)
