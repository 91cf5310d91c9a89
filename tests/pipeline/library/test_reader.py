"""`reread.load`: predictions, vectors and filled-in words for texts in memory."""

import json
import shutil
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import reread
from reread.pipeline.commands.predict import predict
from reread.pipeline.library.reader import Reader
from reread.preprocessing.errors import UserError
from reread.preprocessing.labelled.read import examples_in, read_examples
from reread.training.models import model_spec
from tests.conftest import ROOT
from tests.tasks import SPECIAL, number_of, objective_of, task_values, write_lines, write_tokenizer

FIRST = ROOT / "tests" / "fixtures" / "first"
TEXTS = ["a b c", "d", " ".join("abcdefghij" * 7)]


@pytest.fixture
def first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(shutil.copytree(FIRST, tmp_path / "first"))
    return tmp_path / "first"


def test_run_and_export_predict_as_the_command_does(first: Path) -> None:
    predict(first / "runs" / "opinion", Path("texts.tsv"), ["task.format=tsv"], first / "out.jsonl", None)
    expected = [json.loads(line) for line in (first / "out.jsonl").read_text(encoding="utf-8").splitlines()]
    texts = (first / "texts.tsv").read_text(encoding="utf-8").splitlines()[1:]
    for place in ("opinion", "runs/opinion", "opinion-export"):
        reader = reread.load(place, device="cpu")
        found = reader.predict(texts)
        assert [one["label"] for one in found] == [one["label"] for one in expected]
        for one, other in zip(found, expected, strict=True):
            assert one["probabilities"] == pytest.approx(other["probabilities"], abs=2e-6)
        assert reader.predict(texts[0]) == found[0] == reader.predict([{"text": texts[0]}])[0]
        assert reader.predict([]) == [] and not reader.model.training


def test_an_export_with_another_number_of_labels_predicts_them(first: Path) -> None:
    folder = first / "opinion-export"
    config = json.loads((folder / "config.json").read_text())
    names = ["0", "1", "2"]
    config["task"]["labels"] = names
    config |= {"id2label": dict(zip(names, names, strict=True)), "label2id": {name: int(name) for name in names}}
    (folder / "config.json").write_text(json.dumps(config))
    weights = load_file(folder / "model.safetensors")
    for name in ("classifier.weight", "classifier.bias"):
        weights[name] = torch.cat([weights[name], weights[name].mean(0, keepdim=True)])
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    assert set(reread.load("opinion-export", device="cpu").predict("渡口")["probabilities"]) == set(names)


def test_a_threshold_that_is_given_counts_instead_of_those_that_were_chosen(first: Path) -> None:
    path = first / "opinion-export" / "config.json"
    config = json.loads(path.read_text())
    config["task"] |= {"answer": "set", "threshold": "each", "thresholds": [0.9999, 0.9999]}
    path.write_text(json.dumps(config))
    reader = reread.load("opinion-export", device="cpu")
    assert list(reader.predict("渡口")["label"]) == []
    assert list(reader.predict("渡口", threshold=0.0001)["label"]) == config["task"]["labels"]


def test_a_pretrained_model_fills_in_and_says_what_it_lacks(first: Path) -> None:
    reader = reread.load("small", device="cpu")
    filled = reader.fill("渡口[MASK]旅店。", top=3)
    assert len(filled) == 3 and all(0 < share < 1 for _, share in filled)
    with pytest.raises(UserError, match="head of masked_lm, which predicts no labels"):
        reader.predict("渡口")
    with pytest.raises(UserError, match=r"no \[MASK\]"):
        reader.fill("渡口")
    with pytest.raises(UserError, match="is a list; give one text"):
        reader.fill(["渡口[MASK]"])  # type: ignore[arg-type]
    with pytest.raises(UserError, match="top: -2 is no whole number from 1 on"):
        reader.fill("渡口[MASK]", top=-2)
    with pytest.raises(UserError, match=r"head of classify, which fills in no \[MASK\]"):
        reread.load("opinion", device="cpu").fill("渡[MASK]")
    with pytest.raises(UserError, match="no step 7"):
        reread.load("small", step=7, device="cpu")


@pytest.mark.parametrize(
    ("texts", "line"),
    [
        ("", "text 0: text is empty"),
        (["a", " "], "text 1: text is empty"),
        (3, "3 is a int"),
        (["a", 3], "text 1: 3 is a int"),
        ({"txt": "a"}, "did you mean `text`"),
        ("a\ud83d", "half of a surrogate pair"),
        ({"text": "a", "second": object()}, "what JSON does not have"),
    ],
)
def test_a_wrong_text_is_one_line_with_its_number(first: Path, texts: Any, line: str) -> None:
    with pytest.raises(UserError, match=line):
        reread.load("opinion-export", device="cpu").predict(texts)


def test_wrong_settings_and_places_are_one_line(first: Path) -> None:
    reader = reread.load("opinion-export", device="cpu")
    with pytest.raises(UserError, match=r"data\.pooling"):
        reader.predict("a", pooling="max")
    with pytest.raises(UserError, match="neither a run nor an exported model"):
        reread.load("runs/none")
    with pytest.raises(UserError, match="did you mean the run `opinion`"):
        reread.load("runs/opinon")
    with pytest.raises(UserError, match="None is a NoneType; give the name or folder of a run"):
        reread.load(None)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="device: 'gpu' cannot be used here"):
        reread.load("opinion-export", device="gpu")
    with pytest.raises(UserError, match="labels: the model has learned with"):
        reader.predict("a", labels=["x", "y", "z"])
    with pytest.raises(UserError, match="one step"):
        reread.load("opinion-export", step=3)
    (first / "other").mkdir()
    (first / "other" / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(UserError, match="type llama, which is none of ours"):
        reread.load("other")


LINES: dict[str, list[dict[str, Any]]] = {
    "classify": [{"text": "a b"}, {"text": "c", "second": "d"}],
    "tag": [{"tokens": ["a", "b"]}],
    "answer": [{"text": "a b", "question": "c"}],
    "choose": [{"text": "a", "question": "b", "options": ["c", "d"]}],
    "rank": [{"query": "a", "passages": ["b", "c"]}],
    "phrases": [{"text": "a b c"}, {"text": "d e", "phrases": ["e"]}],
    "generate": [{"source": "a b", "target": "c"}, {"text": "a"}],
    "embed": [{"text": "a b"}, {"text": "c", "positives": ["d"], "negatives": ["e"]}],
    "coreference": [{"text": "a b c"}, {"tokens": ["d", "e"], "clusters": [[[0, 1], [1, 2]]]}],
}


@pytest.mark.parametrize("kind", LINES)
def test_values_make_the_examples_of_a_file_with_such_lines(tmp_path: Path, kind: str) -> None:
    file = read_examples(write_lines(tmp_path / "lines.jsonl", LINES[kind]), kind, "jsonl").examples
    values = examples_in(LINES[kind], kind)
    assert [(type(one), one.id, one.texts) for one in values] == [(type(one), one.id, one.texts) for one in file]


def vector(model: Any, name: str, tokens: list[int], length: int) -> Tensor:
    """The mean of the states of a text's tokens, special ones too, written without the code under test."""
    cls, sep = SPECIAL.index("[CLS]"), SPECIAL.index("[SEP]")
    if name == "ernie_doc":
        mems: tuple[Tensor, ...] = ()
        for reading in (1, 2):
            read = []
            for begin in range(0, len(tokens), length - 2):
                piece = tokens[begin : begin + length - 2]
                padding = length - 2 - len(piece)
                row = torch.tensor([[*piece, sep, *[SPECIAL.index("[PAD]")] * padding, cls]])
                mask = torch.tensor([[1] * (len(piece) + 1) + [0] * padding + [1]])
                with model.skimming() if reading == 1 else nullcontext():
                    output = model(row, mask, mems=mems)
                mems = output.mems
                read.append(output.last_hidden_state[0, mask[0] == 1])
        return torch.cat(read).mean(0)
    around = ([], []) if name == "ran" else ([cls], [sep])
    room, states = length - len(around[0]) - len(around[1]), []
    for begin in range(0, len(tokens), room):
        row = [*around[0], *tokens[begin : begin + room], *around[1]]
        output = model(torch.tensor([row]), torch.ones(1, len(row), dtype=torch.long))
        states.append(output.last_hidden_state[0])
    return torch.cat(states).mean(0)


@pytest.mark.parametrize("name", ["nezha", "ernie_doc", "ran", "longformer"])
def test_a_vector_is_the_mean_of_the_states_of_all_tokens(tmp_path: Path, name: str) -> None:
    tokenizer = write_tokenizer(tmp_path / "tokenizer")
    examples = examples_in(TEXTS, "classify")
    values = task_values(name, "classify", tokenizer, labels=["x", "y"], sequence_length=16)
    model = objective_of(values, examples).model  # in float64
    if name == "ernie_doc":
        model.config.segment_length = 16
        model.config.cls_token_id, model.config.sep_token_id = SPECIAL.index("[CLS]"), SPECIAL.index("[SEP]")
    reader = Reader(tmp_path, model, model_spec(name), "classify", tokenizer, None)
    found = reader.embed(TEXTS, length=16, batch_size=2)
    assert found.dtype == np.float32 and found.shape == (3, 32)
    with torch.no_grad():
        expected = [vector(model.base_model, name, [number_of(word) for word in one.split()], 16) for one in TEXTS]
    assert np.abs(found - torch.stack(expected).numpy()).max() < 1e-6  # float32's rounding of float64 figures
    assert np.array_equal(reader.embed(TEXTS[1], length=16), reader.embed([TEXTS[1]], length=16)[0])
    assert reader.embed([]).shape == (0, 32)
    if model_spec(name).longest(model.config) is not None:
        with pytest.raises(UserError, match="windows of 100,000 tokens, but its positions end at"):
            reader.embed(TEXTS, length=100_000)
