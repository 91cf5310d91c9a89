"""Checkpoints whose index or tensors are others, sealed anew, as one who means harm would."""

import json
import zlib
from pathlib import Path
from random import Random
from typing import Any

import torch

from reread.training.checkpoint.store import CheckpointStore
from reread.training.parallel.layout import Slice
from reread.training.parallel.mesh import Mesh
from reread.training.run.state import run_state
from tests.fuzz.common import Case, changed_bytes, changed_json

TENSORS = {"model.a": torch.arange(12.0).view(3, 4), "model.b": torch.tensor(2.0), "exp_avg.a": torch.zeros(3, 4)}
LAYOUT = {name: Slice(tuple(tensor.shape)) for name, tensor in TENSORS.items()}
STATE: dict[str, Any] = {
    "step": 2,
    "scale": {"active": True, "value": 65536.0, "good": 1, "bad": 0},
    "samples": "a",
    "position": 16,
    "corpus": {"fingerprint": "b", "tokenizer": "c", "documents": 3},
    "compared": {"task.dev": "d"},
    "updates": 2,
    "tokens": 64.0,
    "bad_steps": 0,
    "skipped_steps": 0,
    "best": {"step": 1, "score": -3.0, "since": 1},
}


def prepare(folder: Path) -> Case:
    store = CheckpointStore(folder, 9, Mesh())
    for step in (1, 2):
        store.save(step, TENSORS, LAYOUT, STATE)
    store.wait()
    index, tensors = folder / "step-00000002" / "index.json", folder / "step-00000002" / "rank-00000.safetensors"
    kept, whole = json.loads(index.read_bytes()), tensors.read_bytes()
    kept.pop("crc32")

    def case(random: Random) -> None:
        values, data = kept, whole
        if random.random() < 0.2:
            data = changed_bytes(random, whole)
            file = {"bytes": len(data), "crc32": zlib.crc32(data)}
            values = {**kept, "files": {tensors.name: file}}
        else:
            values = changed_json(random, kept)
        if isinstance(values, dict):
            values = {**values, "crc32": zlib.crc32(json.dumps(values).encode())}
        text = json.dumps(values).encode()
        tensors.write_bytes(data)
        index.write_bytes(changed_bytes(random, text) if random.random() < 0.1 else text)
        step = random.choice((store.latest, store.chosen))()
        if step not in store.steps():  # the best one may be gone
            return
        run_state(store, step)
        store.load(step, {name: torch.empty_like(tensor) for name, tensor in TENSORS.items()}, LAYOUT)
        store.read_full(step, "model.")

    return case
