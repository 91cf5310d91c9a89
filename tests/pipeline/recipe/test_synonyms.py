"""Names of settings in other tools are answered with ours, and letters suggest only what is near."""

import inspect
import re
from collections import Counter
from pathlib import Path

import pytest

from reread.pipeline.recipe.load import load_recipe
from reread.pipeline.recipe.schema import Recipe
from reread.pipeline.recipe.sections import all_sections
from reread.pipeline.recipe.task import finetune_recipe
from reread.preprocessing.errors import UserError
from reread.preprocessing.synonyms import TABLE, Meaning, meaning_of

ASKED = """lr learning_rate batch_size epochs max_length max_seq_length fp16 bf16 num_train_epochs warmup_ratio
per_device_train_batch_size gradient_accumulation_steps model_name_or_path output_dir weight_decay seed num_workers
mlm_probability train_file max_steps logging_steps save_steps eval_steps tensor_parallel"""


def settings() -> set[str]:
    """Every setting of a recipe, dotted, `task.KEY` for those of tasks, and the keys of all models' configurations."""
    from reread.training.models import MODELS, model_spec

    known = {f"{section.path}.{key.name}".lstrip(".") for section in all_sections() for key in section.keys}
    known |= {"train.model.type"}
    for model in MODELS:
        known |= {f"train.model.{name}" for name in inspect.signature(model_spec(model).config).parameters}
    return known


def test_every_entry_of_the_table_means_a_setting_that_exists() -> None:
    known = settings()
    assert all(meaning_of(name) for name in ASKED.split())
    for meaning in TABLE:
        assert meaning.key.partition("=")[0] in known, meaning
        named = [one for one in re.findall(r"`([^`]+)`", meaning.note) if " " not in one]
        assert set(named) <= known, meaning
        if "=" in meaning.key:
            load_recipe("nezha-base", [meaning.key])


def test_no_name_of_the_table_means_two_settings() -> None:
    counts = Counter(name for meaning in TABLE for name in meaning.names.split())
    assert not {name for name, count in counts.items() if count > 1}


@pytest.mark.parametrize("meaning", TABLE, ids=lambda meaning: meaning.key)
def test_a_name_of_another_tool_is_answered_in_one_line(meaning: Meaning) -> None:
    """Below `train`, where overrides without a section belong, unless it is a key there or in `preprocess`."""
    for name in meaning.names.split():
        if name in Recipe.model_fields["train"].annotation.__args__[0].model_fields:  # type: ignore[union-attr]
            continue
        with pytest.raises(UserError) as raised:
            Recipe.check_keys({"name": "x", "train": {name: 1}}, "recipe x")
        line = str(raised.value)
        assert line.startswith(f"recipe x: unknown key `train.{name}`; `{meaning.key}` is what you mean"), line
        assert "\n" not in line


@pytest.mark.parametrize(
    ("override", "hint"),
    [
        ("batch_size=3", "`train.global_batch` is what you mean (the rows of a step on all processes; "),
        ("LR=1", "unknown key `train.LR`; `train.optimizer.learning_rate` is what you mean"),
        ("train.optimizer.lr=1", "`train.optimizer.learning_rate` is what you mean"),
        ("preprocess.num-workers=2", "`preprocess.workers` is what you mean"),
        ("trainer.max_steps=3", "unknown key `train.trainer`; `train.steps` is what you mean by `max_steps`"),
        ("training_args={num_train_epochs: 3}", "`finetune.epochs` is what you mean (pretraining counts steps:"),
        ("masking=span", "unknown key `train.masking`; did you mean `train.data.masking`?"),
        ("probabilty=0.2", "did you mean `train.data.masking.probability`?"),
        ("warmup_step=5", "did you mean `train.schedule.warmup_steps`?"),
        ("watchdogs=3", "unknown key `train.watchdogs`; known here: train.activation_checkpointing, "),
        ("optimizer=adamw", "train.optimizer: a section; set one of its keys, train.optimizer.KEY: name, variant, "),
        ("input=zh", "preprocess.input: a section; set one of its keys, preprocess.input.KEY: paths, "),
        ("train.data.corpora=[3]", "train.data.corpora.0: a section; set one of its keys, train.data.corpora.0.KEY: "),
    ],
)
def test_meaning_comes_before_letters_and_letters_must_be_near(override: str, hint: str) -> None:
    with pytest.raises(UserError) as raised:
        load_recipe("nezha-base", [override], "train")
    assert hint in str(raised.value)


def test_an_unknown_key_of_a_file_is_answered_as_one_of_the_command_line(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text("base: nezha-base\nname: own\ntrain: {lr: 1.0e-4, optimizer: {weight_decay: 0}}\n")
    with pytest.raises(UserError, match=r"own\.yaml: unknown key `train\.lr`; `train\.optimizer\.learning_rate` is"):
        load_recipe(str(path), [])


def test_a_wrong_key_of_a_fine_tuning_is_told_before_its_model_is_looked_for() -> None:
    with pytest.raises(UserError, match=r"^recipe classify: unknown key `train\.epochs`; `finetune\.epochs` is what"):
        finetune_recipe("classify", ["epochs=3"])


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("n_layer", "`train.model.num_hidden_layers` is what you mean"),
        ("max_length", "`train.data.sequence_length` is what you mean"),
        ("hidden_sizes", "did you mean `train.model.hidden_size`?"),
    ],
)
def test_a_key_of_another_models_configuration_is_answered_with_this_ones(key: str, hint: str) -> None:
    from reread.training.assembly import check_model

    train = load_recipe("nezha-base", [f"model.{key}=2"], "train").train
    assert train
    with pytest.raises(UserError) as raised:
        check_model(train)
    assert str(raised.value) == f"train.model: unknown key `{key}` for nezha; {hint}"
