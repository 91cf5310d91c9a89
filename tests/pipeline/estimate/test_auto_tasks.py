"""`micro_batch: auto` in fine-tuning: what the longest examples need, and that each process gets some."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from reread.pipeline.estimate.auto import choose_auto
from reread.pipeline.estimate.rehearsal import rehearse
from reread.preprocessing.labelled.examples import Example
from reread.preprocessing.labelled.tasks.answer import Answer, AnswerExample
from reread.preprocessing.labelled.tasks.choose import ChooseExample
from reread.preprocessing.labelled.tasks.classify import ClassifyExample
from reread.preprocessing.labelled.tasks.coreference import of_tokens
from reread.preprocessing.labelled.tasks.generate import GenerateExample
from reread.preprocessing.labelled.tasks.phrases import phrases_example
from reread.preprocessing.labelled.tasks.tag import TagExample
from reread.training.config import TrainSettings
from reread.training.data.batch import Rows
from reread.training.data.tasks.settings import check_groups
from reread.training.models import model_spec
from reread.training.models.build import model_config
from reread.training.parallel.gradients import GradientBuckets
from reread.training.parallel.mesh import Mesh
from tests.memory import allocated
from tests.tasks import LETTERS, dataset_of, objective_of, task_values, write_tokenizer

LENGTHS = (3, 400, 17, 190, 95, 8, 260, 121)
"""Words of each example."""


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokenizer(tmp_path_factory.mktemp("tokenizer"))


def examples_of(kind: str) -> list[Example]:
    made: list[Example] = []
    for number, length in enumerate(LENGTHS):
        name, words = str(number), [LETTERS[place % 26] for place in range(length)]
        text = " ".join(words)
        if kind == "classify":
            made.append(ClassifyExample(name, "", text, None, "xy"[number % 2]))
        elif kind == "tag":
            made.append(TagExample(name, "", tuple(words), ("O",) * length))
        elif kind == "coreference":
            made.append(of_tokens(name, "", [words], [[(0, 1), (1, 3)]]))
        elif kind == "generate":
            made.append(GenerateExample(name, "", text, " ".join(words[: 1 + number])))
        elif kind == "phrases":
            made.append(phrases_example(name, "", text, ["a b"], "words"))
        elif kind == "answer":
            made.append(AnswerExample(name, "", text, "q ?", (Answer(2, "b"),)))
        else:
            made.append(ChooseExample(name, "", text, "q ?", ("a", "b b", "c"), number % 3))
    return made


CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "texts": ("nezha", "classify", {"sequence_length": 96, "labels": ["x", "y"]}),
    "last windows with memory": (
        "ernie_doc",
        "classify",
        {"sequence_length": 64, "labels": ["x", "y"], "learns": "last"},
    ),
    "runs of words": ("nezha", "phrases", {"sequence_length": 96}),
    "targets": ("ran", "generate", {"sequence_length": 96, "target_length": 24}),
    "clusters": ("longformer", "coreference", {"sequence_length": 64, "head_size": 64}),
    "clusters with memory": ("ernie_doc", "coreference", {"sequence_length": 64, "head_size": 64}),
    "words": ("ran", "tag", {"sequence_length": 96, "labels": ["O"]}),
    "words as a chain": ("nezha", "tag", {"sequence_length": 48, "labels": ["O"], "crf": True}),
    "a softmax over all windows": ("longformer", "answer", {"sequence_length": 64, "occurrences": "all"}),
    "options read twice": ("ernie_doc", "choose", {"sequence_length": 64, "retrospective": True}),
}


def values_of(case: str, tokenizer: Path, **changes: Any) -> tuple[dict[str, Any], list[Example]]:
    model, kind, task = CASES[case]
    values = {**task_values(model, kind, tokenizer, **task), **changes}
    values["model"]["hidden_size"] = 64
    if model == "nezha":
        values["model"]["max_relative_position"] = 96  # nothing is clipped
    if model == "ernie_doc":  # without dropout its attention is another one on CPU
        values["model"]["attention_probs_dropout_prob"] = 0.1
    return values, examples_of(kind)


def peak(values: dict[str, Any], examples: Sequence[Example]) -> int:
    """Most bytes beside the state that torch allocates in a pass of the longest examples, float32."""
    objective = objective_of(values, examples)
    objective.model.float().train()
    buckets = GradientBuckets(list(objective.model.parameters()), Mesh(), 2**20)

    def step() -> None:
        buckets.zero()
        for loss, _, _ in objective.losses(objective.largest(), {"predicted": 1.0}, 0):
            if loss is not None:
                loss.backward()

    return allocated(step)


@pytest.mark.slow
@pytest.mark.parametrize("case", list(CASES))
def test_the_estimate_of_a_task_is_what_torch_allocates(tokenizer: Path, case: str) -> None:
    values, examples = values_of(case, tokenizer, micro_batch=3, global_batch=3)
    settings, dataset = TrainSettings.parse(values, "test"), dataset_of(values, examples)
    config = objective_of(values, examples).model.config
    arguments: dict[str, Any] = {"tensor": 1, "micro_batch": 3, "checkpointing": False, "kernels": "cpu"}
    footprint = rehearse(settings, config, torch.float32, **arguments, dataset=dataset)
    assert footprint.within == pytest.approx(peak(values, examples), rel=0.1)


@pytest.mark.parametrize("size", [1, 3, 8])
@pytest.mark.parametrize("case", list(CASES))
def test_no_pass_of_a_run_has_more_tokens_than_the_largest(tokenizer: Path, case: str, size: int) -> None:
    """Also where a step reaches into the next epoch (5 of 8 examples) or into several (20)."""
    dataset = dataset_of(*values_of(case, tokenizer))

    def most(step: int, global_batch: int) -> int:
        passes = dataset.step_passes(step, global_batch, size, 1, 0)
        return max((rows["input_ids"].size for _, rows in passes if rows["learns"].any()), default=0)

    for global_batch in (5, 8, 20):
        largest = max(rows["input_ids"].size for rows in next(dataset.longest(size, global_batch)))
        assert max(most(step, global_batch) for step in range(12)) <= largest
    everything = max(rows["input_ids"].size for _, rows in dataset.step_passes(0, len(LENGTHS), size, 1, 0))
    assert everything == max(rows["input_ids"].size for rows in next(dataset.longest(size, 8))) or size > 1


@pytest.mark.parametrize(("global_batch", "times"), [(2, 1), (4, 1), (8, 1), (16, 2), (3, 2), (12, 2), (20, 3)])
def test_the_longest_example_is_rehearsed_as_often_as_a_step_can_hold_it(
    tokenizer: Path, global_batch: int, times: int
) -> None:
    dataset = dataset_of(*values_of("texts", tokenizer))
    longest = LENGTHS.index(max(LENGTHS))

    def windows(passes: Iterable[Rows]) -> int:
        return sum(int((rows["example"] == longest).sum()) for rows in passes)

    of_steps = [windows(rows for _, rows in dataset.step_passes(step, global_batch, 8, 1, 0)) for step in range(400)]
    assert (
        max(of_steps) == windows(next(dataset.longest(8, global_batch))) == times * dataset.documents[longest].windows
    )


@pytest.mark.parametrize(("documents", "processes", "most"), [(8, 1, 8), (9, 4, 2), (8, 4, 2), (7, 3, 2)])
def test_each_process_gets_examples(tokenizer: Path, documents: int, processes: int, most: int) -> None:
    values, examples = values_of("texts", tokenizer, micro_batch="auto", global_batch=documents)
    settings = TrainSettings.parse(values, "test")
    config = model_config(model_spec("nezha"), settings.model, 32, None)
    mesh = Mesh(world=processes, data_size=processes, device=torch.device("cuda"))
    found = choose_auto(settings, config, mesh, torch.float16, 2**34, dataset_of(values, examples))
    assert found.micro_batch == most
    check_groups(documents, found.micro_batch, processes)


def test_an_example_counts_with_all_windows_that_share_a_softmax(tokenizer: Path) -> None:
    values, examples = values_of("a softmax over all windows", tokenizer, micro_batch=1, global_batch=1)
    settings, config = TrainSettings.parse(values, "test"), objective_of(values, examples).model.config
    arguments: dict[str, Any] = {"tensor": 1, "micro_batch": 1, "checkpointing": False}
    one_window, many = (
        rehearse(settings, config, torch.float16, **arguments, dataset=dataset_of(values, some)).activations
        for some in ([one for one, length in zip(examples, LENGTHS, strict=True) if 17 <= length < 50], examples)
    )
    assert many > 10 * one_window


def test_the_longest_that_have_an_answer_are_rehearsed(tokenizer: Path) -> None:
    answers = (Answer(2, "b"),)
    texts = {"long": ("a b " * 30, ()), "middle": ("a b " * 9, answers), "short": ("a b", answers)}
    examples = [AnswerExample(name, "", text, "q ?", found) for name, (text, found) in texts.items()]
    values = task_values("nezha", "answer", tokenizer, sequence_length=96, without="skip")
    (_, rows), *more = objective_of({**values, "micro_batch": 1}, examples).largest()
    assert not more
    assert rows["attention_mask"].sum() == 18 + len(["q", "?"]) + 3
    (_, rows), *more = objective_of({**values, "micro_batch": 1}, examples[:1]).largest()
    assert rows["attention_mask"].sum() == 60 + len(["q", "?"]) + 3


def test_groups_waste_less_than_equal_pieces(tokenizer: Path) -> None:
    """Seven texts of three words and one of sixty: the long one is a pass of its own."""
    lengths = [3] * 7 + [60]
    examples = [ClassifyExample(str(n), "", " ".join("a" * length), None, "x") for n, length in enumerate(lengths)]
    values, _ = values_of("texts", tokenizer)
    groups = dataset_of(values, examples).groups(np.arange(8), 8)
    assert sorted(map(len, groups)) == [1, 7]
    assert groups[-1] == [7]
