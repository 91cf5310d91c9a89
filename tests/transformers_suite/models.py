"""Our models as transformers' suite reads them: tiny sizes, inputs, and labels of each head."""

import unittest
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import PretrainedConfig, PreTrainedModel
from transformers.models.auto import modeling_auto


@dataclass(frozen=True)
class Model:
    name: str
    values: dict[str, Any]
    """Of its configuration."""
    excluded: dict[str, str]
    """Test -> why it cannot pass."""
    inputs: tuple[str, ...] = ("attention_mask", "token_type_ids")
    """What it takes beside input_ids."""
    key_length: int | None = None
    """Keys that a token attends to; None: as many as a row has tokens."""


ROWS, LENGTH, VOCABULARY, LAYERS, HEADS, WIDTH, OPTIONS = 5, 7, 99, 2, 4, 32, 4
SIZES = {"vocab_size": VOCABULARY, "hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS}
UNTIED = {
    "test_load_save_without_tied_weights": "tie_word_embeddings=False is refused, since the head of pretraining shares "
    "the word embeddings"
}
ADAPTIVE = "its embeddings are adaptive, a table for each cluster of words, and no nn.Embedding"
MODELS = [
    Model("nezha", {**SIZES, "intermediate_size": 37, "max_relative_position": 3}, UNTIED),
    Model("ernie_doc", {**SIZES, "max_position_embeddings": 32, "memory_length": 4}, UNTIED),
    Model(
        "ran",  # several windows, whose tokens attend to one another and to a cell; "always" uses all parameters
        {**SIZES, "head_size": 8, "window_size": 2, "min_window_size": 1, "cell_transform": "always"},
        UNTIED,
        inputs=("attention_mask",),
        key_length=3,
    ),
    Model(
        "transformer_xl",
        {"vocab_size": VOCABULARY, "d_model": WIDTH, "n_layer": LAYERS, "n_head": HEADS, "d_head": 8, "d_inner": 37},
        {
            "test_model_get_set_embeddings": ADAPTIVE,
            "test_resize_tokens_embeddings": ADAPTIVE,
            "test_causal_lm_loss_honors_shift_labels": "its labels are the next tokens themselves, so none are shifted",
        },
        inputs=(),
    ),
]
"""Longformer's exports are of transformers' own class, which its suite has tested."""


class Tester:
    """What the suite asks of a model: its configuration, and inputs. (transformers: `BertModelTester`)"""

    is_training = True
    batch_size, seq_length, num_hidden_layers, num_attention_heads = ROWS, LENGTH, LAYERS, HEADS
    hidden_size, num_choices = WIDTH, OPTIONS

    def __init__(self, model: Model, config: type[PretrainedConfig]) -> None:
        self.model, self.config = model, config
        if model.key_length is not None:
            self.key_length = model.key_length

    def get_config(self) -> PretrainedConfig:
        return self.config(**self.model.values)

    def prepare_config_and_inputs_for_common(self) -> tuple[PretrainedConfig, dict[str, Tensor]]:
        inputs = {
            "input_ids": torch.randint(1, VOCABULARY, (ROWS, LENGTH)),
            "attention_mask": torch.ones(ROWS, LENGTH, dtype=torch.long),
            "token_type_ids": torch.randint(2, (ROWS, LENGTH)),
        }
        return self.get_config(), {name: inputs[name] for name in ("input_ids", *self.model.inputs)}


def test_case(suite: ModuleType, model: Model) -> type[unittest.TestCase]:
    """The suite's tests for a model's classes; `suite` is transformers' test_modeling_common."""
    module = import_module(f"reread.training.models.{model.name}")
    classes = [value for name in module.__all__ if issubclass(value := getattr(module, name), PreTrainedModel)]
    classes.sort(key=lambda one: not one.__name__.endswith("Model"))  # the suite takes the first for the encoder
    (config,) = (value for name in module.__all__ if issubclass(value := getattr(module, name), PretrainedConfig))
    for one in classes:
        _register(one)

    class Tests(suite.ModelTesterMixin, unittest.TestCase):  # type: ignore[misc, name-defined]
        all_model_classes = tuple(classes)
        test_can_init_all_missing_weights_before_2023 = True  # left out for old models alone

        def setUp(self) -> None:
            self.model_tester = Tester(model, config)

        def _prepare_for_class(
            self, inputs: dict[str, Tensor], model_class: type[PreTrainedModel], return_labels: bool = False
        ) -> dict[str, Tensor]:
            inputs = super()._prepare_for_class(inputs, model_class, return_labels)
            if return_labels and model_class.__name__.endswith("ForPreTraining"):
                inputs["labels"] = torch.zeros(ROWS, LENGTH, dtype=torch.long)
                name = "next_sentence_label" if model.name == "nezha" else "reorder_labels"
                inputs[name] = torch.zeros(ROWS, dtype=torch.long)
            return inputs

    Tests.__name__ = Tests.__qualname__ = classes[0].__name__
    return Tests


def _register(model_class: type[PreTrainedModel]) -> None:
    """Tell transformers of a class, and what it predicts by the tables that the suite reads."""
    tables = {
        "Model": ("AutoModel", "MODEL_MAPPING_NAMES"),
        "ForPreTraining": ("AutoModelForPreTraining", "MODEL_FOR_PRETRAINING_MAPPING_NAMES"),
        "ForMaskedLM": ("AutoModelForMaskedLM", "MODEL_FOR_MASKED_LM_MAPPING_NAMES"),
        "ForCausalLM": ("AutoModelForCausalLM", "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES"),
        "ForSequenceClassification": (
            "AutoModelForSequenceClassification",
            "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES",
        ),
        "ForTokenClassification": ("AutoModelForTokenClassification", "MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES"),
        "ForQuestionAnswering": ("AutoModelForQuestionAnswering", "MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES"),
        "ForMultipleChoice": ("AutoModelForMultipleChoice", "MODEL_FOR_MULTIPLE_CHOICE_MAPPING_NAMES"),
    }
    config = model_class.config_class
    transformers.AutoConfig.register(config.model_type, config, exist_ok=True)
    for suffix, (auto_class, table) in tables.items():
        if model_class.__name__.endswith(suffix):
            getattr(transformers, auto_class).register(config, model_class, exist_ok=True)
            getattr(modeling_auto, table)[config.model_type] = model_class.__name__
