"""Exports behave as transformers' own models, which `make transformers-suite` tries at length."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

from reread.training.exchange.export import write_huggingface
from reread.training.models import model_spec
from tests.conftest import rarer, thinned
from tests.training.exchange.test_first_uses import AUTO, SIZES_OF_WORDS
from tests.training.models.test_heads import build

OBJECTIVES = {"nezha": "masked_lm", "ernie_doc": "documents", "ran": "masked_lm", "transformer_xl": "causal_lm"}
"""Of the models whose code is exported; Longformer's exports are of transformers' own class."""
BIAS = "cls.predictions.bias"


def exported(name: str, folder: Path) -> Path:
    """Weights in float64, with dropout."""
    if name == "transformer_xl":
        torch.manual_seed(0)
        spec = model_spec(name)
        model = spec.heads[OBJECTIVES[name]](spec.config(vocab_size=20, **SIZES_OF_WORDS)).double()
    else:
        model = build(name, OBJECTIVES[name])
    write_huggingface(folder / name, model, None, "card")
    return folder / name


def load(name: str, folder: Path, **more: Any) -> Any:
    auto = getattr(transformers, AUTO[OBJECTIVES[name]])
    return auto.from_pretrained(folder, trust_remote_code=True, torch_dtype=torch.float64, **more)


def examples(name: str) -> list[dict[str, Tensor]]:
    """Rows with what the model takes beside the tokens."""
    generator = torch.Generator().manual_seed(0)
    data = []
    for length in (12, 9, 11, 5):
        ids = torch.randint(5, 20, (12,), generator=generator)
        row = {"input_ids": ids, "labels": ids}
        if name != "transformer_xl":
            row["attention_mask"] = (torch.arange(12) < length).long()
        if name in ("nezha", "ernie_doc"):
            row["token_type_ids"] = torch.arange(12) % 2
        data.append(row)
    return data


def trained(name: str, folder: Path, out: Path, **settings: Any) -> tuple[list[Tensor], int]:
    """The loss and the weights after three steps of transformers' Trainer, and how often a part of a layer ran."""
    model, calls = load(name, folder), list[int]()
    part = next(module for path, module in model.named_modules() if path.endswith("layer.0.attention.output"))
    part.register_forward_hook(lambda *_: calls.append(1))
    common: dict[str, Any] = {"use_cpu": True, "report_to": [], "disable_tqdm": True, "save_strategy": "no"}
    steps: dict[str, Any] = {"max_steps": 3, "per_device_train_batch_size": 2, "optim": "sgd", "learning_rate": 0.1}
    arguments = transformers.TrainingArguments(output_dir=str(out), **common, **steps, **settings)
    loss = transformers.Trainer(model=model, args=arguments, train_dataset=examples(name)).train().training_loss
    return [torch.tensor(loss, dtype=torch.float64), *(p.detach() for p in model.parameters())], len(calls)


@pytest.mark.slow
@pytest.mark.parametrize("name", thinned(OBJECTIVES, 2))
@pytest.mark.parametrize("reentrant", [False, rarer(True)])
def test_transformers_trainer_recomputes_activations_with_equal_losses_and_gradients(
    name: str, reentrant: bool, tmp_path: Path
) -> None:
    pytest.importorskip("accelerate")
    folder = exported(name, tmp_path)
    kept, once = trained(name, folder, tmp_path / "kept")
    given: dict[str, Any] = {
        "gradient_checkpointing": True,
        "gradient_checkpointing_kwargs": {"use_reentrant": reentrant},
    }
    recomputed, twice = trained(name, folder, tmp_path / "recomputed", **given)
    assert twice == 2 * once
    assert not torch.equal(recomputed[1], next(load(name, folder).parameters()))
    for ours, theirs in zip(recomputed, kept, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_recomputing_activations_is_switched_on_and_off(name: str, tmp_path: Path) -> None:
    model = load(name, exported(name, tmp_path)).train()
    layers = [module for module in model.modules() if hasattr(module, "gradient_checkpointing")]
    assert len(layers) == 2
    assert {type(layer).__name__ for layer in layers} == set(model._no_split_modules)
    for on in (False, True, False):
        if on:
            model.gradient_checkpointing_enable()
        else:
            model.gradient_checkpointing_disable()
        assert [layer.gradient_checkpointing for layer in layers] == [on, on]
        assert model.is_gradient_checkpointing == on


@pytest.mark.parametrize("name", ["nezha", "ernie_doc", "ran"])
def test_a_bias_that_a_checkpoint_lacks_is_reported_and_zero(name: str, tmp_path: Path) -> None:
    folder = exported(name, tmp_path)
    whole, found = load(name, folder, output_loading_info=True)
    assert not found["missing_keys"]
    assert whole.get_parameter(BIAS).all()
    weights = load_file(folder / "model.safetensors")
    del weights[BIAS]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    model, found = load(name, folder, output_loading_info=True)
    assert BIAS in found["missing_keys"]
    assert not model.get_parameter(BIAS).any()
    assert model.cls.predictions.decoder.bias is model.get_parameter(BIAS)
    row = {key: value[None] for key, value in examples(name)[0].items()}
    assert model(**row).loss.isfinite()
