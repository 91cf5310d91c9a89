"""A checkpoint is intact or it is skipped; one process."""

import builtins
import errno
import io
import json
import logging
import os
import pathlib
import zlib
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from reread.preprocessing.errors import DamagedError, UserError
from reread.training.checkpoint.store import CheckpointStore
from reread.training.parallel.layout import Slice
from reread.training.parallel.mesh import Mesh

LAYOUT = {"a": Slice((3, 4)), "b": Slice((5,)), "scalar": Slice(())}


def values(number: float = 0.0) -> dict[str, Tensor]:
    a = torch.arange(12.0).view(3, 4) + number
    return {"a": a, "b": torch.arange(5).to(torch.bfloat16) * number, "scalar": torch.tensor(number)}


def saved(folder: Path, *steps: int, keep: int = 9) -> CheckpointStore:
    store = CheckpointStore(folder, keep, Mesh())
    for step in steps:
        store.save(step, values(step), LAYOUT, {"step": step})
    store.wait()
    return store


def check(store: CheckpointStore, step: int) -> None:
    tensors = {name: torch.full_like(tensor, -1) for name, tensor in values().items()}
    store.load(step, tensors, LAYOUT)
    assert store.state(step) == {"step": step}
    for name, expected in values(step).items():
        assert torch.equal(tensors[name], expected)


def test_what_was_saved_comes_back_with_its_state(tmp_path):
    store = saved(tmp_path, 1, 2)
    assert store.latest() == 2
    check(store, 1)
    check(store, 2)
    check(CheckpointStore(tmp_path, 9, Mesh()), 2)


def test_no_checkpoint_is_none(tmp_path):
    assert CheckpointStore(tmp_path / "none", 1, Mesh()).latest() is None


def test_a_save_is_a_snapshot(tmp_path):
    store = CheckpointStore(tmp_path, 1, Mesh())
    tensors, state = values(7), {"step": 7}
    store.save(7, tensors, LAYOUT, state)
    tensors["a"].zero_()
    state["step"] = 8
    store.wait()
    check(store, 7)


def test_the_last_ones_are_kept(tmp_path):
    saved(tmp_path, 1, 2, 3, 4, keep=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000003", "step-00000004"]


def test_saving_a_step_again_replaces_it(tmp_path):
    store = saved(tmp_path, 1)
    store.save(1, values(5), LAYOUT, {"step": 5})
    store.wait()
    tensors = values()
    store.load(1, tensors, LAYOUT)
    assert store.state(1) == {"step": 5} and torch.equal(tensors["a"], values(5)["a"])
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001"]


def damage(path: Path, how: str) -> None:
    content = bytearray(path.read_bytes())
    if how == "missing":
        path.unlink()
    elif how == "truncated":
        path.write_bytes(content[:-3])
    else:
        content[len(content) - 6] ^= 4
        path.write_bytes(content)


@pytest.mark.parametrize("file", ["index.json", "rank-00000.safetensors"])
@pytest.mark.parametrize("how", ["missing", "truncated", "bit-flipped"])
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(tmp_path, caplog, file, how):
    caplog.set_level(logging.INFO, logger="reread")
    store = saved(tmp_path, 1, 2)
    damage(tmp_path / "step-00000002" / file, how)
    assert store.latest() == 1
    assert len(caplog.messages) == 1 and "step-00000002" in caplog.messages[0] and file in caplog.messages[0]
    check(store, 1)


def test_a_run_does_not_start_from_zero_because_all_is_damaged(tmp_path):
    store = saved(tmp_path, 1)
    damage(tmp_path / "step-00000001" / "index.json", "truncated")
    with pytest.raises(UserError, match="every checkpoint is damaged"):
        store.latest()


def contents(folder: Path) -> dict[Path, bytes]:
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("crc32", ["as we write it", "another", "none"])
def test_a_checkpoint_of_another_format_version_is_refused_and_left_alone(tmp_path, crc32) -> None:
    """It is not skipped as damaged: the run would continue from an earlier one and later overwrite it."""
    store = saved(tmp_path, 1, 2)
    path = tmp_path / "step-00000002" / "index.json"
    index = {**json.loads(path.read_text()), "version": 2}
    del index["crc32"]
    sums = {"as we write it": {"crc32": zlib.crc32(json.dumps(index).encode())}, "another": {"crc32": 7}, "none": {}}
    path.write_text(json.dumps({**index, **sums[crc32]}))
    before = contents(tmp_path)
    line = r"step-00000002/index\.json: checkpoint format 2, this program reads 1; .*the program that wrote it.*name="
    for refused in (store.latest, lambda: store.fault(2), lambda: store.load(2, values(), LAYOUT)):
        with pytest.raises(UserError, match=line):
            refused()
    assert contents(tmp_path) == before


CONTRADICTIONS: dict[str, tuple[tuple[Any, ...], Any]] = {
    "a part is missing": (("tensors", "a", "parts"), []),
    "a part leaves out a row": (("tensors", "a", "parts", 0, "region", 0), [1, 3]),
    "a part ends after the tensor": (("tensors", "a", "parts", 0, "region", 0), [0, 4]),
    "a part is in no file of the checkpoint": (("tensors", "a", "parts", 0, "file"), "rank-00009.safetensors"),
    "a file is outside": (("files",), {"../step-00000001/rank-00000.safetensors": {"bytes": 1, "crc32": 1}}),
    "a tensor is larger than its file": (("tensors", "b", "shape"), [1 << 40]),
    "a type is none": (("tensors", "a", "dtype"), "load"),
}


@pytest.mark.parametrize("what", CONTRADICTIONS)
def test_an_index_that_contradicts_itself_is_damage_whoever_sealed_it(tmp_path, what) -> None:
    """Memory that no part fills would be weights, and no part is read from elsewhere."""
    store, path = saved(tmp_path, 1, 2), tmp_path / "step-00000002" / "index.json"
    index = json.loads(path.read_text())
    del index["crc32"]
    (*keys, last), value = CONTRADICTIONS[what]
    inner = index
    for key in keys:
        inner = inner[key]
    inner[last] = value
    path.write_text(json.dumps({**index, "crc32": zlib.crc32(json.dumps(index).encode())}))
    assert store.latest() == 1
    with pytest.raises(DamagedError, match=r"step-00000002/index\.json: "):
        store.load(2, values(), LAYOUT)


@pytest.mark.parametrize("number", [errno.EACCES, errno.ESTALE, errno.EIO, errno.EMFILE], ids=errno.errorcode.get)
@pytest.mark.parametrize("what", ["", "step-00000002/index.json", "step-00000002/rank-00000.safetensors"])
def test_a_checkpoint_that_cannot_be_read_just_now_is_refused_and_left_alone(tmp_path, monkeypatch, what, number):
    """What cannot be read is not proven damaged; a folder that cannot be listed is not empty."""
    store = saved(tmp_path, 1, 2)
    before, faulty = contents(tmp_path), tmp_path / what

    def failing(call: Any) -> Any:
        def or_fail(path: Any, *rest: Any, **named: Any) -> Any:
            if isinstance(path, str | Path) and Path(path) == faulty:
                raise OSError(number, os.strerror(number), str(path))
            return call(path, *rest, **named)

        return or_fail

    kept = getattr(pathlib, "_normal_accessor", os)  # Python 3.10's pathlib calls the functions that it found at import
    with monkeypatch.context() as patch:
        for owner, name in product((builtins, io, os, kept), ("open", "listdir", "scandir")):
            if hasattr(owner, name):
                patch.setattr(owner, name, failing(getattr(owner, name)))
        with pytest.raises(UserError, match=rf"^{faulty}: cannot be read now \({os.strerror(number)}\)") as error:
            store.latest()
    assert error.value.status == (2 if number == errno.EACCES else 1)
    assert contents(tmp_path) == before
    assert store.latest() == 2


def test_damaged_later_steps_do_not_push_out_good_ones(tmp_path):
    store = saved(tmp_path, 10, 30, 40)
    for step in (30, 40):
        damage(tmp_path / f"step-{step:08d}" / "index.json", "truncated")
    store.keep = 1
    assert store.latest() == 10
    store.save(20, values(20), LAYOUT, {"step": 20})
    store.wait()
    assert store.latest() == 20


def test_leftovers_of_a_killed_run_are_removed(tmp_path):
    stale = tmp_path / "step-00000009.tmp"
    stale.mkdir()
    (stale / "rank-00000.safetensors").write_bytes(b"half")
    assert CheckpointStore(tmp_path, 1, Mesh()).latest() is None
    saved(tmp_path, 10)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000010"]


@pytest.mark.parametrize("kind", ["file", "link", "link to a folder"])
@pytest.mark.parametrize("name", ["step-00000010.tmp", "step-00000009.tmp", "step-00000009.old.tmp", "notes.tmp"])
def test_whatever_is_called_tmp_hinders_no_save_and_what_is_not_ours_stays(tmp_path, kind, name) -> None:
    checkpoints, elsewhere = tmp_path / "checkpoints", tmp_path / "elsewhere"
    for folder in (checkpoints, elsewhere):
        folder.mkdir()
    (elsewhere / "text").write_text("mine")
    if kind == "file":
        (checkpoints / name).write_text("mine")
    else:
        (checkpoints / name).symlink_to(elsewhere if kind == "link to a folder" else elsewhere / "text")
    check(saved(checkpoints, 10), 10)
    ours = {"step-00000010"} | ({name} if name == "notes.tmp" else set())
    assert {path.name for path in checkpoints.iterdir()} == ours
    assert (elsewhere / "text").read_text() == "mine"


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o007, 0o660)])
def test_checkpoint_files_follow_the_umask(tmp_path, umask, mode) -> None:
    """safetensors makes its files 0600, which colleagues and their jobs could not read."""
    before = os.umask(umask)
    try:
        saved(tmp_path, 1)
    finally:
        os.umask(before)
    assert {path.name: path.stat().st_mode & 0o777 for path in tmp_path.glob("*/*")} == {
        "index.json": mode,
        "rank-00000.safetensors": mode,
    }


def test_reading_disturbs_no_run_that_is_writing(tmp_path):
    saved(tmp_path, 1)
    live = tmp_path / "step-00000002.tmp"
    live.mkdir()
    reader = CheckpointStore(tmp_path, 1, Mesh())
    assert reader.latest() == 1
    reader.read_full(1)
    assert live.exists()


def test_another_shape_or_name_is_refused_in_one_line(tmp_path):
    store = saved(tmp_path, 1)
    with pytest.raises(UserError, match=r"a has shape \(3, 4\), but \(3, 5\) in this run"):
        store.load(1, {"a": torch.zeros(3, 5)}, {"a": Slice((3, 5))})
    with pytest.raises(UserError, match="no tensor c"):
        store.load(1, {"c": torch.zeros(3)}, {"c": Slice((3,))})


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path):
    (tmp_path / "checkpoints").write_text("a file")
    store = CheckpointStore(tmp_path / "checkpoints", 1, Mesh())
    with pytest.raises(UserError, match=r"cannot write the checkpoint of step 1.*no older checkpoint"):
        store.save(1, values(), LAYOUT, {})


def test_read_full_takes_off_the_prefix(tmp_path):
    store = CheckpointStore(tmp_path, 1, Mesh())
    layout = {f"model.{name}": place for name, place in LAYOUT.items()}
    store.save(1, {f"model.{name}": tensor for name, tensor in values(3).items()}, layout, {})
    store.wait()
    whole = store.read_full(1, "model.")
    assert whole.keys() == LAYOUT.keys() and whole["b"].dtype == torch.bfloat16
    assert all(torch.equal(whole[name], tensor) for name, tensor in values(3).items())
    assert store.read_full(1, "optimizer.") == {}


def test_the_index_is_plain_json(tmp_path):
    saved(tmp_path, 1)
    index = json.loads((tmp_path / "step-00000001" / "index.json").read_text())
    assert index["state"] == {"step": 1} and index["tensors"]["a"]["shape"] == [3, 4]
