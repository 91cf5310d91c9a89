"""The other side of benchmarks that no test runs: it still reads text, and computes what our models compute."""

from pathlib import Path

import pytest
import torch

from benchmarks.data import near_duplicates, preprocess
from benchmarks.models import ernie_doc_attention, nezha_attention
from reread.training.models.ernie_doc import ErnieDocConfig, ErnieDocForPreTraining, attention_ernie_doc
from reread.training.models.nezha import NezhaConfig, NezhaForPreTraining, attention_nezha, modeling_nezha

SIZES = {
    "vocab_size": 40,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "initializer_range": 0.3,
}
IDS = torch.arange(1, 25).view(2, 12)


def test_the_plain_form_of_ernie_doc_is_our_model(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = ErnieDocForPreTraining(ErnieDocConfig(**SIZES, max_position_embeddings=12, memory_length=5)).double().eval()
    mems = tuple(torch.randn_like(memory) for memory in model.empty_mems(len(IDS)))
    ours = model(IDS, torch.ones_like(IDS), mems=mems).logits
    plain = staticmethod(ernie_doc_attention.plain_attention)
    monkeypatch.setattr(attention_ernie_doc.ErnieDocSelfAttention, "attend", plain)
    torch.testing.assert_close(model(IDS, torch.ones_like(IDS), mems=mems).logits, ours, rtol=1e-10, atol=1e-10)


def test_the_plain_form_of_nezha_is_our_model(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = NezhaForPreTraining(NezhaConfig(**SIZES, max_relative_position=None)).double().eval()
    ours = model(IDS, torch.ones_like(IDS)).prediction_logits
    monkeypatch.setattr(attention_nezha, "rotated_attention", nezha_attention.plain_attention)
    monkeypatch.setattr(modeling_nezha.NezhaEncoder, "_positions", nezha_attention.plain_positions)
    torch.testing.assert_close(model(IDS, torch.ones_like(IDS)).prediction_logits, ours, rtol=1e-10, atol=1e-10)


def test_texts_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("One line.\n" * 300)
    assert "".join(near_duplicates.documents_of([str(tmp_path)])).split() == ["One", "line."] * 300
    assert "".join(preprocess.documents_of([str(tmp_path)])).split() == ["One", "line."] * 300
