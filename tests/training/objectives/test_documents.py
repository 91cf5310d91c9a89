"""DocumentObjective on one process: rows, memory, losses and evaluation of its lanes."""

import logging
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from benchmarks.random_corpus import write_corpus
from reread.preprocessing.corpus import CONTINUES_WORD, SENTENCE_END
from reread.training.assembly import head_of
from reread.training.config import TrainSettings
from reread.training.data.batch import IGNORED
from reread.training.data.kinds import open_dataset
from reread.training.data.order.order import locate
from reread.training.data.rows.lanes import LEARN, SKIM
from reread.training.models import model_spec
from reread.training.models.build import build_model, model_config
from reread.training.objectives import objective_of
from reread.training.objectives.documents import DocumentObjective
from reread.training.optim.build import steps_taken
from reread.training.parallel.mesh import Mesh
from reread.training.run.metrics import read_metrics
from reread.training.run.progress import ProgressFigures
from reread.training.trainer import Trainer
from tests.conftest import document_values, rarer

VOCABULARY = 200
LENGTHS = [5, 130, 40, 22, 75, 23, 100, 60]
ALTERED = 4
"""The document whose text differs between the two corpora."""

Documents = list[tuple[NDArray[np.int64], NDArray[np.uint8]]]


def documents(lengths: list[int], altered: int | None = None) -> Documents:
    """Random words in sentences of about 10 tokens; document `altered` has other text and the same flags."""
    made = []
    for number, length in enumerate(lengths):
        generator = np.random.default_rng(number)
        begins = generator.random(length) < 0.6
        ends = np.append(begins[1:], True) & (generator.random(length) < 0.15)
        ends[-1] = True
        ids = 5 + generator.integers(0, VOCABULARY - 5, length)
        if number == altered:
            ids = 5 + generator.permutation(ids - 5 + 1) % (VOCABULARY - 5)
        made.append((ids, (~begins * CONTINUES_WORD | ends * SENTENCE_END).astype(np.uint8)))
    return made


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    splits = {"train": documents(LENGTHS), "validation": documents([70, 5, 130, 22, 50])}
    return write_corpus(tmp_path_factory.mktemp("tasks") / "corpus", splits, VOCABULARY)


@pytest.fixture(scope="module")
def altered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    splits = {"train": documents(LENGTHS, ALTERED)}
    return write_corpus(tmp_path_factory.mktemp("altered") / "corpus", splits, VOCABULARY)


def settings_of(folder: Path, *, official_memory: bool = False, **changes: Any) -> TrainSettings:
    """Segments of 24 tokens, no dropout; `changes` may be keys of `train` or of its data section."""
    values = document_values(folder, global_batch=2, micro_batch=1)
    values["model"] |= {
        "max_position_embeddings": 24,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "official_memory": official_memory,
    }
    values["data"] |= {"sequence_length": 24, "copies": 2}
    for name in ("retrospective", "reorder_chunks", "masking"):
        if name in changes:
            values["data"][name] = changes.pop(name)
    return TrainSettings.parse({**values, **changes}, "test")


def objective_for(settings: TrainSettings, mesh: Mesh | None = None, vocabulary: int = VOCABULARY) -> DocumentObjective:
    spec = model_spec("ernie_doc")
    dataset, held_out = (open_dataset(settings.data, settings.seed, split) for split in ("train", "validation"))
    model = build_model(
        head_of(spec, objective_of(settings), settings.data),
        model_config(spec, settings.model, vocabulary, None),
        None,
        settings.seed,
    )
    return DocumentObjective(model, settings, mesh or Mesh(), dataset, held_out)


Place = tuple[int, int, int, int, int]
"""(document, pass over the corpus, lane, phase, segment) of a row."""


def passes_of(
    objective: DocumentObjective, steps: int, begins: bool = True
) -> dict[Place, tuple[list[float], list[float]]]:
    """Figures and new memory of each row in `steps` steps without an update; micro_batch must be 1. With
    `begins=False` lanes are never emptied."""
    found = {}
    before = objective.cursors.clone()
    with objective.batches(0) as loader:
        for step in range(steps):
            batch = next(loader)
            batch["begins"] &= begins
            parts = (np.flatnonzero(batch["learns"] == learns) for learns in (False, True))
            order = [lane for part in parts for rows in objective.micro_batches(batch, part) for lane in rows.tolist()]
            passes = objective.losses(batch, objective.counts(batch), step)
            for lane, one in zip(order, passes, strict=True):
                begun, phase, segment = before[lane].tolist()
                number, document = locate(np.array([lane + begun * objective.total_lanes]), len(LENGTHS), 0)
                memory = torch.cat([tensor[lane].flatten() for tensor in objective.memory.mems])
                place = int(document[0]), int(number[0]), lane, phase, segment
                found[place] = one.figures.tolist(), memory.tolist()
            before = objective.cursors.clone()
    return found


def places_that_differ(a: Path, b: Path, *, official: bool, begins: bool) -> set[Place]:
    """The places where figures or memories differ, in 40 steps of 4 lanes."""
    ours, theirs = (passes_of(objective_for(settings_of(f, official_memory=official)), 40, begins) for f in (a, b))
    assert ours.keys() == theirs.keys() and {place[0] for place in ours} == set(range(len(LENGTHS)))
    return {place for place in ours if ours[place] != theirs[place]}


@pytest.mark.slow
@pytest.mark.parametrize("official", [False, rarer(True)])
def test_document_a_never_reaches_document_b(corpus: Path, altered: Path, official: bool) -> None:
    """If the text of one document changes, figures and memories of all others stay equal bit for bit."""
    differ = places_that_differ(corpus, altered, official=official, begins=True)
    assert {document for document, *_ in differ} == {ALTERED}
    assert {(phase, segment) for *_, phase, segment in differ} == set(product((SKIM, LEARN), range(4)))  # 75 tokens


@pytest.mark.slow
@pytest.mark.parametrize("official", [False, rarer(True)])
def test_a_lane_that_is_not_emptied_is_noticed(corpus: Path, altered: Path, official: bool) -> None:
    """The test above can fail: if lanes are not emptied, documents after the altered one change."""
    differ = places_that_differ(corpus, altered, official=official, begins=False)
    assert {document for document, *_ in differ} > {ALTERED}


def test_skimming_rows_leave_no_graph_and_hand_on_their_memory(corpus: Path) -> None:
    """Rows that learn are the only forward passes in gradient mode, one for each micro-batch of at most four."""
    objective = objective_for(settings_of(corpus, global_batch=6, micro_batch=4))
    seen: list[tuple[bool, tuple[torch.Tensor, ...]]] = []
    objective.model.base_model.register_forward_pre_hook(
        lambda module, args, given: seen.append((torch.is_grad_enabled(), given.get("mems") or args[3])),
        with_kwargs=True,
    )
    handed_over = 0
    before = objective.cursors.clone()
    with objective.batches(0) as loader:
        for step in range(30):
            batch = next(loader)
            skimmed, learned = np.flatnonzero(~batch["learns"]), np.flatnonzero(batch["learns"])
            begin = [tensor.clone() for tensor in objective.memory.mems]
            seen.clear()
            passes = list(objective.losses(batch, objective.counts(batch), step))
            skimming, learning = (objective.micro_batches(batch, part) for part in (skimmed, learned))
            assert max(map(len, skimming + learning)) <= 4
            assert len(seen) == len(passes) == len(skimming) + len(learning)
            assert [learns for learns, _ in seen] == [one.loss is not None for one in passes]
            assert sum(learns for learns, _ in seen) == len(learning)
            for one in passes:
                assert one.loss is None or one.loss.requires_grad
                assert not one.figures.requires_grad
            assert [one.is_last for one in passes] == [False] * (len(passes) - 1) + [len(learned) > 0]
            sums = dict(
                zip(objective.figures, torch.stack([one.figures for one in passes]).sum(0).tolist(), strict=True)
            )
            assert (sums["skimmed"], sums["rows"]) == (len(skimmed), len(learned))
            assert sums["tokens"] == batch["attention_mask"][learned].sum()
            given = torch.cat([mems[0] for learns, mems in seen if learns] or [torch.empty(0)])
            for row, lane in enumerate(np.concatenate([learned[:0], *learning]).tolist()):
                _, phase, segment = before[lane].tolist()
                if (phase, segment) == (LEARN, 0) and not batch["begins"][lane]:
                    assert torch.equal(given[row], begin[0][lane]) and given[row].any()
                    handed_over += 1
                assert not batch["begins"][lane] or not given[row].any()
            assert not any(tensor.requires_grad for tensor in objective.memory.mems)
            before = objective.cursors.clone()
    assert handed_over > 10


@pytest.mark.slow
def test_a_step_in_which_no_row_learns_updates_nothing_and_goes_on(corpus: Path, tmp_path: Path, caplog: Any) -> None:
    settings = settings_of(corpus, global_batch=1, steps=1000, schedule={"decay": "constant"})
    trainer = Trainer(settings, tmp_path, Mesh())
    objective: Any = trainer.objective
    window = ProgressFigures(trainer.assembly.spec, trainer.assembly.config, trainer.objective, 0)
    idle = updates = 0
    with objective.batches(0) as loader, caplog.at_level(logging.INFO, "reread"):
        for _ in range(60):
            drawn = trainer._counted(batch := next(loader))
            before = [parameter.detach().clone() for parameter in trainer.assembly.model.parameters()]
            memory = objective.memory.mems[0].clone()
            trainer._train_step(drawn, drawn.local, window)
            trainer.step += 1
            changed = any(
                not torch.equal(now, then)
                for now, then in zip(trainer.assembly.model.parameters(), before, strict=True)
            )
            assert changed == batch["learns"].any()
            assert not torch.equal(objective.memory.mems[0], memory)
            assert np.array_equal(objective.cursors, batch["cursors"])
            idle += not changed
            updates += changed
            if updates:
                assert steps_taken(trainer.assembly.optimizer) == updates
    assert idle > 5 and updates > 5
    assert sum("updates nothing" in message for message in caplog.messages) == idle


def test_the_sum_of_both_means_is_minimised_and_the_masked_tokens_mean_is_shown(corpus: Path) -> None:
    """Checked in float64, in steps in which documents end and in steps in which none does."""
    objective = objective_for(settings_of(corpus, global_batch=6, micro_batch=4))
    objective.model.double().eval()
    shown = set()
    with objective.batches(0) as loader:
        for step in range(12):
            batch = next(loader)
            passes = list(objective.losses(batch, objective.counts(batch), step))
            sums = torch.stack([one.figures for one in passes]).sum(0).tolist()
            totals = dict(zip(objective.figures, sums, strict=True))
            figures = objective.summary(totals, 1)
            masked_lm = totals["masked_lm_sum"] / totals["predicted"]
            order = totals["reorder_sum"] / totals["reordered"] if totals["reordered"] else 0.0
            minimised = sum(one.loss.item() for one in passes if one.loss is not None)
            assert minimised == pytest.approx(masked_lm + order, rel=1e-12)
            assert figures["loss"] == figures["masked_lm_loss"] == masked_lm
            assert figures.get("reorder_loss", 0.0) == order
            shown.add("reorder_loss" in figures)
    assert shown == {True, False}


@pytest.mark.slow
def test_what_several_steps_log_is_weighted_by_what_was_counted_in_each(corpus: Path, tmp_path: Path) -> None:
    sums: list[dict[str, float]] = []
    summary = DocumentObjective.summary

    def spied(totals: dict[str, float], steps: int) -> dict[str, float]:
        sums.append(totals)
        return summary(totals, steps)

    settings = settings_of(corpus, steps=8, validate_every=100)
    for log_every in (1, 4):
        run = tmp_path / str(log_every)
        run.mkdir()
        with pytest.MonkeyPatch.context() as patch:
            if log_every == 1:
                patch.setattr(DocumentObjective, "summary", staticmethod(spied))
            Trainer(settings.model_copy(update={"log_every": log_every}), run, Mesh()).train()
    steps = sums[:8]  # the rest is held-out text
    assert {step["reordered"] > 0 for step in steps} == {True, False}
    lines = [line for line in read_metrics(tmp_path / "4") if "tokens" in line]
    for number, line in enumerate(lines):
        for figure, total, count in (
            ("loss", "masked_lm_sum", "predicted"),
            ("reorder_loss", "reorder_sum", "reordered"),
            ("masked_lm_accuracy", "correct", "predicted"),
        ):
            counted = [step for step in steps[4 * number : 4 * number + 4] if step[count]]
            expected = sum(step[total] for step in counted) / sum(step[count] for step in counted)
            assert line[figure] == pytest.approx(expected, rel=1e-12)


def expected_of(objective: DocumentObjective, documents: list[int], longest: int | None) -> tuple[int, int, int]:
    """Rows, tokens and predictions of the pass that learns over held-out documents, in their first copy."""
    readings = objective.held_out.read(np.zeros(len(documents), np.int64), np.array(documents), longest=longest)
    places = [(reading, segment) for reading in readings for segment in range(reading.segments)]
    rows = objective.held_out.rows(*map(list, zip(*places, strict=True)), np.ones(len(places), bool))
    return len(places), int(rows["attention_mask"].sum()), int((rows["labels"] != IGNORED).sum())


@pytest.fixture
def losses_in_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the losses of a float64 model in float64; `.float()` would cast them."""
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)


@pytest.mark.slow
@pytest.mark.parametrize("retrospective", [True, False])
@pytest.mark.parametrize(("global_batch", "micro_batch"), [rarer(2, 2), (3, 2), rarer(8, 8)])
def test_held_out_documents_are_read_once_to_their_ends(
    corpus: Path, retrospective: bool, global_batch: int, micro_batch: int, losses_in_float64: None
) -> None:
    changes: dict[str, Any] = {"retrospective": retrospective, "global_batch": global_batch, "micro_batch": micro_batch}
    objective = objective_for(settings_of(corpus, **changes))
    objective.model.double().eval()
    cursors, memory = objective.cursors.clone(), [tensor.clone() for tensor in objective.memory.mems]
    count = len(objective.held_out)
    for limit in (None, 1, 3):
        documents, longest = (count, None) if limit is None else objective.held_out.sample(limit * global_batch)
        which = locate(np.arange(documents), count, 0)[1].tolist()
        expected = expected_of(objective, which, longest)
        sums = objective.evaluate(objective.held_out, limit)
        found = dict(zip(objective.figures, sums.tolist(), strict=True))
        assert (found["rows"], found["tokens"], found["predicted"]) == expected
        assert found["reordered"] == len(which)
        assert found["skimmed"] == (found["rows"] if retrospective else 0)
        assert limit is None or found["rows"] <= limit * global_batch
        assert torch.equal(objective.evaluate(objective.held_out, limit), sums)
        shares = []
        for rank in (0, 1):
            objective.mesh = Mesh(rank, 2, data_rank=rank, data_size=2)
            shares.append(objective.evaluate(objective.held_out, limit))
        objective.mesh = Mesh()
        assert torch.allclose(shares[0] + shares[1], sums, rtol=1e-9)
    assert torch.equal(objective.cursors, cursors)
    assert all(torch.equal(now, then) for now, then in zip(objective.memory.mems, memory, strict=True))


TENTHS = 10


def telling_text(lengths: list[int]) -> Documents:
    """Each token encodes its document and the tenth of the document in which it stands."""
    made = []
    for number, length in enumerate(lengths):
        place = np.arange(length)
        ends = place % 7 == 6
        ends[-1] = True
        made.append((5 + number * TENTHS + place * TENTHS // length, (ends * SENTENCE_END).astype(np.uint8)))
    return made


@pytest.mark.parametrize("ranks", [rarer(1), 3])
def test_validation_reads_later_documents_later_segments_and_last_ones(tmp_path: Path, ranks: int) -> None:
    """A third of 40 held-out documents have 20 segments and more. Within its budget a validation reads parts of many
    documents, most tenths of long ones, and the end of each one that it reads."""
    lengths = [400 if number % 3 == 0 else 30 + number for number in range(40)]
    vocabulary = 5 + TENTHS * len(lengths)
    splits = {"train": telling_text(lengths[:2]), "validation": telling_text(lengths)}
    folder = write_corpus(tmp_path / "corpus", splits, vocabulary)
    settings = settings_of(folder, global_batch=16, micro_batch=4, masking={"random_share": 0.0, "mask_share": 1.0})
    seen: set[int] = set()
    sums = []
    for rank in range(ranks):
        objective = objective_for(settings, Mesh(rank, ranks, data_rank=rank, data_size=ranks), vocabulary)
        objective.model.eval()
        objective.model.register_forward_pre_hook(
            lambda module, args, given: seen.update(given["input_ids"].flatten().tolist()), with_kwargs=True
        )
        sums.append(objective.evaluate(objective.held_out, 3))
    found = dict(zip(objective.figures, torch.stack(sums).sum(0).tolist(), strict=True))
    text = np.array(sorted(seen - set(range(5)))) - 5
    assert len(set(text // TENTHS)) >= 8
    assert len(set(text[text // TENTHS % 3 == 0] % TENTHS)) >= 6  # not only the beginnings of long documents
    assert found["reordered"] == len(set(text // TENTHS))  # each one's last segment shows the order of its chunks
    assert 0.5 * 48 < found["rows"] <= 48 and found["skimmed"] == found["rows"]


def test_evaluation_makes_no_memory_for_the_lanes_that_train(corpus: Path) -> None:
    """The memory of a recipe's 5,120 lanes has many gigabytes, too much for the one process of `reread evaluate`."""
    objective = objective_for(settings_of(corpus, global_batch=4))
    objective.evaluate(objective.held_out, None)
    assert not {"memory", "cursors"} & vars(objective).keys()


def test_figures_of_a_held_out_document_do_not_depend_on_its_lane(corpus: Path, losses_in_float64: None) -> None:
    """Evaluation also empties memory between documents, so any number of lanes gives the same sums."""
    sums = []
    for lanes in (2, 5):
        objective = objective_for(settings_of(corpus, global_batch=lanes, micro_batch=lanes))
        objective.model.double().eval()
        sums.append(objective.evaluate(objective.held_out, None))
    assert torch.allclose(sums[0], sums[1], rtol=1e-9)


@pytest.mark.parametrize("ranks", [rarer(2), 3, rarer(4)])
def test_cursors_and_memories_of_all_ranks_are_those_of_the_run(corpus: Path, ranks: int) -> None:
    settings = settings_of(corpus, global_batch=5)
    whole, slices = objective_for(settings).state()
    held = {name: torch.zeros(place.shape) for name, place in slices.items()}
    for rank in range(ranks):
        objective = objective_for(settings, Mesh(rank, ranks, data_rank=rank, data_size=ranks))
        tensors, slices = objective.state()
        assert tensors.keys() == slices.keys() == whole.keys()
        assert tensors["cursors"] is objective.cursors  # loading fills it in place
        for name, place in slices.items():
            assert torch.equal(place.inside(tensors[name]), whole[name][place.region()])
            held[name][place.region()] += 1
    assert whole["cursors"].shape == (10, 3)
    assert all((tensor == 1).all() for tensor in held.values())
