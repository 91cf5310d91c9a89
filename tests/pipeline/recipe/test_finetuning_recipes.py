"""The built-in recipes of `reread finetune`: the papers' values, settings that parse, and their place among others."""

import inspect
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from reread.pipeline.cli import app
from reread.pipeline.recipe.layers import available_recipes, finetuning_recipes, recipe_layers, suite_recipes
from reread.pipeline.recipe.load import load_recipe, recipe_values, write_recipe
from reread.pipeline.recipe.schema import Recipe
from reread.preprocessing.errors import UserError
from reread.preprocessing.labelled.formats.table import FORMATS
from reread.training.data.kinds import KINDS
from reread.training.data.tasks.answer_settings import AnswerSettings
from reread.training.data.tasks.settings import TaskSettings
from reread.training.models import model_spec
from reread.training.scoring.task_scores import SCORES

MODELS = {
    "nezha": "nezha",
    "ernie-doc": "ernie_doc",
    "longformer": "longformer",
    "ran": "ran",
    "bert": "nezha",
    "roberta": "longformer",
    "led": "led",
}


NEUTRAL = ("answer", "choose", "classify", "coreference", "embed", "generate", "phrases", "rank", "tag")
UNMEASURED = ("evidence", "minilm-embed", "simcse")
"""Recipes of no score in a paper."""
PAPERS = [name for name in finetuning_recipes() if name not in (*NEUTRAL, *UNMEASURED)]
OF_NO_KNOWN_SIZE = ("clue-chid",)
"""Recipes whose scores are of a number of examples that is not published."""
FORM = "-as-published"
"""The end of a recipe that is another form of its base, and shares its scores."""


def model_of(name: str) -> str:
    return next((model for prefix, model in MODELS.items() if name.startswith(f"{prefix}-")), "nezha")


def completed(name: str, *overrides: str) -> Recipe:
    """The recipe with stand-ins for what the model and the examples give."""
    given = ["task.train=train.txt", "task.tokenizer=model", "steps=10", f"model.type={model_of(name)}"]
    return load_recipe(name, [*given, *overrides], "train")


def parts(name: str) -> tuple[Any, Any, Any]:
    """The sections finetune and train of a recipe, and its task."""
    return parts_of(completed(name))


def parts_of(recipe: Recipe) -> tuple[Any, Any, Any]:
    assert recipe.finetune is not None and recipe.train is not None
    return recipe.finetune, recipe.train, recipe.train.data


@pytest.mark.parametrize("name", finetuning_recipes())
def test_every_finetuning_recipe_parses_once_model_and_examples_are_known(name: str) -> None:
    recipe = completed(name)
    finetune, train, task = parts(name)
    assert recipe.name == name
    assert "Files" in recipe.description
    assert isinstance(task, TaskSettings)
    assert task.format is None or task.kind in FORMATS[task.format].tasks
    assert task.other_length is None or task.other_length < task.sequence_length
    assert train.optimizer.name == "adam"
    assert train.automatic == ["micro_batch"]  # nothing of a recipe is for a device that its author had
    spec = model_spec(model_of(name))
    assert set(train.model) <= {"type", *inspect.signature(spec.config).parameters, *spec.own_keys}
    assert bool(finetune.published) == (name in PAPERS)
    assert bool(finetune.published_sizes) == (name in PAPERS and name not in OF_NO_KNOWN_SIZE)
    for row in finetune.published:
        assert set(row.scores) <= set(SCORES[task.scored_as])


@pytest.mark.parametrize("name", ["longformer-imdb", "nezha-peopledaily", "ernie-doc-drcd", "bert-c3"])
@pytest.mark.parametrize(
    ("override", "right"),
    [
        ("task.sequence_lenght=9", "train.data.sequence_length"),
        ("finetune.epoch=9", "finetune.epochs"),
        ("optimizer.layer_decays=1", "train.optimizer.layer_decay"),
        ("schedule.warmup_step=9", "train.schedule.warmup_steps"),
    ],
)
def test_an_unknown_key_of_a_finetuning_recipe_is_an_error(name: str, override: str, right: str) -> None:
    with pytest.raises(UserError, match=rf"unknown key .*did you mean `{re.escape(right)}`"):
        completed(name, override)


def test_each_finetuning_recipe_has_published_scores_of_its_own() -> None:
    """A recipe with a base would otherwise print the base's scores beside its own."""
    published = [str(parts(name)[0].published) for name in PAPERS if not name.endswith(FORM)]
    assert len(set(published)) == len(published)


def test_the_scores_and_the_sizes_of_their_data_are_stated_together() -> None:
    """A recipe with a base would otherwise take its own scores for those of the base's data."""
    for name in PAPERS:
        *bases, (_, own) = recipe_layers(name)
        of_base = name.endswith(FORM) and bases[-1][0] == f"{name.removesuffix(FORM)}.yaml"
        assert of_base or {"published", "published_sizes"} <= own["finetune"].keys(), name


def test_neutral_recipes_are_one_for_each_kind_of_task_and_hold_no_papers_numbers() -> None:
    kinds = {name for name, kind in KINDS.items() if issubclass(kind.settings, TaskSettings)}
    assert kinds == set(NEUTRAL)
    for name in NEUTRAL:
        finetune, train, task = parts(name)
        assert (task.kind, task.format, finetune.published) == (name, None, [])
        assert "sequence_length" not in recipe_values(name, [])["train"]["data"]  # that of the model
        assert train.optimizer.learning_rate == 3e-5
        assert parts_of(completed(name, "scale=small"))[1].optimizer.learning_rate == 3e-4
    assert parts("answer")[2].answer_length == 100


@pytest.mark.parametrize("kind", NEUTRAL)
def test_a_tasks_recipe_without_base_begins_with_the_neutral_one(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text(f"name: mine\ntask: {{kind: {kind}, train: a.jsonl}}\nfinetune: {{epochs: 7}}\n")
    with caplog.at_level("INFO", "reread"):
        values = recipe_values(str(mine), [])
    neutral = recipe_values(kind, ["name=mine", "task.train=a.jsonl", "finetune.epochs=7"])
    assert {**values, "description": ""} == {**neutral, "description": ""}
    assert caplog.messages == [
        f"{mine}: has no `base`, so values that it does not set are those of the recipe `{kind}`"
    ]
    mine.write_text("name: mine\ntrain: {data: {corpus: zh}}\n")
    assert recipe_values(str(mine), []) == {"name": "mine", "train": {"data": {"corpus": "zh"}}}


def test_names_of_finetuning_recipes_are_not_those_of_other_recipes() -> None:
    assert len(finetuning_recipes()) > 25
    assert not set(finetuning_recipes()) & set(available_recipes())


@pytest.mark.parametrize(
    ("name", "rate", "epochs", "batch", "length"),
    [
        ("nezha-cmrc2018", 3e-5, 2, 16, 384),
        ("nezha-xnli", 3e-5, 3, 64, 128),
        ("nezha-lcqmc", 3e-5, 5, 64, 128),
        ("nezha-peopledaily", 3e-5, 5, 64, 256),
        ("nezha-chnsenticorp", 3e-5, 10, 64, 256),
        ("longformer-imdb", 3e-5, 15, 32, 4096),
        ("longformer-hyperpartisan", 3e-5, 15, 32, 4096),
        ("longformer-wikihop", 3e-5, 15, 32, 4096),
        ("longformer-triviaqa", 3e-5, 5, 32, 4096),
        ("ran-arxiv", 5e-5, 30, 32, 2048),
        ("ran-agnews", 5e-5, 50, 512, 128),
        ("ran-20newsgroups", 3e-5, 200, 64, 1024),
        ("ran-hyperpartisan", 5e-5, 50, 16, 4096),
        ("ran-eurlex", 5e-5, 50, 32, 1024),
        ("ran-booksummary", 2e-5, 50, 16, 1024),
    ],
)
def test_finetuning_recipes_hold_the_papers_numbers(
    name: str, rate: float, epochs: float, batch: int, length: int
) -> None:
    finetune, train, task = parts(name)
    found = (train.optimizer.learning_rate, finetune.epochs, train.global_batch, task.sequence_length)
    assert found == (rate, epochs, batch, length)
    assert train.optimizer.layer_decay == 1
    assert finetune.warmup_share == (0 if name.startswith("ran-") else 0.1)


@pytest.mark.parametrize(
    ("name", "rate", "epochs", "decay", "segments", "windows"),
    [
        ("ernie-doc-imdb", 7e-5, 3, 1, 32, 1.33),
        ("ernie-doc-large-imdb", 1e-5, 3, 0.9, 32, 1.33),
        ("ernie-doc-hyperpartisan", 1e-4, 15, 0.7, 32, 3.89),
        ("ernie-doc-large-hyperpartisan", 4e-6, 15, 1, 16, 3.89),
        ("ernie-doc-triviaqa", 3e-5, 5, 0.8, 64, None),
        ("ernie-doc-large-triviaqa", 5e-6, 3, 0.9, 64, None),
        ("ernie-doc-openkp", 1.5e-4, 5, 0.8, 32, None),
        ("ernie-doc-iflytek", 1.5e-4, 5, 0.8, 16, 1.14),
        ("ernie-doc-thucnews", 1.5e-4, 16, 0.8, 16, None),
        ("ernie-doc-cmrc2018", 1.75e-4, 5, 0.8, 64, 1.72),
        ("ernie-doc-drcd", 2.25e-4, 5, 0.8, 64, 1.53),
        ("ernie-doc-dureader", 2.75e-4, 5, 0.8, 64, None),
        ("ernie-doc-c3", 1e-4, 8, 0.8, 24, 1.13),
        ("ernie-doc-cail2019", 5e-5, 15, 0.8, 48, None),
    ],
)
def test_ernie_docs_finetuning_recipes_hold_the_papers_numbers(
    name: str, rate: float, epochs: float, decay: float, segments: int, windows: float | None
) -> None:
    """The paper's batches count segments; `windows` are those of a document, where they were counted."""
    finetune, train, task = parts(name)
    found = (train.optimizer.learning_rate, finetune.epochs, train.optimizer.layer_decay)
    assert found == (rate, epochs, decay)
    assert (task.sequence_length, task.step, finetune.warmup_share) == (512, 128, 0.1)
    assert (task.head_dropout or 0.1) == (0.2 if name == "ernie-doc-cmrc2018" else 0.1)
    if windows is None:
        assert train.global_batch < segments
    else:
        assert train.global_batch == round(segments / windows)


@pytest.mark.parametrize("name", [name for name in PAPERS if name.endswith(FORM) and name.startswith("ernie-doc")])
def test_ernie_docs_recipes_as_published_differ_from_those_as_released_in_what_the_paper_says(name: str) -> None:
    """Documents are read twice, the last [CLS] learns and predicts, [q] and [/q] are tokens."""
    ours, released = parts(name), parts(name.removesuffix(FORM))
    form = {"retrospective": True}
    if ours[2].kind in ("classify", "choose"):
        form |= {"learns": "last", "predict": "last"}
    if ours[2].kind == "answer" and "hotpotqa" not in name:  # whose marks are tokens already
        form |= {"question_form": "[q]{question}[/q]", "question_tokens": True}
    if "cail" in name:
        form |= {"form": "aligned", "other_length": None}
    if "c3" in name:
        form |= {"question_option_length": 62, "other_length": None}
    assert ours[2] == released[2].model_copy(update=form)
    assert ours[1].optimizer == released[1].optimizer and ours[1].global_batch == released[1].global_batch
    assert ours[0].seeds == (5 if load_recipe("paper-ernie-doc-zh", []).model_dump_json().count(f'"{name}"') else 1)


def test_published_scores_are_named_as_ours_and_as_the_papers() -> None:
    def score(name: str, model: str) -> dict[str, float]:
        return next(row.scores for row in parts(name)[0].published if row.model == model)

    assert score("nezha-peopledaily", "NEZHA-base (dev)") == {"token-f1": 97.22}  # over tokens, not entities
    assert score("ernie-doc-hyperpartisan", "ERNIE-Doc-base") == {"positive-f1": 96.3}
    assert score("longformer-wikihop", "Longformer-base") == {"accuracy": 75.0}
    assert score("ran-arxiv", "RAN") == {"accuracy": 85.92}
    assert score("ran-eurlex", "RAN") == {"micro-f1": 73.94}
    assert score("ernie-doc-drcd", "ERNIE-Doc-base (test)") == {"em": 90.5, "f1": 95.1}
    assert parts("longformer-hyperpartisan")[0].seeds == 5


def test_chinese_questions_are_scored_by_their_own_metric() -> None:
    tasks = {name: parts(name)[2] for name in finetuning_recipes()}
    styles = {name: task.style for name, task in tasks.items() if isinstance(task, AnswerSettings)}
    for name, style in styles.items():
        english = next((one for one in ("triviaqa", "hotpotqa") if name.removesuffix(FORM).endswith(one)), "cmrc")
        assert style == english


@pytest.mark.parametrize("section", ["train", "preprocess", None])
def test_other_commands_refer_a_finetuning_recipe_to_reread_finetune(section: str | None) -> None:
    for name in finetuning_recipes():
        with pytest.raises(UserError) as caught:
            load_recipe(name, [], section)
        assert str(caught.value) == (
            f"recipe {name}: fine-tunes a model; start it by "
            f"`reread finetune {name} init=FOLDER task.train=FILE task.dev=FILE`"
        )


def test_a_pretraining_recipe_with_a_task_is_referred_to_reread_finetune() -> None:
    with pytest.raises(UserError, match="start it by `reread finetune nezha-base "):
        load_recipe("nezha-base", ["task.kind=classify", "task.train=a.tsv"], "train")


def test_the_recipe_of_a_finetuned_run_is_whole(tmp_path: Path) -> None:
    recipe = completed("nezha-xnli")
    write_recipe(recipe, tmp_path / "recipe.yaml")
    assert load_recipe(str(tmp_path / "recipe.yaml"), []) == recipe


def test_a_misspelt_finetuning_recipe_is_named() -> None:
    with pytest.raises(UserError, match="did you mean `longformer-wikihop`"):
        recipe_values("longformer-wikihopp", [])


def test_a_recipe_of_the_users_has_a_finetuning_recipe_as_its_base(tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text("base: ernie-doc-drcd\nname: mine\ntask: {step: 64}\nfinetune: {epochs: 1}\n")
    values = recipe_values(str(mine), [])
    assert values["train"]["data"]["kind"] == "answer"
    assert (values["train"]["data"]["step"], values["finetune"]["epochs"]) == (64, 1)


def test_recipes_are_listed_in_groups() -> None:
    lines = CliRunner().invoke(app, ["recipes"]).stdout.splitlines()
    begin = lines.index("to fine-tune (reread finetune):")
    suites = lines.index("to score a model on a suite (reread run NAME init=MODEL):")
    assert [line.split()[0] for line in lines[1:suites]] == available_recipes()
    assert [line.split()[0] for line in lines[suites + 1 : begin]] == suite_recipes()
    assert [line.split()[0] for line in lines[begin + 1 :]] == finetuning_recipes()
