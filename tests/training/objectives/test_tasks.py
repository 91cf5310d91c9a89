"""The losses of fine-tuning against their equations, and what the text of one example does to another: nothing."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

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
from reread.preprocessing.labelled.tasks.rank import RankExample
from reread.preprocessing.labelled.tasks.tag import TagExample
from reread.training.assembly import Assembly, resolve
from reread.training.config import TrainSettings
from reread.training.objectives.classify import ClassifyObjective
from reread.training.objectives.task import TaskObjective
from reread.training.parallel.mesh import Mesh
from reread.training.trainer import Trainer
from tests.tasks import LETTERS, dataset_of, number_of, objective_of, task_values, write_lines, write_tokenizer

MODELS = ["nezha", "ernie_doc", "ran", "longformer"]
TASKS = ["classify", "tag", "answer", "choose"]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokenizer(tmp_path_factory.mktemp("tokenizer"))


Call = tuple[list[str], NDArray[np.float64]]
"""A row's tokens that are no padding, and its logits [K] or [tokens, K]."""


class Drawn:
    """A model whose logits are random, which remembers the rows that it read."""

    mems_dim = 0
    config = SimpleNamespace(type_vocab_size=2)

    def __init__(self, kind: str, labels: int) -> None:
        self.kind, self.labels = kind, labels
        self.calls: list[Call] = []
        self.generator = torch.Generator().manual_seed(1)

    def empty_mems(self, rows: int) -> tuple[Tensor, ...]:
        return (torch.zeros(rows, 1),)

    def __call__(self, input_ids: Tensor, attention_mask: Tensor, **more: Any) -> Any:
        ids, mask = (one.flatten(0, -2) for one in (input_ids, attention_mask))
        shape = ids.shape if self.kind in ("tag", "answer") else ids.shape[:1]
        logits = 2 * torch.randn(*shape, self.labels, dtype=torch.float64, generator=self.generator)
        names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS, "?"]
        for row, real, values in zip(ids, mask.bool(), logits, strict=True):
            found = values[real] if values.dim() == 2 else values
            self.calls.append(([names[one] for one in row[real]], found.numpy()))
        output = SimpleNamespace(logits=logits.view(*input_ids.shape[:2], -1) if self.kind == "choose" else logits)
        if self.kind == "answer":
            output = SimpleNamespace(start_logits=logits[..., 0], end_logits=logits[..., 1])
        output.mems = more.get("mems")
        return output


def measured(values: dict[str, Any], examples: Sequence[Example], labels: int) -> tuple[list[Call], dict[str, float]]:
    """Rows and logits of a step over all examples; its loss, and what the step counts."""
    values |= {"global_batch": len(examples), "micro_batch": 3}
    objective = objective_of(values, examples)
    objective.model = drawn = Drawn(values["data"]["kind"], labels)
    with objective.batches(0) as loader:
        batch = next(loader)
    totals = {name: float(number) for name, number in objective.counts(batch).items()}
    passes = list(objective.losses(batch, totals, 0))
    figures = dict(zip(objective.figures, sum(one.figures for one in passes).tolist(), strict=True))
    assert figures["rows"] + figures["skimmed"] == len(drawn.calls)
    assert figures["tokens"] == sum(len(tokens) for tokens, _ in drawn.calls)
    assert [one.is_last for one in passes if one.loss is not None] == [False] * (
        sum(one.loss is not None for one in passes) - 1
    ) + [True]
    loss = sum(float(one.loss) for one in passes if one.loss is not None)
    assert figures["predicted"] == totals["predicted"]
    assert objective.summary(figures, 1)["loss"] == pytest.approx(loss, rel=1e-12)
    return drawn.calls, {"loss": loss, **figures}


def surprise(logits: Iterable[float], right: int) -> float:
    """-log of the share of one of `logits` in their softmax."""
    powers = [math.exp(one) for one in logits]
    return -math.log(powers[right] / sum(powers))


def agrees(found: dict[str, float], losses: list[float], right: int) -> None:
    assert found["predicted"] == len(losses)
    assert found["loss"] == pytest.approx(sum(losses) / len(losses), rel=1e-12)
    assert found["correct"] == right


CUT = {"nezha": 10, "ernie_doc": 10, "ran": 8, "longformer": 10}
"""Length of windows with room for eight tokens of a single text."""


def texts() -> dict[str, str]:
    """Texts of one to four windows of eight words, each with a letter of its own and z in the end."""
    return {
        letter: " ".join([letter] * length + ["z"]) for letter, length in zip("abcde", (0, 5, 9, 20, 31), strict=True)
    }


def letter_of(tokens: list[str]) -> str:
    """The letter of the text, `a` for the one that has none."""
    return next((one for one in tokens if one in "bcde"), "a")


@pytest.mark.parametrize("learns", ["all", "last"])
@pytest.mark.parametrize("model", ["nezha", "ernie_doc", "ran"])
def test_one_label_is_a_cross_entropy_in_each_window(tokenizer: Path, model: str, learns: str) -> None:
    labels = list("abcde")
    examples = [ClassifyExample(name, "", text, None, name) for name, text in texts().items()]
    task = {"sequence_length": CUT[model], "labels": labels, "learns": learns}
    calls, found = measured(task_values(model, "classify", tokenizer, **task), examples, 5)
    learned = [(tokens, logits) for tokens, logits in calls if learns == "all" or "z" in tokens]
    assert len(learned) == (5 if learns == "last" else 1 + 1 + 2 + 3 + 4)
    # the last window of the text of ten words holds no word but the last two, so letters are there in all of them
    losses = [surprise(logits, labels.index(letter_of(tokens))) for tokens, logits in learned]
    agrees(found, losses, sum(labels[logits.argmax()] == letter_of(tokens) for tokens, logits in learned))


def test_a_set_of_labels_is_the_mean_of_binary_cross_entropies(tokenizer: Path) -> None:
    sets = {"a": (), "b": ("p",), "c": ("p", "r"), "d": ("p", "q", "r"), "e": ("q",)}
    labels = list("pqr")
    examples = [ClassifyExample(name, "", text, None, sets[name]) for name, text in texts().items()]
    task = {"sequence_length": 10, "labels": labels, "answer": "set"}
    calls, found = measured(task_values("nezha", "classify", tokenizer, **task), examples, 3)
    losses, right = [], 0
    for tokens, logits in calls:
        wanted = [label in sets[letter_of(tokens)] for label in labels]
        chances = [1 / (1 + math.exp(-one)) for one in logits]
        losses.append(-sum(math.log(p if there else 1 - p) for p, there in zip(chances, wanted, strict=True)) / 3)
        right += [p > 0.5 for p in chances] == wanted
    agrees(found, losses, right)


def test_a_number_is_a_squared_error(tokenizer: Path) -> None:
    numbers = {"a": -1.5, "b": 0.0, "c": 2.0, "d": 0.25, "e": 1.0}
    examples = [ClassifyExample(name, "", text, None, numbers[name]) for name, text in texts().items()]
    task = {"sequence_length": 10, "answer": "number"}
    calls, found = measured(task_values("nezha", "classify", tokenizer, **task), examples, 1)
    errors = [float(logits[0]) - numbers[letter_of(tokens)] for tokens, logits in calls]
    agrees(found, [error**2 for error in errors], sum(abs(error) < 0.5 for error in errors))


@pytest.mark.parametrize("model", ["nezha", "ernie_doc", "ran", "longformer"])
def test_predictions_of_numbers_begin_at_their_mean(tokenizer: Path, model: str) -> None:
    """The predictions of random weights lie near the mean of the targets; a head that was trained stays as it is."""
    numbers = {"a": 40.0, "b": 41.0, "c": 42.0, "d": 43.0, "e": 44.0}
    examples = [ClassifyExample(name, "", text, None, numbers[name]) for name, text in texts().items()]
    values = task_values(model, "classify", tokenizer, sequence_length=32, answer="number")
    settings, dataset = TrainSettings.parse(values, "test"), dataset_of(values, examples)
    resolved = resolve(settings, dataset.vocab_size, None, dataset.special)
    began = Assembly(resolved, Mesh(), torch.float32, dataset=dataset, held_out=dataset)
    predicted = [float(one[0]) for one in cast(TaskObjective, began.objective).predict(dataset).values()]
    assert len(predicted) == 5 and predicted == pytest.approx([42.0] * 5, abs=2)
    (name,) = (name for name, value in began.masters.named_parameters() if value.tolist() == [42.0])
    bias = began.model.get_parameter(name).data
    bias += 1
    ClassifyObjective.begin(began.model, dataset)
    assert bias.tolist() == [43.0]


@pytest.mark.parametrize("model", ["nezha", "ernie_doc"])
def test_a_tag_is_a_cross_entropy_in_the_window_with_most_context(tokenizer: Path, model: str) -> None:
    """Ten words in windows of six, three apart: the owner of each word is written out here."""
    labels = ["B-X", "I-X", "O"]
    tag = {"b": "B-X", "i": "I-X"}
    text = ["a", "b", "i", "c", "d", "e", "b", "i", "i", "f"]
    owners = [0, 0, 0, 0, 0, 1, 1, 1, 2, 2]
    short = ["b", "g"]
    examples = [
        TagExample(str(number), "", tuple(words), tuple(tag.get(word, "O") for word in words))
        for number, words in enumerate((text, short))
    ]
    task = {"sequence_length": 8, "step": 3, "labels": labels}
    calls, found = measured(task_values(model, "tag", tokenizer, **task), examples, 3)
    losses, right = [], 0
    for tokens, logits in calls:
        words = [word for word in tokens if not word.startswith("[")]
        offset = tokens.index(words[0])
        window = {"a": 0, "c": 1, "b": 2}[words[0]] if words != short else None
        for place, word in enumerate(words):
            if window is None or owners[3 * window + place] == window:
                wanted = labels.index(tag.get(word, "O"))
                losses.append(surprise(logits[offset + place], wanted))
                right += int(logits[offset + place].argmax()) == wanted
    assert len(losses) == 12
    agrees(found, losses, right)


def answer_texts() -> list[AnswerExample]:
    """`x w y` is the answer; in the second text it lies across the edge of two windows, in the third nowhere."""
    made = []
    for number, words in enumerate(("a b x w y c", "a a a a a x w y b b b", "a b c d e f g h", "x w y", "b x w y")):
        at = words.find("x w y")
        answers = (Answer(at, "x w y"),) if at >= 0 else ()
        made.append(AnswerExample(str(number), "", words, "q ?", answers))
    return made


@pytest.mark.parametrize("without", ["cls", "skip"])
@pytest.mark.parametrize("model", ["nezha", "ernie_doc", "ran"])
def test_an_answer_is_half_the_cross_entropies_of_its_ends(tokenizer: Path, model: str, without: str) -> None:
    """Padding has no share; [CLS] answers where no whole answer is, or the window has no loss, as with RAN always."""
    length = 9 if model == "ran" else 11  # six words of text
    task = {"sequence_length": length, "step": 3, "without": without}
    calls, found = measured(task_values(model, "answer", tokenizer, **task), answer_texts(), 2)
    assert len(calls) == 1 + 3 + 2 + 1 + 1
    losses, right = [], 0
    for tokens, logits in calls:
        if "x" in tokens and "y" in tokens:
            ends = tokens.index("x"), tokens.index("y")
        elif without == "cls" and "[CLS]" in tokens:
            ends = tokens.index("[CLS]"), tokens.index("[CLS]")
        else:
            continue
        losses.append(0.5 * sum(surprise(logits[:, side], end) for side, end in enumerate(ends)))
        right += tuple(logits.argmax(0)) == ends
    agrees(found, losses, right)


@pytest.mark.parametrize("without", ["cls", "skip"])
@pytest.mark.parametrize("model", ["nezha", "ernie_doc", "ran"])
def test_all_occurrences_share_one_softmax_over_the_windows_of_a_document(
    tokenizer: Path, model: str, without: str
) -> None:
    """-log of what all right places have of one softmax (Clark and Gardner's shared norm), of each window with memory.

    A document with an answer somewhere has no other right places; one without has [CLS], or no loss.
    """
    texts = {"a": "a a x a a a a x x a", "b": "b b b b b b b b", "c": "c x", "d": "d d d d d d d d d d d x", "e": "e e"}
    examples = []
    for number, words in enumerate(texts.values()):
        answers = tuple(Answer(at, "x") for at, word in enumerate(words) if word == "x")
        examples.append(AnswerExample(str(number), "", words, "q ?", answers))
    length = 9 if model == "ran" else 11
    task = {"sequence_length": length, "step": 6, "without": without, "occurrences": "all"}
    calls, found = measured(task_values(model, "answer", tokenizer, **task), examples, 2)
    units: dict[Any, list[Call]] = defaultdict(list)
    for number, (tokens, logits) in enumerate(calls):
        letter = next(one for one in tokens if one in "abcde")
        units[number if model == "ernie_doc" else letter].append((tokens, logits))
    losses, right = [], 0
    for rows in units.values():
        wanted = "x" if any("x" in tokens for tokens, _ in rows) else "[CLS]" if without == "cls" else ""
        names = [token for tokens, _ in rows for token in tokens]
        if wanted not in names:
            continue
        good = np.array([name == wanted for name in names])
        logits = np.concatenate([one for _, one in rows])
        shares = np.exp(logits) / np.exp(logits).sum(0)
        losses.append(-0.5 * float(np.log(shares[good].sum(0)).sum()))
        right += bool(good[logits.argmax(0)].all())
    assert len(losses) == {"nezha": 3, "ran": 3, "ernie_doc": 4}[model] + (
        {"nezha": 2, "ran": 0, "ernie_doc": 4}[model] if without == "cls" else 0
    )
    agrees(found, losses, right)


@pytest.mark.parametrize("model", ["nezha", "ernie_doc", "ran"])
def test_options_share_a_softmax_in_each_window(tokenizer: Path, model: str) -> None:
    """Examples with two, three and four options in one pass."""
    right = {"a": "p", "b": "s", "c": "q"}
    options = {"a": "p q", "b": "p q r s", "c": "r q p"}
    lengths = {"a": 9, "b": 3, "c": 6}
    examples = []
    for letter, names in options.items():
        text = " ".join(f"{letter} {LETTERS[3 + n]}" for n in range(lengths[letter] // 3)) + f" {letter}"
        label = names.split().index(right[letter])
        examples.append(ChooseExample(letter, "", text, "t ?", tuple(names.split()), label))
    length = 8 if model == "ran" else 10  # three words of text
    task = {"sequence_length": length}
    calls, found = measured(task_values(model, "choose", tokenizer, **task), examples, 1)
    units: dict[tuple[str, ...], dict[str, float]] = defaultdict(dict)
    for tokens, logits in calls:
        (option,) = (one for one in tokens if one in "pqrs")
        text = tuple(one for one in tokens if one in "abcdef")
        units[text][option] = float(logits[0])
    losses, good = [], 0
    for text, scores in units.items():
        letter = next(one for one in text if one in "abc")
        assert set(scores) == set(options[letter].split())
        losses.append(surprise(scores.values(), list(scores).index(right[letter])))
        good += max(scores, key=scores.__getitem__) == right[letter]
    assert len(losses) > len(examples)
    agrees(found, losses, good)


@pytest.mark.parametrize("model", MODELS)
def test_passages_share_a_softmax_whose_target_is_their_share_of_the_grades(tokenizer: Path, model: str) -> None:
    grades = {"a": {"p": 3, "q": 0, "r": 1}, "b": {"q": 1, "s": 0}, "c": {"p": 0, "r": 0, "s": 2}}
    examples = [
        RankExample(query, "", f"{query} ?", tuple(f"{name} x" for name in of), tuple(map(float, of.values())))
        for query, of in grades.items()
    ]
    calls, found = measured(task_values(model, "rank", tokenizer, sequence_length=16), examples, 1)
    units: dict[str, dict[str, float]] = defaultdict(dict)
    for tokens, logits in calls:
        (passage,) = (one for one in tokens if one in "pqrs")
        (query,) = (one for one in tokens if one in "abc")
        units[query][passage] = float(logits[0])
    losses, good = [], 0
    for query, scores in units.items():
        names, total = list(scores), sum(grades[query].values())
        assert set(names) == set(grades[query])
        each = [grades[query][name] / total * surprise(scores.values(), n) for n, name in enumerate(names)]
        losses.append(sum(each))
        good += grades[query][max(scores, key=scores.__getitem__)] > 0
    assert found["predicted"] == 3 and found["correct"] == good
    assert found["loss"] == pytest.approx(sum(losses) / 3, rel=1e-6)  # shares are float32


def test_counts_of_ranks_add_up_to_the_whole_step(tokenizer: Path) -> None:
    labels = list("abcde")
    examples = [ClassifyExample(name, "", text, None, name) for name, text in texts().items()]
    values = task_values("nezha", "classify", tokenizer, sequence_length=10, labels=labels)
    values |= {"global_batch": 5, "micro_batch": 1}
    counts = []
    for ranks in (1, 2, 3):
        total = 0
        for rank in range(ranks):
            mesh = Mesh(rank=rank, world=ranks, data_rank=rank, data_size=ranks)
            objective = objective_of(values, examples, mesh)
            with objective.batches(0) as loader:
                total += objective.counts(next(loader))["predicted"]
        counts.append(total)
    assert counts == [11, 11, 11]


# What a row alone gives, it gives among others, too


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
        elif kind == "answer":
            at = 2 * (length // 2)
            made.append(AnswerExample(str(number), "", text, words(number + 1, 7), (Answer(at, text[at]),)))
        else:
            options = tuple(words(place + 1, place) for place in range(2 + number % 3))
            made.append(ChooseExample(str(number), "", text, words(number + 1, 7), options, number % 2))
    return made


def outputs_of(objective: TaskObjective) -> dict[int, dict[tuple[int, int], NDArray[np.float64]]]:
    """The model's output for each example, (option, window)."""
    objective.dataset.decode = lambda example, outputs: dict(outputs)  # type: ignore[method-assign]
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
        *((model, kind, None) for model in MODELS for kind in TASKS),
        *((model, kind, "mean") for model in ("nezha", "ernie_doc") for kind in ("classify", "choose")),
    ],
)
def test_padding_and_company_change_nothing(tokenizer: Path, model: str, kind: str, pooling: str | None) -> None:
    """One document is ten times as long as the shortest: outputs, loss and gradients are those of documents alone."""
    examples = examples_of(kind, (4, 40, 9, 17, 5))
    task: dict[str, Any] = {"sequence_length": 20, "labels": ["p", "q", "r"] if kind in ("classify", "tag") else []}
    if kind == "answer":
        task["occurrences"] = "all"
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
    """Of a text [CLS] alone, of an answer [CLS] and the question, of an option question and option, of tags none."""
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
        }[kind]
        if kind == "tag":
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
