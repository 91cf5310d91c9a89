"""Classes of labelled files: counted, stated by `task.labels`, and refused where training lacks them."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from reread.pipeline.display.classes import classes_of, report_classes
from reread.pipeline.display.windows import print_windows
from reread.pipeline.recipe.schema import train_section
from reread.pipeline.recipe.task import finetune_recipe
from reread.preprocessing.errors import UserError
from reread.training.data.tasks.examples import examples_of
from reread.training.data.tasks.settings import TaskSettings
from tests.pipeline.commands import test_finetuning
from tests.tasks import write_lines

folder = test_finetuning.folder  # a model, train.jsonl with 8 texts of class x and 4 of y, and tune.yaml
INIT = "init=model"


def labelled(*labels: object) -> list[dict[str, Any]]:
    return [{"text": "a b", "label": label} for label in labels]


def task(*overrides: str) -> TaskSettings:
    data = train_section(finetune_recipe("tune.yaml", [INIT, *overrides])).data
    assert isinstance(data, TaskSettings)
    return data


def test_a_mistyped_label_is_seen(folder: Path, caplog: pytest.LogCaptureFixture, capsys: Any) -> None:
    write_lines(folder / "train.jsonl", labelled(*9 * ["positive"], *6 * ["negative"], "positve"))
    write_lines(folder / "dev.jsonl", labelled("positive", "negative"))
    settings = task()
    with caplog.at_level("INFO", "reread"):
        report_classes(settings)
    assert "task.train: 3 classes: positive 9, negative 6, positve 1" in caplog.messages
    assert "task.dev: 3 classes: negative 1, positive 1, positve 0" in caplog.messages
    (warning,) = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
    assert "1 of 3 classes have fewer than 5 examples: `positve` 1 (like `positive`, 9)" in warning
    assert """'task.labels=["negative", "positive"]'""" in warning
    print_windows(settings)
    rows = [re.findall(r"\w+", line) for line in capsys.readouterr().out.splitlines()]
    assert rows[-4:-1] == [["positive", "9", "1"], ["negative", "6", "1"], ["positve", "1", "0"]]


def test_a_class_that_dev_or_test_alone_has_stops_before_training(folder: Path) -> None:
    for split in ("dev", "test"):
        path = write_lines(folder / "other.jsonl", labelled("x", "z", "z"))
        with pytest.raises(UserError, match=r"other\.jsonl:2: label `z` \(2 times\) .*task\.labels=\[\"x\", \"y\"\]"):
            task(f"task.{split}={path}")


def test_stated_labels_are_the_set_in_their_order(folder: Path) -> None:
    write_lines(folder / "train.jsonl", labelled(1, 0, 1, 2))
    write_lines(folder / "dev.jsonl", labelled(3))
    with pytest.raises(UserError, match=r"train\.jsonl:4: label `2` is none of task\.labels"):
        task("task.labels=[1, 0]")
    with pytest.raises(UserError, match=r"dev\.jsonl:1: label `3` is none of task\.labels"):
        task("task.labels=[2, 1, 0]")
    settings = task("task.labels=[3, 2, 1, 0]")  # 3 cannot be learnt, but is stated
    assert settings.labels == ["3", "2", "1", "0"] and classes_of(settings)["train"]["3"] == 0
    with pytest.raises(UserError, match=r"labels: names `1` twice"):
        task("task.labels=[1, 0, 1]")


def test_skip_leaves_out_rows_without_a_label_and_with_an_unknown_one(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    train = write_lines(folder / "train.jsonl", labelled("x", None, "y", "z"))
    write_lines(folder / "dev.jsonl", labelled("x", "y", "w", ""))
    with pytest.raises(UserError, match=r"train\.jsonl:2: no label; .*`task\.wrong=skip`"):
        task()
    settings = task("task.wrong=skip", "task.labels=[x, y]")
    assert [one.id for one in examples_of(settings, "train")] == ["1", "3"]
    assert [one.id for one in examples_of(settings, "validation")] == ["1", "2"]
    lines = [line for line in caplog.messages if "left out for their labels" in line]
    assert f"{train.name}: 2 examples are left out for their labels, the first: train.jsonl:2: no label" in lines
    settings = task("task.wrong=skip")
    assert settings.labels == ["x", "y", "z"]
    assert [one.id for one in examples_of(settings, "validation")] == ["1", "2"]
    everything = examples_of(settings, "predict")
    assert [one.id for one in everything] == ["1", "2", "3", "4"], "predictions need no label"
    write_lines(folder / "dev.jsonl", labelled("w"))
    with pytest.raises(UserError, match="label `w` is unknown; no example is left in it"):
        task("task.wrong=skip")


def test_tags_are_counted_by_their_tokens(folder: Path) -> None:
    lines = [{"tokens": ["a", "b", "c"], "tags": ["B-X", "I-X", "O"]}, {"tokens": ["a"], "tags": ["O"]}]
    write_lines(folder / "train.jsonl", lines)
    write_lines(folder / "dev.jsonl", lines[1:])
    settings = task("task.kind=tag")
    assert classes_of(settings) == {"train": {"O": 2, "B-X": 1, "I-X": 1}, "dev": {"O": 1, "B-X": 0, "I-X": 0}}
    write_lines(folder / "dev.jsonl", json.loads(json.dumps(lines).replace("I-X", "I-Y")))
    with pytest.raises(UserError, match=r"dev\.jsonl:1: label `I-Y` .*did you mean `I-X`"):
        task("task.kind=tag")
