"""The contrastive loss of texts and its gradient, against one graph over all texts and equations written again."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from reread.preprocessing.errors import UserError
from reread.preprocessing.labelled.read import examples_in
from reread.training.models.build import build_model
from reread.training.objectives.objective import Pass
from tests.conftest import rarer
from tests.tasks import SPECIAL, number_of, objective_of, task_values, write_tokenizer

LINES = [
    {"text": "a b c", "positives": ["a b d", "a c"], "negatives": ["x y z x y z x y z", "y z"]},
    {"text": "g h", "positive": " ".join("hgijklmnopqrstuvw")},  # three windows
    {"text": "k l m", "positive": "l m n"},
    {"text": "k l m", "positive": "m n o"},  # the same query with another answer: no negative of the line above
    {"text": "q", "positive": "l m n", "negatives": ["l m n o"]},  # the answer of another query
]
ROOM = 8


def gradient(objective: Any, passes: Iterator[Pass]) -> tuple[dict[str, Tensor], Tensor]:
    objective.model.zero_grad()
    sums = objective.zeros()
    for one in passes:
        sums += one.figures
        if one.loss is not None:
            one.loss.backward()
    return {
        name: weight.grad.clone() for name, weight in objective.model.named_parameters() if weight.grad is not None
    }, sums


def step_of(objective: Any) -> tuple[dict[str, Tensor], dict[str, float]]:
    """The gradient and the figures of step 0."""
    with objective.batches(0) as loader:
        batch = next(loader)
    totals = {name: float(count) for name, count in objective.counts(batch).items()}
    found, sums = gradient(objective, objective.losses(batch, totals, 0))
    return found, dict(zip(objective.figures, sums.tolist(), strict=True))


def vector(model: Any, text: str) -> Tensor:
    """The mean of all states of a text's windows [CLS] .. [SEP], a window at a time."""
    cls, sep = SPECIAL.index("[CLS]"), SPECIAL.index("[SEP]")
    tokens, states = [number_of(word) for word in text.split()], []
    for begin in range(0, len(tokens), ROOM - 2):
        row = [cls, *tokens[begin : begin + ROOM - 2], sep]
        states.append(model.base_model(torch.tensor([row])).last_hidden_state[0])
    return torch.cat(states).mean(0)


@pytest.mark.parametrize(
    ("name", "task"), [("nezha", {"symmetric": True, "sizes": [32, 8]}), ("bert", {}), rarer("longformer", {})]
)
def test_loss_and_gradient_are_those_of_one_graph_over_all_texts(tmp_path: Path, name: str, task: Any) -> None:
    tokenizer = write_tokenizer(tmp_path)
    values = task_values(name, "embed", tokenizer, sequence_length=ROOM, temperature=0.2, **task) | {"global_batch": 5}
    found = []
    for micro_batch in (1, 3, 100):
        objective = objective_of(values | {"micro_batch": micro_batch}, examples_in(LINES, "embed"))
        found.append(step_of(objective))
        assert objective.largest()[0][1]["input_ids"].shape[1] == ROOM
        gradient(objective, objective.losses(objective.largest(), {"predicted": 1.0}, 0))  # as memory is tried
    # Each example once, in epoch 0, with its first positive and negative
    model = objective.model
    queries = [vector(model, str(one["text"])) for one in LINES]
    right = [str(one.get("positive") or one["positives"][0]) for one in LINES]
    wrong = [one["negatives"][0] for one in LINES if "negatives" in one]
    documents = [vector(model, one) for one in (*right, *wrong)]
    losses, hits = [], 0

    def log_softmax(pairs: list[Tensor], own: Tensor) -> Tensor:
        return own - torch.stack([*pairs, own]).exp().sum().log()

    for size in dict.fromkeys([32, *task.get("sizes", [])]):
        near = [[torch.cosine_similarity(a[:size], b[:size], dim=0) / 0.2 for b in documents] for a in queries]
        for number, scores in enumerate(near):
            others = [
                other
                for other in range(len(documents))
                if other != number
                and (right + wrong)[other] != right[number]
                and not (other < 5 and LINES[other]["text"] == LINES[number]["text"])
            ]
            loss = -log_softmax([scores[other] for other in others], scores[number])
            if task.get("symmetric"):
                back = [near[other][number] for other in others if other < 5]
                loss = (loss - log_softmax(back, scores[number])) / 2
            losses.append(loss)
            hits += size == 32 and all(scores[other] < scores[number] for other in others)
    expected = torch.stack(losses).mean()
    model.zero_grad()
    expected.backward()
    for gradients, figures in found:
        assert figures["loss_sum"] / 5 == pytest.approx(expected.item(), rel=1e-12)
        assert figures["predicted"] == 5 and figures["correct"] == hits
        for parameter, weight in model.named_parameters():
            if weight.grad is not None and parameter in gradients:
                torch.testing.assert_close(gradients[parameter], weight.grad, rtol=1e-9, atol=1e-12)
        assert gradients.keys() == {one for one, weight in model.named_parameters() if weight.grad is not None}


@pytest.mark.parametrize("name", ["ernie_doc", rarer("nezha"), rarer("ran"), rarer("modernbert")])
def test_a_text_alone_is_read_twice_with_other_dropout_which_the_second_sweep_repeats(
    tmp_path: Path, name: str
) -> None:
    """The gradient is that of a graph which holds all passes of a step at once."""
    values = task_values(
        name, "embed", write_tokenizer(tmp_path), sequence_length=ROOM, retrospective=name == "ernie_doc"
    )
    rates = ("embedding_dropout", "mlp_dropout") if name == "modernbert" else ("hidden_dropout_prob",)
    values["model"] |= dict.fromkeys(rates, 0.3)
    texts = ["a b c", " ".join("ghijklmnopqr"), "q r s", "z"]
    objective: Any = objective_of(values | {"global_batch": 4, "micro_batch": 3}, examples_in(texts, "embed"))
    objective.model.train()
    found, figures = step_of(objective)
    with objective.batches(0) as loader:
        batch = next(loader)
    assert batch[0][1]["keys"].shape == (8,) and (batch[0][1]["keys"][:4] == batch[0][1]["keys"][4:]).all()
    objective.model.zero_grad()
    sums = torch.zeros(8, 33, dtype=torch.float64)
    for _, rows, out in objective._read(batch, 0):
        if out is not None:
            texts_here = torch.from_numpy(rows["example"])
            sums = sums.index_add(0, texts_here, out * torch.from_numpy(rows["learns"])[:, None])
    means = sums[:, :-1] / sums[:, -1:]
    units = means / means.norm(dim=-1, keepdim=True)
    loss = -((units[:4] @ units[4:].T / 0.05).log_softmax(-1)).diagonal().mean()
    loss.backward()
    assert figures["loss_sum"] / 4 == pytest.approx(loss.item(), rel=1e-12)
    assert (units[:4] - units[4:]).abs().amax() > 0.01  # other dropout
    for parameter, gradients in found.items():
        torch.testing.assert_close(gradients, objective.model.get_parameter(parameter).grad, rtol=1e-8, atol=1e-10)


def test_settings_that_cannot_work_are_refused(tmp_path: Path) -> None:
    tokenizer, examples = write_tokenizer(tmp_path), examples_in(["a"], "embed")
    for name, task, line in (
        ("ran", {"pooling": "cls"}, "task.pooling: cls, but this model reads texts without .CLS."),
        ("nezha", {"learns": "last"}, "leave `learns` out"),
        ("nezha", {"temperature": 0}, "temperature"),
    ):
        with pytest.raises(UserError, match=line):
            objective_of(task_values(name, "embed", tokenizer, **task), examples)
    objective: Any = objective_of(task_values("nezha", "embed", tokenizer, sizes=[64]), examples)
    with pytest.raises(UserError, match=r"task.sizes: 64 numbers, but this model's vectors have 32"):
        objective.check(objective.model.config, objective.data)


def test_an_encoder_that_lacks_weights_is_no_start(tmp_path: Path) -> None:
    """The class of an encoder alone has no name before its weights, by which others tell body from head."""
    from safetensors.torch import load_file, save_file

    objective: Any = objective_of(task_values("bert", "embed", write_tokenizer(tmp_path)), examples_in(["a"], "embed"))
    model = objective.model.float()
    model.save_pretrained(tmp_path / "whole")
    build_model(type(model), model.config, tmp_path / "whole", 0)
    weights = load_file(tmp_path / "whole" / "model.safetensors")
    weights.pop("encoder.layer.1.output.dense.weight")
    save_file(weights, tmp_path / "whole" / "model.safetensors")
    with pytest.raises(UserError, match=r"it lacks encoder.layer.1.output.dense.weight"):
        build_model(type(model), model.config, tmp_path / "whole", 0)
