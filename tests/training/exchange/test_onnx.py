"""Graphs for onnxruntime: equal to torch at any shape, or refused."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from reread.pipeline.commands.export import export_and_push
from reread.preprocessing.config import TokenizerSettings
from reread.preprocessing.errors import UserError
from reread.preprocessing.tokens.tokenizer import load_tokenizer
from reread.training.exchange import onnx
from reread.training.exchange.export import write_huggingface
from reread.training.models import blocks, model_spec
from tests.conftest import extra
from tests.docs.test_tutorials import page
from tests.docs.tutorial import blocks as blocks_of
from tests.pipeline.library.test_reader import first  # noqa: F401  a fixture: a run and its export
from tests.training.models.test_heads import SIZES, build

LENGTHS: dict[str, dict[str, Any]] = {  # so that rows of 150 tokens are several windows
    "nezha": {"reading": {"length": 100}, "max_relative_position": 64},
    "ernie_doc": {"reading": {"length": 100}, "max_position_embeddings": 170},
    "ran": {"reading": {"length": 100}, "window_size": 32},
    "longformer": {"max_position_embeddings": 340, "attention_window": 8},
    **{
        name: {"num_attention_heads": 2, "intermediate_size": 24, "max_position_embeddings": 200, "pad_token_id": 0}
        for name in ("bert", "roberta", "modernbert", "electra")
    },
}
HEADS = ("classify", "tag", "answer", "choose", "rank", "phrases")
GRAPHS = [(name, head) for name in LENGTHS for head in ("pretraining", *HEADS)]


def tiny(name: str, head: str, monkeypatch: pytest.MonkeyPatch, **values: Any) -> tuple[Any, str]:
    """A model in float32, and its objective."""
    monkeypatch.setitem(SIZES, name, {**SIZES.get(name, {}), **LENGTHS[name]})
    objective = next(iter(model_spec(name).heads)) if head == "pretraining" else head
    if head == "pretraining":
        values["reading"] = None
    return build(name, objective, cls_token_id=2, sep_token_id=3, **values).float(), objective


@pytest.mark.long
@pytest.mark.parametrize(("name", "head"), GRAPHS, ids=["-".join(one) for one in GRAPHS])
def test_a_graph_computes_what_torch_does(
    name: str, head: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`write_graph` compares them at three other shapes with padding; smaller weights are still a graph."""
    extra("onnx", "onnxscript")
    spec = model_spec(name)
    model, objective = tiny(name, head, monkeypatch)
    onnx.check_onnx(spec, objective, model.config)
    found = onnx.graphs(model, spec, objective, range(5), trained_pooler=True)
    assert [one.name for one in found] == (["model", "masked_lm"] if head == "pretraining" else ["model"])
    for graph in found:
        written = onnx.write_graph(tmp_path, graph, spec, {})
        assert written.difference < 1e-5
        assert len({rows for rows, _ in written.shapes}) == len({length for _, length in written.shapes}) == 3
        given = onnx.rows_for(graph, 2, 50)
        small = onnx.run(onnx.session_of(onnx.quantise(written.path)), given)
        assert [one.shape for one in small] == [one.shape for one in graph(*given.values())]


@pytest.mark.parametrize("name", ["nezha", "ernie_doc", "longformer"])
def test_what_is_recorded_is_equal_in_float64(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The forms of operations for torch.export, run as they are beside the plain ones, at three lengths."""
    model, _ = tiny(name, "classify", monkeypatch)
    model = model.double()
    graph = onnx.graphs(model, model_spec(name), "classify", [])[0]
    rows = [onnx.rows_for(graph, 3, length) for length in (7, 70, 95)]
    rows = [{key: x.double() if x.is_floating_point() else x for key, x in one.items()} for one in rows]
    asked: list[str] = []
    with torch.no_grad():
        plain = [graph(*one.values()) for one in rows]
        for module in [blocks, *(found for key, found in sys.modules.items() if f"models.{name}." in key)]:
            if hasattr(module, "exporting"):
                monkeypatch.setattr(module, "exporting", lambda: asked.append(name) or True)
        recorded = [graph(*one.values()) for one in rows]
    assert asked
    for one, other in zip(plain, recorded, strict=True):
        for a, b in zip(one, other, strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


def test_the_order_that_is_recorded_is_that_of_a_stable_sort(monkeypatch: pytest.MonkeyPatch) -> None:
    these = torch.rand(50, 17, generator=torch.Generator().manual_seed(0)) < torch.linspace(0, 1, 50)[:, None]
    expected = torch.sort((~these).int(), dim=1, stable=True).indices
    assert torch.equal(blocks.chosen_first(these), expected)
    monkeypatch.setattr(blocks, "exporting", lambda: True)
    assert torch.equal(blocks.chosen_first(these), expected)


class Frozen(nn.Module):
    """What a graph needs of a model; its logits are those of as many tokens as it was first called with."""

    def __init__(self) -> None:
        super().__init__()
        self.config = SimpleNamespace(vocab_size=20, cls_token_id=2, sep_token_id=3, pad_token_id=0)
        self.table = nn.Embedding(20, 1)

    @property
    def base_model(self) -> nn.Module:
        return self

    def forward(self, input_ids: Tensor, attention_mask: Tensor, return_dict: bool = True) -> Any:
        return SimpleNamespace(logits=self.table(input_ids).sum(1) / attention_mask.shape[1])


def test_a_frozen_dimension_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    extra("onnx", "onnxscript")
    spec = SimpleNamespace(one_token_type=False, frame="", longest=lambda config: None)
    [graph] = onnx.graphs(Frozen(), spec, "classify", [])  # type: ignore[arg-type]
    monkeypatch.setattr(onnx, "_axes", lambda graph, name: {0: "batch"})
    with pytest.raises(UserError, match="does not run for 5 rows of 293 tokens, so nothing is written: a dimension is"):
        onnx.write_graph(tmp_path, graph, spec, {})  # type: ignore[arg-type]
    original = onnx._recorded

    def lengths_lost(graph: Any, example: Any) -> Any:
        """The mask of a fixed length becomes a number, and no dimension is left that onnxruntime could check."""
        given = {**example, "attention_mask": example["attention_mask"]}
        monkeypatch.setattr(onnx, "_axes", lambda graph, name: {0: "batch", 1: "sequence"})
        graph.model.forward = lambda input_ids, attention_mask, return_dict: SimpleNamespace(
            logits=graph.model.table(input_ids).sum(1) / example["input_ids"].shape[1] + 0 * attention_mask.sum()
        )
        try:
            return original(graph, given)
        finally:
            del graph.model.forward

    monkeypatch.setattr(onnx, "_recorded", lengths_lost)
    with pytest.raises(UserError, match=r"logits of model.onnx differs from torch's by [\d.]+ for 5 rows of 293"):
        onnx.write_graph(tmp_path, graph, spec, {})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "objective", "values", "reason"),
    [
        ("transformer_xl", "causal_lm", {}, "head of causal_lm cannot be exported: a model of the next word"),
        ("nezha", "coreference", {}, "coreference cannot be exported: it keeps as many spans"),
        ("ran", "generate", {}, "generate cannot be exported: its texts are decoded"),
        ("ernie_doc", "classify", {"recurrence": "full"}, "recurrence full keeps the states"),
        ("ran", "tag", {"window_handover": True}, "with window_handover each window waits"),
    ],
)
def test_what_is_no_graph_says_so(name: str, objective: str, values: dict[str, Any], reason: str) -> None:
    spec = model_spec(name)
    with pytest.raises(UserError, match=reason):
        onnx.check_onnx(spec, objective, SimpleNamespace(**values))


def test_without_the_packages_one_line_names_the_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(onnx, "find_spec", lambda name: None if name == "onnxruntime" else object())
    with pytest.raises(UserError, match=r"--onnx: needs onnxruntime; pip install 'reread\[onnx\]'"):
        onnx.check_onnx(model_spec("nezha"), "classify", SimpleNamespace())
    with pytest.raises(UserError, match="--int8: weights of 8 bits are those of an ONNX file; give --onnx, too"):
        export_and_push(tmp_path, [], None, None, int8=True)


def test_the_page_serves_an_exported_run(first: Path, caplog: pytest.LogCaptureFixture) -> None:  # noqa: F811
    """Its code for onnxruntime, with a text of several windows, beside `reread.load`; FastAPI is stood in for."""
    extra("onnx", "onnxscript")
    caplog.set_level("INFO")
    export_and_push(Path("runs/opinion"), [], None, None, onnx=True, int8=True)
    said = [record.getMessage() for record in caplog.records]
    assert any("onnx/model.onnx: opset 20, input_ids, attention_mask, token_type_ids -> logits" in one for one in said)
    scored = [one for one in said if one.startswith("dev.tsv: ")]
    assert [one.split(": ")[1] for one in scored] == ["torch", "onnx/model.onnx", "onnx/model_quantized.onnx"]
    assert scored[0].split(": ")[2].split(", ")[:-1] == scored[1].split(": ")[2].split(", ")[:-1]
    shown = [block.text for block in blocks_of(page("serving.md")) if block.language == "python"]
    path = "runs/nezha-chnsenticorp"
    served: dict[str, Any] = {}
    app = SimpleNamespace(post=lambda place: lambda function: served.setdefault(place, function))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "fastapi", SimpleNamespace(FastAPI=lambda: app))
        exec(shown[0].replace(path, "runs/opinion"), {})
    names: dict[str, Any] = {}
    exec(shown[1].replace(path, "runs/opinion"), names)
    texts = ["渡口旅店。", "口。" * 400]
    for text, expected in zip(texts, served["/predict"](texts), strict=True):
        assert names["classes"](text) == pytest.approx(expected["probabilities"], abs=1e-5)
    assert len(names["tokenizer"].encode(texts[1]).overflowing) > 0
    written = extra("onnx", "onnx").load("runs/opinion/export/onnx/model.onnx")
    assert {one.key: one.value for one in written.metadata_props}["opset"] == "20"
    assert not any(node.metadata_props for node in written.graph.node)  # no path of this machine


@pytest.mark.long
def test_the_loop_of_the_page_reads_a_document_with_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the exported head reads it: twice, segment by segment."""
    extra("onnx", "onnxscript")
    labels = {0: "no", 1: "yes"}
    reading = {"length": 12, "retrospective": True}
    values = {"id2label": labels, "label2id": {label: number for number, label in labels.items()}}
    model, _ = tiny("ernie_doc", "classify", monkeypatch, **values, problem_type="single_label_classification")
    model.config.reading = {"step": None, "predict": "mean", **reading}
    vocabulary = tmp_path / "vocab.txt"  # framed as the exported tokenizer is
    vocabulary.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmno"]) + "\n")
    load_tokenizer(vocabulary, TokenizerSettings(path=vocabulary)).save(tmp_path / "tokenizer")
    spec, folder = model_spec("ernie_doc"), tmp_path / "export"
    [graph] = onnx.graphs(model, spec, "classify", [])
    write_huggingface(
        folder, model, tmp_path / "tokenizer", "", further=lambda one: onnx.write_graph(one / "onnx", graph, spec, {})
    )
    shown = [block.text for block in blocks_of(page("serving.md")) if block.language == "python"]
    names: dict[str, Any] = {}
    exec(shown[1].replace("runs/nezha-chnsenticorp/export", str(folder)).rpartition("print")[0], names)
    exec(shown[2], names)
    text = " ".join("abcdefghijklmno" * 3)
    found = names["classes_of_a_document"](text)
    names["tokenizer"].no_truncation()
    ids = torch.tensor([names["tokenizer"].encode(text).ids])
    with torch.no_grad():
        p = model(ids, torch.ones_like(ids)).logits[0].softmax(-1)
    assert list(found.values()) == pytest.approx(p.tolist(), abs=1e-5)
    assert json.loads((folder / "config.json").read_text())["reading"]["retrospective"]
