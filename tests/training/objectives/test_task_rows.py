"""What a row gives alone in fine-tuning, it gives among others, too; and what a file may be when a run goes on."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from reread.preprocessing.errors import UserError
from reread.preprocessing.labelled.examples import Example
from reread.preprocessing.labelled.tasks.answer import Answer, AnswerExample
from reread.preprocessing.labelled.tasks.choose import ChooseExample
from reread.preprocessing.labelled.tasks.classify import ClassifyExample
from reread.preprocessing.labelled.tasks.coreference import of_tokens
from reread.preprocessing.labelled.tasks.phrases import phrases_example
from reread.preprocessing.labelled.tasks.tag import TagExample
from reread.training.config import TrainSettings
from reread.training.objectives.task import TaskObjective
from reread.training.parallel.mesh import Mesh
from reread.training.trainer import Trainer
from tests.conftest import rarer, thinned
from tests.tasks import LETTERS, number_of, objective_of, task_values, write_lines, write_tokenizer

MODELS = ["nezha", "ernie_doc", "ran", "longformer"]
TASKS = ["classify", "tag", "answer", "choose", "phrases", "coreference"]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokenizer(tmp_path_factory.mktemp("tokenizer"))


def words(count: int, begin: int = 0) -> str:
    return " ".join(LETTERS[(begin + 3 * number) % 26] for number in range(count))


def examples_of(kind: str, lengths: Sequence[int]) -> list[Example]:
    """Labelled examples of each length, of one kind."""
    made: list[Example] = []
    for number, length in enumerate(lengths):
        text = words(length, number)
        if kind == "classify":
            made.append(ClassifyExample(str(number), "", text, words(number + 1, 7), "pqr"[number % 3]))
        elif kind == "tag":
            tags = tuple("pqr"[place * 7 % 3] for place in range(length))
            made.append(TagExample(str(number), "", tuple(text.split()), tags))
        elif kind == "coreference":
            spans = [(place, place + 1) for place in range(0, length, 2)]
            made.append(of_tokens(str(number), "", [text.split()], [spans]))
        elif kind == "phrases":
            made.append(phrases_example(str(number), "", text, [text[-3:]], "words"))
        elif kind == "answer":
            at = 2 * (length // 2)
            made.append(AnswerExample(str(number), "", text, words(number + 1, 7), (Answer(at, text[at]),)))
        else:
            options = tuple(words(place + 1, place) for place in range(2 + number % 3))
            made.append(ChooseExample(str(number), "", text, words(number + 1, 7), options, number % 2))
    return made


def outputs_of(objective: TaskObjective) -> dict[int, dict[tuple[int, int], NDArray[np.float64]]]:
    """The model's output for each example, (option, window)."""
    objective.dataset.decode = lambda example, outputs, *_: dict(outputs)  # type: ignore[method-assign]
    return objective.predict(objective.dataset)


def same_outputs(found: dict[Any, Any], expected: dict[Any, Any]) -> None:
    assert found.keys() == expected.keys()
    for place, value in expected.items():
        np.testing.assert_allclose(found[place], value, rtol=0, atol=1e-10, err_msg=str(place))


def gradient_of(objective: TaskObjective) -> tuple[float, list[Tensor]]:
    """The loss of step 0, and its gradients."""
    objective.model.zero_grad()
    with objective.batches(0) as loader:
        batch = next(loader)
    totals = {name: float(number) for name, number in objective.counts(batch).items()}
    loss = 0.0
    for one in objective.losses(batch, totals, 0):
        if one.loss is not None:
            one.loss.backward()
            loss += float(one.loss.detach())
    return loss, [parameter.grad for parameter in objective.model.parameters() if parameter.grad is not None]


@pytest.mark.parametrize(
    ("model", "kind", "pooling"),
    [
        *thinned(((model, kind, None) for model in MODELS for kind in TASKS), 4),
        *thinned(((model, kind, "mean") for model in ("nezha", "ernie_doc") for kind in ("classify", "choose")), 3),
        ("bert", "choose", None),
        rarer("roberta", "answer", None),
        ("modernbert", "tag", None),
        rarer("modernbert", "classify", "mean"),
        rarer("electra", "phrases", None),
    ],
)
def test_padding_and_company_change_nothing(tokenizer: Path, model: str, kind: str, pooling: str | None) -> None:
    """One document is ten times as long as the shortest: outputs, loss and gradients are those of documents alone."""
    examples = examples_of(kind, (4, 40, 9, 17, 5))
    task: dict[str, Any] = {"sequence_length": 20, "labels": ["p", "q", "r"] if kind in ("classify", "tag") else []}
    if kind == "answer":
        task["occurrences"] = "all"
    if kind == "coreference":
        task["step"] = 7
    if pooling:
        task["pooling"] = pooling
    found = {}
    for size in (1, 5):
        values = task_values(model, kind, tokenizer, **task) | {"global_batch": 5, "micro_batch": size}
        objective = objective_of(values, examples)
        found[size] = outputs_of(objective), *gradient_of(objective)
    (alone, loss, gradients), (together, loss_together, gradients_together) = found[1], found[5]
    assert max(len(outputs) for outputs in alone.values()) > 2
    for example, outputs in alone.items():
        same_outputs(together[example], outputs)
    assert loss_together == pytest.approx(loss, rel=1e-11)
    for one, other in zip(gradients, gradients_together, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-11)


@pytest.mark.parametrize("model", MODELS)
def test_a_text_without_tokens_is_read_alone_as_beside_another(tokenizer: Path, model: str) -> None:
    """As one of a zero-width space, which BERT's normalisation removes; RAN's row has no special token either."""
    values = task_values(model, "classify", tokenizer, sequence_length=20, labels=["p", "q"])
    examples = [ClassifyExample("0", "", "\u200b", None, "p"), ClassifyExample("1", "", words(9), None, "q")]
    alone, beside = (outputs_of(objective_of(values, found))[0] for found in (examples[:1], examples))
    same_outputs(alone, beside)


@pytest.mark.parametrize("kind", ["classify", "answer"])
def test_outputs_that_are_kept_hold_no_memory_of_tensors(
    tokenizer: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """A book has thousands of windows: views would keep the tensors of all of them."""
    values = task_values("ernie_doc", kind, tokenizer, sequence_length=20, labels=["p", "q"] * (kind == "classify"))
    objective, kept = objective_of(values, examples_of(kind, (60,))), list[Any]()
    decode = type(objective.dataset).decode

    def seen(self: Any, example: int, outputs: Any) -> Any:
        kept.extend(outputs.values())
        return decode(self, example, outputs)

    monkeypatch.setattr(type(objective.dataset), "decode", seen)
    objective.predict(objective.dataset)
    assert len(kept) > 2 and all(one.base is None for one in kept)


def test_a_model_with_one_token_type_reads_pairs_and_options(tokenizer: Path) -> None:
    """As a Longformer from RoBERTa: both parts have type 0, which two types with equal vectors give, too."""
    pair = [ClassifyExample("x", "", words(9), words(4), "p"), ClassifyExample("y", "", words(5), words(7), "q")]
    for kind, examples in (("classify", pair), ("choose", examples_of("choose", (9, 5)))):
        found = []
        for types in (1, 2):
            labels = ["p", "q"] if kind == "classify" else []
            values = task_values("longformer", kind, tokenizer, sequence_length=30, labels=labels)
            values["model"]["type_vocab_size"] = types
            objective = objective_of(values, examples)
            weights = torch.Generator().manual_seed(3)
            for name, parameter in objective.model.named_parameters():
                row = parameter.data[:1] if "token_type" in name else parameter.data
                drawn = torch.randn(row.shape, generator=weights, dtype=torch.float64) * 0.3
                parameter.data.copy_(drawn.expand_as(parameter))
            found.append(outputs_of(objective))
        for example, outputs in found[0].items():
            same_outputs(found[1][example], outputs)


# ERNIE-Doc's memory


def classified(tokenizer: Path, texts: Sequence[str], size: int, **task: Any) -> Any:
    examples = [ClassifyExample(str(number), "", text, None, "p") for number, text in enumerate(texts)]
    task = {"sequence_length": 8, "labels": ["p", "q"], **task}
    values = task_values("ernie_doc", "classify", tokenizer, **task) | {"micro_batch": size}
    return outputs_of(objective_of(values, examples))


@pytest.mark.parametrize("retrospective", [False, True])
@pytest.mark.parametrize("size", [1, 2])
def test_memory_is_empty_at_each_document(tokenizer: Path, size: int, retrospective: bool) -> None:
    """Another document before it, or beside it in a pass, changes nothing; its own earlier text does."""
    more = {"retrospective": retrospective}
    first = classified(tokenizer, [words(18), words(20, 1)], size, **more)
    other = classified(tokenizer, [words(18, 5), words(20, 1)], size, **more)
    same_outputs(other[1], first[1])
    assert not np.allclose(other[0][0, 0], first[0][0, 0])
    changed = classified(tokenizer, [words(18), "e" + words(20, 1)[1:]], size, **more)
    assert not np.allclose(changed[1][0, 3], first[1][0, 3])  # windows of six words carry the first word along


def test_memory_is_empty_at_each_option(tokenizer: Path) -> None:
    outputs = []
    for other in ("a b", "e f"):
        examples = [
            ChooseExample("x", "", words(20), "q ?", (other, "c d", "d"), 0),
            ChooseExample("y", "", words(14, 3), "q ?", ("c", "d"), 0),
        ]
        values = task_values("ernie_doc", "choose", tokenizer, sequence_length=14)
        outputs.append(outputs_of(objective_of(values, examples)))
    first, second = outputs
    same_outputs(second[1], first[1])
    for place, value in first[0].items():
        assert np.allclose(value, second[0][place], rtol=0, atol=1e-10) == (place[0] != 0), place


@pytest.mark.parametrize("size", [1, 3])
def test_retrospective_feed_shows_the_first_window_the_end_of_the_text(tokenizer: Path, size: int) -> None:
    for retrospective in (True, False):
        texts = [words(12), words(12)[:-1] + "z", words(3)]
        found = classified(tokenizer, texts, size, retrospective=retrospective)
        sees = not np.allclose(found[0][0, 0], found[1][0, 0], rtol=0, atol=1e-10)
        assert sees == retrospective
        assert not np.allclose(found[0][0, 1], found[1][0, 1], rtol=0, atol=1e-10)


# Longformer's global tokens


@pytest.mark.parametrize("kind", TASKS)
def test_longformers_global_tokens_are_those_of_the_task(tokenizer: Path, kind: str) -> None:
    """Of a text [CLS] alone, of an answer [CLS] and the question, of an option question and option, else none."""
    examples = examples_of(kind, (30, 12))
    labels = ["p", "q", "r"] if kind in ("classify", "tag") else []
    objective = objective_of(task_values("longformer", kind, tokenizer, sequence_length=60, labels=labels), examples)
    seen = []

    def look(module: Any, args: Any, given: dict[str, Any]) -> None:
        mask = given.get("global_attention_mask")
        for row, ids in enumerate(given["input_ids"]):
            seen.append((ids.tolist(), None if mask is None else mask[row].bool().tolist()))

    objective.model.longformer.register_forward_pre_hook(look, with_kwargs=True)
    objective.predict(objective.dataset)
    assert len(seen) == (5 if kind == "choose" else 2)
    for ids, mask in seen:
        ends = [place for place, one in enumerate(ids) if one == number_of("[SEP]")]
        expected: Callable[[int], bool] = {
            "classify": lambda place: place == 0,
            "answer": lambda place: place < ends[0],  # noqa: B023
            "choose": lambda place: place > ends[0],  # noqa: B023
            "tag": lambda place: False,
            "phrases": lambda place: False,
            "coreference": lambda place: False,
        }[kind]
        if kind in ("tag", "phrases", "coreference"):
            assert mask is None
        else:
            real = [place for place, one in enumerate(ids) if one != number_of("[PAD]")]
            assert [mask[place] for place in real] == [expected(place) for place in real]


@pytest.mark.parametrize("changed", ["train", "dev", "test"])
def test_a_file_that_changed_between_two_attempts_is_refused(changed: str, tokenizer: Path, tmp_path: Path) -> None:
    files = {
        name: str(write_lines(tmp_path / f"{name}.jsonl", [{"text": f"a {one}", "label": one} for one in "xy"]))
        for name in ("train", "dev", "test")
    }
    values = task_values("nezha", "classify", tokenizer, labels=["x", "y"], sequence_length=8, **files)
    values |= {"steps": 1, "global_batch": 2, "micro_batch": 2}

    def attempt(steps: int) -> None:
        Trainer(TrainSettings.parse({**values, "steps": steps}, "test"), tmp_path / "run", Mesh()).train()

    attempt(1)
    write_lines(Path(files[changed]), [{"text": f"a {one}", "label": one} for one in "xyx"])
    with pytest.raises(UserError, match=f"{changed}.*changed since the run began") as caught:
        attempt(2)
    assert "begin a new run with name=" in str(caught.value) and "\n" not in str(caught.value)
    moved = Path(files[changed]).rename(tmp_path / "moved.jsonl")  # with its old content it may be anywhere
    write_lines(moved, [{"text": f"a {one}", "label": one} for one in "xy"])
    values["data"][changed] = str(moved)
    attempt(2)


def test_a_task_without_held_out_examples_is_logged_with_its_own_setting(
    tokenizer: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lines = write_lines(tmp_path / "train.jsonl", [{"text": "a b", "label": one} for one in "xy"])
    values = task_values("nezha", "classify", tokenizer, train=str(lines), labels=["x", "y"], sequence_length=8)
    with caplog.at_level("INFO", "reread"):
        Trainer(TrainSettings.parse(values, "test"), tmp_path / "run", Mesh())
    assert "no validation: nothing is held out (task.dev)" in caplog.messages
