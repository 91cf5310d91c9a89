"""Options and documents in another order in each epoch of training: rows read back by their words."""

from collections import defaultdict
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from reread.preprocessing.errors import UserError
from reread.preprocessing.labelled.tasks.choose import ChooseExample
from reread.training.data.tasks.choose import MARKS
from reread.training.models.nezha.configuration_nezha import NezhaConfig
from reread.training.objectives.choose import ChooseObjective
from tests.tasks import WORDS, dataset_of, objective_of, task_values, write_tokenizer

DOCUMENTS = ("abcd", "efg", "hijkl")
OPTIONS = ("p", "qr", "s", "tu")
STEPS, BATCH = 15, 4
"""More than five epochs of the examples, within whose steps they turn."""


def text_of(documents: tuple[str, ...]) -> str:
    return "\n".join(" ".join(one) for one in documents)


EXAMPLES = [
    ChooseExample(str(n), "f", text_of(DOCUMENTS), "w ?", tuple(map(" ".join, OPTIONS)), n % 4, starts=(8, 14))
    for n in range(11)
]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokenizer(tmp_path_factory.mktemp("tokenizer"))


def opened(model: str, tokenizer: Path, *, shuffled: bool = True) -> Any:
    values = task_values(
        model, "choose", tokenizer, form="joined", sequence_length=30, other_length=2, shuffled=shuffled
    )
    return dataset_of(values, EXAMPLES)


def read(data: Any, begin: int, ranks: int = 1) -> list[tuple[int, int, Any]]:
    """(step, number of the group, rows) of all passes from step `begin` on."""
    found = [
        (step, *one)
        for step in range(begin, STEPS)
        for rank in range(ranks)
        for one in data.step_passes(step, BATCH, 2, ranks, rank)
    ]
    return sorted(found, key=lambda one: one[:2])


def same(one: Any, other: Any) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


def spelled(data: Any, ids: Any) -> list[str]:
    names = [data._tokenizer.id_to_token(int(one)) for one in ids]
    return [one for one in names if one in WORDS or one in MARKS]


def parts_of(data: Any, ids: Any) -> tuple[tuple[str, ...], str]:
    """The options of a row in their order, and the words of its window."""
    row = " ".join(spelled(data, ids))
    before, _, rest = row.partition("[question] w ? [/question] ")
    *options, after = rest.split(" [/ent]")
    return tuple(one.replace("[ent]", "").replace(" ", "") for one in options), (before + after).replace(" ", "")


@pytest.mark.parametrize("model", ["longformer", "ernie_doc", "ran"])
def test_each_epoch_has_its_order_and_the_label_follows_its_option(tokenizer: Path, model: str) -> None:
    data = opened(model, tokenizer)
    assert (data.documents.windows > 1).all()
    texts, orders = (defaultdict[tuple[int, int], Any](one) for one in (dict, set))
    for step, _, rows in read(data, 0):
        for row, ids in enumerate(rows["input_ids"]):
            options, window = parts_of(data, ids)
            places, example = rows["places"][row], int(rows["example"][row])
            assert rows["right"][row] == EXAMPLES[example].label
            assert [data._tokenizer.id_to_token(int(ids[place + 1])) for place in places] == [one[0] for one in OPTIONS]
            assert (ids[places] == data.own_tokens[2]).all()
            texts[step, example][int(rows["window"][row])] = window
            orders[step, example].add(options)
    assert all(len(one) == 1 for one in orders.values())  # in all windows, and where a step has an example twice
    allowed = {"".join(one): one for one in permutations(DOCUMENTS)}
    in_order = ("".join(windows[number] for number in sorted(windows)) for windows in texts.values())
    of_options = {one: next(iter(values)) for one, values in orders.items()}
    for found in (of_options, dict(zip(texts, map(allowed.__getitem__, in_order), strict=True))):
        assert {tuple(sorted(one)) for one in found.values()} in ({OPTIONS}, {DOCUMENTS})
        for example in range(len(EXAMPLES)):
            readings = [order for (_, one), order in found.items() if one == example]
            assert len(readings) >= 4 and len(set(readings)) > 1
        assert len({order for (step, _), order in found.items() if step < 2}) > 2  # examples differ in one epoch


def test_orders_are_the_same_on_a_resume_and_on_any_number_of_processes(tokenizer: Path) -> None:
    whole, resumed, split = (
        read(opened("longformer", tokenizer), begin, ranks) for begin, ranks in ((0, 1), (6, 1), (0, 2))
    )
    after = [one for one in whole if one[0] >= 6]
    for ours, theirs in ((resumed, after), (split, whole)):
        assert [one[:2] for one in ours] == [one[:2] for one in theirs]
        assert all(same(one[2], other[2]) for one, other in zip(ours, theirs, strict=True))


def test_predictions_and_runs_without_it_keep_the_files_order(tokenizer: Path) -> None:
    shuffled, plain = (opened("longformer", tokenizer, shuffled=one) for one in (True, False))
    read(shuffled, 0)
    for data in (shuffled, plain):
        for rows in data.passes(range(11), 4, training=False):
            assert {parts_of(data, ids)[0] for ids in rows["input_ids"]} == {OPTIONS}
    for _, _, rows in read(plain, 0):
        assert {parts_of(plain, ids)[0] for ids in rows["input_ids"]} == {OPTIONS}


def test_the_loss_of_a_model_that_sees_no_order_is_that_of_the_files_order(tokenizer: Path) -> None:
    """Global tokens of one layer without positions see all others alike."""
    losses = []
    for shuffled in (True, False):
        values = task_values("longformer", "choose", tokenizer, form="joined", shuffled=shuffled)
        objective = objective_of({**values, "model": {**values["model"], "num_hidden_layers": 1}}, EXAMPLES)
        objective.model.get_submodule("longformer.embeddings.position_embeddings").weight.data.zero_()
        ((_, rows),) = objective.dataset.step_passes(3, 4, 4, 1, 0)
        assert any(parts_of(objective.dataset, ids)[0] != OPTIONS for ids in rows["input_ids"]) == shuffled
        with torch.no_grad():
            output = objective.model(input_ids=objective.put(rows["input_ids"]))
            losses.append(float(objective.loss(output, rows)[0]))
    assert losses[0] == pytest.approx(losses[1], rel=1e-12)


def test_options_in_rows_of_their_own_are_not_shuffled(tokenizer: Path) -> None:
    data = dataset_of(task_values("nezha", "choose", tokenizer, shuffled=True), EXAMPLES)
    with pytest.raises(UserError, match=r"task\.shuffled: for task\.form=joined, not rows; leave it out"):
        ChooseObjective.check(NezhaConfig(), data.settings)
