"""`train.from_run`: a run that begins where another one stands."""

import json
import logging
import shutil
import zlib
from pathlib import Path
from typing import Any

import pytest
import torch

from reread.preprocessing.errors import UserError
from reread.training.checkpoint.store import CheckpointStore
from reread.training.config import TrainSettings
from reread.training.parallel.mesh import Mesh
from reread.training.run.metrics import read_metrics
from reread.training.trainer import train
from tests.conftest import document_values, rarer, stream_values, thinned, train_values

KINDS = {"rows": train_values, "documents": document_values, "stream": stream_values}
SHORT: dict[str, Any] = {"steps": 4, "validate_every": 8, "checkpoint": {"every_steps": 2, "keep": 9}}


def run(values: dict[str, Any], folder: Path, **changes: Any) -> Path:
    folder.mkdir(exist_ok=True)
    train(TrainSettings.parse({**values, **changes}, "test"), folder)
    return folder


def tensors(folder: Path, step: int) -> dict[str, torch.Tensor]:
    return CheckpointStore(folder / "checkpoints", 9, Mesh()).read_full(step)


def rows_read(folder: Path) -> list[int]:
    return [line["tokens"] for line in read_metrics(folder) if "tokens" in line]


each_kind = pytest.mark.parametrize("begun", thinned(KINDS, 2), indirect=True)
two_kinds = pytest.mark.parametrize("begun", [rarer("rows"), "documents"], indirect=True)


@pytest.fixture(scope="module")
def begun(request: pytest.FixtureRequest, sample_corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The settings of a run of 4 steps at a constant rate, and its folder."""
    base = tmp_path_factory.mktemp(request.param)
    values = KINDS[request.param](sample_corpus, schedule={"decay": "constant"}, **SHORT)
    return values, run(values, base / "first")


@pytest.mark.slow
@each_kind
def test_with_more_steps_it_is_the_run_that_was_never_cut(begun: Any, tmp_path: Path) -> None:
    """Weights, optimiser, memories and cursors are equal bit for bit, from the last checkpoint and from an earlier."""
    values, first = begun
    whole = tensors(run(values, tmp_path / "whole", steps=6), 6)
    for name, origin in (("last", str(first)), ("earlier", f"{first}@2")):
        more = tensors(run(values, tmp_path / name, steps=6, from_run=origin), 6)
        assert whole.keys() == more.keys()
        assert all(torch.equal(whole[key], more[key]) for key in whole)


@pytest.mark.slow
@two_kinds
def test_it_resumes_without_the_run_it_began_with(begun: Any, tmp_path: Path) -> None:
    values, first = begun
    whole = tensors(run(values, tmp_path / "whole", steps=6, seed=1, from_run=str(first)), 6)
    gone = Path(shutil.copytree(first, tmp_path / "gone"))
    cut = {**values, "seed": 1, "from_run": str(gone)}
    more = run(cut, tmp_path / "more", steps=5)
    shutil.rmtree(gone)
    resumed = tensors(run(cut, more, steps=6), 6)
    assert all(torch.equal(whole[key], resumed[key]) for key in whole)


@pytest.mark.slow
@two_kinds
def test_other_data_is_read_from_its_beginning_with_empty_memories(begun: Any, tmp_path: Path, caplog: Any) -> None:
    """The rows of its first steps are those of a new run; in a log line."""
    values, first = begun
    other = {**values, "seed": 7}
    with caplog.at_level(logging.INFO, "reread"):
        more = run(other, tmp_path / "more", steps=6, from_run=str(first))
    assert "the data is read from its beginning" in caplog.text
    new = run(other, tmp_path / "new", steps=2)
    assert rows_read(more) == rows_read(new)
    assert [line["step"] for line in read_metrics(more) if "tokens" in line] == [5, 6]


@pytest.mark.long
def test_another_batch_size_goes_on_at_the_same_row(sample_corpus: Path, tmp_path: Path) -> None:
    values = train_values(sample_corpus, **SHORT)
    first = run(values, tmp_path / "first")  # 4 steps of 8 rows
    more = run(values, tmp_path / "more", steps=5, global_batch=16, from_run=str(first))
    state = CheckpointStore(more / "checkpoints", 9, Mesh()).state(5)
    assert state["position"] == 4 * 8 + 16
    again = run(values, tmp_path / "again", steps=6, global_batch=4, from_run=str(more))
    assert CheckpointStore(again / "checkpoints", 9, Mesh()).state(6)["position"] == 4 * 8 + 16 + 4
    whole = run(values, tmp_path / "whole", steps=6)
    assert rows_read(more)[0] == sum(rows_read(whole)[4:6])


def test_a_checkpoint_of_an_unreleased_version_is_one_line(sample_corpus: Path, tmp_path: Path) -> None:
    values = train_values(sample_corpus, **SHORT)
    first = run(values, tmp_path / "first")
    for path in (first / "checkpoints").glob("*/index.json"):
        index = json.loads(path.read_text(encoding="utf-8"))
        del index["state"]["tokens"], index["crc32"]
        path.write_text(json.dumps({**index, "crc32": zlib.crc32(json.dumps(index).encode())}), encoding="utf-8")
    for folder, changes in ((first, {}), (tmp_path / "more", {"from_run": str(first)})):
        with pytest.raises(
            UserError,
            match=r"step 4 was made by an unreleased version \(its state has no `\w+`\); begin a new run with name=",
        ):
            run(values, folder, steps=6, **changes)


def test_what_cannot_be_continued_is_one_line(sample_corpus: Path, tmp_path: Path) -> None:
    values = train_values(sample_corpus, **{**SHORT, "steps": 2})
    first = run(values, tmp_path / "first")

    def refused(match: str, **changes: Any) -> None:
        with pytest.raises(UserError, match=match):
            run(values, tmp_path / "refused", **{"from_run": str(first), "steps": 3, **changes})

    refused("nothing holds no model", from_run=str(tmp_path / "nothing"))
    refused("has no step 3; there are 2", from_run=f"{first}@3")
    refused("from_run and init are both given", init=str(first))
    refused("hidden_size|has shape", model={**values["model"], "hidden_size": 64})
    for steps in (1, 2):
        refused(rf"train\.steps: {steps}, but .*first is at step 2, .* give more than 2$", steps=steps)
    part = next((first / "checkpoints" / "step-00000002").glob("*.safetensors"))
    part.write_bytes(part.read_bytes()[:-1])
    refused("step 2 of .* is damaged", from_run=f"{first}@2")


def test_what_did_not_learn_begins_with_moments_of_zero(sample_corpus: Path, tmp_path: Path, caplog: Any) -> None:
    """Next sentences may come and go: without them the pooler and their head keep their values, and have no moments."""
    values = train_values(sample_corpus, schedule={"decay": "constant"}, **SHORT)
    without = {**values, "data": {**values["data"], "next_sentence": False}}
    first = run(without, tmp_path / "first", steps=2)
    with caplog.at_level(logging.INFO, "reread"):
        second = run(values, tmp_path / "second", steps=4, from_run=str(first))
    new = ["nezha.pooler.dense.weight", "nezha.pooler.dense.bias"]
    new += ["cls.seq_relationship.weight", "cls.seq_relationship.bias"]
    line = f"did not learn in {first}, so the optimiser begins anew with it: {', '.join(new)}"
    assert line in caplog.messages
    third = run(without, tmp_path / "third", steps=6, from_run=str(second))
    before, after, last = (tensors(folder, step) for folder, step in ((first, 2), (second, 4), (third, 6)))
    moments = {f"{key}.{name}" for key in ("exp_avg", "exp_avg_sq") for name in new}
    assert after.keys() - before.keys() == after.keys() - last.keys() == moments
    for name in new:
        assert not torch.equal(after[f"model.{name}"], before[f"model.{name}"])
        assert torch.equal(after[f"model.{name}"], last[f"model.{name}"])


def test_a_schedule_counts_on_or_restarts(sample_corpus: Path, tmp_path: Path) -> None:
    """Logged rates, by the equation. The third run inherits where the second one's schedule began, also resumed."""
    values = train_values(sample_corpus, optimizer={"learning_rate": 0.01}, **{**SHORT, "steps": 2})
    run(values, tmp_path / "first", schedule={"ends": 4, "warmup_steps": 1})
    origin = {"from_run": str(tmp_path / "first")}
    on = run(values, tmp_path / "on", steps=4, schedule={"warmup_steps": 1}, **origin)
    again = {**values, "schedule": {"warmup_steps": 1, "restart": True, "ends": 6}, **origin}
    anew = run(again, tmp_path / "anew", steps=4)
    run({**again, "steps": 5}, anew)
    third = run(values, tmp_path / "third", steps=6, schedule={"warmup_steps": 1}, from_run=str(anew))

    def rates(folder: Path) -> list[float]:
        return [line["learning_rate"] for line in read_metrics(folder) if "learning_rate" in line]

    whole = [0.01, 0.01, 0.01 * 2 / 3, 0.01 / 3]
    assert rates(tmp_path / "first") + rates(on) == pytest.approx(whole)
    assert rates(anew) + rates(third) == pytest.approx(whole)
    with pytest.raises(UserError, match="more than the schedule's 2 steps"):
        run(values, tmp_path / "no", steps=4, schedule={"restart": True, "decay_steps": 3}, **origin)


GROWING: dict[str, Any] = {
    "steps": 8,
    "validate_every": 8,
    "global_batch": 11,
    "batch_warmup": {"first": 4, "steps": 5},
    "schedule": {"warmup_steps": 4},
    "checkpoint": {"every_steps": 3, "keep": 9},
    "log_every": 1,
}
MASKING = {"strategy": "whole-word", "probability": 0.3, "first_probability": 0.1, "final_probability": 0.15}


def growing(corpus: Path, **changes: Any) -> dict[str, Any]:
    values = train_values(corpus, **{**GROWING, **changes})
    return {**values, "data": {**values["data"], "masking": MASKING}}


def test_batch_and_masks_by_step_are_the_same_after_a_resume_and_another_run(
    sample_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of each step by the formula, written a second time; every row of the stream is read once; a run that is cut
    amid both warm-ups, and one that goes on from another, end with the same bits."""
    from reread.training.data.rows.samples import Samples

    read: list[tuple[list[int], list[float]]] = []
    rows = Samples.rows
    monkeypatch.setattr(
        Samples, "rows", lambda self, at, share=None: (read.append((at, share)), rows(self, at, share))[1]
    )
    values = growing(sample_corpus)
    whole = run(values, tmp_path / "whole")
    lines = [line for line in read_metrics(tmp_path / "whole") if "tokens" in line]
    firsts = [4 * t + 7 * t * (t - 1) // 10 if t <= 5 else 4 * 5 + 14 + 11 * (t - 5) for t in range(9)]
    assert [line["total_tokens"] for line in lines] == pytest.approx(
        [sum(line["tokens"] for line in lines[:n]) for n in range(1, 9)]
    )
    positions = [int(at) for some, shares in read if shares is not None for at in some]
    assert positions[: firsts[8]] == list(range(firsts[8])) and firsts[1] == 4 and firsts[6] - firsts[5] == 11
    shares = [float(share) for some, of_rows in read if of_rows is not None for share in of_rows]
    expected = [0.1, 0.15, 0.2, 0.25, 0.3, 0.2625, 0.225, 0.1875]
    for step, share in enumerate(expected):
        assert shares[firsts[step] : firsts[step + 1]] == pytest.approx([share] * (firsts[step + 1] - firsts[step]))
    assert CheckpointStore(whole / "checkpoints", 9, Mesh()).state(8)["position"] == firsts[8]
    # A run that is cut, and one that goes on from another
    cut = run({**values, "schedule": {**values["schedule"], "ends": 8}}, tmp_path / "cut", steps=3)
    more = run(values, cut)
    other = run(values, tmp_path / "other", from_run=f"{whole}@3")
    for one in (more, other):
        assert all(torch.equal(tensor, tensors(one, 8)[name]) for name, tensor in tensors(whole, 8).items())


def test_a_batch_and_masks_by_step_that_cannot_be_are_one_line(sample_corpus: Path) -> None:
    documents = document_values(sample_corpus)
    for values, line in (
        (growing(sample_corpus, schedule={}), "data.masking.first_probability becomes probability in the warm-up"),
        (growing(sample_corpus, global_batch=3), "batch_warmup.first is 4 rows, more than global_batch, 3; lower it"),
        (growing(sample_corpus, batch_warmup={"first": 4}), "give `steps`, in which the batch grows, or `tokens`"),
        (growing(sample_corpus, batch_warmup={"first": 4, "steps": 9}), "batch_warmup.steps is 9, more than the sch"),
        (
            {**documents, "batch_warmup": {"first": 1, "steps": 2}},
            "batch_warmup is for pretraining with data.kind rows",
        ),
        ({**documents, "data": {**documents["data"], "masking": MASKING}}, "a document is read over many steps"),
    ):
        with pytest.raises(UserError, match=line) as caught:
            TrainSettings.parse(values, "test")
        assert "\n" not in str(caught.value)
