"""`reread.dataset`: what a training loop of somebody else's reads, and that it continues exactly."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader

import reread
from reread.pipeline.library.batches import Batches
from reread.preprocessing.errors import UserError
from reread.training.data.kinds import open_dataset
from reread.training.data.rows.samples import RowSettings

KINDS = ("rows", "packed", "segments", "stream")


def opened(corpus: Path, **changes: Any) -> Batches:
    return reread.dataset(corpus, **{"sequence_length": 64, "batch_size": 6, "seed": 3, **changes})


def assert_same(some: list[dict[str, Tensor]], others: list[dict[str, Tensor]]) -> None:
    assert len(some) == len(others) > 0
    for one, other in zip(some, others, strict=True):
        assert one.keys() == other.keys()
        assert all(torch.equal(one[name], other[name]) for name in one)


def test_batches_are_the_rows_that_the_trainer_reads(sample_corpus: Path) -> None:
    settings = {"kind": "rows", "corpus": str(sample_corpus), "sequence_length": 64, "next_sentence": False}
    data = open_dataset(RowSettings.parse(settings, "test"), 3, "train")
    batches = list(islice(opened(sample_corpus), 4))
    for number, batch in enumerate(batches):
        rows = data.rows(np.arange(6 * number, 6 * number + 6))
        assert {name: values.tolist() for name, values in rows.items()} == {
            name: values.tolist() for name, values in batch.items()
        }
        assert {values.dtype for values in batch.values()} == {torch.int64}


@pytest.mark.parametrize("kind", KINDS)
def test_another_object_continues_from_the_state(sample_corpus: Path, kind: str) -> None:
    first = opened(sample_corpus, kind=kind)
    reading = iter(first)
    for _ in range(5):
        next(reading)
    state = first.state_dict()
    again = opened(sample_corpus, kind=kind)
    again.load_state_dict(state)
    assert_same(list(islice(reading, 4)), list(islice(again, 4)))


@pytest.mark.parametrize("kind", KINDS)
def test_two_ranks_read_what_one_reads(sample_corpus: Path, kind: str) -> None:
    whole = list(islice(opened(sample_corpus, kind=kind), 3))
    ranks = [islice(opened(sample_corpus, kind=kind, batch_size=3, rank=rank, world_size=2), 3) for rank in (0, 1)]
    joined = [{name: torch.cat([one[name], other[name]]) for name in one} for one, other in zip(*ranks, strict=True)]
    assert_same(whole, joined)


@pytest.mark.parametrize("kind", ["rows", "stream"])
def test_workers_of_a_loader_read_what_one_process_reads(sample_corpus: Path, kind: str) -> None:
    expected = list(islice(opened(sample_corpus, kind=kind), 7))
    data = opened(sample_corpus, kind=kind)
    data.step = 2
    assert_same(expected[2:], list(islice(DataLoader(data, batch_size=None, num_workers=2), 5)))
    with pytest.raises(UserError, match="drawn batches ahead"):
        data.state_dict()


class Worker:
    """What `get_worker_info` returns in a worker process."""

    def __init__(self, number: int, workers: int) -> None:
        self.id, self.num_workers = number, workers


def test_each_worker_continues_from_its_own_state(sample_corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As torchdata's StatefulDataLoader does: each worker is asked for its state, and given it back."""
    expected = list(islice(opened(sample_corpus), 12))

    def in_worker(number: int) -> None:
        monkeypatch.setattr("reread.pipeline.library.batches.get_worker_info", lambda: Worker(number, 3))

    readers, states = [opened(sample_corpus) for _ in range(3)], []
    iterators: list[Iterator[Any]] = []
    for number, reader in enumerate(readers):
        in_worker(number)
        iterators.append(iter(reader))
        assert_same(expected[number:6:3], list(islice(iterators[-1], 2)))
        states.append(reader.state_dict())
    found = {}
    for number, state in enumerate(states):
        in_worker(number)
        again = opened(sample_corpus)
        again.load_state_dict(state)
        found |= dict(zip(range(6 + number, 12, 3), islice(again, 2), strict=True))
    assert_same(expected[6:], [found[number] for number in sorted(found)])


def test_segments_refuse_several_workers_and_a_bare_step(sample_corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = opened(sample_corpus, kind="segments")
    data.step = 4
    with pytest.raises(UserError, match="load_state_dict"):
        next(iter(data))
    monkeypatch.setattr("reread.pipeline.library.batches.get_worker_info", lambda: Worker(0, 2))
    with pytest.raises(UserError, match="num_workers of 0 or 1"):
        next(iter(opened(sample_corpus, kind="segments")))


def test_held_out_rows_are_read_once(sample_corpus: Path) -> None:
    data = opened(sample_corpus, split="validation")
    rows = torch.cat([batch["input_ids"] for batch in data])
    assert len(rows) == len(data.data) and data.steps_per_epoch == -(-len(rows) // 6)
    ranks = [opened(sample_corpus, split="validation", batch_size=2, rank=rank, world_size=3) for rank in range(3)]
    assert torch.equal(rows, torch.cat([batch["input_ids"] for one in ranks for batch in one]))
    with pytest.raises(UserError, match="reread evaluate"):
        opened(sample_corpus, split="validation", kind="stream")


def test_the_state_of_other_data_is_refused_by_name(sample_corpus: Path) -> None:
    state = opened(sample_corpus).state_dict()
    for changes, line in (
        ({"masking": "token"}, "data.masking.strategy: 'whole-word' -> 'token'"),
        ({"seed": 4}, "seed: 3 -> 4"),
        ({"batch_size": 7}, "6 rows a batch"),
    ):
        with pytest.raises(UserError, match=line):
            opened(sample_corpus, **changes).load_state_dict(state)
    with pytest.raises(UserError, match="not a state"):
        opened(sample_corpus).load_state_dict({"step": 3})
    with pytest.raises(UserError, match="not the corpus"):
        opened(sample_corpus).load_state_dict({**state, "corpus": "another"})
    lanes = opened(sample_corpus, kind="segments", rank=0, world_size=2)
    next(iter(lanes))
    with pytest.raises(UserError, match="of another process"):
        opened(sample_corpus, kind="segments", rank=1, world_size=2).load_state_dict(lanes.state_dict())


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"masking": "word"}, "masking.strategy"),
        ({"kind": "row"}, "did you mean `rows`"),
        ({"kind": "classify"}, "none of a corpus"),
        ({"batch_size": 0}, "batch_size: 0"),
        ({"batch_size": 2.5}, "batch_size: 2.5"),
        ({"seed": -1}, "seed: -1"),
        ({"sequence_lenght": 64}, "did you mean `sequence_length`"),
        ({"split": "dev"}, "train or validation"),
        ({"rank": 1}, "belong together"),
        ({"rank": 2, "world_size": 2}, "rank 2 of 2"),
    ],
)
def test_what_is_wrong_is_named_in_one_line(sample_corpus: Path, changes: dict[str, Any], line: str) -> None:
    with pytest.raises(UserError, match=line):
        opened(sample_corpus, **changes)


def test_a_corpus_is_opened_by_its_folder_and_as_an_object(sample_corpus: Path, tmp_path: Path) -> None:
    corpus = reread.open_corpus(sample_corpus)
    assert_same(list(islice(opened(sample_corpus), 2)), list(islice(opened(corpus), 2)))  # type: ignore[arg-type]
    assert reread.open_corpus(sample_corpus, split="validation").documents > 0
    with pytest.raises(UserError, match="a corpus made by `reread preprocess`"):
        reread.open_corpus(tmp_path / "none")
    with pytest.raises(UserError, match="cache"):
        reread.open_corpus("s3://bucket/corpus")
    with pytest.raises(UserError, match="split: `dev`; it is train or validation"):
        reread.open_corpus(sample_corpus, split="dev")
