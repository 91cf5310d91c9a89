"""`micro_batch: auto` and `activation_checkpointing: auto`: what is chosen on a device, and when it is chosen again."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from reread.pipeline.estimate.auto import choose_auto
from reread.preprocessing.errors import UserError
from reread.training.config import TrainSettings
from reread.training.models import model_spec
from reread.training.models.build import model_config
from reread.training.parallel.mesh import Mesh
from reread.training.run.auto import AutoSettings, settings_of_run
from reread.training.run.metrics import read_metrics
from reread.training.trainer import Trainer
from tests.conftest import document_values, train_values

GIB = 2**30
AUTO = {"micro_batch": "auto", "activation_checkpointing": "auto"}


def chosen_for(memory: float, device: str = "cuda", **changes: Any) -> tuple[int, bool]:
    """What is chosen for a device of `memory` GiB."""
    settings = TrainSettings.parse(train_values(Path("nowhere"), **{**AUTO, "global_batch": 64, **changes}), "test")
    config = model_config(model_spec("nezha"), settings.model, 500, None)
    found = choose_auto(settings, config, Mesh(device=torch.device(device)), torch.float16, int(memory * GIB))
    return found.micro_batch, found.activation_checkpointing


def test_a_smaller_device_gets_fewer_rows_at_a_time_and_the_log_shows_why(caplog) -> None:
    with caplog.at_level("INFO", "reread"):
        large, small = chosen_for(16), chosen_for(0.53, activation_checkpointing=False)
    assert large == (64, False)
    assert 0 < small[0] < 64 and not small[1]
    of_large, of_small = caplog.messages
    assert of_large.startswith("train.micro_batch and train.activation_checkpointing: auto: 64 of 64 rows at a time, ")
    assert of_small.startswith(f"train.micro_batch: auto: {small[0]} of 64 rows at a time, without activation")
    assert of_large.endswith("15.20 usable on the smallest device of 16.00 GiB")


def test_a_cpu_gets_at_most_1024_tokens_at_a_time() -> None:
    assert chosen_for(16, "cpu") == (16, False)  # 21 would fit into 1,024: four equal pieces


def test_a_cpu_rehearses_attention_whose_bias_learns_without_dropout() -> None:
    values = document_values(Path("nowhere"), **AUTO)
    values["model"]["attention_probs_dropout_prob"] = 0.0
    settings = TrainSettings.parse(values, "test")
    config = model_config(model_spec("ernie_doc"), settings.model, 500, None)
    assert choose_auto(settings, config, Mesh(), torch.float32, GIB).micro_batch == settings.global_batch


def test_a_device_that_is_too_small_is_one_line_with_the_way_out() -> None:
    with pytest.raises(UserError, match=r"train\.micro_batch: auto, but on a device of 0\.4 GiB: weights and opt"):
        chosen_for(0.4, activation_checkpointing=True)


def test_a_batch_that_cannot_be_split_is_named_and_not_the_device() -> None:
    settings = TrainSettings.parse(train_values(Path("nowhere"), **{**AUTO, "global_batch": 2}), "test")
    config = model_config(model_spec("nezha"), settings.model, 500, None)
    with pytest.raises(
        UserError, match=r"^train\.global_batch: 2 rows are fewer than 3 data-parallel processes; raise"
    ):
        choose_auto(settings, config, Mesh(world=3, data_size=3), torch.float32, GIB)


def test_a_stated_micro_batch_is_kept_at_the_start_and_when_the_run_goes_on(tmp_path) -> None:
    """Two processes share eight rows a step, so that four at a time would be all of a process."""
    stated = {"micro_batch": 8, "activation_checkpointing": "auto"}
    settings = TrainSettings.parse(train_values(Path("nowhere"), **stated), "test")
    config = model_config(model_spec("nezha"), settings.model, 500, None)
    mesh, auto = Mesh(world=2, data_size=2), AutoSettings(choose_auto, 4 * GIB)
    rest: Any = config, mesh, torch.float32, None
    begun = auto.settings(settings, tmp_path, False, *rest)
    auto.keep(settings, begun, tmp_path, mesh)
    assert (begun.micro_batch, begun.activation_checkpointing) == (8, False)
    assert auto.settings(settings, tmp_path, True, *rest) == begun


def test_a_stated_micro_batch_that_does_not_fit_is_refused_with_the_largest_that_does() -> None:
    def given(rows: int) -> tuple[int, bool]:
        return chosen_for(0.53, micro_batch=rows)

    with pytest.raises(UserError, match=r"^train\.micro_batch: 64 rows at a time with activation checkpoi") as refused:
        given(64)
    largest = int(str(refused.value).split("set it to at most ")[1].split(",")[0])
    assert given(largest) == (largest, True)
    with pytest.raises(UserError, match=f"{largest + 1} rows at a time"):
        given(largest + 1)


def other(rows: int) -> Any:
    return lambda settings, *_: settings.model_copy(update={"micro_batch": rows, "activation_checkpointing": False})


def test_a_resumed_run_keeps_the_choice_unless_the_device_differs(sample_corpus, tmp_path) -> None:
    values = train_values(sample_corpus, **AUTO, schedule={"decay": "constant"})
    for memory, steps, offered, taken in ((1, 1, 2, 2), (1, 2, 4, 2), (2, 3, 4, 4), (2, 4, 8, 4)):
        settings = TrainSettings.parse({**values, "steps": steps}, "test")
        trainer = Trainer(settings, tmp_path, Mesh(), auto=AutoSettings(other(offered), memory))
        assert trainer.settings.micro_batch == taken
        trainer.train()
        assert settings_of_run(settings, tmp_path).micro_batch == taken
    explicit = tmp_path / "explicit"
    explicit.mkdir()
    for steps, rows in ((2, 2), (4, 4)):
        settings = TrainSettings.parse({**values, "micro_batch": rows, "activation_checkpointing": False}, "test")
        Trainer(settings.model_copy(update={"steps": steps}), explicit, Mesh()).train()
    assert losses(tmp_path) == losses(explicit)


def losses(run: Path) -> list[float]:
    return [line["loss"] for line in read_metrics(run) if "loss" in line]


def test_without_a_choice_auto_is_one_line(tmp_path) -> None:
    settings = TrainSettings.parse(train_values(tmp_path, micro_batch="auto"), "test")
    for content in (None, "{", json.dumps({"values": {}})):
        if content:
            (tmp_path / "fitted.json").write_text(content)
        with pytest.raises(UserError, match=r"fitted\.json: has no train\.micro_batch, which is auto"):
            settings_of_run(settings, tmp_path)


@pytest.mark.parametrize("field", ["micro_batch", "activation_checkpointing"])
def test_auto_is_the_only_word(field) -> None:
    settings = TrainSettings.parse(document_values(Path("nowhere"), **{field: "auto"}), "test")
    assert settings.automatic == [field]
    assert TrainSettings.parse(settings.model_dump(mode="json"), "test") == settings
    with pytest.raises(UserError, match=f"{field}: is a value or `auto` \\(got 'aut'\\)"):
        TrainSettings.parse(document_values(Path("nowhere"), **{field: "aut"}), "test")
