"""`reread settings` and `reread show`: what can be set, and where a recipe's values come from."""

import re
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from pipeline.cli import app
from pipeline.recipe import Recipe, load_recipe
from pipeline.settings import all_sections, as_markdown, print_settings
from pipeline.show import show
from preprocessing.errors import UserError
from tests.conftest import ROOT

UNITS = (
    "tokens? bytes megabytes characters? rows? documents? words? windows? segments? chunks? batches steps? updates? "
    "epochs? passes|pass times seconds? minutes? hours? nodes? gpus? cores? processes tasks? copies copy evaluations? "
    "checkpoints runs? layers? share factor probability parameter number exponent scale norm size tflop/?s? rates? "
    "dropout score tries"
)


def test_the_page_of_all_settings_is_up_to_date() -> None:
    page = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
    assert page == as_markdown(), "reread settings --markdown > docs/settings.md"


def test_every_key_has_a_sentence_and_every_number_a_unit() -> None:
    keys = {f"{section.title}.{key.name}": key for section in all_sections() for key in section.keys}
    assert len(keys) > 150
    assert [name for name, key in keys.items() if not re.fullmatch(r"\S.{10,}[.:)]", key.sentence)] == []
    units = re.compile(rf"\b({UNITS.replace(' ', '|')})\b", re.IGNORECASE)
    numbers = {name: key for name, key in keys.items() if "number" in key.type}
    assert len(numbers) > 60
    assert [
        name for name, key in numbers.items() if not units.search(f"{key.sentence} {key.name.replace('_', ' ')}")
    ] == []


def test_settings_are_found_by_section_by_its_end_and_by_key(capsys: pytest.CaptureFixture[str]) -> None:
    for wanted in ("train.optimizer", "optimizer"):
        print_settings(wanted)
        output = capsys.readouterr().out
        assert "learning_rate" in output and "required" in output and "warmup_steps" not in output
    print_settings("warmup_steps")
    output = capsys.readouterr().out
    assert "train.schedule" in output and "power" not in output
    print_settings("ran")
    output = " ".join(capsys.readouterr().out.split())
    assert "train.model: Configuration of model.type=ran." in output and re.search(
        r"window_size whole number 2\d\d", output
    )
    with pytest.raises(UserError, match="did you mean `optimizer`"):
        print_settings("optimzer")


def shown(capsys: pytest.CaptureFixture[str], name: str, *overrides: str) -> tuple[str, dict[str, str]]:
    """What is printed, and the comment behind each key."""
    show(name, list(overrides))
    text = capsys.readouterr().out
    comments = list(re.finditer(r"^ *(\w+):.*# (.+)$", text, re.MULTILINE))
    return text, {found[1]: found[2] for found in reversed(comments)}  # of the first of that name


def test_a_recipe_is_shown_with_where_each_value_comes_from(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.yaml").write_text("base: nezha-small\nname: mine\ntrain: {steps: 7, schedule: {decay: cosine}}\n")
    overrides = ["optimizer.learning_rate=3e-4", "examples=[a b, '[MASK]: #1']"]
    text, origins = shown(capsys, str(tmp_path / "mine.yaml"), *overrides)
    assert [origins[key] for key in ("name", "steps", "decay")] == ["mine.yaml"] * 3
    assert [origins[key] for key in ("learning_rate", "examples")] == ["command line"] * 2
    assert origins["hidden_size"] == "nezha-small.yaml" and origins["watchdog_minutes"] == "default"
    expected = load_recipe(str(tmp_path / "mine.yaml"), overrides, "train")
    assert Recipe.parse(yaml.safe_load(text), "shown") == expected
    (tmp_path / "again.yaml").write_text(text)
    assert load_recipe(str(tmp_path / "again.yaml"), []) == expected


def test_values_that_another_kind_of_data_drops_are_not_taken_for_the_bases(tmp_path: Path, capsys) -> None:
    (tmp_path / "mine.yaml").write_text(
        "base: nezha-small\nname: mine\ntrain: {data: {kind: packed, corpus: x, sequence_length: 64}}\n"
    )
    data = load_recipe("nezha-small", []).model_dump(mode="json", exclude_unset=True)["train"]["data"]
    assert "masking" in data
    _, origins = shown(capsys, str(tmp_path / "mine.yaml"))
    assert origins["strategy"] == "default" and origins["sequence_length"] == "mine.yaml"


def test_the_version_and_the_shells_completion(monkeypatch: pytest.MonkeyPatch) -> None:
    result = CliRunner().invoke(app, ["--version"])
    assert result.exit_code == 0 and re.fullmatch(r"reread \S.*\n", result.stdout)
    asked = {"_REREAD_COMPLETE": "complete_bash", "COMP_WORDS": "reread train nezha-base-", "COMP_CWORD": "2"}
    result = CliRunner().invoke(app, prog_name="reread", env=asked)
    assert result.stdout.split() == ["nezha-base-span", "nezha-base-wwm"]
