"""What users of transformers try first works on every exported model."""

import inspect
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from transformers import AutoTokenizer

from reread.preprocessing.config import TokenizerSettings, VocabularySettings
from reread.preprocessing.tokens.tokenizer import load_tokenizer
from reread.preprocessing.tokens.vocabulary import train_vocabulary
from reread.preprocessing.tokens.wordlevel import train_words
from reread.training.exchange.export import write_huggingface
from reread.training.models import OURS, model_spec
from reread.training.models.usage import usage_of
from tests.conftest import thinned
from tests.training.models.test_heads import SIZES, build

AUTO = {
    "masked_lm": "AutoModelForMaskedLM",
    "documents": "AutoModelForPreTraining",
    "causal_lm": "AutoModelForCausalLM",
    "classify": "AutoModelForSequenceClassification",
    "tag": "AutoModelForTokenClassification",
    "answer": "AutoModelForQuestionAnswering",
    "choose": "AutoModelForMultipleChoice",
    "rank": "AutoModelForSequenceClassification",
    "phrases": "AutoModelForTextEncoding",
    "coreference": "AutoModelForNextSentencePrediction",
    "generate": "AutoModelForSeq2SeqLM",
}
SIZES_OF_WORDS = {"d_model": 16, "n_head": 2, "d_head": 8, "d_inner": 24, "n_layer": 2, "mem_len": 4}
EXPORTS: list[tuple[str, str, dict[str, Any]]] = [
    *(
        (name, objective, {})
        for name in OURS
        for objective in model_spec(name).heads
        if objective != "embed"  # tests/training/exchange/test_sentence_transformers.py
        if name != "longformer" or objective not in ("phrases", "coreference")  # which transformers has no class for
    ),
    ("nezha", "classify", {"classifier_pooling": "mean"}),
]
READING = {"length": 12, "step": 5}
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmno"]
LABELS = {0: "no", 1: "yes", 2: "both"}
LONG = " ".join("abcdefghijklmno" * 3)  # several windows, and less than Longformer's positions


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A tokenizer of words for models of the next word, RoBERTa's kind for Longformer, and BERT's."""
    folder = tmp_path_factory.mktemp("tokenizers")
    (folder / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n")
    words = train_words(["a b c d e f g . h i j k l m n o"], 20, False, folder)
    bpe = train_vocabulary(["a a b"], VocabularySettings(type="bpe", size=270), True, folder)
    for kind, path in (("words", words), ("bpe", bpe), ("wordpiece", folder / "vocab.txt")):
        load_tokenizer(path, TokenizerSettings(path=path)).save(folder / kind)
    return {kind: folder / kind for kind in ("words", "bpe", "wordpiece")}


@pytest.fixture
def export(
    request: pytest.FixtureRequest, tmp_path: Path, tokenizers: dict[str, Path]
) -> tuple[str, str, Any, Any, Path]:
    """The model's and the objective's name, the trained model, the same loaded from its export, and the folder."""
    name, objective, given = request.param
    values: dict[str, Any] = {}
    if name == "transformer_xl":
        torch.manual_seed(0)
        spec = model_spec(name)
        trained = spec.heads[objective](spec.config(vocab_size=20, **SIZES_OF_WORDS)).eval()
    else:
        if name == "longformer":
            values = {"vocab_size": 270, "max_position_embeddings": 120, "pad_token_id": 1, "sep_token_id": 2}
        if name != "longformer" and objective in (
            "classify",
            "tag",
            "answer",
            "choose",
            "rank",
            "phrases",
            "coreference",
            "generate",
        ):
            values = {"reading": READING, "cls_token_id": 2, "sep_token_id": 3}
        if objective == "rank":  # its example cuts passages to the window
            values["reading"] = READING if name != "longformer" else {"length": 80, "step": 40}
        if objective == "coreference":
            values["coreference"] = {"span_words": 3, "spans_per_word": 0.5, "antecedents": 4, "head_size": 8}
        if objective in ("classify", "tag"):
            values |= {"id2label": LABELS, "label2id": {label: number for number, label in LABELS.items()}}
        if objective == "classify":
            values["problem_type"] = "single_label_classification"
        if objective == "rank":
            values |= {"num_labels": 1, "problem_type": "regression"}
        trained = build(name, objective, **values, **given).float()
        if objective == "generate":
            trained.config.task = {"sequence_length": 12, "target_length": 4, "beams": 2}
    kind = {"longformer": "bpe", "transformer_xl": "words"}.get(
        name, "words" if objective == "causal_lm" else "wordpiece"
    )
    folder = tmp_path / f"{name}-{objective}"
    write_huggingface(folder, trained, tokenizers[kind], "card")
    load = {} if name == "longformer" else {"trust_remote_code": True}
    loaded, found = getattr(transformers, AUTO[objective]).from_pretrained(folder, output_loading_info=True, **load)
    assert not any(found[what] for what in ("missing_keys", "unexpected_keys", "mismatched_keys")), found
    return name, objective, trained, loaded.eval(), folder


def logits_of(output: Any) -> Tensor:
    return torch.stack(
        [value for key, value in output.items() if "logits" in key and "reorder" not in key and "seq_" not in key]
    )


def inputs_of(name: str, objective: str, tokenizer: Any) -> dict[str, Tensor]:
    """What its tokenizer makes of a short text for it, or of a question and a text."""
    if objective == "answer":
        parts = ("f g a b c", "d e") if tokenizer.padding_side == "left" else ("d e", "f g a b c")
        return dict(tokenizer(*parts, return_tensors="pt"))
    if objective == "rank":
        return dict(tokenizer(["a b c"] * 2, ["d", "e f"], padding=True, return_tensors="pt"))
    if objective == "choose":
        rows = tokenizer(["a b c"] * 2, ["d", "e f"], padding=True, return_tensors="pt")
        return {key: value[None] for key, value in rows.items()}
    rows = dict(
        tokenizer(
            ["a b c d e f", "a b"],
            padding=name != "transformer_xl" and objective != "causal_lm",
            return_tensors="pt",
            truncation=True,
            max_length=2 if objective == "causal_lm" else 12,
        )
    )
    if objective in ("phrases", "coreference"):  # special tokens cannot be found among embeddings
        rows["word_starts"] = (rows["input_ids"] > 4).long()
    return rows


def labels_of(objective: str, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """One label for each row."""
    rows = len(inputs["input_ids"])
    if objective == "answer":
        return {
            "start_positions": torch.ones(rows, dtype=torch.long),
            "end_positions": torch.ones(rows, dtype=torch.long),
        }
    if objective in ("classify", "choose"):
        return {"labels": torch.ones(rows, dtype=torch.long)}
    if objective == "rank":
        return {"labels": torch.ones(rows)}
    if objective == "coreference":
        return {"labels": torch.tensor([[[0, 0, 0], [1, 1, 0]]] * rows)}
    if objective == "phrases":
        return {
            "labels": torch.ones(*inputs["input_ids"].shape, 2).masked_fill(inputs["word_starts"][..., None] == 0, -100)
        }
    return {"labels": inputs["input_ids"] % 3}


@pytest.mark.slow
@pytest.mark.parametrize(
    "export",
    thinned(((one,) for one in EXPORTS), 5),
    indirect=True,
    ids=["-".join([*names, *given.values()]) for *names, given in EXPORTS],
)
def test_what_users_try_first_works(export: tuple[str, str, Any, Any, Path], tmp_path: Path) -> None:
    name, objective, trained, model, folder = export
    tokenizer = AutoTokenizer.from_pretrained(folder, **({} if name == "longformer" else {"trust_remote_code": True}))
    check_settings(name, objective, model, tokenizer, folder)
    inputs = inputs_of(name, objective, tokenizer)
    more: dict[str, Any] = {}
    if name == "longformer" and objective in ("classify", "answer", "choose", "rank"):  # chosen from ids
        flat = inputs["input_ids"].view(-1, inputs["input_ids"].shape[-1])
        more["global_attention_mask"] = trained.global_tokens(flat).long().view_as(inputs["input_ids"])
    with torch.no_grad():
        logits = logits_of(model(**inputs))
        real = slice(None)
        if name == "longformer" and objective in ("masked_lm", "tag"):  # transformers' own class computes padding, too
            real = (inputs["attention_mask"] != 0).expand(len(logits), -1, -1)
        torch.testing.assert_close(logits[real], logits_of(trained(**inputs))[real], rtol=0, atol=1e-4)
        ids = inputs.pop("input_ids")
        embedded = model(inputs_embeds=model.get_input_embeddings()(ids), **inputs, **more)
        torch.testing.assert_close(logits_of(embedded)[real], logits[real], rtol=0, atol=1e-4)
        inputs["input_ids"] = ids
        if name == "longformer":
            model.config._attn_implementation = "eager"
        attentions = model(**inputs, output_attentions=True).attentions
        assert len(attentions) == 2
        if name != "longformer":
            for weights in attentions:
                torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]), rtol=0, atol=1e-5)
        assert model(**inputs, **({} if name == "transformer_xl" else {"return_dict": True})).get("attentions") is None
    check_pipeline(objective, model, tokenizer)
    for block in re.findall(
        r"```python\n(.*?)```", usage_of(objective, model_spec(name).frame, name != "longformer"), re.S
    ):
        exec(block, {"model": model, "tokenizer": tokenizer})  # the example of the model's card
    if objective in (next(iter(model_spec(name).heads)), "classify"):  # seconds each; the others differ little
        # transformers' own Longformer has guards
        check_torch_export(trained if name == "longformer" else model, inputs)
    check_trainer(objective, model, inputs, tmp_path)


def check_settings(name: str, objective: str, model: Any, tokenizer: Any, folder: Path) -> None:
    """The configuration names special tokens and labels, and the tokenizer what the model reads."""
    config = json.loads((folder / "config.json").read_text())
    assert hasattr(sys.modules[type(model).__module__], config["architectures"][0])
    for role in ("pad", "cls", "sep", "bos", "eos"):
        number = getattr(tokenizer, f"{role}_token_id")
        if name == "longformer" and role in ("bos", "eos"):  # RoBERTa's, which our tokenizers do not name
            number = getattr(tokenizer, f"{'cls' if role == 'bos' else 'sep'}_token_id")
        if number is not None or role != "pad":  # the number of rows' padding is in no vocabulary of words
            assert getattr(model.config, f"{role}_token_id", None) == number, role
    if objective in ("classify", "tag"):
        assert model.config.id2label == LABELS
        assert model.config.label2id == {label: number for number, label in LABELS.items()}
    limit = {"nezha": 512, "ernie_doc": SIZES["ernie_doc"]["max_position_embeddings"], "longformer": 118}.get(name)
    windows = name != "longformer" and getattr(model.config, "reading", None)
    assert (tokenizer.model_max_length == limit) if limit and not windows else tokenizer.model_max_length > 10**9


def check_pipeline(objective: str, model: Any, tokenizer: Any) -> None:
    """A text of several windows; transformers 5 has no pipeline for questions."""
    kinds = {"classify": "text-classification", "tag": "token-classification", "answer": "question-answering"}
    if objective not in kinds or (objective == "answer" and not hasattr(transformers, "QuestionAnsweringPipeline")):
        return
    pipe = transformers.pipeline(kinds[objective], model=model, tokenizer=tokenizer)
    if objective == "answer":
        found = pipe(question="d e", context=LONG, max_seq_len=80, max_answer_len=3)
        assert found["answer"] == LONG[found["start"] : found["end"]] != ""
        return
    found = pipe([LONG, "a b", "c"], batch_size=3 if tokenizer.pad_token else 1)  # more rows than layers
    with torch.no_grad():
        p = model(**tokenizer(LONG, return_tensors="pt")).logits[0].softmax(-1)
    if objective == "classify":
        assert found[0]["label"] == LABELS[int(p.argmax())]
        assert found[0]["score"] == pytest.approx(float(p.max()), abs=1e-5)
    else:
        assert len(found[0]) > 10
        assert all(LABELS[int(p[entity["index"]].argmax())] == entity["entity"] for entity in found[0])


def check_trainer(objective: str, model: Any, inputs: dict[str, Tensor], folder: Path) -> None:
    """One step of transformers' own Trainer."""
    pytest.importorskip("accelerate")
    rows = {**inputs, **labels_of(objective, inputs)}
    data = [{key: value[row] for key, value in rows.items()} for row in range(len(inputs["input_ids"]))]
    settings: Any = {"use_cpu": True, "report_to": [], "disable_tqdm": True, "save_strategy": "no", "max_steps": 1}
    arguments = transformers.TrainingArguments(output_dir=str(folder / "out"), **settings)
    before = {key: p.detach().clone() for key, p in model.named_parameters()}
    trainer = transformers.Trainer(model=model, args=arguments, train_dataset=data, eval_dataset=data)
    assert trainer.train().training_loss > 0
    assert any(not torch.equal(before[key], p) for key, p in model.named_parameters())
    if objective in ("classify", "tag", "answer"):
        assert trainer.evaluate()["eval_loss"] > 0
    model.eval()


def check_torch_export(model: Any, inputs: dict[str, Tensor]) -> None:
    known = inspect.signature(model.forward).parameters
    given = {key: value for key, value in inputs.items() if key in known}
    program = torch.export.export(model, (), given, strict=False).module()
    with torch.no_grad():
        torch.testing.assert_close(logits_of(program(**given)), logits_of(model(**given)), rtol=0, atol=1e-5)
