"""Models of the Hugging Face Hub by name, against a stand-in on loopback: what is fetched, pushed, and refused."""

import json
import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save
from transformers import BertConfig, BertForMaskedLM

from reread.preprocessing.errors import UserError, describe
from reread.training.exchange import hub as module
from reread.training.exchange.card import front_matter
from reread.training.exchange.convert import convert
from reread.training.exchange.hub import HubName, check_push, fetch, hub_name, not_looked_for, push, stay_offline
from reread.training.models.nezha import NezhaConfig, NezhaForPreTraining
from tests.hub_server import COMMIT, Hub, serving_hub, use_hub

SIZES = {"vocab_size": 9, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "中", "国", "##a", "a"]
NAME = HubName("someone/nezha")


class Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch exploded",)


def nezha_files() -> dict[str, bytes]:
    """A tiny NEZHA as its owner may have it there: in two formats, with code, and with what we do not read."""
    torch.manual_seed(0)
    state = NezhaForPreTraining(NezhaConfig(**SIZES, max_relative_position=4)).state_dict()
    config = {**SIZES, "max_relative_position": 4, "model_type": "nezha", "auto_map": {"AutoModel": "evil.Evil"}}
    return {
        "config.json": json.dumps(config).encode(),
        "vocab.txt": ("\n".join(VOCABULARY) + "\n").encode(),
        "model.safetensors": save({name: tensor.clone() for name, tensor in state.items()}),
        "pytorch_model.bin": pickle.dumps(Bomb()),
        "README.md": b"---\nlicense: apache-2.0\nlanguage: zh\n---\nA model.\n",
        "evil.py": b"open('exploded', 'w')\n",
        "onnx/model.safetensors": b"another",
        "training_args.bin": pickle.dumps(Bomb()),
    }


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    monkeypatch.chdir(tmp_path)
    with serving_hub() as server:
        server.repositories[NAME.repository] = nezha_files()
        use_hub(server, monkeypatch, str(tmp_path / "cache"))
        yield server
    module._asked_to_stay_offline.cache_clear()
    fetch.cache_clear()
    assert not Path("exploded").exists()


# Names


def test_only_owner_and_name_that_are_no_path_here_are_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine" / "model").mkdir(parents=True)
    assert hub_name("google-bert/bert-base-chinese") == HubName("google-bert/bert-base-chinese")
    assert hub_name(Path("o/n@v1.0")) == HubName("o/n", "v1.0")
    assert hub_name("o/n@refs/pr/1") == HubName("o/n", "refs/pr/1")
    assert hub_name("mine/modle@main") == HubName("mine/modle", "main")
    paths = (
        "mine/model mine/modle runs/tiny models/x corpora/zh ./o/n ../o/n /o/n o/n/export o o/ o/n.pdparams o//n ~/o"
    )
    for path in [*paths.split(), "o/n@", "o/model.safetensors", "https://h/o/n", "o/n m", "", "o\n/n"]:
        assert hub_name(path) is None, path
    assert str(HubName("o/n", "v1")) == "o/n@v1" and str(HubName("o/n")) == "o/n"
    assert HubName("o/n", "refs/pr/1").folder("nezha") == Path("models/o--n@refs--pr--1-nezha")


def test_an_error_about_a_path_says_what_a_name_would_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    assert not_looked_for("mine/x") == "; it was not looked for on the Hub, whose model is given as mine/x@main"
    assert not_looked_for("bert-base-chinese") == "; a model of the Hub is given as OWNER/NAME"
    assert not_looked_for(Path("https://host/o/n")).endswith("OWNER/NAME, not as an address")
    for path in ("mine", "/a/b", "a/b/c", "mine/model.safetensors", "a b"):
        assert not_looked_for(path) == ""
    with pytest.raises(UserError, match=r"^mine/x: not there; looked for .*; it was not looked for on the Hub, whose"):
        convert(Path("mine/x"), tmp_path / "out")


# Fetching


def test_configuration_weights_and_tokenizer_are_fetched_and_never_code(hub: Hub, caplog: Any) -> None:
    caplog.set_level("INFO", logger="reread")
    folder = fetch(NAME)
    assert {path.name for path in folder.iterdir()} == {"config.json", "vocab.txt", "model.safetensors", "README.md"}
    assert sorted(hub.fetched) == ["README.md", "config.json", "model.safetensors", "vocab.txt"]
    (line,) = [record.getMessage() for record in caplog.records if record.name == "reread"]
    assert line.startswith(f"someone/nezha: no such path here, so it is fetched from the Hub: revision {COMMIT}, ")
    asked = len(hub.asked)
    assert fetch(NAME) == folder and len(hub.asked) == asked
    fetch.cache_clear()  # as another command would
    assert fetch(NAME) == folder and len(hub.fetched) == 4


def test_a_model_of_the_hub_is_converted_as_its_folder_would_be(hub: Hub, tmp_path: Path) -> None:
    convert(NAME, tmp_path / "out")
    own = tmp_path / "own"
    own.mkdir()
    for name in ("config.json", "vocab.txt", "model.safetensors"):
        (own / name).write_bytes(nezha_files()[name])
    convert(own, tmp_path / "same")
    for path in (tmp_path / "same").iterdir():
        if path.name != "README.md":
            assert (tmp_path / "out" / path.name).read_bytes() == path.read_bytes(), path.name
    assert not [path for path in (tmp_path / "out").iterdir() if b"evil" in path.read_bytes().lower()]
    card = front_matter(tmp_path / "out")
    assert (card["license"], card["language"], card["base_model"]) == ("apache-2.0", ["zh"], "someone/nezha")
    assert f"of `someone/nezha`, revision {COMMIT}" in (tmp_path / "out" / "README.md").read_text()
    assert not {"license", "language", "base_model"} & set(front_matter(tmp_path / "same"))


def test_a_pickle_of_the_hub_is_read_by_the_same_reader(hub: Hub, tmp_path: Path) -> None:
    del hub.repositories[NAME.repository]["model.safetensors"]
    with pytest.raises(UserError, match=r"pytorch_model\.bin: "):
        convert(NAME, tmp_path / "out")
    assert "pytorch_model.bin" in hub.fetched and "training_args.bin" not in hub.fetched
    assert not (tmp_path / "out").exists()


def test_weights_in_several_files_or_in_none_are_refused_before_they_are_fetched(hub: Hub) -> None:
    files = hub.repositories[NAME.repository]
    for name in ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"):
        files[name] = b""
    files["part/model.safetensors"] = files.pop("model.safetensors")
    with pytest.raises(UserError, match=r"in several files \(model-00001-of-00002\.safetensors, model-00002-of"):
        fetch(NAME)
    for name in ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "pytorch_model.bin"):
        del files[name]
    with pytest.raises(UserError, match=r"^someone/nezha: the Hub's repository holds no weights that `reread convert`"):
        fetch(NAME)
    assert not hub.fetched


MISTAKES = [
    (
        "nobody/nothing",
        {},
        "the Hub has no such repository for you (HTTP 401): check the name, and if you need a token",
        2,
    ),
    ("someone/nezha@v9", {}, "the Hub's repository has no such revision", 2),
    ("someone/nezha", {"gated": {"someone/nezha"}}, "the Hub gives this model only to those whom its owner has let", 2),
    ("someone/nezha", {"status": 404}, "the Hub has no such repository for you (HTTP 404)", 2),
    ("someone/nezha", {"status": 503}, "the Hub answers with HTTP 503", 1),
    ("someone/nezha", {"status": 429}, "the Hub answers with HTTP 429", 1),
    ("someone/nezha", {"status": 200}, "the Hub cannot be asked (KeyError: 'id')", 1),
    ("someone/nezha-", {}, "the Hub cannot be asked (HFValidationError: Repo id must use", 2),
]


@pytest.mark.parametrize(
    ("name", "state", "reason", "status"), MISTAKES, ids=[reason[:40] for *_, reason, _ in MISTAKES]
)
def test_what_the_hub_refuses_is_one_line(
    hub: Hub, tmp_path: Path, name: str, state: dict[str, Any], reason: str, status: int, capfd: Any
) -> None:
    vars(hub).update(state)
    with pytest.raises(UserError) as raised:
        convert(HubName(*name.split("@")), tmp_path / "out")
    line = str(raised.value)
    assert line.startswith(f"{name}: no such path here, and {reason}") and raised.value.status == status
    assert line.endswith(
        "nothing was downloaded; put its configuration, weights and tokenizer in a folder and give that"
    )
    assert "\n" not in line and not (tmp_path / "out").exists() and not hub.fetched
    assert capfd.readouterr() == ("", "")


def test_a_hub_that_cannot_be_reached_is_one_line(hub: Hub, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(UserError, match=r"^someone/nezha: no such path here, and the Hub cannot be asked \(") as raised:
        fetch(NAME)
    assert raised.value.status == 1 and "\n" not in str(raised.value)
    assert capfd.readouterr() == ("", "")


def test_a_cache_that_cannot_be_written_is_named(hub: Hub, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where the cache would be")
    with pytest.raises(OSError, match="cache") as raised:
        fetch(NAME)
    described = describe(raised.value)
    assert described and described[0].startswith(f"{tmp_path}/cache") and described[0].endswith("; give another path")


def test_offline_the_hub_is_not_asked_and_the_cache_is_used(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    caplog.set_level("INFO", logger="reread")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    module._asked_to_stay_offline.cache_clear()
    with pytest.raises(
        UserError, match="no such path here, and the Hub is not asked, as HF_HUB_OFFLINE is set; nothing"
    ):
        fetch(NAME)
    with pytest.raises(UserError, match=r"^--push o/n: HF_HUB_OFFLINE is set, so nothing is pushed; unset it"):
        check_push("o/n")
    assert not hub.asked
    monkeypatch.delenv("HF_HUB_OFFLINE")
    module._asked_to_stay_offline.cache_clear()
    folder = fetch(NAME)
    fetch.cache_clear()
    monkeypatch.setenv("TRANSFORMERS_OFFLINE", "yes")
    module._asked_to_stay_offline.cache_clear()
    asked = len(hub.asked)
    assert fetch(NAME) == folder and len(hub.asked) == asked
    assert f"HF_HUB_OFFLINE is set, so revision {COMMIT} is taken from the cache" in caplog.text


def test_everything_else_stays_offline(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also after a fetch, and in the processes that this one starts; what the user said is read before."""
    from huggingface_hub import HfApi, constants
    from huggingface_hub.errors import OfflineModeIsEnabled

    fetch(NAME)
    assert constants.HF_HUB_OFFLINE is True
    with pytest.raises(OfflineModeIsEnabled):
        HfApi().model_info(NAME.repository)
    stay_offline()
    assert os.environ["HF_HUB_OFFLINE"] == "1" and not module._asked_to_stay_offline()
    monkeypatch.delenv("HF_HUB_OFFLINE")


def test_a_bert_of_the_hub_becomes_a_longformer(hub: Hub, tmp_path: Path) -> None:
    torch.manual_seed(0)
    BertForMaskedLM(BertConfig(**SIZES, max_position_embeddings=8)).save_pretrained(tmp_path / "bert")
    files = {path.name: path.read_bytes() for path in (tmp_path / "bert").iterdir()}
    hub.repositories["someone/bert"] = {**files, "vocab.txt": nezha_files()["vocab.txt"]}
    convert(HubName("someone/bert", "main"), tmp_path / "long", "longformer", length=16, window=4)
    assert json.loads((tmp_path / "long" / "config.json").read_text())["attention_window"] == 4
    assert front_matter(tmp_path / "long")["base_model"] == "someone/bert"
    convert(HubName("someone/bert", "main"), tmp_path / "same", "bert")  # or stays what it is
    weights, theirs = (load_file(tmp_path / name / "model.safetensors") for name in ("same", "bert"))
    assert weights.keys() - {"cls.predictions.decoder.bias"} == theirs.keys() and (tmp_path / "same/vocab.txt").exists()
    assert all(torch.equal(weights[name], tensor) for name, tensor in theirs.items())


# Pushing


def test_what_is_pushed_is_private_complete_and_read_again(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    caplog.set_level("INFO", logger="reread")
    convert(NAME, tmp_path / "out")
    monkeypatch.setenv("HF_TOKEN", hub.token)
    push(tmp_path / "out", check_push("me/mine"))
    assert hub.made == [{"name": "mine", "organization": "me", "visibility": "private"}]
    assert hub.repositories["me/mine"] == {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    assert b'from_pretrained("me/mine", trust_remote_code=True)' in hub.repositories["me/mine"]["README.md"]
    assert f"to me/mine, a new repository that is private until you publish it: revision {COMMIT}, http" in caplog.text
    push(tmp_path / "out", check_push("me/mine@second"))
    assert len(hub.made) == 1 and "second" in hub.revisions

    convert(HubName("me/mine"), tmp_path / "again")  # an export of this project is taken as it is
    taken = {path.name for path in (tmp_path / "again").iterdir()}
    assert taken == {
        "config.json",
        "model.safetensors",
        "README.md",
        "tokenizer.json",
        "tokenizer_config.json",
        "vocab.txt",
    }
    assert not [file for file in hub.fetched if file.endswith(".py")]
    first, again = (load_file(tmp_path / one / "model.safetensors") for one in ("out", "again"))
    assert first.keys() == again.keys() and all(torch.equal(first[name], again[name]) for name in first)
    assert "auto_map" not in (tmp_path / "again" / "config.json").read_text()


def test_a_push_without_a_token_or_a_name_is_one_line(hub: Hub, tmp_path: Path) -> None:
    convert(NAME, tmp_path / "out")
    with pytest.raises(UserError) as raised:
        push(tmp_path / "out", check_push("me/mine"))
    line = str(raised.value)
    assert line.startswith(
        f"--push me/mine: {tmp_path}/out is written, but the Hub has no such repository for you (HTTP"
    )
    assert line.endswith("HF_TOKEN; nothing was pushed; the same command tries again")
    for name in ("mine", "a/b/c", "https://host/a/b", ""):
        with pytest.raises(UserError, match=r"give the repository on the Hub as OWNER/NAME"):
            check_push(name)
