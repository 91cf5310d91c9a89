"""`lengths.npy`: the tokens of each document [documents], uint32, in the order of the shards.

By it `Corpus.chunk_counts` counts the chunks of a length that the index has none for, without a look at the shards. It
is written when the corpus is merged, and read and checked only for such a length. The manifest holds its CRC-32;
a corpus of an earlier version has no such file.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

import numpy as np
from isal.isal_zlib import crc32
from numpy.typing import NDArray

from reread.preprocessing.errors import DamagedError, UserError
from reread.preprocessing.files import open_file, replaced

LENGTHS = "lengths.npy"
TYPE = np.dtype("<u4")
_HEADER = 128
"""Bytes before the lengths, the same for each version of numpy."""
_AT_ONCE = 1 << 20
"""Bytes of the file that are checked together."""
_REMEDY = "copy it again, or run `reread preprocess` again"


def write_lengths(folder: Path, parts: Iterable[NDArray[Any]], documents: int) -> int:
    """Write `folder`/lengths.npy, one part [documents of a shard] after the other; returns its CRC-32."""
    values = f"{{'descr': '{TYPE.str}', 'fortran_order': False, 'shape': ({documents},), }}"
    magic = np.lib.format.magic(1, 0)
    text = values.ljust(_HEADER - len(magic) - 3) + "\n"
    header = magic + len(text).to_bytes(2, "little") + text.encode()
    with replaced(folder / LENGTHS) as file:
        file.write(header)
        checksum = crc32(header)
        for part in parts:
            data = part.astype(TYPE, copy=False).data
            file.write(data)
            checksum = crc32(data, checksum)
    return checksum


def lengths_bytes(documents: int) -> int:
    """The size of the file in bytes."""
    return _HEADER + TYPE.itemsize * documents


def is_whole(file: IO[bytes], documents: int, checksum: int) -> bool:
    """Whether a file is the one that was written, which is read from its beginning."""
    file.seek(0)
    size = found = 0
    while data := file.read(_AT_ONCE):
        size, found = size + len(data), crc32(data, found)
    return (size, found) == (lengths_bytes(documents), checksum)


def open_lengths(folder: Path, documents: int, checksum: int) -> IO[bytes]:
    """`folder`/lengths.npy, opened for `read_lengths`.

    Raises `DamagedError` if it is missing or differs from what was written, `UserError` if it cannot be read now.
    """
    path = folder / LENGTHS
    try:
        file = open_file(path)
        if is_whole(file, documents, checksum):
            return file
    except FileNotFoundError:
        raise DamagedError(f"{path}: missing; {_REMEDY}") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})", error) from None
    file.close()
    raise DamagedError(f"{path}: does not match its checksum in manifest.json; {_REMEDY}")


def read_lengths(file: IO[bytes], first: int, stop: int) -> NDArray[np.uint32]:
    """[stop - first]: the tokens of documents first..stop of the corpus."""
    file.seek(lengths_bytes(first))
    return np.frombuffer(file.read(TYPE.itemsize * (stop - first)), TYPE)
