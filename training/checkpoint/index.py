"""`index.json` of a checkpoint: the file of each part of each tensor, and the state in addition to the tensors."""

import math
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict  # pydantic reads that of `typing` from Python 3.12 on alone

from reread.preprocessing.corpus.manifest import Count
from reread.preprocessing.errors import DamagedError

FileName = Annotated[str, Field(pattern=r"^rank-[0-9]{5,9}\.safetensors$")]


class TensorPart(TypedDict):
    file: FileName
    region: list[tuple[Count, Count]]
    """Begin and end in each dimension of the whole tensor."""


class TensorEntry(TypedDict):
    shape: list[Count]
    dtype: Literal["float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool"]
    parts: list[TensorPart]


class TensorFile(TypedDict):
    bytes: Count
    crc32: Count


class CheckpointIndex(TypedDict):
    step: Count
    state: dict[str, Any]
    tensors: dict[str, TensorEntry]
    files: dict[FileName, TensorFile]


def checked_index(values: dict[str, Any], path: Path) -> CheckpointIndex:
    """The index that the file `path` holds. Raises `DamagedError` if `values` are no index or contradict themselves."""
    try:
        index = _parser().validate_python(values)
    except ValidationError as error:
        problem = error.errors()[0]
        raise DamagedError(f"{path}: {'.'.join(map(str, problem['loc']))}: {problem['msg']}") from None
    room = sum(file["bytes"] for file in index["files"].values())
    for name, entry in index["tensors"].items():
        room -= math.prod(entry["shape"]) * getattr(torch, entry["dtype"]).itemsize
        if room < 0:
            raise DamagedError(f"{path}: {name} is larger than its files")
        if not _is_whole(entry, index["files"]):
            raise DamagedError(f"{path}: the parts of {name} do not make a tensor of shape {entry['shape']}")
    return index


def _is_whole(entry: TensorEntry, files: dict[str, TensorFile]) -> bool:
    """Whether the parts lie within the tensor and have as many numbers as it."""
    shape, numbers = entry["shape"], 0
    for part in entry["parts"]:
        region = part["region"]
        inside = len(region) == len(shape) and all(
            begin < end <= size for (begin, end), size in zip(region, shape, strict=True)
        )
        if not inside or part["file"] not in files:
            return False
        numbers += math.prod(end - begin for begin, end in region)
    return numbers == math.prod(shape)


@cache
def _parser() -> TypeAdapter[CheckpointIndex]:
    return TypeAdapter(CheckpointIndex)
