"""Opens the data of a run: of the processes that read the same corpus, one checks it, and the others rely on that."""

import logging
from collections.abc import Sequence
from hashlib import md5
from pathlib import Path
from typing import Any, NamedTuple

from reread.preprocessing.corpus.job import opening
from reread.preprocessing.errors import UserError
from reread.training.config import TrainSettings
from reread.training.data.dataset import Dataset
from reread.training.data.kinds import open_dataset
from reread.training.data.settings import CorpusSettings
from reread.training.parallel.mesh import Mesh
from reread.training.run.files import RunFile

log = logging.getLogger("reread")


class RunData(NamedTuple):
    train: Dataset[Any]
    held_out: Dataset[Any]


def open_data(settings: TrainSettings) -> RunData:
    """Open both splits, checked in full. Raises `UserError` as `open_dataset` does."""
    return RunData(*(open_dataset(settings.data, settings.seed, split) for split in ("train", "validation")))


def open_together(settings: TrainSettings, run: Path, mesh: Mesh) -> RunData:
    """`open_data` of a corpus on all processes (collective).

    Which process checks follows from the manifests that each finds: the first of those that find the same files, on a
    shared file system process 0, and on machines with copies of their own one each. Raises `UserError` on all processes
    if one cannot open the data, or if copies differ.
    """
    if not settings.data.parts:  # a task's examples are read by each process
        with mesh.together():
            data = open_data(settings)
        return data
    with mesh.together():
        found = _identity(settings.data.parts)
    everyone = [one for (one,) in mesh.gather(found)]
    checks = everyone.index(found) == mesh.rank
    # Process 0 comes first, since it writes what all map; the others have something to rely on when their turn comes.
    turn = 0 if mesh.rank == 0 else 1 if checks else 2
    for now in range(3):
        with mesh.together():
            if now == turn:
                with opening(RunFile.COUNTS.of(run), trusting=not checks):
                    data = open_data(settings)
    read = [one for (one,) in mesh.gather(int(data.train.corpus_fingerprint[:15], 16))]
    if other := next((rank for rank, one in enumerate(read) if one != read[0]), None):
        raise mesh.reported_once(
            UserError(
                f"{settings.data.location}: process {other} finds another corpus there than process 0; give all "
                "machines the same"
            )
        )
    if mesh.world > 1:
        copies = len(set(everyone))
        who = "process 0" if copies == 1 else f"{copies} processes, one for each copy of it"
        log.info("corpus: checked by %s, and the other processes rely on that", who)
    return data


def _identity(corpora: Sequence[CorpusSettings]) -> int:
    """A number that is the same for processes whose paths lead to the same files."""
    values: list[int] = []
    for one in corpora:
        try:
            status = (one.folder / "manifest.json").stat()
        except OSError:
            continue  # the process that opens it reports what is missing
        values += [status.st_ino, status.st_size, status.st_mtime_ns]
    return int(md5(repr(values).encode()).hexdigest()[:15], 16)
