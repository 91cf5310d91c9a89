"""Whatever a recipe or an override holds, it is taken or refused in one line; nothing else is raised, nothing hangs."""

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from reread.pipeline.recipe.load import apply_overrides, load_recipe, write_recipe, written_recipe
from reread.pipeline.recipe.schema import Recipe
from reread.pipeline.recipe.slurm import site_settings
from reread.pipeline.recipe.values import as_yaml, read_override
from reread.preprocessing.errors import UserError
from reread.preprocessing.settings import _keys

KEYS = [*_keys(Recipe), "train.model.type", "train.model.hidden_size", "train.data.kind", "base", "start.recipe"]
TEXT = st.text(max_size=12) | st.sampled_from(["..", "nezha", "ran", "segments", "stream", "a\nb", "\0", "x.yaml"])
NUMBERS = st.integers() | st.integers(-(10**40), 10**40) | st.floats() | st.sampled_from([-1, 0, 2**31, 2**63, 2**64])
LEAVES = st.none() | st.booleans() | NUMBERS | TEXT | st.dates() | st.binary(max_size=4)
NAMES = st.sampled_from(sorted({part for key in KEYS for part in key.split(".")})) | TEXT
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4), max_leaves=8
)
SECTIONS = st.sampled_from([*Recipe.model_fields, "base", "scales"])
YAML = st.text(alphabet="{}[]&*!|>'\"%@`#?:-,. \n\t\\axyz019eE+_~<=", max_size=24)


@pytest.fixture(scope="module")
def whole() -> dict[str, Any]:
    return load_recipe("quickstart", []).model_dump(mode="json")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz")


def dumped(value: Any) -> str:
    """As YAML writes it, and where it cannot, as Python does."""
    try:
        return yaml.safe_dump(value, default_flow_style=True, width=10**6).strip().removesuffix("...").strip()
    except yaml.YAMLError:
        return repr(value)


def taken_or_refused(values: dict[str, Any], overrides: list[str], folder: Path) -> None:
    values = copy.deepcopy(values)
    try:
        apply_overrides(values, overrides, "train")
        recipe = Recipe.parse(values, "test")
    except UserError as error:
        assert "\n" not in str(error)
        return
    write_recipe(recipe, folder / "recipe.yaml")  # what is taken can be written down and read again
    assert written_recipe(folder / "recipe.yaml") == recipe


@pytest.mark.slow
@given(key=st.sampled_from(KEYS), value=VALUES)
def test_any_value_for_any_key_is_taken_or_refused_in_one_line(whole, folder, key: str, value: Any) -> None:
    taken_or_refused(whole, [f"{key}={dumped(value)}"], folder)


@given(key=st.sampled_from(KEYS) | TEXT, text=YAML | TEXT)
def test_any_override_is_taken_or_refused_in_one_line(whole, folder, key: str, text: str) -> None:
    taken_or_refused(whole, [f"{key}={text}"], folder)


@given(sections=st.dictionaries(SECTIONS | TEXT, VALUES, max_size=4), text=YAML)
@example(sections={"": None}, text="")
@example(sections={"scales": {"x": 3}, "then": [3]}, text="scales: 3")
def test_any_recipe_file_is_taken_or_refused_in_one_line(folder, sections: dict[str, Any], text: str) -> None:
    path = folder / "any.yaml"
    for content in (dumped(sections), text):
        path.write_text(content, encoding="utf-8", errors="surrogatepass")
        for read in (
            lambda: load_recipe(str(path), []),
            lambda: load_recipe(str(path), ["scale=x"]),
            lambda: site_settings(path),
        ):
            try:
                read()
            except UserError as error:
                assert "\n" not in str(error)


@given(text=TEXT | YAML)
def test_text_is_read_as_itself_once_it_is_quoted(text: str) -> None:
    try:
        assert read_override(as_yaml(text), "test") == text
    except UserError as error:
        assert "holds a character that no file can" in str(error)


def test_aliases_that_blow_up_are_refused_at_once(whole, folder) -> None:
    levels = [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9 if n else ['x'] * 9)}]" for n in range(12)]
    taken_or_refused(whole, [f"train.model={{{', '.join(levels)}}}"], folder)
    with pytest.raises(UserError, match="too much of it"):
        apply_overrides({}, [f"train.model={{{', '.join(levels)}}}"])
