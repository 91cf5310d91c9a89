"""`reread settings` and `reread show`: what can be set, and where a recipe's values come from."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from reread.pipeline.cli import app
from reread.pipeline.commands.settings import as_markdown, print_settings
from reread.pipeline.commands.show import show
from reread.pipeline.recipe.load import load_recipe
from reread.pipeline.recipe.schema import Recipe
from reread.pipeline.recipe.sections import all_sections
from reread.preprocessing.errors import UserError
from tests.conftest import ROOT

UNITS = (
    "tokens? bytes megabytes characters? rows? documents? words? windows? segments? chunks? batches steps? updates? "
    "epochs? passes|pass times seconds? minutes? hours? nodes? gpus? cores? processes tasks? copies copy evaluations? "
    "checkpoints runs? layers? share factor probability parameter number exponent scale norm size tflop/?s? rates? "
    "dropout score tries"
)


PAGE = ROOT / "docs" / "settings.md"


def test_the_page_of_all_settings_is_up_to_date() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == as_markdown(), "reread settings --markdown > docs/settings.md"


WORDS = {
    "true or false": {"boolean"},
    "whole number": {"integer"},
    "number": {"number"},
    "text": {"string"},
    "path": {"string"},
    "bytes (200GB)": {"string", "integer"},
    "mapping": {"object"},
    "section": {"object"},
    "null": {"null"},
}
"""What the page calls a type -> the types of JSON."""


def types_on_page(text: str) -> set[str]:
    """`path or text, or null` -> string, null; a name that is no type stands for itself."""
    text = re.sub(r" (from|above|to|below) [\d,.]*\d", "", text).replace("true or false", "boolean")
    found: set[str] = set()
    for part in text.split(", or "):
        for word in [part] if part.startswith("list of ") else re.split(r" or |, ", part):
            is_list = word.startswith("list of ") or word.endswith(" numbers")
            found |= {"array"} if is_list else WORDS.get(word, {word})
    return found


def types_in_schema(schema: dict[str, Any]) -> set[str]:
    if "$ref" in schema:
        return {"object"}
    inner = [*schema.get("anyOf", []), *schema.get("oneOf", [])]
    if inner:
        return set().union(*map(types_in_schema, inner))
    return {schema["const"]} if "const" in schema else set(schema.get("enum", [schema.get("type")]))


def owners(schema: dict[str, Any], path: list[str]) -> list[dict[str, Any]]:
    """The sections at `path` below the root of the schema: several where a section has kinds."""
    found = [schema]
    for name in path:
        texts = [json.dumps(one["properties"][name]) for one in found if name in one["properties"]]
        references = dict.fromkeys(re.findall(r"#/\$defs/(\w+)", "".join(texts)))
        found = [schema["$defs"][reference] for reference in references]
    return found


def test_the_types_on_the_page_are_those_that_the_models_take() -> None:
    """The page against pydantic's own JSON schema of a recipe, key by key."""
    schema, compared = Recipe.model_json_schema(), 0
    for part in PAGE.read_text(encoding="utf-8").split("\n## ")[1:]:
        title, _, kind = part.split("\n")[0].partition(", kind: ")
        path = [] if title == "(root)" else title.replace("task", "train.data").split(".")
        sections = [one for one in owners(schema, path) if not kind or one["properties"]["kind"].get("const") == kind]
        assert sections, title
        for key, words in re.findall(r"^\| `(\w+)` \| (.+?) \|", part, re.MULTILINE):
            properties = [one["properties"][key] for one in sections if key in one["properties"]]
            taken = set().union(*map(types_in_schema, properties))
            shown = types_on_page(words)
            shown -= {"auto"} if "auto" not in taken else set()  # `_OR_AUTO` is a validator, which the schema lacks
            if key != "format" or title != "task":  # its names come from a table, and are checked when it is opened
                assert shown == taken, f"{title}.{key}: {words}"
            compared += 1
    assert compared > 250


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


def test_square_brackets_are_shown_and_formats_are_listed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """rich reads `[n:]` as a style, and leaves it out."""
    monkeypatch.setenv("COLUMNS", "500")
    for key, text in (("trainable", "`[n:]` after"), ("writers", "'reread[wandb]'"), ("mask_share", "become [MASK].")):
        print_settings(key)
        assert text in capsys.readouterr().out
    print_settings("task.format")
    output = capsys.readouterr().out
    assert re.search(r" format +jsonl.* semeval", output) and re.search(r" format +jsonl.* conll", output)
    assert ".py" not in output


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
    assert result.stdout.split() == ["nezha-base-as-published", "nezha-base-span", "nezha-base-wwm"]
