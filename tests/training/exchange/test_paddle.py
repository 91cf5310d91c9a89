"""Paddle's files are read as Paddle wrote them, and nothing that they hold is run."""

import os
import pickle
import struct
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from reread.preprocessing.errors import UserError
from reread.training.exchange.paddle import NAMES, SPLIT, StaticFolder, read_pdparams, read_variable

RNG = np.random.default_rng(0)
STATE: dict[str, NDArray[Any]] = {
    "linear.weight": RNG.standard_normal((3, 4)).astype(np.float32),
    "turned": np.asfortranarray(RNG.standard_normal((2, 5))),
    "half": np.arange(6, dtype=np.float16).reshape(1, 2, 3),
    "step": np.array(7),
    "big end": np.arange(4, dtype=">i4"),
    "none": np.zeros((0, 3), np.float32),
    "mask": np.array([True, False]),
}


def written(path: Path, state: Any, protocol: int = 4) -> Path:
    """As paddle.save writes it: the file is what pickle makes of arrays by name, looked at with pickletools."""
    path.write_bytes(pickle.dumps(state, protocol))
    return path


@pytest.mark.parametrize("protocol", [2, 3, 4])
def test_arrays_are_read_at_every_protocol(tmp_path: Path, protocol: int) -> None:
    # No empty array at protocol 2, where Python writes the empty bytes as a call
    state = {name: array for name, array in STATE.items() if array.size or protocol > 2}
    read = read_pdparams(
        written(tmp_path / "a.pdparams", {**state, NAMES: {"linear.weight": "linear_0.w_0"}}, protocol)
    )
    assert read.keys() == state.keys()
    for name, array in state.items():
        assert read[name].shape == array.shape
        assert read[name].dtype.newbyteorder("=") == array.dtype.newbyteorder("=")
        np.testing.assert_array_equal(read[name], array)


def test_what_older_versions_wrote_is_read(tmp_path: Path) -> None:
    array = STATE["linear.weight"]
    raw = pickle.dumps(OrderedDict(a=array), 2).replace(b"numpy._core.multiarray", b"numpy.core.multiarray")
    (tmp_path / "a.pdparams").write_bytes(raw)
    np.testing.assert_array_equal(read_pdparams(tmp_path / "a.pdparams")["a"], array)
    pair = written(tmp_path / "pair.pdparams", {"a": ("eager_tmp_0", array)})
    np.testing.assert_array_equal(read_pdparams(pair)["a"], array)


def test_bfloat16_becomes_float32(tmp_path: Path) -> None:
    bits = np.array([0x3F80, 0xC020], np.uint16)  # 1 and -2.5
    read = read_pdparams(written(tmp_path / "a.pdparams", {"a": bits}))["a"]
    assert read.dtype == np.float32
    assert read.tolist() == [1.0, -2.5]


def test_arrays_that_were_split_are_joined(tmp_path: Path) -> None:
    table = np.arange(12, dtype=np.float32).reshape(4, 3)
    slices = {"word@@.0": table.ravel()[:5], "word@@.1": table.ravel()[5:10], "word@@.2": table.ravel()[10:]}
    told = {SPLIT: {"word": {"OriginShape": (4, 3), "slices": list(slices)}}}
    read = read_pdparams(written(tmp_path / "a.pdparams", {"b": table[0], **slices, **told}, 2))
    assert read.keys() == {"b", "word"}
    np.testing.assert_array_equal(read["word"], table)


class Call:
    """Pickled as a call of `function`."""

    def __init__(self, function: Any, *arguments: Any, state: Any = None) -> None:
        self.parts = (function, arguments) if state is None else (function, arguments, state)

    def __reduce__(self) -> Any:
        return self.parts


def objects(value: Any) -> NDArray[Any]:
    array = np.empty(1, object)
    array[0] = value
    return array


TOUCH = "__import__('pathlib').Path('exploded').touch()"
ATTACKS: dict[str, Any] = {
    "a command": Call(os.system, "touch exploded"),
    "in a dictionary": {"a": STATE["step"], "bomb": Call(os.system, "touch exploded")},
    "eval": {"a": Call(eval, TOUCH)},
    "eval as Paddle's own LoDTensors ask for": {"a": Call(eval, "data", {"data": STATE["step"]})},
    "an array of objects": {"a": objects(Call(eval, TOUCH))},
    "getattr": {"a": Call(getattr, Path, "touch")},
    "numpy's loader": {"a": Call(np.load, "exploded", None, True)},
    "an array's constructor": {"a": Call(np.ndarray, (2,))},
    "a class": {"a": Path("exploded")},
    "state for a dictionary": {"a": Call(OrderedDict, state={"items": 1})},
    "a type of objects": {"a": np.dtype([("field", object)])},
}


@pytest.mark.parametrize("protocol", [2, 4])
@pytest.mark.parametrize("attack", ATTACKS)
def test_a_file_that_would_run_code_is_refused_and_nothing_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, attack: str, protocol: int
) -> None:
    monkeypatch.chdir(tmp_path)
    path = written(tmp_path / "model_state.pdparams", ATTACKS[attack], protocol)
    with pytest.raises(UserError, match=r"model_state\.pdparams: refused, since it holds more than arrays") as error:
        read_pdparams(path)
    assert "\n" not in str(error.value)
    assert not Path("exploded").exists()


@pytest.mark.parametrize("state", [[STATE["step"]], {"LR_Scheduler": {"last_epoch": 1}}, {"a": 3}, {1: STATE["step"]}])
def test_what_is_no_state_dict_is_refused(tmp_path: Path, state: Any) -> None:
    with pytest.raises(UserError, match="holds more than arrays"):
        read_pdparams(written(tmp_path / "a.pdparams", state))


def test_no_damage_to_a_pdparams_gets_past_as_anything_but_an_error_or_numbers(tmp_path: Path) -> None:
    whole = pickle.dumps({"a": STATE["linear.weight"], SPLIT: {}}, 2)
    path = tmp_path / "a.pdparams"
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(UserError, match="was the download complete"):
            read_pdparams(path)
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([RNG.integers(256)]) + whole[place + 1 :])
        try:
            arrays = read_pdparams(path)
        except UserError:
            continue
        assert all(isinstance(array, np.ndarray) and array.dtype != object for array in arrays.values())


def varint(value: int) -> bytes:
    low = [value >> shift & 0x7F for shift in range(0, max(value.bit_length(), 1), 7)]
    return bytes([*(part | 0x80 for part in low[:-1]), low[-1]])


def variable(array: NDArray[Any], code: int, packed: bool = False, levels: tuple[bytes, ...] = ()) -> bytes:
    """A LoDTensor by the description in Paddle's lod_tensor.cc and framework.proto."""
    dims = [varint(extent) for extent in array.shape]
    shape = (
        b"\x12" + varint(len(b"".join(dims))) + b"".join(dims) if packed else b"".join(b"\x10" + dim for dim in dims)
    )
    desc = b"\x08" + varint(code) + shape
    lod = b"".join(struct.pack("<Q", len(level)) + level for level in levels)
    head = struct.pack("<IQ", 0, len(levels)) + lod + struct.pack("<Ii", 0, len(desc))
    return head + desc + array.astype(array.dtype.newbyteorder("<")).tobytes()


@pytest.mark.parametrize("packed", [False, True])
def test_variables_are_read_with_their_type_and_shape(tmp_path: Path, packed: bool) -> None:
    wide = RNG.standard_normal((3, 300)).astype(np.float32)  # 300 takes two bytes
    for code, array in (
        (5, wide),
        (6, wide.astype(np.float64)),
        (4, wide.astype(np.float16)),
        (3, np.array([1 << 40])),
    ):
        (tmp_path / "pooled_fc.w_0").write_bytes(variable(array, code, packed))
        read = read_variable(tmp_path / "pooled_fc.w_0")
        assert read.dtype == array.dtype
        np.testing.assert_array_equal(read, array)
    (tmp_path / "levels").write_bytes(variable(wide, 5, packed, (struct.pack("<QQ", 0, 3), b"")))
    np.testing.assert_array_equal(read_variable(tmp_path / "levels"), wide)
    (tmp_path / "brain").write_bytes(variable(np.array([0x3F80], np.uint16), 22, packed))
    assert read_variable(tmp_path / "brain").tolist() == [1.0]


def test_variables_cut_short_or_longer_than_they_say_are_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "pooled_fc.w_0"
    whole = variable(STATE["linear.weight"], 5, levels=(struct.pack("<QQ", 0, 3),))
    for raw in [whole[:size] for size in range(len(whole))] + [whole + b"\0"]:
        path.write_bytes(raw)
        with pytest.raises(UserError, match=r"pooled_fc\.w_0: .*was the download complete"):
            read_variable(path)


@pytest.mark.parametrize("code", [7, 19, 300])
def test_variables_that_hold_no_numbers_are_refused(tmp_path: Path, code: int) -> None:
    (tmp_path / "feed").write_bytes(variable(STATE["linear.weight"], code))
    with pytest.raises(UserError, match=f"feed: cannot be read .its type {code} is not a type of numbers"):
        read_variable(tmp_path / "feed")


def test_a_text_file_is_no_variable(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("These weights were trained by us.")
    with pytest.raises(UserError, match=r"notes: cannot be read .it is not a variable of Paddle"):
        read_variable(tmp_path / "notes")


def test_a_folder_gives_variables_by_name_and_reads_no_other_than_asked_for(tmp_path: Path) -> None:
    (tmp_path / "word_embedding").write_bytes(variable(STATE["linear.weight"], 5))
    (tmp_path / "word_embedding_moment1_0").write_bytes(b"broken")
    (tmp_path / "ernie_config.json").write_text("{}")
    (tmp_path / ".hidden").write_text("")
    folder = StaticFolder(tmp_path)
    assert list(folder) == ["word_embedding", "word_embedding_moment1_0"]
    np.testing.assert_array_equal(folder["word_embedding"], STATE["linear.weight"])
    with pytest.raises(KeyError):
        folder["../word_embedding"]
