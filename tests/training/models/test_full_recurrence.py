"""ERNIE-Doc's retrospective feed as the paper derives it (section 3.2): all states of the skim are attended to."""

from typing import Any

import pytest
import torch
from torch import Tensor

from reread.preprocessing.errors import UserError
from reread.preprocessing.labelled.tasks.classify import ClassifyExample
from reread.training.data.rows.cut_documents import SegmentSettings
from reread.training.models.ernie_doc import ErnieDocForSequenceClassification
from reread.training.objectives.documents import DocumentObjective
from tests.tasks import LETTERS, dataset_of, objective_of, task_values, write_tokenizer
from tests.training.models.test_ernie_doc import LENGTH, SLOTS, model
from tests.training.models.test_ernie_doc_reading import document


def normed(x: Tensor, weights: dict[str, Tensor], name: str, eps: float) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    scale = (centred.square().mean(-1, keepdim=True) + eps).sqrt()
    return centred / scale * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def mapped(x: Tensor, weights: dict[str, Tensor], name: str) -> Tensor:
    return weights[f"{name}.weight"] @ x + weights[f"{name}.bias"]


def layer_of(
    x: list[Tensor], keys: list[tuple[Tensor, list[int]]], weights: dict[str, Tensor], name: str
) -> list[Tensor]:
    """A layer for queries x, and the distance of each key to each of them, pair by pair."""
    table = normed(weights["embeddings.position_embeddings.weight"], weights, "embeddings.position_layer_norm", 1e-5)
    found, own = [], f"{name}.attention.self"
    for number, query in enumerate(x):
        q = mapped(query, weights, f"{own}.query").view(2, -1)
        scores, values = [], []
        for key, distances in keys:
            d = distances[number]
            row = min(-d, LENGTH - 1) if d <= 0 else LENGTH - 1 + min(d, LENGTH + SLOTS - 1)
            k, r = (
                mapped(y, weights, f"{own}.{part}").view(2, -1) for y, part in ((key, "key"), (table[row], "position"))
            )
            u, w = (weights[f"{own}.{part}_bias"].view(2, -1) for part in ("content", "position"))
            scores.append((((q + u) * k).sum(-1) + ((q + w) * r).sum(-1)) / q.shape[1] ** 0.5)
            values.append(mapped(key, weights, f"{own}.value").view(2, -1))
        shares = torch.stack(scores).softmax(0)
        z = (shares[..., None] * torch.stack(values)).sum(0).flatten()
        a = normed(
            query + mapped(z, weights, f"{name}.attention.output.dense"),
            weights,
            f"{name}.attention.output.LayerNorm",
            1e-12,
        )
        inner = torch.nn.functional.gelu(mapped(a, weights, f"{name}.intermediate.dense"))
        found.append(
            normed(a + mapped(inner, weights, f"{name}.output.dense"), weights, f"{name}.output.LayerNorm", 1e-12)
        )
    return found


def plain(weights: dict[str, Tensor], segments: list[list[tuple[int, int]]]) -> Tensor:
    """The last layer's states of the second reading; a segment is the (column, word) of each of its tokens."""
    memory: list[list[Tensor]] = [[], []]
    skimmed: list[tuple[Tensor, int]] = []  # all layers' states with their places
    for reading in (False, True):
        states = []
        for number, tokens in enumerate(segments):
            columns = [column for column, _ in tokens]
            words = torch.stack([weights["embeddings.word_embeddings.weight"][word] for _, word in tokens])
            x = list(normed(words, weights, "embeddings.word_layer_norm", 1e-5))
            outputs = []
            for layer in range(2):
                keys = [(y, [c - column for c in columns]) for y, column in zip(x, columns, strict=True)]
                slots = range(-len(memory[layer]), 0)
                keys += [(y, [c - slot for c in columns]) for y, slot in zip(memory[layer], slots, strict=True)]
                if reading:
                    keys += [(y, [number * LENGTH + c - place for c in columns]) for y, place in skimmed]
                x = layer_of(x, keys, weights, f"encoder.layer.{layer}")
                outputs.append(x)
            memory = [[*held, *output][-SLOTS:] for held, output in zip(memory, outputs, strict=True)]
            states.append(x)
            if not reading:
                places = [number * LENGTH + column for column in columns]
                held = [pair for output in outputs for pair in zip(output, places, strict=True)]
                skimmed = [*skimmed, *held] if number else held
    return torch.cat([torch.stack(x[:-2]) for x in states])  # without [SEP] and [CLS]


@torch.no_grad()
def test_every_layer_reads_all_states_of_the_skim_and_its_memory_as_a_plain_loop_does() -> None:
    encoder, ids = model(recurrence="full"), document(10)
    rows = [[*enumerate([*ids[begin : begin + 4].tolist(), 2, 1])] for begin in (0, 4)]
    rows.append([*enumerate([*ids[8:].tolist(), 2]), (LENGTH - 1, 1)])  # two columns of padding before [CLS]
    read = encoder.read(ids)
    torch.testing.assert_close(
        read.last_hidden_state, plain(dict(encoder.named_parameters()), rows), rtol=0, atol=1e-10
    )
    cheap = model(recurrence="enhanced").read(ids)
    assert not torch.allclose(read.last_hidden_state, cheap.last_hidden_state)
    once = (one.read(ids, retrospective=False).last_hidden_state for one in (encoder, model(recurrence="enhanced")))
    torch.testing.assert_close(*once, rtol=0, atol=1e-10)
    with pytest.raises(ValueError, match="9 segments, but recurrence full keeps 8"):
        encoder.read(document(33))


@torch.no_grad()
def test_an_exported_head_reads_a_text_as_its_run_does(tmp_path: Any) -> None:
    given = {"sequence_length": 8, "retrospective": True, "predict": "last", "labels": ["p", "q"]}
    values = task_values("ernie_doc", "classify", write_tokenizer(tmp_path / "tokenizer"), **given)
    values["model"]["recurrence"] = "full"
    texts = [" ".join(LETTERS[:count]) for count in (14, 3, 48)]
    examples = [ClassifyExample(str(n), "", text, None, "pq"[n % 2]) for n, text in enumerate(texts)]
    objective = objective_of(values, examples)
    dataset = objective.dataset
    predictions = objective.predict(dataset)
    assert isinstance(objective.model, ErnieDocForSequenceClassification)
    for number, text in enumerate(texts):
        ids = torch.tensor([[*(LETTERS.index(one) + 5 for one in text.split()), 3, 2]])
        shares = objective.model.eval()(ids, torch.ones_like(ids)).logits[0].softmax(-1)
        torch.testing.assert_close(shares, torch.tensor(predictions[number]), rtol=0, atol=1e-6, check_dtype=False)
    long = dataset_of(values, [ClassifyExample("0", "", " ".join("a" * 49), None, "p")])
    with pytest.raises(UserError, match=r"full keeps the states of 8 windows .* has 9; lower task.longest"):
        objective.predict(long)
    with pytest.raises(UserError, match=r"model.recurrence=full attends to what a first reading left"):
        objective.check(objective.model.config, dataset.settings.model_copy(update={"retrospective": False}))
    with pytest.raises(UserError, match="pretrain with enhanced, which has the same weights"):
        DocumentObjective.check(objective.model.config, SegmentSettings.model_construct(retrospective=True))
