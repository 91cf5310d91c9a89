"""Input from others runs no code and writes nowhere else; nothing is downloaded unasked; no secret is stored."""

import ast
import io
import json
import os
import pickle
import shutil
import tarfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from reread.preprocessing.config import PreprocessSettings
from reread.preprocessing.corpus import Corpus, Manifest
from reread.preprocessing.errors import UserError
from reread.preprocessing.execution.build import build
from reread.training.checkpoint.store import CheckpointStore
from reread.training.exchange.convert import convert
from reread.training.models import model_spec
from reread.training.models.build import build_model, model_config
from reread.training.models.nezha import NezhaConfig, NezhaForPreTraining
from reread.training.parallel.layout import Slice
from reread.training.parallel.mesh import Mesh
from tests.conftest import ROOT, train_values
from tests.forks import Job

SIZES = {"vocab_size": 9, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "中", "国", "##a", "a"]
EVIL = "open('exploded', 'w')\nclass Evil: pass\n"


class Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch exploded",)


@pytest.fixture(autouse=True)
def nothing_explodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    yield
    assert not Path("exploded").exists()


# Code


PROGRAM = ("reread", "pipeline", "preprocessing", "training", "slurm")
CALLS: dict[str, Callable[[dict[str, Any]], bool]] = {
    "eval": lambda given: False,
    "exec": lambda given: False,
    "pickle.load": lambda given: False,
    "pickle.loads": lambda given: False,
    "yaml.load": lambda given: False,
    "os.system": lambda given: False,
    ".extractall": lambda given: False,
    ".extract": lambda given: False,
    "torch.load": lambda given: given.get("weights_only") is True,
    "np.load": lambda given: given.get("allow_pickle", False) is False,
    ".from_pretrained": lambda given: given.get("local_files_only") is True,
    ".hf_hub_download": lambda given: given.get("local_files_only") is True,
    ".snapshot_download": lambda given: given.get("local_files_only") is True,
    ".model_info": lambda given: False,
    ".upload_folder": lambda given: False,
}
"""Calls that run what a file holds, write to a path it names or ask a network, and arguments with which they do not."""


BETWEEN_OUR_PROCESSES = ROOT / "preprocessing" / "input" / "confined.py"
"""It pickles for pipes to a child process that it has started itself, and never what a file holds."""
INERT = ROOT / "training" / "exchange" / "inert.py"
"""It looks up no class that a file names but those of tensors: tests/training/exchange/test_training_states.py."""
HUB = ROOT / "training" / "exchange" / "hub.py"
"""The one module that may ask the Hugging Face Hub, for a model that is named OWNER/NAME."""


def calls_of(path: Path) -> Iterator[tuple[str, dict[str, Any], str]]:
    """The function, constant arguments by name, and place of each call in a source file."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            given = {
                one.arg: one.value.value for one in node.keywords if one.arg and isinstance(one.value, ast.Constant)
            }
            yield ast.unparse(node.func), given, f"{path}:{node.lineno}: {ast.unparse(node)}"


def test_no_call_in_the_program_runs_what_a_file_holds_or_asks_a_network() -> None:
    checked = 0
    for path in (path for name in PROGRAM for path in (ROOT / name).rglob("*.py")):
        for function, given, place in calls_of(path):
            rule = CALLS.get(function) or CALLS.get("." + function.rpartition(".")[2])
            if rule:
                checked += 1
                confined = path == BETWEEN_OUR_PROCESSES and function == "pickle.load"
                inert = path == INERT and function == "torch.load"
                of_hub = path == HUB and function.startswith("api.")
                assert rule(given) or confined or inert or of_hub, place
    assert checked >= 5


def source_of_weights(folder: Path, weights: str, content: bytes) -> Path:
    folder.mkdir()
    (folder / weights).write_bytes(content)
    (folder / "config.json").write_text(json.dumps({**SIZES, "max_relative_position": 4, "model_type": "nezha"}))
    (folder / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n")
    return folder


@pytest.mark.parametrize("weights", ["model.safetensors", "pytorch_model.bin", "nezha.pt", "nezha.pth"])
def test_a_pickle_for_weights_is_refused_whatever_it_is_called(tmp_path, weights) -> None:
    """For .pdparams see test_paddle."""
    source = source_of_weights(tmp_path / "source", weights, pickle.dumps({"bomb": Bomb()}))
    with pytest.raises(UserError, match=weights) as refused:
        convert(source, tmp_path / "out")
    assert "\n" not in str(refused.value) and not (tmp_path / "out").exists()


@pytest.fixture
def converted(tmp_path: Path) -> Path:
    """A model converted from a source that requests its own code wherever transformers would run it."""
    weights = io.BytesIO()
    torch.manual_seed(0)
    torch.save(NezhaForPreTraining(NezhaConfig(**SIZES, max_relative_position=4)).state_dict(), weights)
    source = source_of_weights(tmp_path / "source", "pytorch_model.bin", weights.getvalue())
    ask_for_code(source, "config.json", {"AutoConfig": "evil.Evil", "AutoModel": "evil.Evil"})
    ask_for_code(source, "tokenizer_config.json", {"AutoTokenizer": ["someone/evil--evil.Evil", None]})
    convert(source, tmp_path / "converted")
    return tmp_path / "converted"


def ask_for_code(folder: Path, file: str, names: dict[str, Any]) -> None:
    path = folder / file
    values = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**values, "auto_map": names}))
    (folder / "evil.py").write_text(EVIL)


def test_converting_runs_no_code_of_the_source_and_hands_none_on(converted) -> None:
    assert not [path.name for path in converted.iterdir() if b"evil" in path.read_bytes().lower()]


def test_a_run_starts_from_a_folder_without_running_its_code(converted) -> None:
    ask_for_code(converted, "config.json", {"AutoConfig": "evil.Evil", "AutoModelForPreTraining": "evil.Evil"})
    spec = model_spec("nezha")
    config = model_config(spec, {}, 9, converted)
    build_model(spec.converted, config, converted, 0)
    assert not hasattr(config, "auto_map")


def test_a_run_does_not_start_from_a_pickle(converted) -> None:
    (converted / "model.safetensors").unlink()
    (converted / "pytorch_model.bin").write_bytes(pickle.dumps({"bomb": Bomb()}))
    spec = model_spec("nezha")
    with pytest.raises(UserError, match=r"train\.init"):
        build_model(spec.converted, model_config(spec, {}, 9, converted), converted, 0)


@pytest.mark.parametrize("file", ["index.json", "rank-00000.safetensors"])
def test_a_pickle_in_a_checkpoint_is_refused(tmp_path, file) -> None:
    """The index has the pickle's checksums, as an attacker would write them."""
    store = CheckpointStore(tmp_path / "checkpoints", 1, Mesh())
    store.save(1, {"a": torch.zeros(2)}, {"a": Slice((2,))}, {})
    store.wait()
    bomb, folder = pickle.dumps({"a": Bomb()}), tmp_path / "checkpoints" / "step-00000001"
    (folder / file).write_bytes(bomb)
    if file != "index.json":
        index = json.loads((folder / "index.json").read_text())
        del index["crc32"]
        index["files"] = {file: {"bytes": len(bomb), "crc32": zlib.crc32(bomb)}}
        (folder / "index.json").write_text(json.dumps({**index, "crc32": zlib.crc32(json.dumps(index).encode())}))
        assert store.fault(1) is None
    with pytest.raises(UserError, match=f"{file}: cannot be read"):
        store.load(1, {"a": torch.zeros(2)}, {"a": Slice((2,))})


def test_objects_in_a_numpy_file_are_not_loaded(tmp_path) -> None:
    """Part tasks pass arrays in .npy files."""
    np.save(tmp_path / "keys.npy", np.array([Bomb()], object), allow_pickle=True)
    with pytest.raises(ValueError, match="allow_pickle=False"):
        np.load(tmp_path / "keys.npy")


# Archives


def hostile_archive(path: Path, victim: Path) -> None:
    """A tar whose members try to escape: by name, by links, by special files."""

    def member(name: str, kind: bytes = tarfile.REGTYPE, text: str = "", link: str = "") -> None:
        entry = tarfile.TarInfo(name)
        entry.type, entry.linkname, entry.size = kind, link, len(text.encode())
        archive.addfile(entry, io.BytesIO(text.encode()))

    with tarfile.open(path, "w") as archive:
        member("good.txt", text="The ferry crosses the river every morning, and the children wave from the bridge.\n")
        member("../escaped.txt", text="Out by a name that goes up, and up again until it is out.\n")
        member(str(path.parent / "absolute.txt"), text="Out by a name that begins at the root of everything.\n")
        member("sym.txt", tarfile.SYMTYPE, link=str(victim))
        member("hard.txt", tarfile.LNKTYPE, link=str(victim))
        member("sym.txt", text="Through a link that was laid before, into another file altogether.\n")
        member("fifo.txt", tarfile.FIFOTYPE)
        member("device.txt", tarfile.CHRTYPE)


def test_an_archive_writes_nothing_outside_the_corpus_and_its_links_are_not_followed(tmp_path) -> None:
    victim = tmp_path / "victim.txt"
    victim.write_text("The secret diary of somebody else, which no corpus may hold, in a long sentence.\n")
    hostile_archive(tmp_path / "texts.tar", victim)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    values = {
        "input": {"paths": [str(tmp_path / "texts.tar")]},
        "output": tmp_path / "corpus",
        "tokenizer": {"train": {"size": 300}},
        "workers": 1,
    }
    build(PreprocessSettings.parse(values, "test"))
    assert {path: path.read_bytes() for path in tmp_path.iterdir() if path.name != "corpus"} == before
    assert all(path.is_file() or path.is_dir() for path in (tmp_path / "corpus").rglob("*"))
    words = (tmp_path / "corpus" / "tokenizer" / "vocab.txt").read_text().split()
    assert "ferry" in words and not {"secret", "diary"} & set(words)


def test_a_corpus_whose_manifest_leads_elsewhere_is_refused(sample_corpus, tmp_path) -> None:
    corpus = shutil.copytree(sample_corpus, tmp_path / "corpus")
    manifest = Manifest.read(corpus)
    first = manifest.shards[0]
    shutil.copy(corpus / first.name, tmp_path / first.name)
    for name in (f"../{first.name}", str(tmp_path / first.name)):
        replace(manifest, shards=[replace(first, name=name), *manifest.shards[1:]]).write(corpus)
        with pytest.raises(UserError, match="which is not a file of this folder"):
            Corpus(corpus, first.split)


# The network, and secrets


SECRETS = {
    name: f"s3cr3t-{number}-{name.lower()}"
    for number, name in enumerate(
        ["HF_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "GITHUB_TOKEN", "DB_PASSWORD", "SSH_PRIVATE_KEY"]
    )
}


def watched(rank: int) -> None:
    """Secrets in the environment; records every lookup of a host's address, with which downloads begin."""
    import socket

    os.environ.update(SECRETS)
    os.environ.pop("HF_HUB_OFFLINE", None)

    def looked_up(host: Any, *rest: Any, **named: Any) -> Any:
        with Path("network.txt").open("a") as file:
            file.write(f"{host}\n")
        raise OSError("no network here")

    socket.getaddrinfo = looked_up


def recipe_of_all_stages(folder: Path) -> None:
    train = train_values(Path("corpus"), steps=3, parallel={"processes": 1})
    recipe = {
        "name": "tiny",
        "preprocess": {
            "input": {"paths": [str(ROOT / "pipeline" / "sample" / "en")]},
            "output": "corpus",
            "tokenizer": {"train": {"size": 500}},
            "validation_share": 0.1,
            "workers": 2,
        },
        "train": train,
        "examples": ["The ferry crosses the [MASK] every morning."],
    }
    (folder / "tiny.yaml").write_text(yaml.safe_dump(recipe))


def test_a_whole_run_downloads_nothing_and_writes_no_secret_down(tmp_path) -> None:
    """Preprocessing, training, export, report; every file is searched: logs, TensorBoard's events, checkpoints."""
    recipe_of_all_stages(tmp_path)
    with Job(tmp_path, "run", "tiny.yaml", processes=1, before=watched) as job:
        assert job.statuses() == [0], job.output
    assert not (tmp_path / "network.txt").exists(), (tmp_path / "network.txt").read_text()
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    names = {path.name for path in files}
    assert {"recipe.yaml", "environment.json", "metrics.jsonl", "rank-0.log", "rank-00000.json", "README.md"} <= names
    assert any("tfevents" in name for name in names)
    for path in files:
        content = path.read_bytes()
        found = [name for name, secret in SECRETS.items() if secret.encode() in content or name.encode() in content]
        assert not found, (path, found)


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("init=bert-base-chinese", "reread: train.init: bert-base-chinese holds no config.json; make the folder with"),
        ("preprocess.tokenizer={path: bert-base-chinese}", "reread: tokenizer.path: bert-base-chinese is not there"),
    ],
)
def test_the_name_of_a_model_on_a_hub_is_refused_and_not_looked_up(sample_corpus, tmp_path, override, line) -> None:
    recipe_of_all_stages(tmp_path)
    shutil.copytree(sample_corpus, tmp_path / "corpus")
    command = "train" if override.startswith("init") else "preprocess"
    more = [] if command == "train" else ["preprocess.output=elsewhere"]
    with Job(tmp_path, command, "tiny.yaml", override, *more, processes=1, before=watched) as job:
        assert job.statuses() == [2], job.output
    assert next(one for one in job.output.splitlines() if one.startswith("reread: ")).startswith(line)
    assert not (tmp_path / "network.txt").exists()
