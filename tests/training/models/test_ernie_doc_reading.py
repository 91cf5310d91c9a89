"""ERNIE-Doc reads whole documents: `ErnieDocModel.read`, here and in an exported folder."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from reread.training.exchange.export import write_huggingface
from reread.training.models.ernie_doc import ErnieDocForPreTraining
from tests.elsewhere import run_elsewhere
from tests.training.models.test_ernie_doc import LENGTH, assert_near, model, read_all, segments, tiny


def document(tokens: int, seed: int = 0) -> Tensor:
    return segments(1, rows=1, length=tokens, seed=seed)[0, 0]


def test_a_document_is_read_twice_and_its_beginning_then_knows_its_end() -> None:
    encoder, ids = model(), document(11)
    other = ids.clone()
    other[-1] = 3 if ids[-1] != 3 else 4
    room = LENGTH - 2
    for retrospective in (False, True):
        a, b = (encoder.read(text, retrospective=retrospective) for text in (ids, other))
        assert a.last_hidden_state.shape == (11, 16)
        assert a.pooler_output.shape == (16,)
        assert torch.equal(a.last_hidden_state[:room], b.last_hidden_state[:room]) is not retrospective
        assert not torch.equal(a.last_hidden_state[2 * room :], b.last_hidden_state[2 * room :])


def test_reading_is_feeding_segments_as_in_pretraining() -> None:
    encoder, ids = model(), document(6)
    read = encoder.read(ids)
    rows = torch.tensor([[*ids[:4].tolist(), 2, 1], [*ids[4:].tolist(), 2, 0, 0, 1]])
    masks = torch.tensor([[1] * 6, [1, 1, 1, 0, 0, 1]])
    mems = None
    for _ in range(2):
        outputs = []
        for row, mask in zip(rows[:, None], masks[:, None], strict=True):
            outputs.append(encoder(row, mask, mems=mems))
            mems = outputs[-1].mems
    states = [outputs[0].last_hidden_state[0, :4], outputs[1].last_hidden_state[0, :2]]
    assert torch.equal(read.last_hidden_state, torch.cat(states))
    assert torch.equal(read.pooler_output, outputs[1].pooler_output[0])
    assert all(torch.equal(a, b) for a, b in zip(read.mems, outputs[1].mems, strict=True))


def test_the_skim_has_no_gradient_and_the_second_pass_has() -> None:
    encoder = model()
    seen = []
    encoder.encoder.register_forward_hook(lambda module, inputs, output: seen.append(output[0][-1].requires_grad))
    encoder.read(document(11)).last_hidden_state.sum().backward()
    assert seen == [False] * 3 + [True] * 3


def test_a_document_is_read_in_segments_as_long_as_those_of_training() -> None:
    ids = document(9)
    encoder = model(segment_length=5)
    row, mask = torch.tensor([[*ids[:3].tolist(), 2, 1]]), torch.ones(1, 5)
    once = encoder.read(ids, retrospective=False).last_hidden_state
    assert torch.equal(once[:3], encoder(row, mask).last_hidden_state[0, :3])
    assert not torch.allclose(once, model().read(ids, retrospective=False).last_hidden_state)
    with pytest.raises(ValueError, match="segment_length"):
        model(segment_length=LENGTH + 1)


def test_a_head_of_its_own_is_refused() -> None:
    with pytest.raises(ValueError, match="tie_word_embeddings"):
        tiny(tie_word_embeddings=False)


def test_a_document_of_no_tokens_and_a_model_without_memory_can_be_read() -> None:
    assert model().read(document(0)).last_hidden_state.shape == (0, 16)
    none = model(recurrence="none").read(document(11))
    assert none.mems == ()
    assert torch.equal(none.last_hidden_state, model(recurrence="none").read(document(11), retrospective=False)[0])
    with pytest.raises(ValueError, match="needs config"):
        model(sep_token_id=None).read(document(11))


LOAD = """
import sys, torch
from transformers import AutoModel, AutoModelForMaskedLM, AutoModelForPreTraining
assert not any(name.split(".")[0] in ("training", "preprocessing") for name in sys.modules)
folder = sys.argv[1]
load = dict(pretrained_model_name_or_path=folder, trust_remote_code=True)
ids = torch.load(folder + "/ids")
encoder = AutoModel.from_pretrained(**load).eval()
language = AutoModelForMaskedLM.from_pretrained(**load).eval()
assert language.cls.predictions.decoder.weight is language.ernie_doc.embeddings.word_embeddings.weight
language.save_pretrained(folder + "/again")
again = AutoModelForMaskedLM.from_pretrained(folder + "/again", trust_remote_code=True).eval()
both = AutoModelForPreTraining.from_pretrained(**load).eval()
mems = encoder(ids[0]).mems
outputs = [m(ids[1], mems=mems) for m in (language, again, both)]
read = encoder.read(ids.flatten())
torch.save([outputs[0].logits, outputs[1].logits, outputs[2].prediction_logits, outputs[2].reorder_logits,
            outputs[2].mems[-1], read.last_hidden_state, read.pooler_output], folder + "/out")
"""


@pytest.mark.slow
def test_an_exported_folder_carries_memory_and_reads_documents_in_another_process(tmp_path: Path) -> None:
    heads, ids = model(ErnieDocForPreTraining), segments(2, rows=1)
    write_huggingface(tmp_path / "out", heads, None, "card")
    torch.save(ids, tmp_path / "out" / "ids")
    run_elsewhere(tmp_path, LOAD, tmp_path / "out")
    output, read = read_all(heads, ids)[1], heads.ernie_doc.read(ids.flatten())
    logits = output.prediction_logits
    expected = [logits, logits, logits, output.reorder_logits, output.mems[-1]]
    for loaded, trained in zip(
        torch.load(tmp_path / "out" / "out"), [*expected, read.last_hidden_state, read.pooler_output], strict=True
    ):
        assert_near(loaded.detach(), trained.detach())
