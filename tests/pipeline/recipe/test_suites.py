"""Suites: the tasks of CLUE, GLUE and of long documents, the model that they score, and their table."""

import json
import shutil
from pathlib import Path

import pytest

from reread.pipeline.commands.run import run
from reread.pipeline.recipe.layers import SAMPLES, suite_recipes
from reread.pipeline.recipe.load import load_recipe, recipe_values
from reread.pipeline.recipe.suite import suite_of
from reread.pipeline.recipe.then import task_files
from reread.pipeline.report.papers import published_table
from reread.pipeline.report.suite import as_markdown
from reread.pipeline.slurm.submit import submit_recipe
from reread.preprocessing.errors import UserError
from tests.pipeline.commands.test_finetuning import jobs_of
from tests.tasks import SIZES, write_tokenizer

TASKS = {
    "suite-clue": "afqmc tnews iflytek cmnli ocnli wsc csl cmrc2018 chid c3",
    "suite-glue": "cola sst2 mrpc stsb qqp mnli qnli rte wnli",
    "suite-long": "imdb hyperpartisan triviaqa wikihop hotpotqa arxiv",
}


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_the_suites_are_those_of_the_table() -> None:
    assert suite_recipes() == sorted(TASKS)


@pytest.mark.parametrize("name", TASKS)
def test_every_task_of_a_suite_has_examples_that_ship_and_published_scores(name: str) -> None:
    tiny, family = load_recipe(name, ["scale=tiny"]), name.removeprefix("suite-")
    assert [one.recipe for one in tiny.then] == [f"{family}-{task}" for task in TASKS[name].split()]
    assert tiny.mean and tiny.train is not None and tiny.train.steps == 20
    for one in tiny.then:
        assert one.owner and one.overrides == ["scale=tiny", f"name={one.recipe.removeprefix(f'{family}-')}"]
        for split, (stated, found) in task_files(tiny, one).items():
            assert (found == stated and found.is_relative_to(SAMPLES)) or split == "test", one.recipe
        values = recipe_values(one.recipe, [], "train")
        assert "Files" in values["description"] and values["finetune"]["published"]
        if family != "long":
            grid = recipe_values(one.recipe, ["scale=grid"])["finetune"]["grid"]
            assert grid["optimizer.learning_rate"] == [2e-5, 3e-5, 5e-5] and grid["global_batch"] == [16, 32]


def test_the_mean_of_published_scores_is_the_published_mean(tmp_path: Path) -> None:
    """PaddleNLP's table has 72.57 for BERT-base and 74.11 for RoBERTa-wwm-ext."""
    suite = suite_of("suite-clue", ["init=model"])
    assert suite is not None
    table = published_table(suite, tmp_path)
    assert table is not None and table.columns[-1] == "mean, tasks"
    rows = dict(table.rows)
    assert rows["BERT-base (dev)"][-1] == "72.57 (10)" and rows["RoBERTa-wwm-ext (dev)"][-1].startswith("74.1")
    assert rows["ours (dev)"][-1] == "-"
    text = as_markdown(suite, table)
    assert text.count("\n| ") == 2 + len(rows) and "| 72.57 (10) |" in text


def test_a_mean_is_of_the_tasks_that_ours_have_and_of_correlations_in_points(tmp_path: Path) -> None:
    kept = {"stsb": {"pearson": 0.8, "spearman": 0.7}, "rte": {"accuracy": 60.0}}
    for task, scores in kept.items():
        folder = tmp_path / f"suite-glue-{task}"
        folder.mkdir()
        (folder / "scores.json").write_text(json.dumps({"dev": scores}))
        values = recipe_values(
            f"glue-{task}", ["task.train=t.tsv", "task.dev=d.tsv", "model.type=nezha", "steps=1"], "train"
        )
        values["train"]["data"]["tokenizer"] = "model"
        (folder / "recipe.yaml").write_text(json.dumps(values))
        examples = {"stsb": 1500, "rte": 277}[task]
        (folder / "mistakes.json").write_text(json.dumps({"d.tsv": {"examples": examples}}))
    suite = suite_of("suite-glue", ["init=model"])
    assert suite is not None
    table = published_table(suite, tmp_path)
    assert table is not None
    rows = dict(table.rows)
    assert rows["ours (dev)"][-1] == "67.50 (2)"
    assert rows["BERT-base (dev)"][-1] == f"{((88.64 + 88.48) / 2 + 65.7) / 2:.2f} (2)"


def tasks(*folders: str) -> Path:
    for folder in folders:
        shutil.copytree(SAMPLES / "suites" / folder, Path("mine") / folder)
    return Path("mine")


def model() -> Path:
    folder = write_tokenizer(Path("model"))
    values = {"model_type": "nezha", "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4}
    (folder / "config.json").write_text(json.dumps({**values, **SIZES["nezha"], "vocab_size": 32}))
    return folder


def test_settings_of_the_command_line_are_those_of_each_task(caplog: pytest.LogCaptureFixture) -> None:
    given = ["init=model", "finetune.seeds=2", "tasks=mine", "name=other", "scale=tiny", "optimizer.eps=1e-5"]
    suite = suite_of("suite-clue", given)
    assert suite is not None and suite.train is None and suite.preprocess is None
    assert (suite.name, suite.tasks) == ("other", Path("mine"))
    shared = ["init=model", "finetune.seeds=2", "optimizer.eps=1e-5"]
    assert {tuple(one.overrides[2:]) for one in suite.then} == {tuple(shared)}
    assert suite_of("suite-clue", ["scale=tiny"]) is None  # which trains a model first
    assert suite_of("nezha-base", ["init=model"]) is None


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("suite-clue", [], "scores a model that you have; give init=MODEL"),
        ("suite-clue", ["init=model", "tasks=gone"], "gone: holds the data of none of the 10 tasks; give tasks=FOLDER"),
        ("suite-clue", ["init=model", "tasks=mine", "optimizer.epps=1"], "did you mean `train.optimizer.eps`"),
        ("suite-clue", ["init=model", "tasks=mine", "scale=tinny"], "did you mean `tiny`"),
        ("suite-klue", ["init=model"], "did you mean `suite-glue`|did you mean `suite-clue`"),
        ("suite-clue", ["init=gone", "tasks=mine"], "init: gone holds no config.json"),
        (
            "suite-clue",
            ["init=model", "tasks=mine", "task.test=mine/afqmc_public/test.json"],
            "`reread predict` writes",
        ),
    ],
)
def test_mistakes_are_one_line(name: str, given: list[str], message: str) -> None:
    model()
    lines = (tasks("afqmc_public") / "afqmc_public" / "dev.json").read_text().splitlines()
    unlabelled = [{key: value for key, value in json.loads(line).items() if key != "label"} for line in lines]
    Path("mine/afqmc_public/test.json").write_text("".join(json.dumps(one) + "\n" for one in unlabelled))
    with pytest.raises(UserError, match=message) as caught:
        run(name, given)
    assert "\n" not in str(caught.value) and not Path("runs").exists()


def test_a_task_without_its_files_is_left_out_with_a_line_and_slurm_has_the_others(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    model()
    folder = tasks("afqmc_public", "tnews_public", "csl_public")
    (folder / "csl_public").rename(folder / "CSL")
    (folder / "tnews_public" / "dev.json").unlink()
    with caplog.at_level("INFO", "reread"):
        submit_recipe("suite-clue", ["init=model", "tasks=mine", "scale=tiny", "finetune.seeds=2"], None, dry_run=True)
    left_out = [line for line in caplog.messages if "is left out" in line]
    assert len(left_out) == 9
    assert any("mine/csl_public/dev.json are not there (is it mine/CSL?). CLUE" in line for line in left_out)
    assert any("left out: mine/tnews_public/dev.json is not there. CLUE" in line for line in left_out)
    scripts = jobs_of(capsys.readouterr().out)
    assert list(scripts) == ["finetune.sbatch", "report.sbatch", "submit.sh"]
    assert "#SBATCH --array=0-1\n" in scripts["finetune.sbatch"]
    assert 'submit report --dependency="afterany:${jobs[finetune]}"' in scripts["submit.sh"]
    assert not Path("runs").exists()
