"""`init=OWNER/NAME`: what a recipe becomes that starts from a model of the Hub, before anything is fetched."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from reread.pipeline.commands.export import export_and_push
from reread.pipeline.recipe.load import load_recipe, recipe_values, write_recipe
from reread.pipeline.recipe.task import finetune_recipe
from reread.pipeline.slurm.submit import submit_recipe
from reread.preprocessing.errors import UserError
from reread.training.exchange.hub import fetch
from tests.conftest import longformer_values
from tests.hub_server import COMMIT, Hub, serving_hub, use_hub


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    with serving_hub() as server:
        names = ("config.json", "model.safetensors", "vocab.txt", "code.py")
        server.repositories["o/n"] = {name: name.encode() for name in names}
        use_hub(server, monkeypatch, str(tmp_path / "cache"))
        yield server
    fetch.cache_clear()


def test_a_name_becomes_a_folder_of_its_own_and_what_makes_it() -> None:
    recipe = load_recipe("nezha-base", ["init=o/n@v2"], "train")
    assert recipe.train and recipe.start
    assert (str(recipe.train.init), str(recipe.start.weights)) == ("models/o--n@v2-nezha", "o/n@v2")
    long = load_recipe("longformer-small", ["init=o/n"], "train")  # whose own start is another recipe
    assert long.train and long.start
    assert (str(long.train.init), long.start.recipe) == ("models/o--n-longformer-512-64", None)
    assert long.start.convert.given() == {"length": 512, "window": 64}
    assert str(load_recipe("longformer-small", ["init=o/n", "start.convert.length=128"], "train").train.init).endswith(  # type: ignore[union-attr]
        "-longformer-128-64"
    )
    values = recipe_values("classify", ["init=o/n"], "train")
    assert (values["train"]["init"], values["start"]) == ("models/o--n", {"weights": "o/n", "convert": {}})


def test_a_recipe_that_a_run_keeps_says_the_same() -> None:
    recipe = load_recipe("longformer-small", ["init=o/n"], "train")
    write_recipe(recipe, Path("kept.yaml"))
    assert load_recipe("kept.yaml", []) == recipe


def test_a_path_stays_a_path() -> None:
    Path("mine/model").mkdir(parents=True)
    for init in ("mine/model", "mine/other", "runs/x", "./o/n", "o/n/export", "nezha"):
        recipe = load_recipe("nezha-base", [f"init={init}"], "train")
        assert recipe.train and recipe.train.init == Path(init) and recipe.start is None


def test_what_only_looks_at_a_fine_tuning_fetches_nothing(hub: Hub) -> None:
    Path("t.tsv").write_text("label\ttext\nx\ta\n")
    with pytest.raises(
        UserError, match=r"^init: o/n of the Hub is not in models/o--n yet; `reread finetune` fetches it"
    ):
        finetune_recipe("classify", ["init=o/n", "task.train=t.tsv"])
    assert not hub.asked


def test_jobs_get_the_folder_that_was_fetched_where_they_are_submitted(hub: Hub, capsys, monkeypatch) -> None:
    """Nodes may not reach the Hub."""
    corpus = Path("corpus")
    corpus.mkdir()
    monkeypatch.setattr("reread.pipeline.slurm.submit.Manifest.read", lambda folder: None)
    Path("tiny.yaml").write_text(yaml.safe_dump({"name": "tiny", "train": longformer_values(corpus)}))
    submit_recipe("tiny.yaml", ["init=o/n", "start.convert.length=64"], None, dry_run=True)
    script = capsys.readouterr().out
    assert "models/o--n-longformer-64" in script
    assert str(hub_folder()) in script, script
    assert sorted(hub.fetched) == ["config.json", "model.safetensors", "vocab.txt"]


def hub_folder() -> Path:
    return next(Path("cache").resolve().glob(f"models--o--n/snapshots/{COMMIT}"))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["a", "b"], "export: a and b are given; one folder is written"),
        (["steps=3"], r"`steps=3`: a checkpoint is exported as it was trained; only card\.KEY=VALUE can be given"),
        (["card.licence=mit"], r"unknown key `card\.licence`; did you mean `card\.license`\?"),
        (["card.language=German"], r"card\.language\.0: is the code of a language, such as zh or en"),
    ],
)
def test_what_an_export_cannot_take_is_one_line(given: list[str], message: str) -> None:
    run = Path("runs/tiny")
    run.mkdir(parents=True)
    write_recipe(load_recipe("nezha-base", ["name=tiny"]), run / "recipe.yaml")
    with pytest.raises(UserError, match=message):
        export_and_push(run, given, None, None)
