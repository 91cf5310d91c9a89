"""The four heads of each model: what they compute, what they learn from, and what they take from pretraining."""

import operator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn

from reread.training.models import model_spec

SIZES: dict[str, dict[str, Any]] = {
    "nezha": {"num_attention_heads": 2, "intermediate_size": 24, "max_relative_position": 3},
    "ernie_doc": {"num_attention_heads": 2, "max_position_embeddings": 12, "memory_length": 4},
    "ran": {"num_attention_heads": 2, "head_size": 8, "window_size": 4, "min_window_size": 2},
    "longformer": {
        "num_attention_heads": 2,
        "intermediate_size": 24,
        "attention_window": 4,
        "max_position_embeddings": 40,
        "pad_token_id": 0,
        "sep_token_id": 3,
    },
}
MODELS = list(SIZES)
TASKS = ["classify", "tag", "answer", "choose"]


def build(name: str, task: str, **values: Any) -> Any:
    """A tiny model in float64 with random weights, biases too, and no dropout."""
    spec = model_spec(name)
    sizes = {"vocab_size": 20, "hidden_size": 16, "num_hidden_layers": 2, **SIZES[name], **values}
    torch.manual_seed(0)
    model = spec.heads[task](spec.config(**sizes)).double().eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.2)
    return model


def rows(*lengths: int, width: int = 12, seed: int = 0) -> dict[str, Tensor]:
    """Rows framed as BERT's, the tokens and the mask; padding (0) stands where ERNIE-Doc's frame has it."""
    torch.manual_seed(seed)
    ids, mask = torch.zeros(len(lengths), width, dtype=torch.long), torch.zeros(len(lengths), width, dtype=torch.long)
    for row, length in enumerate(lengths):
        ids[row, :length] = torch.randint(5, 20, (length,))
        ids[row, 0], ids[row, length // 2], ids[row, length - 1] = 2, 3, 3
        mask[row, :length] = 1
    return {"input_ids": ids, "attention_mask": mask}


def body_of(model: Any) -> Any:
    return getattr(model, model.base_model_prefix)


@pytest.mark.parametrize("name", ["nezha", "ernie_doc", "ran"])
@pytest.mark.parametrize("task", TASKS)
def test_logits_are_a_linear_map_of_the_encoders_output(name: str, task: str) -> None:
    model = build(name, task, num_labels=3)
    batch = rows(12, 12)
    body = body_of(model)
    pooled = task in ("classify", "choose")
    assert (body.pooler is not None) == pooled
    encoded = body(**batch)
    features = encoded.pooler_output if pooled else encoded.last_hidden_state
    layer = model.qa_outputs if task == "answer" else model.classifier
    expected = features @ layer.weight.T + layer.bias
    if task == "choose":
        output = model(**{key: value[None] for key, value in batch.items()})
        assert torch.equal(output.logits, expected.view(1, 2))
    elif task == "answer":
        output = model(**batch)
        assert torch.equal(torch.stack([output.start_logits, output.end_logits], -1), expected)
    else:
        output = model(**batch)
        assert torch.equal(output.logits, expected)
    if pooled and name != "ran":
        place = -1 if name == "ernie_doc" else 0
        vector = (encoded.last_hidden_state[:, place] @ body.pooler.dense.weight.T + body.pooler.dense.bias).tanh()
        torch.testing.assert_close(features, vector, rtol=0, atol=1e-12)
    if name == "ernie_doc":
        assert all(torch.equal(a, b) for a, b in zip(output.mems, encoded.mems, strict=True))
        assert len(output.mems[0]) == 2
    low = model.bfloat16()(**{key: value[None] if task == "choose" else value for key, value in batch.items()})
    assert all(x.dtype == torch.float32 for key, x in low.items() if "logits" in key)


@pytest.mark.parametrize("name", ["nezha", "ernie_doc"])
@pytest.mark.parametrize("task", ["classify", "choose"])
def test_a_pooled_mean_is_that_of_the_states_of_all_tokens(name: str, task: str) -> None:
    """1/n sum_t h_t by hand, of rows with 9 and 5 tokens in 9 and in 12 columns; nothing else reads the states."""
    model = build(name, task, num_labels=3, classifier_pooling="mean")
    body = body_of(model)
    assert body.pooler is None
    for width in (9, 12):
        batch = rows(9, 5, width=9)
        batch = {key: F.pad(value, (0, width - 9)) for key, value in batch.items()}
        expected = []
        for ids, length in zip(batch["input_ids"], (9, 5), strict=True):
            states = body(ids[None, :length]).last_hidden_state[0].tolist()
            mean = [sum(states[token][unit] for token in range(length)) / length for unit in range(16)]
            weight, bias = model.classifier.weight.tolist(), model.classifier.bias.tolist()
            expected.append([sum(map(operator.mul, row, mean)) + b for row, b in zip(weight, bias, strict=True)])
        given = {key: value[None] if task == "choose" else value for key, value in batch.items()}
        logits = model(**given).logits
        wanted = torch.tensor(expected, dtype=torch.float64).view_as(logits)
        torch.testing.assert_close(logits, wanted, rtol=0, atol=1e-12)
    whole = rows(9, width=9)  # without a mask all are tokens
    given = whole if task == "classify" else {key: value[None] for key, value in whole.items()}
    torch.testing.assert_close(model(given["input_ids"]).logits, model(**given).logits, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["nezha", "ernie_doc"])
def test_a_pooling_that_is_not_known_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="classifier_pooling is cls or mean, not 'max'"):
        build(name, "classify", classifier_pooling="max")


OURS_AND_THEIRS = {
    "classify": "LongformerForSequenceClassification",
    "tag": "LongformerForTokenClassification",
    "answer": "LongformerForQuestionAnswering",
    "choose": "LongformerForMultipleChoice",
}


@pytest.mark.parametrize("task", TASKS)
def test_longformers_heads_are_transformers_own(task: str) -> None:
    """Also the global tokens that each chooses: of rows <s> a </s></s> b </s>, since theirs wants three separators."""
    model = build("longformer", task, num_labels=2 if task == "answer" else 3)
    config = type(model.config)(**model.config.to_dict())
    theirs = getattr(transformers, OURS_AND_THEIRS[task])(config).double().eval()
    theirs.load_state_dict(model.state_dict())  # strict: the same names
    batch = rows(30, 30, 23, 21, width=30)
    batch["input_ids"][:, 11] = 3
    batch["input_ids"][:, 10:12] = 3
    batch["input_ids"][2, 15], batch["input_ids"][:, 15] = 7, batch["input_ids"][:, 15].clamp(min=5)
    assert ((batch["input_ids"] == 3).sum(1) == 3).all()
    labels: dict[str, Tensor] = {"labels": torch.tensor([0, 1, 2, 0])}
    if task == "tag":
        labels = {"labels": torch.randint(0, 3, (4, 30)).masked_fill(batch["attention_mask"] == 0, -100)}
    if task == "answer":
        labels = {"start_positions": torch.tensor([14, 30, 3, 99]), "end_positions": torch.tensor([15, 30, 4, 99])}
    if task == "choose":
        batch = {key: value.view(2, 2, 30) for key, value in batch.items()}
        labels = {"labels": torch.tensor([1, 0])}
    with torch.no_grad():
        ours, other = model(**batch, **labels), theirs(**batch, **labels)
    torch.testing.assert_close(ours.loss, other.loss, rtol=0, atol=1e-6)  # theirs takes softmax in float32
    real = batch["attention_mask"].bool()
    for key in ("start_logits", "end_logits") if task == "answer" else ("logits",):
        found, expected = ours[key], other[key]
        if task in ("tag", "answer"):
            found, expected = found[real], expected[real]
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


def test_a_longformer_made_from_bert_chooses_the_same_parts() -> None:
    """[CLS] a [SEP] b [SEP], of which transformers' own class makes an error."""
    ids = torch.tensor([[2, 5, 6, 3, 7, 8, 9, 3]])
    expected = {"classify": [0], "answer": [0, 1, 2], "choose": [4, 5, 6, 7]}
    for task, places in expected.items():
        assert build("longformer", task).global_tokens(ids)[0].nonzero().flatten().tolist() == places
    assert build("longformer", "tag").global_tokens(ids) is None


def test_global_tokens_that_are_given_are_taken() -> None:
    model, batch = build("longformer", "classify"), rows(12)
    mask = torch.zeros_like(batch["input_ids"])
    mask[0, 0] = 1
    logits = model(**batch).logits
    assert torch.equal(model(**batch, global_attention_mask=mask).logits, logits)
    mask[0, 5] = 1
    assert not torch.equal(model(**batch, global_attention_mask=mask).logits, logits)


@pytest.mark.parametrize("task", TASKS)
def test_ernie_doc_gives_the_same_wherever_padding_stands(task: str) -> None:
    """With a memory, and its memory too: before the text, between text and [CLS], behind, less of it, and none."""
    model = build("ernie_doc", task, num_labels=3)
    text = torch.tensor([5, 6, 7, 3, 8, 3])
    types = torch.tensor([0, 0, 0, 0, 1, 1])
    first = rows(12)
    mems = tuple(m.detach() for m in body_of(model)(first["input_ids"]).mems)

    def run(before: int, between: int, behind: int) -> list[Tensor]:
        def put(values: Tensor, cls: int) -> Tensor:
            return torch.tensor([[*before * [0], *values.tolist(), *between * [0], cls, *behind * [0]]])

        batch = {"input_ids": put(text, 2), "token_type_ids": put(types, 0)}
        batch["attention_mask"] = put(torch.ones(6, dtype=torch.long), 1)
        if task == "choose":
            batch = {key: value[None] for key, value in batch.items()}
        with torch.no_grad():
            output = model(**batch, mems=mems, output_hidden_states=True)
        real = batch["attention_mask"].view(-1).bool()
        logits = [output[key] for key in ("logits", "start_logits", "end_logits") if key in output]
        logits = logits if task in ("classify", "choose") else [x[:, real] for x in logits]
        return [*logits, *output.mems, *(states[:, real] for states in output.hidden_states)]

    expected = run(0, 0, 0)
    for layout in ((5, 0, 0), (0, 5, 0), (0, 0, 5), (1, 1, 1)):
        for found, wanted in zip(run(*layout), expected, strict=True):
            torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)
    mems = ()
    without = run(0, 5, 0)
    assert not torch.allclose(without[0], expected[0], rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", MODELS)
def test_options_do_not_see_each_other(name: str) -> None:
    model, batch = build(name, "choose"), rows(12, 9, 12, 7, 8, 12)
    together = model(**{key: value.view(2, 3, 12) for key, value in batch.items()}).logits
    alone = [model(**{key: value[row][None, None] for key, value in batch.items()}).logits for row in range(6)]
    torch.testing.assert_close(together, torch.cat(alone).view(2, 3), rtol=0, atol=1e-12)


def test_the_loss_follows_the_kind_of_problem() -> None:
    model, batch = build("nezha", "classify", num_labels=3), rows(12, 9)
    logits = model(**batch).logits
    shares = torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.0, 0.0]], dtype=torch.float64)
    p = torch.sigmoid(logits)
    sets = -(shares * p.log() + (1 - shares) * (1 - p).log()).mean()
    classes = -(logits.softmax(-1)[torch.arange(2), [2, 1]].log()).mean()
    for kind, labels, expected in (
        (None, torch.tensor([2, 1]), classes),
        ("single_label_classification", torch.tensor([2, 1]), classes),
        (None, shares, sets),
        ("multi_label_classification", shares.long(), sets),
    ):
        model.config.problem_type = kind
        torch.testing.assert_close(model(**batch, labels=labels).loss, expected, rtol=0, atol=1e-12)
    number = build("ran", "classify", num_labels=1)
    values = torch.tensor([0.5, -1.0], dtype=torch.float64)
    expected = (number(**batch).logits[:, 0] - values).square().mean()
    torch.testing.assert_close(number(**batch, labels=values).loss, expected, rtol=0, atol=1e-12)


def test_the_loss_of_answers_is_the_mean_of_both_ends() -> None:
    model, batch = build("ran", "answer"), rows(12, 9)
    output = model(**batch, start_positions=torch.tensor([3, 40]), end_positions=torch.tensor([5, 2]))
    start = -F.log_softmax(output.start_logits, -1)[0, 3]
    end = -F.log_softmax(output.end_logits, -1)[[0, 1], [5, 2]].mean()
    torch.testing.assert_close(output.loss, (start + end) / 2, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", MODELS)
def test_the_heads_dropout_is_its_own_setting(name: str) -> None:
    def dropout(**values: Any) -> float:
        return float(build(name, "tag", **values).dropout.p)

    assert dropout(classifier_dropout=0.3, hidden_dropout_prob=0.2) == 0.3
    assert dropout(classifier_dropout=None, hidden_dropout_prob=0.2) == 0.2
    assert dropout(classifier_dropout=0.0, hidden_dropout_prob=0.2) == 0.0


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("task", TASKS)
def test_only_the_head_is_new_after_pretraining(name: str, task: str, tmp_path: Path) -> None:
    spec = model_spec(name)
    first = next(iter(spec.heads))
    build(name, first).save_pretrained(tmp_path)
    model, found = spec.heads[task].from_pretrained(tmp_path, output_loading_info=True)
    new = {key.rpartition(".")[0] for key in found["missing_keys"]}
    expected = {"qa_outputs" if task == "answer" else "classifier"}
    if name == "longformer" and task == "classify":
        expected = {"classifier.dense", "classifier.out_proj"}
    if task in ("classify", "choose") and "pooler" not in str(list(build(name, first).state_dict())):
        new = {key for key in new if ".pooler." not in key}
    assert new == expected
    assert not found["unexpected_keys"]
    assert not found["mismatched_keys"]
    assert all(parameter.isfinite().all() for parameter in model.parameters())


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("task", TASKS)
def test_every_parameter_of_a_head_learns(name: str, task: str) -> None:
    model, batch = build(name, task, num_labels=2), rows(12, 10)
    labels: dict[str, Tensor] = {"labels": torch.tensor([1, 0])}
    if task == "tag":
        labels = {"labels": batch["attention_mask"] * 1}
    if task == "answer":
        labels = {"start_positions": torch.tensor([1, 2]), "end_positions": torch.tensor([3, 4])}
    if task == "choose":
        batch, labels = {key: value[None] for key, value in batch.items()}, {"labels": torch.tensor([1])}
    model(**batch, **labels).loss.backward()
    layers = ("classifier", "qa_outputs", "pooler")
    gradients = {key: p.grad for key, p in model.named_parameters() if set(key.split(".")) & set(layers)}
    assert gradients
    if task == "choose":  # one bias for all options changes nothing
        gradients = {key: gradient for key, gradient in gradients.items() if key.endswith("weight")}
    assert all(gradient is not None and gradient.any() for gradient in gradients.values()), gradients
