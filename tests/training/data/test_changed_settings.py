"""A run continues after the program got a new setting of data, and is refused by name after one was changed."""

import json
from pathlib import Path
from typing import Any

import pytest

from reread.preprocessing.corpus import Corpus
from reread.preprocessing.errors import UserError
from reread.training.checkpoint.store import CheckpointStore
from reread.training.config import TrainSettings
from reread.training.data.dataset import Dataset
from reread.training.data.kinds import open_dataset
from reread.training.data.rows.samples import RowSettings, Samples
from reread.training.parallel.mesh import Mesh
from reread.training.trainer import Trainer
from tests.conftest import train_values
from tests.corpora import make_corpus
from tests.tasks import task_values, write_lines, write_tokenizer


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return make_corpus(tmp_path_factory.mktemp("changed") / "corpus", [300, 500, 7, 900, 40] * 8)


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("task")
    train = write_lines(folder / "train.jsonl", [{"text": f"a {one}", "label": one} for one in "xy"])
    values: dict[str, Any] = task_values("nezha", "classify", write_tokenizer(folder / "tokenizer"), train=str(train))
    return values["data"]


def state_of(dataset: Dataset[Any]) -> dict[str, Any]:
    """What a checkpoint keeps of its data."""
    state: dict[str, Any] = json.loads(json.dumps({"samples": dataset.fingerprint, "drawn_by": dataset.drawn_by}))
    return state


def opened(data: dict[str, Any], seed: int = 3, **changes: Any) -> Dataset[Any]:
    values = {**train_values(Path("unused")), "data": {**data, **changes}}
    return open_dataset(TrainSettings.parse(values, "test").data, seed, "train")


def data_of(kind: str, corpus: Corpus, task: dict[str, Any]) -> dict[str, Any]:
    if kind == "classify":
        return task
    if kind == "mixture":
        parts = [{"path": str(corpus.folder), "name": name, "weight": weight} for name, weight in (("a", 3), ("b", 1))]
        return {"kind": "rows", "sequence_length": 32, "corpora": parts}
    return {"kind": kind, "sequence_length": 32, "corpus": str(corpus.folder)}


@pytest.mark.parametrize(
    ("kind", "field", "value", "line"),
    [
        ("rows", "short_sequence_probability", 0.2, "train.data.short_sequence_probability: 0.1 -> 0.2"),
        ("rows", "masking", {"probability": 0.2}, "train.data.masking.probability: 0.15 -> 0.2"),
        ("rows", "pool_tokens", 4000, "train.data.pool_tokens: None -> 4000"),
        ("packed", "sequence_length", 64, "train.data.sequence_length: 32 -> 64"),
        ("segments", "sequence_length", 64, "train.data.sequence_length: 32 -> 64"),
        ("stream", "sequence_length", 64, "train.data.sequence_length: 32 -> 64"),
        ("mixture", "copies", 3, "train.data.copies: 10 -> 3"),
        ("classify", "learns", "last", "train.data.learns: 'all' -> 'last'"),
    ],
)
def test_a_changed_setting_is_named_and_one_that_is_new_has_its_default(
    kind: str, field: str, value: Any, line: str, corpus: Corpus, task: dict[str, Any]
) -> None:
    data = data_of(kind, corpus, task)
    state = state_of(opened(data))
    assert opened(data).changes_since(state) == ""
    changed = opened(data, **{field: value})
    assert changed.changes_since(state) == line
    assert changed.changes_since({"samples": state["samples"]}) == "train.data or train.seed"  # as before
    assert opened(data).changes_since({"samples": state["samples"]}) == ""
    if field not in ("sequence_length", "pool_tokens"):
        del state["drawn_by"]["data"][field]  # of a program that had no such setting
        assert opened(data).changes_since(state) == ""
        assert changed.changes_since(state) == line


def test_the_seed_counts_where_something_is_drawn(corpus: Corpus, task: dict[str, Any]) -> None:
    for kind in ("rows", "segments", "mixture", "classify"):
        data = data_of(kind, corpus, task)
        assert opened(data, seed=4).changes_since(state_of(opened(data))) == "train.seed: 3 -> 4"
    data = data_of("stream", corpus, task)
    assert opened(data, seed=4).changes_since(state_of(opened(data))) == ""


def test_weights_count_and_where_the_corpora_lie_does_not(corpus: Corpus, task: dict[str, Any], tmp_path: Path) -> None:
    data = data_of("mixture", corpus, task)
    state = state_of(opened(data))
    (tmp_path / "moved").symlink_to(corpus.folder)
    first, second = data["corpora"]
    assert opened(data, corpora=[{**first, "path": str(tmp_path / "moved")}, second]).changes_since(state) == ""
    assert (
        opened(data, corpora=[first, {**second, "weight": 3}]).changes_since(state).startswith("train.data.corpora: ")
    )


class NewerSettings(RowSettings):
    """The settings of a later version of the program."""

    upside_down: bool = False


def test_a_run_of_before_a_setting_continues_with_its_default(corpus: Corpus) -> None:
    state = state_of(Samples(corpus, RowSettings(corpus=corpus.folder), 3))
    later = Samples(corpus, NewerSettings(corpus=corpus.folder), 3)
    assert later.fingerprint != state["samples"]
    assert later.changes_since(state) == ""
    other = Samples(corpus, NewerSettings(corpus=corpus.folder, upside_down=True), 3)
    assert other.changes_since(state) == "train.data.upside_down: False -> True"


def test_the_trainer_continues_a_run_from_before_a_setting_and_refuses_a_changed_one(
    sample_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def attempt(steps: int, **data: Any) -> None:
        values = train_values(sample_corpus, steps=steps, writers=[], checkpoint={"every_steps": 1})
        values["data"] |= data
        Trainer(TrainSettings.parse(values, "test"), tmp_path / "run", Mesh()).train()

    (tmp_path / "run").mkdir()
    attempt(1)
    whole = CheckpointStore.state

    def earlier(store: CheckpointStore, step: int) -> dict[str, Any]:
        state = json.loads(json.dumps(whole(store, step)))
        del state["drawn_by"]["data"]["short_sequence_probability"]
        return {**state, "samples": "another, since the settings had another name less"}

    monkeypatch.setattr(CheckpointStore, "state", earlier)
    attempt(2)
    with pytest.raises(UserError, match=r"train\.data\.short_sequence_probability: 0\.1 -> 0\.3\); revert"):
        attempt(3, short_sequence_probability=0.3)
