"""Around fine-tuning: what `then`, `--slurm` and `ablate` make of a recipe, its scores' table, and what is shown."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from reread.pipeline.cli import _status_of_command
from reread.pipeline.commands import finetune, run
from reread.pipeline.commands.ablate import _slug, ablate
from reread.pipeline.commands.inspect import task_in
from reread.pipeline.commands.predict import predict
from reread.pipeline.display.scores import baselines, score_table
from reread.pipeline.display.windows import print_windows
from reread.pipeline.recipe.layers import finetuning_recipes
from reread.pipeline.recipe.load import load_recipe, recipe_values
from reread.pipeline.recipe.schema import Published
from reread.pipeline.recipe.task import finetune_recipe
from reread.pipeline.recipe.then import following
from reread.pipeline.run_folder import finetuning
from reread.pipeline.slurm.submit import submit_finetuning, submit_recipe
from reread.preprocessing.errors import UserError
from reread.preprocessing.tokens.wordpiece import WordPiece
from reread.training.data.kinds import KINDS
from reread.training.data.tasks.dataset import TaskDataset
from reread.training.data.tasks.examples import examples_of
from reread.training.data.tasks.settings import TaskSettings
from tests.conftest import ROOT, train_values

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LETTERS = "abcdefghijklmnopqrstuvwxyz"

TEXTS = [{"id": str(n), "text": "a b c d e f g h", "label": "xy"[n % 3 == 0]} for n in range(12)]


def write_lines(path: Path, lines: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder: a model to start from, without weights, examples, and recipes to fine-tune and pretrain."""
    monkeypatch.chdir(tmp_path)
    model = tmp_path / "model"
    model.mkdir()
    (model / "vocab.txt").write_text("\n".join([*SPECIAL, *LETTERS]), encoding="utf-8")
    WordPiece(model / "vocab.txt", [*SPECIAL, *LETTERS], True).save(model)
    (model / "config.json").write_text(json.dumps({"model_type": "nezha"}))
    write_lines(tmp_path / "train.jsonl", TEXTS)
    write_lines(tmp_path / "dev.jsonl", TEXTS[:4])
    train = {"global_batch": 4, "micro_batch": 2, "optimizer": {"name": "adam", "learning_rate": 0.001}}
    task = {"kind": "classify", "train": "train.jsonl", "dev": "dev.jsonl", "sequence_length": 12}
    (tmp_path / "tune.yaml").write_text(
        yaml.safe_dump({"name": "tune", "task": task, "finetune": {"epochs": 2}, "train": train})
    )
    following = [{"recipe": "tune.yaml"}, {"recipe": "tune.yaml", "overrides": ["name=again", "finetune.seeds=2"]}]
    pretraining = {"name": "pre", "train": train_values(tmp_path / "corpus"), "then": following}
    (tmp_path / "pre.yaml").write_text(yaml.safe_dump(pretraining))
    return tmp_path


@pytest.fixture
def corpus(folder: Path, sample_corpus: Path) -> Path:
    (folder / "corpus").symlink_to(sample_corpus)
    return folder


@pytest.fixture
def done(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """What was trained, exported and evaluated, instead of doing it; a fine-tuning's score is its seed."""
    calls: list[tuple[str, ...]] = []

    def train(recipe: Any, arguments: list[str], logged: object = ()) -> None:
        calls.append(("train", recipe.name, str(recipe.train.init)))
        Path("runs", recipe.name).mkdir(parents=True)

    def export(run: Path, output: Path | None) -> Path:
        calls.append(("export", run.name))
        (run / "model").mkdir(parents=True, exist_ok=True)
        (run / "checkpoints" / "step-00000001").mkdir(parents=True, exist_ok=True)
        for file in (folder / "model").iterdir():
            (run / "model" / file.name).write_bytes(file.read_bytes())
        return run / "export"

    def figures_of(run: Path, overrides: list[str], step: int | None) -> tuple[None, dict[str, float]]:
        calls.append(("evaluate", run.name))
        return None, {"accuracy": 50.0 + len(calls)}

    for module in (run, finetuning):
        monkeypatch.setattr(module, "train", train)
        monkeypatch.setattr(module, "export", export)
    monkeypatch.setattr(run, "report", lambda run: None)
    monkeypatch.setattr(run, "write_report", lambda run: ([], []))
    monkeypatch.setattr(finetuning, "figures_of", figures_of)
    monkeypatch.setattr(finetune, "print_scores", lambda recipe, measured, found: None)
    return calls


def test_run_fine_tunes_what_it_has_pretrained(done: list[tuple[str, ...]], folder: Path) -> None:
    run.run("pre.yaml", [])
    start = "runs/pre/export"
    assert [call for call in done if call[0] != "export"] == [
        ("train", "pre", "None"),
        ("train", "pre-tune", start),
        ("evaluate", "pre-tune"),
        ("train", "pre-again-seed0", start),
        ("evaluate", "pre-again-seed0"),
        ("train", "pre-again-seed1", start),
        ("evaluate", "pre-again-seed1"),
    ]
    assert done.index(("export", "pre")) == 1
    kept = [json.loads((folder / "runs" / f"pre-again-seed{seed}" / "scores.json").read_text()) for seed in (0, 1)]
    assert all(one["dev"]["accuracy"] > 50 for one in kept)


MISTAKES = [
    ("task.trian=x", "unknown key `train.data.trian`; did you mean `train.data.train`?"),
    ("task.train=nowhere.jsonl", "nowhere.jsonl"),
    ("task.dev=unlabelled.jsonl", "unlabelled.jsonl:1: no label"),
    (
        "task.kind=write",
        "a section `finetune` and a `task` whose kind is one of classify, tag, answer, choose, rank, phrases, "
        "coreference, generate",
    ),
    ("name=again", "two of `then` are named again"),
    ("model.hiden_size=8", "unknown key `hiden_size` for nezha"),
    ("finetune.epoch=1", "did you mean `finetune.epochs`?"),
    ("task.sequence_length=4096", "this model's positions end at"),
]


@pytest.mark.parametrize(("override", "message"), MISTAKES)
@pytest.mark.parametrize("command", ["run", "slurm"])
def test_a_mistake_in_a_chained_recipe_is_refused_before_any_work(
    command: str, override: str, message: str, done: list[tuple[str, ...]], folder: Path
) -> None:
    write_lines(folder / "unlabelled.jsonl", [{"id": "1", "text": "a"}])
    following = [{"recipe": "tune.yaml", "overrides": [override]}, {"recipe": "tune.yaml", "overrides": ["name=again"]}]
    model = {"position_type": "parametric_absolute", "max_position_embeddings": 64}
    overrides = [f"then={json.dumps(following)}", f"train.model={json.dumps({'type': 'nezha', **model})}"]
    with pytest.raises((UserError, FileNotFoundError), match=re.escape(message)) as caught:
        if command == "run":
            run.run("pre.yaml", overrides)
        else:
            submit_recipe("pre.yaml", overrides, None, dry_run=True)
    assert "\n" not in str(caught.value)
    assert done == [] and not (folder / "runs").exists()


def test_the_training_examples_say_what_their_task_needs(folder: Path) -> None:
    """What a text to tag is split into, the answers that are no part of a text, and whether all texts are pairs; a
    recipe may state each."""
    write_lines(folder / "tags.jsonl", [{"tokens": ["a", "b"], "tags": ["O", "O"]}])
    answers = [{"start": -1, "text": "NO"}, {"start": 0, "text": "a"}]
    write_lines(folder / "answers.jsonl", [{"text": "a b", "question": "c", "answers": [one]} for one in answers])

    def data(kind: str, file: str, *more: str) -> Any:
        given = ["init=model", f"task.kind={kind}", f"task.train={file}", f"task.dev={file}", *more]
        recipe = finetune_recipe("tune.yaml", given)
        assert recipe.train is not None
        return recipe.train.data

    for name, seconds in (("pairs", "bc"), ("mixed", "b-"), ("single", "--")):
        texts = [{"text": "a", **({} if second == "-" else {"second": second}), "label": "x"} for second in seconds]
        file = write_lines(folder / f"{name}.jsonl", texts).name
        assert data("classify", file).pairs == (name == "pairs")
        assert data("classify", file, "task.pairs=true").pairs
    assert data("tag", "tags.jsonl").split == "characters"
    assert data("tag", "tags.jsonl", "task.split=words").split == "words"
    assert data("answer", "answers.jsonl").choices == ["NO"]
    assert data("answer", "answers.jsonl", "task.choices=['NO','YES']").choices == ["NO", "YES"]


@pytest.mark.parametrize(("model", "tokens"), [("nezha", 5), ("ernie_doc", 3)])
def test_the_vocabulary_grows_by_the_marks_that_the_models_rows_have(model: str, tokens: int, folder: Path) -> None:
    """ERNIE-Doc's sentences end with [SEP] (docs/models.md)."""
    (folder / "model" / "config.json").write_text(json.dumps({"model_type": model}))
    parts = {"text": "a\nb c. d e.", "paragraphs": [[0, 2, 7]], "evidence": [[0, 0]]}
    answers = [{"start": 2, "text": "b"}]
    path = write_lines(folder / "questions.jsonl", [{"question": "f", "answers": answers, **parts}])
    given = ["init=model", f"task.train={path}", "task.form=marked", "task.sequence_length=32"]
    recipe = finetune_recipe("answer", given)
    assert recipe.train is not None
    assert recipe.train.model["vocab_size"] == len(SPECIAL) + len(LETTERS) + tokens


def test_random_weights_are_for_a_model_that_begins_with_them(done: list[tuple[str, ...]], folder: Path) -> None:
    then = [{"recipe": "tune.yaml", "random": True}]
    overrides = [f"then={json.dumps(then)}", "train.init=model"]
    with pytest.raises(UserError, match=r"then: tune: random is true, but only a model that train.model alone"):
        run.run("pre.yaml", overrides)
    assert done == [] and not (folder / "runs").exists()


def test_below_torchrun_a_chain_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UserError, match=r"has `then`, whose tasks start their own processes; run it without torchrun"):
        following(load_recipe("pre.yaml", []))


def test_a_chained_recipe_is_found_beside_the_one_that_names_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    assert [one.recipe for one in load_recipe(str(folder / "pre.yaml"), []).then] == 2 * [str(folder / "tune.yaml")]


def jobs_of(shown: str) -> dict[str, str]:
    """The scripts that a dry run has printed, by the names of their jobs."""
    parts = re.split(r"^==> \S+/(\S+)\n", shown, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def element(script: str, number: int | str) -> tuple[int, list[str]]:
    """The status of the lines with which a task of an array finds its arguments, and those arguments after its run."""
    lines = script[script.index('case "$SLURM_ARRAY_TASK_ID" in') : script.index("set -euo pipefail")]
    command = ["bash", "-c", f'{lines}\nprintf "%s\\n" "$RUN" "$@"']
    done = subprocess.run(
        command, env={"SLURM_ARRAY_TASK_ID": str(number)}, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout.splitlines()


def test_a_chain_is_submitted_with_one_array_over_tasks_and_seeds(
    corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["slurm.nodes=2", "train.global_batch=16", "slurm.partition=v100", "slurm.at_once=2"]
    submit_recipe("pre.yaml", given, None, dry_run=True)
    scripts = jobs_of(capsys.readouterr().out)
    order = ["pretrain", "export", "finetune", "report"]
    assert list(scripts) == [*(f"{name}.sbatch" for name in order), "submit.sh"]
    assert f"# Submits pre: {' -> '.join(order)}." in scripts["submit.sh"]
    assert 'submit finetune --dependency="afterok:${jobs[export]},singleton"\n' in scripts["submit.sh"]
    # a failed fine-tuning leaves the others their report
    assert 'submit report --dependency="afterok:${jobs[export]},afterany:${jobs[finetune]}"\n' in scripts["submit.sh"]
    text = scripts["finetune.sbatch"]
    for line in ("--nodes=1", "--ntasks-per-node=1", "--gpus-per-node=1", "--partition=v100", "--requeue"):
        assert f"#SBATCH {line}\n" in text
    for line in ("--array=0-2%2", "--job-name=pre-finetune", "--output=runs/pre/slurm/finetune-%A_%a.log"):
        assert f"#SBATCH {line}\n" in text
    assert [element(text, number)[1][0] for number in range(3)] == [
        "runs/pre-tune",
        "runs/pre-again-seed0",
        "runs/pre-again-seed1",
    ]
    assert element(text, 2)[1][1:] == [
        "tune.yaml",
        "name=again",
        "finetune.seeds=2",
        "name=pre-again",
        "init=runs/pre",
        "train.seed=1",
        "name=pre-again-seed1",
        "finetune.seeds=1",
    ]
    assert element(text, 3) == (2, [])
    assert "#SBATCH --nodes=2\n" in scripts["pretrain.sbatch"]
    for script in scripts.values():
        subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    assert not (corpus / "runs").exists()


def test_fine_tunings_with_other_resources_are_an_array_of_their_own(
    corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One on two processes is scored by a job of one process, as soon as it has ended."""
    two = {"recipe": "tune.yaml", "overrides": ["name=two", "finetune.seeds=2", "slurm.tasks_per_node=2"]}
    then = [{"recipe": "tune.yaml"}, two, {"recipe": "tune.yaml", "overrides": ["name=again"]}]
    submit_recipe("pre.yaml", [f"then={json.dumps(then)}"], None, dry_run=True)
    scripts = jobs_of(capsys.readouterr().out)
    assert [element(scripts["finetune.sbatch"], number)[1][0] for number in (0, 1)] == [
        "runs/pre-tune",
        "runs/pre-again",
    ]
    assert "#SBATCH --array=0-1\n" in scripts["finetune-2.sbatch"]
    assert "#SBATCH --ntasks-per-node=2\n" in scripts["finetune-2.sbatch"]
    assert element(scripts["scores-2.sbatch"], 1) == element(scripts["finetune-2.sbatch"], 1)
    assert "finetune -> " not in scripts["submit.sh"] and "finetune, finetune-2 -> scores-2" in scripts["submit.sh"]
    assert 'submit scores-2 --dependency="aftercorr:${jobs[finetune-2]}"\n' in scripts["submit.sh"]
    waits = ",".join(f"afterany:${{jobs[{name}]}}" for name in ("finetune", "finetune-2", "scores-2"))
    assert f'submit report --dependency="afterok:${{jobs[export]}},{waits}"\n' in scripts["submit.sh"]


def begin_pretraining(folder: Path) -> None:
    """A run with a checkpoint and RUN/model, not exported."""
    (folder / "runs" / "pre" / "checkpoints" / "step-00000003").mkdir(parents=True)
    (folder / "model").rename(folder / "runs" / "pre" / "model")


def test_fine_tuning_is_submitted_after_the_export_that_it_starts_from(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    begin_pretraining(folder)
    submit_finetuning("tune.yaml", ["init=runs/pre"], None, dry_run=True)
    scripts = jobs_of(capsys.readouterr().out)
    assert list(scripts) == ["export.sbatch", "finetune.sbatch", "submit.sh"]  # which prints its scores itself
    assert "set -- runs/pre\n" in scripts["export.sbatch"]
    submit_finetuning("tune.yaml", ["init=runs/pre", "finetune.seeds=3"], None, dry_run=True)
    scripts = jobs_of(capsys.readouterr().out)
    assert "# Submits tune: export -> finetune -> scores." in scripts["submit.sh"]
    assert "#SBATCH --array=0-2\n" in scripts["finetune.sbatch"]
    assert "set -- tune.yaml init=runs/pre finetune.seeds=3\n" in scripts["scores.sbatch"]
    assert [path.name for path in (folder / "runs").iterdir()] == ["pre"]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("slurm.gpus_per_node=8", "slurm.tasks_per_node"),
        ("slurm.tasks_per_node=3", "2 of 4 examples a step leave 1 of 3 data-parallel processes without work"),
        ("task.dev=nowhere.jsonl", "nowhere.jsonl"),
        ("model.hiden_size=8", "unknown key `hiden_size`"),
    ],
)
def test_a_fine_tuning_that_would_fail_is_not_submitted(override: str, message: str, folder: Path) -> None:
    begin_pretraining(folder)
    if override == "slurm.gpus_per_node=8":  # one process, as long as nobody asks for more
        submit_finetuning("tune.yaml", ["init=runs/pre", override], None, dry_run=True)
        return
    with pytest.raises((UserError, FileNotFoundError), match=re.escape(message)):
        submit_finetuning("tune.yaml", ["init=runs/pre", override], None, dry_run=True)


@pytest.mark.parametrize("override", ["model=3", "train.model=null", "train={data: {kind: tag}}", "optimizer=3"])
def test_a_value_where_a_section_belongs_is_one_line(override: str, folder: Path) -> None:
    with pytest.raises(UserError, match=r"^recipe tune\.yaml: (train\.(model|optimizer)|task\.train): "):
        finetune_recipe("tune.yaml", ["init=model", override])


@pytest.mark.parametrize("override", ["train=3", "train=null", "train.data=3", "task=x", "train={}"])
def test_a_prediction_without_a_task_left_is_one_line(override: str, folder: Path) -> None:
    config = {"model_type": "nezha", "architectures": ["NezhaForSequenceClassification"], "id2label": {"0": "a"}}
    (folder / "model" / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=rf"^model: {re.escape(override)}: no task is left after this"):
        predict(Path("model"), folder / "dev.jsonl", [override], None, None)


@pytest.mark.parametrize("content", ["[]", "3", "null"])
def test_a_configuration_that_is_no_object_is_one_line(content: str, folder: Path) -> None:
    (folder / "model" / "config.json").write_text(content)
    with pytest.raises(UserError, match=r"^model/config\.json: not the configuration of a model"):
        predict(Path("model"), folder / "dev.jsonl", [], None, None)


ROWS = [
    {"name": "with A", "overrides": ["init=model"], "published": {"accuracy": 93.1}},
    {"name": "w/o A", "overrides": ["init=model", "task.learns=last"]},
]


def with_rows(folder: Path, rows: list[dict[str, Any]]) -> None:
    (folder / "rows.yaml").write_text(yaml.safe_dump({"base": "tune.yaml", "name": "rows", "ablations": rows}))


def test_ablate_fine_tunes_each_row_with_its_seeds(
    done: list[tuple[str, ...]], folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with_rows(folder, ROWS)
    ablate("rows.yaml", ["finetune.seeds=2"])
    trained = [call[1] for call in done if call[0] == "train"]
    assert trained == ["rows-with-a-seed0", "rows-with-a-seed1", "rows-w-o-a-seed0", "rows-w-o-a-seed1"]
    kept = json.loads((folder / "runs" / "rows-ablation.json").read_text())
    assert kept == {
        "with A": [{"accuracy": 52.0}, {"accuracy": 54.0}],
        "w/o A": [{"accuracy": 56.0}, {"accuracy": 58.0}],
    }
    cells = [
        [cell.strip() for cell in line.strip("│").split("│")]
        for line in capsys.readouterr().out.splitlines()
        if "│" in line
    ]
    assert cells == [["with A", "93.1", "53.00 ± 1.41"], ["w/o A", "-", "57.00 ± 1.41"]]


@pytest.mark.parametrize(
    ("rows", "overrides", "message"),
    [
        ([ROWS[0], {"name": "b", "overrides": ["init=runs/b"]}], [], r"row `b`: init: runs/b holds no config\.json"),
        (ROWS, ["task.dev=null"], r"task\.dev: the examples that rows are compared by"),
        ([*ROWS, {"name": "W/o a", "overrides": ["init=model"]}], [], "the same run folder"),
        ([], [], "has no `ablations`; .*nezha-small-cmrc2018"),
    ],
)
def test_rows_that_cannot_be_fine_tuned_are_refused_before_any_is(
    rows: list[dict[str, Any]], overrides: list[str], message: str, done: list[tuple[str, ...]], folder: Path
) -> None:
    with_rows(folder, rows)
    with pytest.raises(UserError, match=message):
        ablate("rows.yaml", overrides)
    assert done == []


def test_rows_of_a_pretraining_are_each_fine_tuned(
    done: list[tuple[str, ...]], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_rows(folder, ROWS)
    made = {"base": "nezha-small", "name": "made", "ablations": [{"name": "512 tokens"}, {"name": "Spans"}]}
    (folder / "made.yaml").write_text(yaml.safe_dump(made))
    with pytest.raises(UserError, match=r"row `512 tokens`: init: runs/made-512-tokens holds no config\.json"):
        ablate("rows.yaml", ["rows_of=made.yaml"])
    for row in ("512-tokens", "spans"):
        (folder / "runs").mkdir(exist_ok=True)
        (folder / "runs" / f"made-{row}").symlink_to(folder / "model")
    ablate("rows.yaml", ["rows_of=made.yaml"])
    assert [call[1] for call in done if call[0] == "train"] == ["rows-made-512-tokens", "rows-made-spans"]
    assert (folder / "runs" / "rows-made-ablation.json").exists()
    (folder / "made.yaml").write_text(yaml.safe_dump({**made, "ablations": []}))
    with pytest.raises(UserError, match=r"rows_of: made\.yaml has no `ablations`"):
        ablate("rows.yaml", ["rows_of=made.yaml"])


def test_rows_of_fine_tuning_start_from_the_rows_of_pretraining() -> None:
    """`reread ablate ernie-doc-small` makes the models of `reread ablate ernie-doc-small-imdb`, and so on."""
    tables = {name: recipe_values(name, []).get("ablations") for name in finetuning_recipes()}
    found = {name: rows for name, rows in tables.items() if rows and "-small-" in name}
    assert set(found) >= {"ernie-doc-small-imdb", "nezha-small-cmrc2018", "ran-small-arxiv"}
    for name, rows in found.items():
        pretraining = name.rsplit("-", 1)[0]
        made = {f"runs/{pretraining}-{_slug(row.name)}" for row in load_recipe(pretraining, []).ablations}
        for row in rows:
            (init,) = [one.removeprefix("init=") for one in row["overrides"] if one.startswith("init=")]
            assert init in made, (name, row["name"])


def dataset(folder: Path, kind: str, lines: list[dict[str, Any]], **more: Any) -> TaskDataset[Any, Any]:
    """`lines` as the training and the held-out examples."""
    path = write_lines(Path(f"{kind}.jsonl"), lines)
    values = {"kind": kind, "train": path, "dev": path, "tokenizer": folder / "model", "sequence_length": 12, **more}
    settings = KINDS[kind].settings.parse(values, "test")
    opened = KINDS[kind].open(settings, 0, "validation")
    assert isinstance(opened, TaskDataset)
    return opened


TAGGED = [
    {"id": "1", "tokens": ["a", "b", "c", "d", "e"], "tags": ["B-X", "I-X", "O", "O", "O"]},
    {"id": "2", "tokens": ["d", "a", "b"], "tags": ["O", "B-X", "I-X"]},
]
ASKED = [
    {"id": "1", "text": "a b c. d e f.", "question": "d e g", "answers": [{"start": 7, "text": "d e f"}]},
    {"id": "2", "text": "a b c. d e f.", "question": "x b c", "answers": [{"start": 0, "text": "a b"}]},
]
CHOSEN = [
    {"id": "1", "text": "a b", "question": "q", "options": ["cde", "a"], "label": 1},
    {"id": "2", "text": "a b", "question": "q", "options": ["c", "ad"], "label": 1},
    {"id": "3", "text": "a b", "question": "q", "options": ["def", "c"], "label": 0},
]
PHRASED = [
    {"id": "1", "text": "a b d e d e", "phrases": ["d e"]},
    {"id": "2", "text": "a b c", "phrases": ["A"]},
]
LINKED = [
    {"id": "1", "text": "a b d a", "clusters": [[[0, 1], [6, 7]]]},
    {"id": "2", "text": "c a b a", "clusters": [[[2, 3], [6, 7]]]},
]
TITLED = [
    {"id": "1", "source": "a b c. d e.", "target": "a b c"},
    {"id": "2", "source": "a b c d e f", "title": "a b c d e f"},
]
RANKED = [
    {"id": "1", "query": "a b", "passages": ["c d", "a b c"], "grades": [0, 1]},
    {"id": "2", "query": "d", "passages": ["d e", "b", "c"], "grades": [2, 0, 0]},
]


@pytest.mark.parametrize(
    ("kind", "lines", "more", "expected"),
    [
        ("classify", TEXTS, {"labels": ["x", "y"]}, {"majority": ("accuracy", 100 * 8 / 12)}),
        ("tag", TAGGED, {"labels": ["B-X", "I-X", "O"]}, {"known entities": ("entity-f1", 100.0)}),
        ("answer", ASKED, {}, {"likeliest clause": ("em", 50.0)}),
        (
            "choose",
            CHOSEN,
            {},
            {
                "best fixed option": ("accuracy", 100 * 2 / 3),
                "longest option": ("accuracy", 100 * 2 / 3),
                "option with most characters in the text": ("accuracy", 100.0),
            },
        ),
        ("phrases", PHRASED, {}, {"TF-IDF": ("f1@1", 50.0)}),
        ("coreference", LINKED, {}, {"same words": ("conll-f1", 100.0)}),
        ("generate", TITLED, {"target_length": 4}, {"lead": ("rouge-l", (100 + 80) / 2)}),
        ("rank", RANKED, {}, {"order of the file": ("mrr@10", 75.0), "BM25": ("mrr@10", 100.0)}),
    ],
)
def test_each_task_has_baselines(
    kind: str, lines: list[dict[str, Any]], more: Any, expected: dict[str, tuple[str, float]], folder: Path
) -> None:
    held_out = dataset(folder, kind, lines, **more)
    found = {name: held_out.scores(one) for name, one in baselines(examples_of(held_out.settings, "train"), held_out)}
    assert set(expected) <= set(found)
    for name, (score, value) in expected.items():
        assert found[name][score] == pytest.approx(value)


def test_sets_of_labels_have_the_usual_set_as_their_baseline(folder: Path) -> None:
    lines = [{"id": str(n), "text": "a", "label": label} for n, label in enumerate([["x", "y"], ["x", "y"], []])]
    held_out = dataset(folder, "classify", lines, labels=["x", "y"], answer="set")
    ((name, predictions),) = baselines(list(held_out.examples), held_out)
    assert name == "majority" and held_out.scores(predictions)["accuracy"] == pytest.approx(100 * 2 / 3)


def test_numbers_have_their_mean_as_baseline(folder: Path) -> None:
    lines = [{"id": str(n), "text": "a", "label": label} for n, label in enumerate([1, 2, 6])]
    held_out = dataset(folder, "classify", lines, answer="number")
    ((name, predictions),) = baselines(list(held_out.examples), held_out)
    errors = {"spearman": 0, "pearson": 0, "mae": 2, "rmse": pytest.approx((14 / 3) ** 0.5)}
    assert (name, held_out.scores(predictions)) == ("mean", errors)


def test_the_bag_of_characters_without_scikit_learn_is_one_line(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.feature_extraction.text", None)
    held_out = dataset(folder, "classify", TEXTS, labels=["x", "y"])
    with caplog.at_level("INFO", "reread"):
        assert [name for name, _ in baselines(list(held_out.examples), held_out)] == ["majority"]
    assert "pip install 'reread[baselines]'" in caplog.text


@pytest.mark.parametrize("error", [UserError("no word"), AttributeError("no attribute of numpy\nin C")], ids=repr)
def test_a_baseline_that_cannot_be_made_is_a_line_and_the_others_stand(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr("reread.training.data.tasks.classify.BagOfGrams", broken)
    held_out = dataset(folder, "classify", TEXTS, labels=["x", "y"])
    with caplog.at_level("INFO", "reread"):
        assert [name for name, _ in baselines(list(held_out.examples), held_out)] == ["majority"]
    assert caplog.messages == [f"a baseline is left out: {str(error).splitlines()[0]}"]


def test_the_papers_scores_stand_below_ours_with_what_differs() -> None:
    published = [Published(model="NEZHA", scores={"accuracy": 94.7}, differs="9,600 to train")]
    measured = {"dev": [{"accuracy": 80.0, "auc": 1.0}], "test": [{"accuracy": 79.0, "auc": 0.5}]}
    sizes = {"dev": "300 examples", "test": "200 examples"}
    table = score_table(measured, sizes, [("majority", {"accuracy": 50.0})], published)
    assert [list(column.cells) for column in table.columns] == [
        ["ours", "ours (test)", "baseline: majority", "paper: NEZHA"],
        ["80.00", "79.00", "50.00", "94.7"],
        ["1.00", "0.50", "-", "-"],
        ["300 examples", "200 examples", "", "9,600 to train"],
    ]


def test_what_is_scored_is_the_held_out_file(folder: Path) -> None:
    settings = dataset(folder, "choose", CHOSEN).settings
    assert settings.held_out.name == "choose.jsonl"
    other = settings.model_copy(update={"dev": Path("other.jsonl")})
    assert (other.held_out.name, other.location.name) == ("other.jsonl", "choose.jsonl")


def shown(capsys: pytest.CaptureFixture[str], settings: TaskSettings, samples: int) -> str:
    print_windows(settings, samples)
    return capsys.readouterr().out


def test_what_is_out_of_reach_is_said_before_training(
    folder: Path, caplog: pytest.LogCaptureFixture, done: list[tuple[str, ...]]
) -> None:
    texts = {"text": "a b c d e f g h", "question": "q"}
    answers = [[{"start": 0, "text": "a b"}], [{"start": 2, "text": "b c d"}], [{"start": 3, "text": "b"}]]
    write_lines(folder / "asked.jsonl", [{**texts, "answers": one} for one in answers])
    (folder / "asked.yaml").write_text("base: tune.yaml\nname: asked\n")
    given = ["init=model", "task.kind=answer", "task.train=asked.jsonl", "task.dev=asked.jsonl", "task.answer_length=2"]
    with pytest.raises(
        UserError, match=r"asked.jsonl: 1 of 3 questions \(33.33%\) .* by `task.wrong=skip`; the first: "
    ):
        finetune.finetune("asked.yaml", given)
    assert not done
    with caplog.at_level("INFO", "reread"):
        finetuning.train_all(
            finetune_recipe("asked.yaml", [*given, "task.wrong=skip"]),
            "asked.yaml",
            [
                *given,
                "task.wrong=skip",
            ],
        )
    lines = [line for line in caplog.messages if "out of reach" in line]
    why = "gold answers are out of reach (1 longer than task.answer_length=2); the best possible scores are f1"
    assert [line.split(" f1")[0] + " f1" for line in lines] == [f"task.train: 1 of 2 {why}", f"task.dev: 1 of 3 {why}"]
    assert done[0][0] == "train"
    assert "such answers are scored and not learned, nor are 1 questions without another one" in caplog.text


def test_inspect_marks_the_entities_that_each_window_decides(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = {"id": "1", "tokens": list("abcdefghij"), "tags": ["O", "B-X", "I-X", *6 * ["O"], "B-Y"]}
    settings = dataset(folder, "tag", [line], labels=["B-X", "B-Y", "I-X", "O"], sequence_length=8, step=4).settings
    text = shown(capsys, settings, 5)
    assert "tag.jsonl:1, id 1, window 1 of 2: 2 entities\n[CLS]a ‹b c=X› d e f[SEP]" in text
    assert "window 2 of 2: 2 entities\n[CLS]e f g h i ‹j=Y›[SEP]" in text
    assert re.search(r"windows an example +│ 2\.00", text)


def test_inspect_marks_answers_and_windows_without_one(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = {"id": "1", "text": "a b c d e f g h", "question": "q", "answers": [{"start": 2, "text": "b c"}]}
    text = shown(capsys, dataset(folder, "answer", [line], sequence_length=8, step=4).settings, 2)
    assert "window 1 of 2: answers: b c\n[CLS]q[SEP]a ‹b c=answer› d[SEP]" in text
    assert "window 2 of 2: answers: b c\n‹[CLS]=no answer here›q[SEP]e f g h[SEP]" in text


def test_inspect_shows_each_option_and_whether_it_is_right(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, dataset(folder, "choose", CHOSEN).settings, 2)
    assert "id 1, window 1 of 1, option 1 of 2: wrong\n" in text
    assert "id 1, window 1 of 1, option 2 of 2: right\n" in text


def test_inspect_reads_with_the_model_that_would_be_fine_tuned(folder: Path) -> None:
    task = task_in(folder / "model", ["task.sequence_length=9", "step=3"], "tune.yaml")
    assert task is not None and task.tokenizer == folder / "model"
    assert (task.sequence_length, task.step, task.labels) == (9, 3, ["x", "y"])
    assert task_in(folder / "corpus", [], None) is None
    assert task_in(folder / "corpus", [], "nezha-base") is None


@pytest.mark.parametrize("kind", ["classify", "tag", "answer", "choose", "rank", "phrases", "coreference", "generate"])
def test_the_tokens_of_a_plan_are_those_that_training_reads(kind: str, folder: Path) -> None:
    lines: dict[str, list[dict[str, Any]]] = {"classify": TEXTS, "tag": TAGGED, "answer": ASKED, "choose": CHOSEN}
    lines |= {"rank": RANKED, "phrases": PHRASED, "coreference": LINKED, "generate": TITLED[:1]}
    more = {
        "classify": {"labels": ["x", "y"]},
        "tag": {"labels": ["B-X", "I-X", "O"]},
        "generate": {"target_length": 3},
    }.get(kind, {})
    found = dataset(folder, kind, lines[kind], **more, sequence_length=9)
    read = [
        sum(int(rows["attention_mask"].sum()) for rows in found.passes([example], 8, training=kind == "generate"))
        for example in range(len(found))
    ]
    assert found.row_tokens.tolist() == read


def test_plan_estimates_a_fine_tuning_by_its_examples(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    command = ["reread", "plan", "tune.yaml", "init=model", "finetune.seeds=3", "model.num_hidden_layers=1"]
    monkeypatch.setattr(sys, "argv", [*command, "--gpus", "1", "--gpu", "v100-16g"])
    assert _status_of_command(False) == 0
    printed = capsys.readouterr().out
    assert "examples of 10 tokens on average a step" in printed and "fits" in printed
    assert "12 training examples; 3 runs of 6 steps take < 0.01 GPU-hours" in printed
    line = "reread: init: the model to fine-tune; give init=FOLDER, a run, an export or a converted model\n"
    monkeypatch.setattr(sys, "argv", ["reread", "plan", "tune.yaml"])
    assert _status_of_command(False) == 2
    assert capsys.readouterr().err == line


WITHOUT_TORCH = """
import sys
from reread.pipeline.cli import _status_of_command
for command in (["finetune", "tune.yaml"], ["plan", "tune.yaml"], ["show", "tune.yaml"]):
    for file in ("label.jsonl", "field.jsonl", "none.jsonl"):
        sys.argv = ["reread", *command, "init=model", f"task.dev={file}"]
        assert _status_of_command(False) == 2
assert "torch" not in sys.modules
"""


@pytest.mark.slow
def test_mistakes_in_the_files_of_a_task_are_found_before_torch_is_imported(folder: Path) -> None:
    write_lines(folder / "label.jsonl", [{**TEXTS[0], "label": "xx"}])
    write_lines(folder / "field.jsonl", [{**TEXTS[0], "txt": "a"}])
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", WITHOUT_TORCH]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stderr.splitlines()
    assert len(lines) == 9 and all(line.startswith("reread: ") for line in lines)
    assert ["label `xx`" in lines[0], "`txt`" in lines[1], "none.jsonl" in lines[2]] == [True] * 3
