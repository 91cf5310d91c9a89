"""Recipes that are papers: their tasks and where their data come from, the scale `tiny`, the report, hours and jobs."""

import json
import logging
import lzma
import re
from pathlib import Path

import pytest
import yaml

from reread.pipeline.commands.show import show
from reread.pipeline.estimate.hardware import cluster
from reread.pipeline.estimate.summary import print_estimate
from reread.pipeline.recipe.layers import SAMPLES, available_recipes
from reread.pipeline.recipe.load import load_recipe, recipe_values, write_recipe
from reread.pipeline.recipe.schema import train_section
from reread.pipeline.recipe.then import following, following_run, task_files
from reread.pipeline.report.papers import paper_table
from reread.pipeline.report.runs import Run
from reread.pipeline.slurm.submit import submit_recipe
from reread.preprocessing.errors import UserError
from tests.conftest import ROOT

PAPERS_DOC = (ROOT / "docs" / "papers.md").read_text(encoding="utf-8")
PAPERS = [name for name in available_recipes() if name.startswith("paper-")]
TASKS = {
    "paper-nezha": ["xnli", "lcqmc", "chnsenticorp", "peopledaily", "cmrc2018"],
    "paper-ernie-doc-zh": ["iflytek", "thucnews", "cmrc2018", "drcd", "dureader", "c3", "cail2019"],
    "paper-ernie-doc-en": ["imdb", "hyperpartisan", "triviaqa", "openkp"],
    "paper-ernie-doc-lm": [],
    "paper-ran": ["arxiv", "20newsgroups", "agnews", "hyperpartisan", "eurlex", "booksummary"],
    "paper-ran-as-published": ["arxiv", "20newsgroups", "agnews", "hyperpartisan", "eurlex", "booksummary"],
    "paper-longformer": ["wikihop", "triviaqa", "imdb", "hyperpartisan"],
}

BY_TEXT = {"paper-ran-as-published": (3e-4, ["optimizer.learning_rate=2.0e-5"])}
"""A paper whose text differs from what is released -> its rate of pretraining, and what its tasks change."""


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_the_papers_are_those_of_the_table() -> None:
    assert set(PAPERS) == set(TASKS)


@pytest.mark.parametrize("name", PAPERS)
def test_a_paper_is_its_pretraining_and_tasks_with_their_data(name: str) -> None:
    """At full size as its base recipe, which has the paper's numbers; `tiny` on text and examples that ship."""
    recipe, tiny = load_recipe(name, []), load_recipe(name, ["scale=tiny"])
    base = train_section(load_recipe(_base(name), []))
    same = {"steps", "global_batch", "schedule"} | (set() if name in BY_TEXT else {"optimizer", "model"})
    assert train_section(recipe).model_dump(include=same) == base.model_dump(include=same)
    published = [one for one in recipe.then if one.row == "as published" and name not in BY_TEXT]
    released = [one for one in recipe.then if one not in published]
    assert [one.recipe.rpartition("-")[2] for one in released] == TASKS[name]
    if published:
        assert {one.row for one in released} == {"as released"}
        same = {"train", "dev", "test", "owner"}
        assert [one.model_dump(include=same) for one in published] == [one.model_dump(include=same) for one in released]
        assert [one.recipe for one in published] == [f"{one.recipe}-as-published" for one in released]
    assert recipe.then or recipe.published
    for one in recipe.then:
        assert one.train and str(one.dev) == str(one.train).replace("train", "dev")
        assert str(one.test) in ("None", str(one.train).replace("train", "test"))
        row = next(line for line in PAPERS_DOC.splitlines() if line.startswith(f"| `{one.train}` |"))
        assert row.endswith(f"| {one.owner} |")
        values = recipe_values(one.recipe, one.overrides, "train")
        assert "Files" in values["description"] and values["finetune"]["published"]
    assert train_section(tiny).steps <= 20
    assert [one.overrides for one in tiny.then] == [["scale=tiny", *one.overrides] for one in recipe.then]
    for one in tiny.then:
        for split, (stated, found) in task_files(tiny, one).items():
            assert split == "test" or (found == stated and found.is_relative_to(SAMPLES))
    assert [one.recipe.name for one in following(tiny)] == [following_run(tiny, one) for one in tiny.then]


@pytest.mark.parametrize("name", BY_TEXT)
def test_a_paper_by_its_text_has_its_own_rates(name: str) -> None:
    recipe, (rate, changes) = load_recipe(name, []), BY_TEXT[name]
    train, released = train_section(recipe), train_section(load_recipe(_base(name), []))
    assert train.optimizer.learning_rate == rate and {tuple(one.overrides) for one in recipe.then} == {tuple(changes)}
    assert train.model == {**released.model, "profile": "paper", "zero_first_cell": True}
    assert [one.train for one in recipe.then] == [one.train for one in load_recipe(_base(name), []).then]


def _base(name: str) -> str:
    found = re.search(r"^base: (\S+)$", (Path(SAMPLES).parent / "recipes" / f"{name}.yaml").read_text(), re.MULTILINE)
    assert found
    return found[1]


def reviews(folder: Path, count: int = 8) -> Path:
    """ChnSentiCorp's folder in `folder`, its training file compressed: each text has 10 characters."""
    (folder / "chnsenticorp").mkdir(parents=True)
    rows = [f"{number % 2}\t{'好坏'[number % 2] * 9}。" for number in range(count)]
    text = "label\ttext_a\n" + "\n".join(rows) + "\n"
    (folder / "chnsenticorp" / "train.tsv.xz").write_bytes(lzma.compress(text.encode()))
    (folder / "chnsenticorp" / "dev.tsv").write_text(text)
    return folder


def test_missing_data_are_named_with_owner_and_form_and_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "reread"):
        found = following(load_recipe("paper-nezha", [f"tasks={reviews(tmp_path / 'mine')}"]))
    assert [one.recipe.name for one in found] == ["paper-nezha-nezha-chnsenticorp"]
    assert f"task.train={tmp_path}/mine/chnsenticorp/train.tsv.xz" in found[0].overrides
    lines = [line for line in caplog.messages if "left out" in line]
    assert [line.split()[1] for line in lines] == ["nezha-xnli", "nezha-lcqmc", "nezha-peopledaily", "nezha-cmrc2018"]
    assert lines[-1] == (
        f"then: nezha-cmrc2018 is left out: {tmp_path}/mine/cmrc2018/train.json and {tmp_path}/mine/cmrc2018/dev.json "
        "are not there. CMRC2018 (Cui et al. 2019): github.com/ymcui/cmrc2018. Files: JSON in SQuAD's form"
    )


def test_data_that_a_user_names_in_overrides_must_be_there() -> None:
    then = [{"recipe": "nezha-chnsenticorp", "overrides": ["task.train=nowhere.tsv"]}]
    with pytest.raises((UserError, FileNotFoundError), match=r"nowhere\.tsv"):
        following(load_recipe("nezha-small", [f"then={json.dumps(then)}"]))


def test_a_scale_is_over_the_recipe_and_its_bases_and_under_the_overrides(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "base.yaml").write_text("base: nezha-small\nscales: {short: {train: {steps: 5}}}\n")
    then = [{"recipe": "nezha-xnli", "overrides": ["name=other"]}]
    mine = {"base": "base.yaml", "name": "mine", "train": {"steps": 70}, "then": then}
    mine["scales"] = {"short": {"name": "mine-short", "train": {"global_batch": 8}}}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(mine))
    plain, short = load_recipe("mine.yaml", []), load_recipe("mine.yaml", ["global_batch=4", "scale=short"], "train")
    found = [(one.name, train_section(one).steps, train_section(one).global_batch) for one in (plain, short)]
    assert found == [("mine", 70, 1024), ("mine-short", 5, 4)]
    assert (plain.then[0].overrides, short.then[0].overrides) == (["name=other"], ["scale=short", "name=other"])
    show("mine.yaml", ["scale=short", "global_batch=4"])
    lines = capsys.readouterr().out.splitlines()
    assert any(re.fullmatch(r"  steps: 5 +# scale=short", line) for line in lines)
    assert any(re.fullmatch(r"  global_batch: 4 +# command line", line) for line in lines)


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        ("paper-ran", "recipe paper-ran: scale=tinny: did you mean `tiny`?"),
        ("nezha-small", "recipe nezha-small: scale=tinny: the recipe has no `scales`"),
        ("wrong.yaml", "wrong.yaml: scales: a mapping of names to sections, for example tiny: {train: {steps: 10}}"),
    ],
)
def test_a_scale_that_is_not_there_or_not_one_is_one_line(recipe: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "wrong.yaml").write_text("base: nezha-small\nscales: {tinny: 3}\n")
    with pytest.raises(UserError) as caught:
        load_recipe(recipe, ["scale=tinny"])
    assert str(caught.value) == message


SCORED = {"dev": 1100, "test": 1200}
"""Examples of ChnSentiCorp's files."""


def fine_tuned(run: Path, task: str, scores: dict[str, dict[str, float]], counts: dict[str, int]) -> None:
    """A run of `task` with `scores` on held-out files of as many examples as `counts` says."""
    files = [f"task.{split}={split}.tsv" for split in ("train", *counts)]
    run.mkdir(parents=True)
    write_recipe(
        load_recipe(task, [*files, "task.tokenizer=model", "steps=1", "model.type=nezha"], "train"), run / "recipe.yaml"
    )
    (run / "scores.json").write_text(json.dumps(scores))
    (run / "mistakes.json").write_text(json.dumps({f"{split}.tsv": {"examples": n} for split, n in counts.items()}))


def test_the_papers_table_stands_beside_ours(tmp_path: Path) -> None:
    """A row for each split, a column for each score, a note for each difference, and a line for each task without
    scores or without some of its seeds."""
    runs = tmp_path / "runs"
    scores = {
        "cmrc2018": {"dev": {"em": 60.0, "f1": 80.5, "average": 70}},
        "chnsenticorp-seed0": {"dev": {"accuracy": 90.0}, "test": {"accuracy": 89.0}},
        "chnsenticorp-seed1": {"dev": {"accuracy": 92.0}, "test": {"accuracy": 89.0}},
    }
    for name, kept in scores.items():
        task = f"nezha-{name.partition('-')[0]}"
        fine_tuned(runs / f"paper-nezha-nezha-{name}", task, kept, {"dev": 3219} if len(kept) == 1 else SCORED)
    reviews(tmp_path / "tasks")
    recipe = load_recipe("paper-nezha", [])
    recipe.then[2].overrides.append("finetune.seeds=3")
    table = paper_table(Run(runs / "paper-nezha", 0, recipe, [], [], []))
    assert table is not None
    cells = {(model, name): cell for model, row in table.rows for name, cell in zip(table.columns, row, strict=True)}
    best = [f"ours, best of seeds ({split})" for split in ("dev", "test")]
    ours = ["ours (dev)", best[0], "ours (test)", best[1]]
    assert [model for model, _ in table.rows[:5]] == [*ours, "NEZHA-base (dev)"]
    assert cells[best[0], "nezha-chnsenticorp, accuracy"] == "92.00"
    assert cells[best[0], "nezha-cmrc2018, f1"] == "-"
    assert cells["ours (dev)", "nezha-cmrc2018, f1"] == "80.50"
    assert cells["ours (dev)", "nezha-chnsenticorp, accuracy"] == "91.00 ± 1.41"
    assert cells["ours (test)", "nezha-chnsenticorp, accuracy"] == "89.00 ± 0.00"
    assert cells["ours (dev)", "nezha-xnli, accuracy"] == "-"
    assert cells["NEZHA-base (dev)", "nezha-xnli, accuracy"] == "81.37"
    number = re.fullmatch(r"86.35 \[(\d)\]", cells["NEZHA-base (dev)", "nezha-cmrc2018, f1"])
    assert number and f"[{number[1]}] learns first occurrences" in table.notes
    assert "nezha-xnli: tasks/xnli/train.tsv and tasks/xnli/dev.tsv are not there. XNLI" in "\n".join(table.notes)
    assert [note for note in table.notes if note.startswith("nezha-chnsenticorp")] == [
        "nezha-chnsenticorp: 2 of 3 seeds"
    ]


def test_a_task_as_released_and_as_published_is_one_column_with_a_row_each(tmp_path: Path) -> None:
    """Of several seeds the best is a row, too."""
    runs = tmp_path / "runs"
    scores = {"": 60.0, "-as-published-seed0": 61.0, "-as-published-seed1": 64.0}
    for end, accuracy in scores.items():
        task = f"ernie-doc-iflytek{end}"
        own = {"dev": {"accuracy": accuracy, "macro-f1": 1.0}}
        fine_tuned(runs / f"paper-ernie-doc-zh-{task}", task.partition("-seed")[0], own, {"dev": 2599})
    table = paper_table(Run(runs / "paper-ernie-doc-zh", 0, load_recipe("paper-ernie-doc-zh", []), [], [], []))
    assert table is not None and table.columns.count("ernie-doc-iflytek, accuracy") == 1
    number = table.columns.index("ernie-doc-iflytek, accuracy")
    assert [(name, cells[number].partition(" ")[0]) for name, cells in table.rows[:4]] == [
        ("ours, as released (dev)", "60.00"),
        ("ours, as published (dev)", "62.50"),
        ("ours, as published, best of seeds (dev)", "64.00"),
        ("ERNIE-Doc-base (dev)", "62.4"),
    ]
    assert "ernie-doc-iflytek-as-published: 2 of 5 seeds" in table.notes


def test_the_papers_scores_of_other_data_than_ours_are_not_beside_them(tmp_path: Path) -> None:
    """Their column stays, and a note says why it is empty; a task without scores of ours has theirs."""
    ours: dict[str, dict[str, float]] = {"dev": {"accuracy": 90.0, "auc": 95.0}}
    for counts, why in ({"dev": 300}, "dev 300"), ({}, "of no known size"):
        runs = tmp_path / str(len(counts))
        fine_tuned(runs / "paper-nezha-nezha-chnsenticorp", "nezha-chnsenticorp", ours, counts)
        table = paper_table(Run(runs / "paper-nezha", 0, load_recipe("paper-nezha", []), [], [], []))
        assert table is not None
        number = table.columns.index("nezha-chnsenticorp, accuracy")
        rows = dict(table.rows)
        assert (rows["ours (dev)"][number], rows["NEZHA-base (dev)"][number]) == ("90.00", "-")
        assert rows["NEZHA-base (dev)"][table.columns.index("nezha-xnli, accuracy")] == "81.37"
        assert [note for note in table.notes if note.startswith("nezha-chnsenticorp")] == [
            "nezha-chnsenticorp: the papers' scores are not shown: they are of held-out files of 1,200 examples, and "
            f"ours is {why}"
        ]


def test_a_language_models_perplexity_stands_beside_the_papers(tmp_path: Path) -> None:
    recipe = load_recipe("paper-ernie-doc-lm", [])
    evaluations = [
        {"step": 1, "overrides": [], "figures": {"perplexity": 30.125}},
        {"step": 1, "overrides": ["data.corpus=other"], "figures": {"perplexity": 1.0}},
    ]
    table = paper_table(Run(tmp_path, 0, recipe, [], [], evaluations))
    assert table is not None and table.columns == ["held-out text, perplexity"]
    assert table.rows[:2] == [("ours", ["30.12"]), ("ERNIE-Doc base", ["21"])]
    assert paper_table(Run(tmp_path, 0, load_recipe("nezha-base", []), [], [], [])) is None


def test_the_hours_of_the_whole_are_those_of_pretraining_and_of_each_tasks_windows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """8 texts of 10 characters, 10 epochs, batches of 64: 2 steps, which the estimate counts as 128 texts."""
    sizes = ["model.num_hidden_layers=2", "model.hidden_size=64", "model.num_attention_heads=1"]
    given = ["micro_batch=16", "activation_checkpointing=false", "steps=100", "model.vocab_size=1000", *sizes]
    recipe = load_recipe("paper-nezha", [f"tasks={reviews(tmp_path / 'mine')}", *given], "train")
    print_estimate(recipe, cluster(8, "v100-32g", 8, "ib100"), 1e-9, [one.recipe for one in following(recipe)])
    rows = dict(re.findall(r"│ (\S.*?) +│ +([\d.,e+<-]+) │", capsys.readouterr().out))
    layer = 4 * 64 * 64 + 2 * 64 * 3072
    flops = 3 * 2 * (2 * 1280 * layer + 4 * 1280 * 256 * 64)
    hours = float(rows["paper-nezha-nezha-chnsenticorp, 2 steps"].replace(",", ""))
    assert hours == pytest.approx(flops / (125e12 * 1e-9) / 3600, rel=0.01)
    whole = float(rows["in all"].replace(",", ""))
    assert whole == pytest.approx(float(rows["pretraining, 100 steps"].replace(",", "")) + hours, rel=0.01)


def test_a_paper_is_one_chain_of_jobs_with_an_array_over_tasks_and_seeds(
    capsys: pytest.CaptureFixture[str],
) -> None:
    submit_recipe("paper-longformer", ["scale=tiny", "slurm.gpus_per_node=1"], None, dry_run=True)
    shown = capsys.readouterr().out
    waits = dict(re.findall(r'^submit (\S+)(?: --dependency="afterok:(\S+?)(?:,singleton)?")?$', shown, re.MULTILINE))
    assert waits["convert"] == "${jobs[start-export]}" and waits["pretrain"] == "${jobs[convert]}"
    assert waits["finetune"] == "${jobs[export]}"
    assert waits["report"] == "${jobs[export]},afterany:${jobs[finetune]}"
    assert list(waits)[-1] == "report"
    tasks = ["wikihop", "triviaqa", "imdb", "hyperpartisan-seed0", "hyperpartisan-seed1"]
    tuned = [f"paper-longformer-tiny-longformer-{task}" for task in tasks]
    assert re.findall(r"^ +\d\) set -- (\S+)", shown, re.MULTILINE) == tuned

    submit_recipe("paper-ernie-doc-lm", ["scale=tiny"], None, dry_run=True)
    shown = capsys.readouterr().out
    assert 'submit evaluate --dependency="afterok:${jobs[export]}"\n' in shown
    assert 'submit report --dependency="afterok:${jobs[export]},afterany:${jobs[evaluate]}"\n' in shown
