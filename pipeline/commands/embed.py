"""`reread embed`: a vector for each document of a file."""

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import md5
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from reread.pipeline.library.reader import load
from reread.pipeline.recipe.load import apply_overrides
from reread.preprocessing.errors import UserError, writing
from reread.preprocessing.files import sync_folder, unfinished
from reread.preprocessing.labelled.mapped import fingerprint_of
from reread.training.continued_file import continued_file
from reread.training.data.tasks.examples import examples_of
from reread.training.prediction import checksum_of

log = logging.getLogger("reread")

PART = 10_000
"""Documents whose vectors are computed before they are written."""


def embed(
    model: Path, file: Path, overrides: list[str], output: Path, step: int | None = None, normalize: bool = False
) -> None:
    """Write the vectors of `file`'s documents, float32 [n, D], to `output`.

    As NAME.npy, with the documents' ids beside it in NAME.ids.txt, one in a line; or as NAME.parquet with columns
    `id` and `vector`. `normalize` divides each vector by its length. If it is interrupted, the same call goes on.
    Raises `UserError` for another name, for a model that is none of ours, and for a file that cannot be read.
    """
    if output.suffix not in (".npy", ".parquet"):
        raise UserError(f"{output}: vectors are written to a file NAME.npy or NAME.parquet")
    task = _task(overrides)  # a mistake in it is found before the model is read
    reader = load(model, step=step)
    data = reader.reading(**task, train=str(file))
    examples = examples_of(data, "predict")
    key = repr((fingerprint_of(examples), data.model_dump_json(), checksum_of(reader.model), normalize, PART))
    shape = (len(examples), reader.model.config.hidden_size)
    with _file(output, md5(key.encode()).hexdigest(), shape) as (begin, write):
        if begin:
            log.info("%s: an interrupted command wrote %s vectors; going on after them", output, f"{begin:,}")
        unknown = 0
        found = reader.vectors(data, examples, begin=begin, part=PART)
        for first in range(begin, len(examples), PART):
            rows = next(found)
            if normalize:
                rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), np.finfo(np.float32).tiny)
            unknown += int((~rows.any(axis=1)).sum())
            write(rows, [examples[first + row].id for row in range(len(rows))])
        if unknown:
            log.warning(
                "%s: %s of %s documents have no token but [UNK]: their vectors are zeros",
                *(file, f"{unknown:,}", f"{len(examples) - begin:,}"),
            )


def _task(overrides: list[str]) -> dict[str, Any]:
    """The settings of `task` that the overrides name. Raises `UserError` for others."""
    if wrong := next((one for one in overrides if not one.startswith("task.")), None):
        raise UserError(f"`{wrong}`: a model embeds as it was trained; only task.KEY=VALUE can be given")
    values: dict[str, Any] = {"train": {"data": {"kind": "classify"}}}
    apply_overrides(values, overrides, "train")
    found: dict[str, Any] = values["train"]["data"]
    return found


@contextmanager
def _file(
    output: Path, key: str, shape: tuple[int, int]
) -> Iterator[tuple[int, Callable[[NDArray[np.float32], list[str]], None]]]:
    """How many rows of [n, D] an interrupted command with the same `key` has left, and what writes the next rows and
    their ids; the files get their names when the block ends without an error."""
    kept = output.with_suffix(".ids.txt" if output.suffix == ".npy" else ".parquet.ids")
    vectors = unfinished(output.with_name(f"{output.stem}.{key}.npy"))
    with writing(output), continued_file(kept, key, PART) as ids:
        for other in output.parent.glob(unfinished(Path(f"{output.stem}.{'[0-9a-f]' * 32}.npy")).name):
            if other != vectors:
                other.unlink(missing_ok=True)
        if ids.lines and not vectors.exists():
            raise UserError(f"{vectors}: is gone, but ids of its rows are kept; delete {output.parent}/.{kept.name}.*")
        with vectors.open("r+b" if ids.lines else "w+b") as file:  # not mapped: a full disk would kill the process
            header = {"descr": "<f4", "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(file, header)  # type: ignore[no-untyped-call]
            file.seek(4 * ids.lines * shape[1], os.SEEK_CUR)
            file.truncate()

            def write(rows: NDArray[np.float32], names: list[str]) -> None:
                file.write(rows.astype("<f4", copy=False).tobytes())
                file.flush()
                os.fsync(file.fileno())
                ids.write(names)

            yield ids.lines, write
    with writing(output):
        if output.suffix == ".npy":
            os.replace(vectors, output)
        else:
            _write_parquet(output, kept, np.load(vectors, mmap_mode="r"))
            vectors.unlink()
            kept.unlink()
        sync_folder(output.parent)


def _write_parquet(output: Path, ids: Path, rows: NDArray[np.float32]) -> None:
    kind = pa.list_(pa.float32(), rows.shape[1])
    schema = pa.schema({"id": pa.string(), "vector": kind})
    with ids.open(encoding="utf-8") as lines, pq.ParquetWriter(unfinished(output), schema) as file:
        for first in range(0, len(rows), PART):
            part = np.asarray(rows[first : first + PART])
            names = [next(lines).removesuffix("\n") for _ in range(len(part))]
            vectors = pa.FixedSizeListArray.from_arrays(pa.array(part.reshape(-1)), type=kind)
            file.write_table(pa.table([pa.array(names, pa.string()), vectors], schema))
    os.replace(unfinished(output), output)
