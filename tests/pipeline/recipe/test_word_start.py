"""The start of a fine-tuning from words (`finetune.words`): when it is made, under which name, and what is refused."""

from pathlib import Path

import pytest

from reread.pipeline.recipe.schema import task_section, train_section
from reread.pipeline.recipe.task import finetune_recipe
from reread.preprocessing.errors import UserError

TRAIN = "EU\tB-ORG\nand\tO\nPeter\tB-PER\n\n"
GIVEN = ["scale=tiny", "task.train=train.conll", "task.dev=dev.conll"]


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("train", "dev"):
        Path(f"{name}.conll").write_text(TRAIN)


def starts() -> list[str]:
    return sorted(f"runs/.starts/{one.name}" for one in Path("runs/.starts").glob("words-*") if one.is_dir())


def init_of(*overrides: str) -> str:
    return str(train_section(finetune_recipe("ran-conll", [*GIVEN, *overrides])).init)


def test_it_is_made_once_for_all_that_it_depends_on() -> None:
    recipe = finetune_recipe("ran-conll", GIVEN)
    task, train = task_section(recipe), train_section(recipe)
    assert starts() == [str(train.init)] == [str(task.tokenizer)]
    assert getattr(task, "characters", None) is True and task.frame == "bare"
    made = (Path(str(train.init)) / "model.safetensors").stat()
    assert init_of("train.global_batch=2", "name=other") == str(train.init)  # neither of which is in it
    assert (Path(str(train.init)) / "model.safetensors").stat() == made
    assert len({str(train.init), init_of("train.seed=7"), init_of("model.num_hidden_layers=1")}) == 3
    without = finetune_recipe("ran-conll", [*GIVEN, "model.character_filters=0"])
    assert getattr(task_section(without), "characters", None) is False


def test_mistakes_in_the_files_and_the_recipe_come_before_it() -> None:
    with pytest.raises(UserError, match=r"vectors have 3 numbers, but the model's words 16"):
        Path("v.txt").write_text("EU 1 2 3\n")
        init_of("finetune.words.vectors=v.txt")
    Path("dev.conll").write_text(TRAIN.replace("B-PER", "B-PRE"))
    with pytest.raises(UserError, match=r"dev.conll:1: label `B-PRE` .* did you mean `B-PER`"):
        init_of()
    with pytest.raises(UserError, match=r"finetune\.words makes a new model; say which by model\.type"):
        finetune_recipe("tag", [*GIVEN[1:], "finetune.words={}"])
    assert starts() == []
