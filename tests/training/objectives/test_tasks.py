"""The losses of fine-tuning against their equations."""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise, product
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from reread.preprocessing.labelled.examples import Example
from reread.preprocessing.labelled.tasks.answer import Answer, AnswerExample
from reread.preprocessing.labelled.tasks.choose import ChooseExample
from reread.preprocessing.labelled.tasks.classify import ClassifyExample
from reread.preprocessing.labelled.tasks.rank import RankExample
from reread.preprocessing.labelled.tasks.tag import TagExample
from reread.training.assembly import Assembly, resolve
from reread.training.config import TrainSettings
from reread.training.models.crf import ForTokenClassification
from reread.training.objectives.classify import ClassifyObjective
from reread.training.objectives.task import TaskObjective
from reread.training.parallel.mesh import Mesh
from tests.tasks import LETTERS, dataset_of, objective_of, task_values, write_tokenizer

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

    def empty_mems(self, rows: int, *segments: int) -> tuple[Tensor, ...]:
        return (torch.zeros(rows, 1),)

    def __call__(self, input_ids: Tensor, attention_mask: Tensor, **more: Any) -> Any:
        ids, mask = (one.flatten(0, -2) for one in (input_ids, attention_mask))
        shape = ids.shape if self.kind in ("tag", "answer", "joined") else ids.shape[:1]
        logits = 2 * torch.randn(*shape, self.labels, dtype=torch.float64, generator=self.generator)
        names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS, "?", "[question]", "[/question]", "[ent]"]
        names.append("[/ent]")
        for row, real, values in zip(ids, mask.bool(), logits, strict=True):
            found = values[real] if values.dim() == 2 else values
            self.calls.append(([names[one] for one in row[real]], found.numpy()))
        if self.kind == "joined":
            logits = logits[..., 0]
        output = SimpleNamespace(logits=logits.view(*input_ids.shape[:2], -1) if self.kind == "choose" else logits)
        if self.kind == "answer":
            output = SimpleNamespace(start_logits=logits[..., 0], end_logits=logits[..., 1])
        output.mems = more.get("mems")
        return output


def measured(
    values: dict[str, Any], examples: Sequence[Example], labels: int, drawn: Drawn | None = None
) -> tuple[list[Call], dict[str, float]]:
    """Rows and logits of a step over all examples; its loss, and what the step counts."""
    values |= {"global_batch": len(examples), "micro_batch": 3}
    objective = objective_of(values, examples)
    objective.model = drawn = drawn or Drawn(values["data"]["kind"], labels)
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
    loss = sum(float(one.loss.detach()) for one in passes if one.loss is not None)
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


class Chained(Drawn):
    """With the transitions of a chain of tags."""

    chain_loss = ForTokenClassification.chain_loss

    def __init__(self, kind: str, labels: int) -> None:
        super().__init__(kind, labels)
        self.transitions = torch.nn.Embedding(labels, labels).double()


def chain_surprise(logits: NDArray[np.float64], transitions: NDArray[np.float64], right: list[int]) -> float:
    """-log of the share of the tags `right` among all sequences of tags."""

    def power(tags: Sequence[int]) -> float:
        steps = sum(transitions[one, after] for one, after in pairwise(tags))
        return math.exp(sum(logits[word][tag] for word, tag in enumerate(tags)) + steps)

    everything = sum(map(power, product(range(len(transitions)), repeat=len(right))))
    return -math.log(power(right) / everything)


@pytest.mark.parametrize("model", ["nezha", "ernie_doc"])
@pytest.mark.parametrize("crf", [False, True])
def test_a_tag_is_a_cross_entropy_in_the_window_with_most_context(tokenizer: Path, crf: bool, model: str) -> None:
    """Ten words in windows of six, three apart: the owner of each word is written out here. As a chain, the words of
    a window have one loss."""
    labels = ["B-X", "I-X", "O"]
    tag = {"b": "B-X", "i": "I-X"}
    text = ["a", "b", "i", "c", "d", "e", "b", "i", "i", "f"]
    owners = [0, 0, 0, 0, 0, 1, 1, 1, 2, 2]
    short = ["b", "g"]
    examples = [
        TagExample(str(number), "", tuple(words), tuple(tag.get(word, "O") for word in words))
        for number, words in enumerate((text, short))
    ]
    values = task_values(model, "tag", tokenizer, sequence_length=8, step=3, labels=labels, crf=crf)
    drawn = Chained("tag", 3)
    transitions = drawn.transitions.weight.detach().numpy()
    calls, found = measured(values, examples, 3, drawn)
    losses, right = [], 0
    for tokens, logits in calls:
        words = [word for word in tokens if not word.startswith("[")]
        offset = tokens.index(words[0])
        window = {"a": 0, "c": 1, "b": 2}[words[0]] if words != short else None
        chain: list[tuple[NDArray[np.float64], int]] = []
        for place, word in enumerate(words):
            if window is None or owners[3 * window + place] == window:
                wanted = labels.index(tag.get(word, "O"))
                chain.append((logits[offset + place], wanted))
                right += int(logits[offset + place].argmax()) == wanted
        alone = [surprise(values, wanted) for values, wanted in chain]
        if crf:  # spread over the words, whose losses are averaged
            whole = chain_surprise(np.stack([values for values, _ in chain]), transitions, [tag for _, tag in chain])
            alone = [whole / len(chain)] * len(chain)
        losses += alone
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


def test_each_passage_is_relevant_or_not(tokenizer: Path) -> None:
    examples = [RankExample("a", "", "a ?", ("p", "q", "r"), (2.0, 0.0, 1.0))]
    calls, found = measured(task_values("nezha", "rank", tokenizer, loss="binary"), examples, 1)
    values = {next(one for one in tokens if one in "pqr"): float(logits[0]) for tokens, logits in calls}
    losses = [math.log1p(math.exp(value if name == "q" else -value)) for name, value in values.items()]
    agrees(found, losses, sum((value > 0) == (name != "q") for name, value in values.items()))


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


@pytest.mark.parametrize("model", MODELS)
def test_options_in_one_row_share_a_softmax_of_their_means_over_windows(tokenizer: Path, model: str) -> None:
    """A text of five windows, one of one and one of two documents; a literal mark in an option is no mark."""
    examples = [
        ChooseExample("a", "", " ".join("a" * 21), "t ?", ("p", "q"), 1),
        ChooseExample("b", "", "b b", "t", ("p q", "r", "s"), 0),
        ChooseExample("c", "", "c c\nc", "t", ("p", "[ent] q", "s"), 2, starts=(4,)),
    ]
    calls, found = measured(
        task_values(model, "choose", tokenizer, form="joined", sequence_length=25), examples, 1, Drawn("joined", 1)
    )
    logits: dict[str, list[list[float]]] = defaultdict(list)
    for tokens, values in calls:
        marks = [place for place, token in enumerate(tokens) if token == "[ent]"]
        assert [tokens[place - 1] for place in marks][1:] == ["[/ent]"] * (len(marks) - 1)
        logits[next(one for one in tokens if one in "abc")].append([float(values[place, 0]) for place in marks])
        if "c" in tokens:  # [SEP] between its two documents
            assert " ".join(tokens).count("c [SEP] c") == 1
    assert {letter: len(windows) for letter, windows in logits.items()}["b"] == 1 and len(logits["a"]) > 1
    losses, right = [], 0
    for example in examples:
        windows = np.array(logits[example.id])
        for scores in windows if model == "ernie_doc" else [windows.mean(0)]:
            assert len(scores) == len(example.options)
            losses.append(surprise(scores, example.label or 0))
            right += scores.argmax() == example.label
    agrees(found, losses, right)
