"""Names for the semaphores of a process pool, which are files in /dev/shm.

Each name contains the number of its process. Thus the next command can remove the semaphores that were left there when
a command and all of its helper processes were killed by SIGKILL.
"""

import os
import re
from contextlib import suppress
from multiprocessing import process
from pathlib import Path

_FOLDER = Path("/dev/shm")  # where Linux has a file sem.NAME for each semaphore
_PREFIX = "reread"


def name_semaphores() -> None:
    """Set the names of semaphores that this process will create; remove those of ended processes of this user.

    Containers may share /dev/shm, so a name also contains the PID namespace of its process.
    """
    try:
        namespace = os.stat("/proc/self/ns/pid").st_ino
        left = list(_FOLDER.glob(f"sem.{_PREFIX}-{namespace}-*"))
    except OSError:
        return  # not Linux
    process.current_process()._config["semprefix"] = f"/{_PREFIX}-{namespace}-{os.getpid()}"  # type: ignore[attr-defined]
    for path in left:
        found = re.fullmatch(rf"sem\.{_PREFIX}-\d+-(\d+)-\w+", path.name)
        if found and not os.path.exists(f"/proc/{found[1]}"):
            with suppress(OSError):
                if path.lstat().st_uid == os.geteuid():
                    path.unlink()
