"""`phases` of a recipe: how they are read, and what is refused."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from reread.pipeline.recipe.check import check_same_run, check_train
from reread.pipeline.recipe.load import load_recipe, recipe_of, write_recipe
from reread.pipeline.recipe.phases import phases_of
from reread.pipeline.recipe.schema import Recipe, train_section
from reread.preprocessing.errors import UserError

TRAIN: dict[str, Any] = {
    "model": {"type": "nezha", "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "vocab_size": 99},
    "data": {"corpus": "corpus", "sequence_length": 128},
    "batch_tokens": 12800,
    "optimizer": {"learning_rate": 0.1},
    "writers": [],
}
PHASES: list[dict[str, Any]] = [
    {"steps": 90},
    {"steps": 10, "data": {"sequence_length": 512, "masking": {"probability": 0.3}}},
    {"steps": 20, "optimizer": {"learning_rate": 0.2}, "schedule": {"restart": True, "decay": "constant"}},
]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def load(*overrides: str, phases: Any = PHASES, **train: Any) -> Recipe:
    Path("three.yaml").write_text(yaml.safe_dump({"name": "three", "train": {**TRAIN, **train}, "phases": phases}))
    return load_recipe("three.yaml", list(overrides), "train")


def test_each_phase_is_the_run_that_goes_on_from_the_one_before() -> None:
    recipe = load()
    one, two, three = phases_of(recipe)
    assert train_section(recipe).steps == 120
    assert [phase.steps for phase in (one, two, three)] == [90, 100, 120]
    assert [phase.from_run for phase in (one, two, three)] == [None, "runs/three@90", "runs/three@100"]
    assert [phase.global_batch for phase in (one, two, three)] == [100, 25, 100]  # of so many tokens
    assert [phase.schedule_ends for phase in (one, two, three)] == [100, 100, 120]  # where the next schedule begins
    assert (two.data.sequence_length, two.data.masking.probability, three.data.sequence_length) == (512, 0.3, 128)  # type: ignore[attr-defined]
    assert (two.optimizer.learning_rate, three.optimizer.learning_rate) == (0.1, 0.2)
    assert load("phases.2.steps=5", "phases.1.steps=7").phases[1]["steps"] == 5


def test_the_tokens_of_a_phase_are_steps_of_its_own_batch_and_length(caplog: pytest.LogCaptureFixture) -> None:
    schedule = {"restart": True, "decay_tokens": 5120, "warmup_tokens": 2561}
    long = {"tokens": 25601, "data": {"sequence_length": 512}, "batch_tokens": 2560, "schedule": schedule}
    with caplog.at_level("INFO", logger="reread"):
        recipe = load(phases=[{"tokens": 1.28e5, "schedule": {"warmup_tokens": 12801}}, long])
    one, two = phases_of(recipe)
    assert (one.steps, one.schedule.warmup_steps, one.schedule.decay_steps) == (10, 2, None)
    assert (two.steps, two.schedule.warmup_steps, two.schedule.decay_steps) == (10 + 11, 2, 2)
    assert [phase["steps"] for phase in recipe.phases] == [10, 11] and train_section(recipe).steps == 21
    lines = [record.getMessage() for record in caplog.records if ".steps" in record.getMessage()]
    assert lines == [
        "phases.1.steps: 10 steps of 100 rows of 128 tokens, as phases.1.tokens is 128,000",
        "phases.2.steps: 11 steps of 5 rows of 512 tokens, as phases.2.tokens is 25,601",
    ]
    changed = load(
        "phases.2.steps=6", "phases.1.tokens=12800", "phases.2.schedule.warmup_steps=1", phases=[*PHASES[:1], long]
    )
    assert [phase["steps"] for phase in changed.phases] == [1, 6] and phases_of(changed)[1].schedule.warmup_steps == 1
    with pytest.raises(UserError, match=r"`schedule\.warmup_steps=9`: phase 2 sets it, too; write phases\.2\.sch"):
        load("schedule.warmup_steps=9", phases=[*PHASES[:1], long])


def test_the_recipe_of_a_run_is_read_as_it_was_and_is_that_of_the_last_phase_for_other_commands() -> None:
    recipe, run = load(), Path("runs/three")
    run.mkdir(parents=True)
    write_recipe(recipe, run / "recipe.yaml")
    assert phases_of(load_recipe("runs/three", [], "train")) == phases_of(recipe)
    (run / "checkpoints" / "step-00000095").mkdir(parents=True)
    own = {"from_run": None}
    for step, number in ((None, 1), (90, 0), (91, 1), (120, 2)):
        found = recipe_of(run, step=step)
        assert not found.phases and found.train == phases_of(recipe)[number].model_copy(update=own)
    check_same_run(run, recipe)
    with pytest.raises(UserError, match=r"phases\.2\.data\.masking\.probability: 0\.3 -> 0\.4"):
        check_same_run(run, load("phases.2.data.masking.probability=0.4"))


@pytest.mark.parametrize(
    ("phases", "line"),
    [
        (
            [{"steps": 5, "data": {"sequence_lenght": 8}}],
            "three.yaml: phase 1: unknown key `train.data.sequence_lenght`; did",
        ),
        (
            [{"steps": 5}, {"steps": 5, "lr": 1}],
            "phase 2: unknown key `train.lr`; `train.optimizer.learning_rate` is what you",
        ),
        ([{"steps": 5, "data": {"sequence_length": -8}}], "phase 1: data.sequence_length: "),
        ([{"data": {"sequence_length": 8}}], "phase 1: steps: give the phase its own number of steps"),
        ([{"steps": 0}], "phase 1: steps: give the phase its own number of steps, from 1 on (got 0)"),
        ([{"steps": 5, "tokens": 99999}], "phase 1: steps and tokens are both given"),
        ([{"tokens": 99}], "phase 1: tokens is 99, and a step has 12,800 tokens"),
        ([{"steps": 5, "init": "folder"}], "phase 1: init is the same for all phases; set it in train.init"),
        ([{"steps": 5, "parallel": {"tensor": 2}}], "phase 1: parallel.tensor is the same for all phases"),
        ([{"steps": 5, "model": {"type": "ran"}}], "phase 1: model.type is the same for all phases"),
        ([{"steps": 5, "model": {"window": 9}}], "phase 1: model.window: state it in train.model, too"),
        ([{"steps": 5, "schedule": {"restart": True, "decay_steps": 9}}], "more than the schedule's 5 steps"),
        ("steps", "phases: a list of settings of `train`"),
    ],
)
def test_a_wrong_phase_is_one_line_with_its_number(phases: Any, line: str) -> None:
    with pytest.raises(UserError, match=re.escape(line)) as caught:
        phases_of(load(phases=phases))
    assert "\n" not in str(caught.value) and ": : " not in str(caught.value)


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("steps=7", "train.steps is 7, but the phases have 120 together; leave it out"),
        ("tokens=1e6", "train.tokens: how many tokens a step has is up to the phase; give tokens there"),
        ("schedule.warmup_tokens=1e6", "is up to the phase; give schedule.warmup_tokens there"),
        ("patience=2", "begins at step 0 and takes all its steps; leave out train.from_run and train.patience"),
        (
            "data.sequence_length=64",
            "`data.sequence_length=64`: phase 2 sets it, too; write phases.2.data.sequence_len",
        ),
        ("phases.4.steps=1", "the recipe has the phases 1 to 3"),
    ],
)
def test_an_override_that_phases_contradict_is_one_line(override: str, line: str) -> None:
    with pytest.raises(UserError, match=re.escape(line)):
        load(override)


def test_a_phase_may_set_what_its_kind_of_data_has() -> None:
    data = {"kind": "segments", "corpus": "corpus", "sequence_length": 128}
    phases = [{"steps": 1}, {"steps": 1, "data": {"reorder_chunks": 2}}, {"steps": 1, "data": {"kind": "rows"}}]
    assert [phase.data.kind for phase in phases_of(load(phases=phases[:2], data=data))] == ["segments", "segments"]
    line = re.escape("phase 3: data.corpora: give either `corpus` or `corpora`")  # another kind is all new
    with pytest.raises(UserError, match=line):
        load(phases=phases, data=data)


def test_a_model_of_another_size_is_refused_before_any_work() -> None:
    with pytest.raises(
        UserError, match=r"phase 2: its train\.model has other sizes .*LayerNorm\.bias \[64\] here, \[32\] there"
    ):
        check_train(load(phases=[{"steps": 1}, {"steps": 1, "model": {"hidden_size": 64}}]))
    check_train(load(phases=[{"steps": 1}, {"steps": 1, "data": {"next_sentence": False}}]))


def test_an_override_of_a_phase_leaves_others_that_share_an_anchor(tmp_path: Path) -> None:
    text = "base: nezha-small\nname: x\nphases: [&a {steps: 2, optimizer: {weight_decay: 0.1}}, *a]\n"
    (tmp_path / "x.yaml").write_text(f"{text}train: {{steps: null}}\n")
    first, second = phases_of(load_recipe(str(tmp_path / "x.yaml"), ["phases.2.optimizer.weight_decay=0.3"]))
    assert (first.optimizer.weight_decay, second.optimizer.weight_decay) == (0.1, 0.3)
