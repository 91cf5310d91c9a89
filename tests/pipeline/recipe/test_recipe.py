"""Recipes: inheritance, overrides, and one line for each mistake."""

import copy
import errno
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_origin

import pytest
import yaml

from reread.pipeline.recipe.check import check_same_run
from reread.pipeline.recipe.layers import available_recipes
from reread.pipeline.recipe.load import apply_overrides, load_recipe, override, write_recipe
from reread.pipeline.recipe.schema import Recipe
from reread.pipeline.recipe.values import as_yaml
from reread.preprocessing.config import PreprocessSettings
from reread.preprocessing.errors import UserError
from reread.preprocessing.settings import sections_in
from reread.training.config import TrainSettings


def test_every_built_in_recipe_is_valid() -> None:
    for name in available_recipes():
        assert load_recipe(name, []).name == name


@pytest.mark.parametrize("section", ["preprocess", "train"])
def test_a_key_that_only_one_section_has_needs_no_section(section: str) -> None:
    """`run` and `ablate` preprocess and train, and their jobs get the same overrides."""
    recipe = load_recipe("nezha-base", ["input.paths=[zh]", "steps=7", "tokenizer.path=v", "name=x"], section)
    assert recipe.preprocess and recipe.train
    assert not set(PreprocessSettings.model_fields) & set(TrainSettings.model_fields)
    assert (recipe.preprocess.inputs[0].paths, recipe.train.steps, recipe.name) == (["zh"], 7, "x")


def test_text_is_normalised_unless_the_vocabulary_is_robertas_or_keeps_words_as_they_are() -> None:
    recipes = {name: load_recipe(name, []) for name in available_recipes()}
    for name, recipe in recipes.items():
        if (settings := recipe.preprocess) is not None:
            of_words = settings.tokenizer.train is not None and settings.tokenizer.train.type == "words"
            assert settings.clean.nfkc != (
                of_words or settings.clean.as_is or str(settings.tokenizer.path) in ("roberta-base", "ModernBERT-base")
            ), name


def test_nezha_recipes_hold_the_papers_numbers() -> None:
    base, large = load_recipe("nezha-base", []).train, load_recipe("nezha-large", []).train
    assert base and large
    assert (base.global_batch, base.optimizer.learning_rate, base.schedule.warmup_steps) == (14400, 1.8e-4, 1800)
    assert (large.global_batch, large.optimizer.learning_rate, large.schedule.warmup_steps) == (5120, 1e-4, 1800)
    assert (base.schedule.decay, large.schedule.decay) == ("linear", "polynomial")
    assert (large.model["hidden_size"], large.model["num_hidden_layers"]) == (1024, 24)
    assert load_recipe("nezha-base-wwm", []).train.data.masking.strategy == "whole-word"  # type: ignore[union-attr]
    span = load_recipe("nezha-base-span", []).train
    assert span and span.data.masking.strategy == "span" and span.model["span_boundary"] is True  # type: ignore[union-attr]
    assert "span_boundary" not in load_recipe("nezha-base-wwm", []).train.model  # type: ignore[union-attr]


def test_every_row_of_an_ablation_can_be_trained() -> None:
    """Its overrides are known, the model takes them, and rows differ."""
    from reread.training.assembly import check_model

    tables = {name: load_recipe(name, []).ablations for name in available_recipes()}
    assert {name for name, rows in tables.items() if rows} >= {"ernie-doc-small", "longformer-small", "nezha-small"}
    for name, rows in tables.items():
        for row in rows:
            train = load_recipe(name, row.overrides, "train").train
            assert train
            check_model(train)
        assert len({tuple(row.overrides) for row in rows}) == len(rows)


def test_nezha_small_has_the_papers_table() -> None:
    """Table 5: what changes in each row, and CMRC's F1 for it."""
    found = {}
    for row in load_recipe("nezha-small", []).ablations:
        train = load_recipe("nezha-small", row.overrides, "train").train
        assert train and train.data.kind == "rows"
        positions = train.model.get("position_type", "functional")
        span = train.model.get("span_boundary", False)
        found[positions, train.data.masking.strategy, span, train.data.sequence_length] = row.published
    f1 = {changed: (figures.get("F1"), figures.get("all F1")) for changed, figures in found.items()}
    assert f1 == {
        ("parametric_absolute", "token", False, 128): (58.40, None),
        ("parametric_relative", "token", False, 128): (86.17, None),
        ("functional", "token", False, 128): (86.46, 86.41),
        ("functional", "token", False, 512): (86.60, None),
        ("functional", "whole-word", False, 128): (None, 86.25),
        ("functional", "whole-word", False, 512): (None, 86.16),
        ("functional", "span", True, 128): (None, 88.57),
    }


def test_ernie_doc_recipes_mask_as_the_paper_and_have_the_rows_of_its_tables() -> None:
    for name, strategy in (("small", "token"), ("base-en", "token"), ("large-en", "token"), ("base-zh", "whole-word")):
        train = load_recipe(f"ernie-doc-{name}", []).train
        assert train and train.data.masking.strategy == strategy  # type: ignore[union-attr]
    rows = load_recipe("ernie-doc-small", []).ablations
    published = [tuple(row.published.get(figure) for figure in ("TQA", "HQA", "IMDB", "HYP")) for row in rows]
    assert published == [
        (64.56, 50.85, 93.14, 86.10),
        (63.59, 50.04, 93.15, 84.60),
        (63.38, 49.87, 92.56, 83.27),
        (61.09, 44.05, 92.07, 81.67),
        (58.35, 31.54, 91.60, 77.72),
        *4 * [(None, None, None, None)],  # Figure 4's, and chunks that are cut anywhere
    ]
    figure_4 = set()
    for row in (rows[0], *rows[5:8]):
        train = load_recipe("ernie-doc-small", row.overrides, "train").train
        assert train and train.data.kind == "segments" and train.data.retrospective
        figure_4.add((train.data.sequence_length, train.model["recurrence"]))
    assert figure_4 == {(length, recurrence) for length in (128, 512) for recurrence in ("enhanced", "shifted")}


def test_lm_recipes_hold_the_papers_numbers() -> None:
    from reread.training.assembly import check_data
    from reread.training.models import model_spec
    from reread.training.models.build import model_config
    from reread.training.objectives import objective_of

    base, large = load_recipe("lm-base", []).train, load_recipe("lm-large", []).train
    assert base and large
    for train, expected in (
        (base, (16, 410, 10, 150, 150, 64, 640, 64, 200_000, 0)),
        (large, (18, 1024, 16, 384, 384, 128, 1600, 128, 400_000, 16_000)),
    ):
        data, spec = train.data, model_spec("transformer_xl")
        assert data.kind == "stream"
        config = model_config(spec, train.model, 267_735, None)
        check_data(spec, objective_of(train), config, data)
        sizes = (config.n_layer, config.d_model, config.n_head, config.mem_len)
        lengths = (data.sequence_length, data.evaluation_length, data.evaluation_memory)
        assert (*sizes, *lengths, train.global_batch, train.steps, train.schedule.warmup_steps) == expected
        assert (config.recurrence, config.positions) == ("enhanced", "segatron-exact")
        assert config.cutoffs == [20_000, 40_000, 200_000]
        optimizer = train.optimizer
        assert (optimizer.name, optimizer.learning_rate, optimizer.eps) == ("adam", 2.5e-4, 1e-8)
        assert (optimizer.weight_decay, optimizer.gradient_clip, train.schedule.decay) == (0, 0.25, "cosine")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("train.stepz=1", "unknown key `train.stepz`; did you mean `train.steps`?"),
        ("train.data.masking.stratgy=span", "did you mean `train.data.masking.strategy`?"),
        ("train.learning_rate=1", "`train.optimizer.learning_rate` is what you mean"),
        (
            "train.data.retrospective=true",
            "it belongs to another `kind`; known here: train.data.cache, train.data.copies",
        ),
        ("train.qqq=1", "known here: train.activation_checkpointing, train.batch_tokens,"),
        ("train.data.masking.strategy=words", "train.data.masking.strategy: input should be 'token', 'whole-word'"),
        ("train.steps=many", "train.steps: input should be a valid integer"),
        ("preprocess.tokenizer.train.size=500", "either `path` (an existing vocabulary) or `train`"),
        ("trian.steps=1", "did you mean `train`?"),
        (
            "start={recipe: x, convert: {lenght: 8}}",
            "unknown key `start.convert.lenght`; did you mean `start.convert.length`?",
        ),
        ("start={recipe: x, convert: {length: long}}", "start.convert.length: input should be a valid integer"),
        (
            "preprocess.dedup.minimum_paragraph_characters=30",
            "unknown key `preprocess.dedup.minimum_paragraph_characters`; it is always 20 now; leave the key out",
        ),
        ("steps", "an override is written key=value"),
        ("train.steps.more=1", "`steps` holds a value, not a section"),
    ],
)
def test_a_wrong_key_or_value_names_the_field_and_the_way_out(override: str, message: str) -> None:
    with pytest.raises(UserError) as raised:
        load_recipe("nezha-base", [override])
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_retired_key_is_read_with_the_value_of_today() -> None:
    given = ["preprocess.dedup.minimum_paragraph_characters=20", "preprocess.tokenizer.fast=false"]
    assert load_recipe("nezha-base", given) == load_recipe("nezha-base", [])


def test_an_unknown_recipe_names_the_nearest() -> None:
    with pytest.raises(
        UserError, match=r"`reread recipes` lists them.*; did you mean `nezha-base-wwm` or .*\?$"
    ) as raised:
        load_recipe("nezha-base-wmm", [])
    assert len(str(raised.value)) < 200


def test_a_recipe_file_that_is_not_there_names_those_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No built-in ones, which are named by themselves alone."""
    (tmp_path / "own").mkdir()
    for name in ("tiny.yaml", "own/tinier.yml", "other.yaml"):
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    for recipe, hint in (
        ("tinyy.yaml", "no such file; did you mean `tiny.yaml`?"),
        ("own/tinyer", "no such file; did you mean `own/tinier.yml`?"),
        ("nowhere/quickstart.yaml", "no such file"),
    ):
        with pytest.raises(UserError) as raised:
            load_recipe(recipe, [])
        assert str(raised.value) == f"recipe {recipe}: {hint}"
    with pytest.raises(UserError, match=r"; did you mean `tiny\.yaml`\?$"):
        load_recipe("tiny", [])


def test_overrides_may_leave_out_their_section() -> None:
    short = load_recipe("nezha-base", ["steps=7", "data.masking.strategy=span", "train.seed=3"], "train").train
    assert short and (short.steps, short.data.masking.strategy, short.seed) == (7, "span", 3)


def test_a_path_may_begin_with_the_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    lists = ["preprocess.words.user_dictionaries=[~/a.txt, b~]", "preprocess.output=~/zh"]
    one = ["preprocess.tokenizer.path=~/vocab.txt", "train.data.corpus=~/zh", "train.init=~/model"]
    recipe = load_recipe("nezha-small", lists + one)
    assert recipe.preprocess is not None and recipe.train is not None
    assert recipe.preprocess.words.user_dictionaries == [Path("/home/me/a.txt"), Path("b~")]
    assert recipe.preprocess.output == recipe.train.data.location == Path("/home/me/zh")
    assert recipe.preprocess.tokenizer.path == Path("/home/me/vocab.txt")
    assert recipe.train.init == Path("/home/me/model")


def test_a_recipe_file_inherits_and_overrides(tmp_path) -> None:
    (tmp_path / "own.yaml").write_text("base: nezha-base\nname: own\ntrain: {steps: 5, optimizer: {weight_decay: 0}}\n")
    (tmp_path / "child.yaml").write_text("base: own.yaml\nname: child\n")
    recipe = load_recipe(str(tmp_path / "child.yaml"), [])
    assert recipe.train and recipe.train.steps == 5
    assert recipe.train.optimizer.weight_decay == 0
    assert recipe.train.optimizer.learning_rate == 1.8e-4


def test_broken_yaml_is_one_line(tmp_path) -> None:
    path = tmp_path / "broken.yaml"
    path.write_text("name: [x\n")
    with pytest.raises(UserError, match=r"broken\.yaml: not readable as YAML") as raised:
        load_recipe(str(path), [])
    assert "\n" not in str(raised.value)


def test_the_written_recipe_is_enough_to_run_again(tmp_path) -> None:
    recipe = load_recipe("quickstart", ["train.steps=9"])
    write_recipe(recipe, tmp_path / "recipe.yaml")
    again = Recipe.parse(yaml.safe_load((tmp_path / "recipe.yaml").read_text(encoding="utf-8")), "again")
    assert again == recipe


def test_a_relaunch_may_change_the_split_but_not_what_is_learned(tmp_path) -> None:
    write_recipe(load_recipe("quickstart", []), tmp_path / "recipe.yaml")
    (tmp_path / "checkpoints" / "step-00000001").mkdir(parents=True)
    elastic = ["train.parallel.tensor=2", "train.micro_batch=4", "train.data.corpus=moved/elsewhere"]
    check_same_run(tmp_path, load_recipe("quickstart", elastic))
    with pytest.raises(UserError, match=r"optimizer\.learning_rate: 0\.0015 -> 0\.5.*with from=\S+ it"):
        check_same_run(tmp_path, load_recipe("quickstart", ["train.optimizer.learning_rate=0.5"]))


def test_a_relaunch_may_change_how_held_out_text_is_read(tmp_path) -> None:
    write_recipe(load_recipe("lm-base", []), tmp_path / "recipe.yaml")
    (tmp_path / "checkpoints" / "step-00000001").mkdir(parents=True)
    data = [f"train.data.evaluation_{name}" for name in ("length=32", "memory=150", "lanes=8")]
    check_same_run(tmp_path, load_recipe("lm-base", data))
    with pytest.raises(UserError, match=r"data\.sequence_length: 150 -> 100"):
        check_same_run(tmp_path, load_recipe("lm-base", ["train.data.sequence_length=100"]))


def test_a_run_begun_before_a_setting_was_there_goes_on(tmp_path) -> None:
    recipe = load_recipe("quickstart", [])
    write_recipe(recipe, tmp_path / "recipe.yaml")
    values = yaml.safe_load((tmp_path / "recipe.yaml").read_text(encoding="utf-8"))
    del values["start"], values["train"]["trainable"], values["train"]["data"]["special_tokens"]
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(values), encoding="utf-8")
    (tmp_path / "checkpoints" / "step-00000001").mkdir(parents=True)
    check_same_run(tmp_path, recipe)
    bare = ["train.data.next_sentence=false", "train.data.special_tokens=false"]
    with pytest.raises(UserError, match="special_tokens: True -> False"):
        check_same_run(tmp_path, load_recipe("quickstart", bare))


def test_a_run_that_never_reached_a_checkpoint_may_be_begun_anew(tmp_path) -> None:
    write_recipe(load_recipe("quickstart", ["train.model.num_attention_heads=5"]), tmp_path / "recipe.yaml")
    check_same_run(tmp_path, load_recipe("quickstart", []))


def test_checkpoints_that_cannot_be_listed_just_now_are_not_taken_for_none(tmp_path, monkeypatch) -> None:
    write_recipe(load_recipe("quickstart", []), tmp_path / "recipe.yaml")

    def stale(folder: Path) -> list[str]:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(folder))

    monkeypatch.setattr(os, "listdir", stale)
    with pytest.raises(UserError, match=r"checkpoints: cannot be read now \(Stale file handle\)") as refused:
        check_same_run(tmp_path, load_recipe("quickstart", ["train.seed=9"]))
    assert refused.value.status == 1


def test_a_section_of_another_kind_or_type_takes_nothing_from_the_base(tmp_path) -> None:
    recipe = {"base": "ran-base", "train": {"data": {"kind": "stream", "corpus": "corpora/en"}}}
    (tmp_path / "stream.yaml").write_text(yaml.safe_dump(recipe))
    rows, stream = load_recipe("ran-base", []).train, load_recipe(str(tmp_path / "stream.yaml"), []).train
    assert rows and stream
    assert (rows.data.kind, stream.data.kind) == ("rows", "stream")
    assert stream.model == rows.model
    words, cells = load_recipe("lm-base", []).train, load_recipe("ran-lm", []).train
    assert words and cells
    assert (words.model["type"], cells.model["type"]) == ("transformer_xl", "ran")
    assert not {"n_layer", "mem_len"} & cells.model.keys()


def test_another_type_of_vocabulary_keeps_the_size_of_the_base(tmp_path) -> None:
    recipe = {"base": "quickstart", "preprocess": {"tokenizer": {"train": {"type": "bpe"}}}}
    (tmp_path / "bpe.yaml").write_text(yaml.safe_dump(recipe))
    preprocess = load_recipe(str(tmp_path / "bpe.yaml"), []).preprocess
    assert preprocess and preprocess.tokenizer.train
    assert (preprocess.tokenizer.train.type, preprocess.tokenizer.train.size) == ("bpe", 4000)


def test_ran_recipes_hold_the_papers_figures() -> None:
    """Tables 4 and 6 are accuracies of classifiers on Arxiv; the language model's perplexity is of WikiText-103."""
    published = {row.name: row.published for row in load_recipe("ran-small", []).ablations}
    accuracies = {name: row["Arxiv accuracy"] for name, row in published.items() if row}
    assert accuracies == {
        "RAN": 83.36,
        "w/o residual of the cell": 81.76,
        "w/o memory review": 80.85,
        "w/o rotary positions": 82.13,
        "1 layer": 83.14,
        "3 layers": 83.76,
        "4 layers": 83.93,
    }
    assert published["RAN"]["with average pooling"] == 82.24
    layers = [published[name] for name in ("1 layer", "RAN", "3 layers", "4 layers")]
    assert [row["M parameters"] for row in layers] == [15, 17, 19, 21]
    assert [row["s an epoch"] for row in layers] == [678, 1311, 2186, 2967]
    language_model = load_recipe("ran-lm", [])
    assert [row.published for row in language_model.ablations] == [{"perplexity": 22.76}]
    assert language_model.train and language_model.train.optimizer.learning_rate == 3e-4


def test_longformer_recipes_hold_the_papers_numbers() -> None:
    base, frozen = load_recipe("longformer-base", []).train, load_recipe("longformer-base-positions", []).train
    assert base and frozen
    schedule = (base.schedule.warmup_steps, base.schedule.decay, base.schedule.power)
    assert (base.steps, base.global_batch, base.data.sequence_length) == (65_000, 64, 4096)
    assert (base.optimizer.learning_rate, *schedule) == (3e-5, 500, "polynomial", 3)
    assert (base.trainable, frozen.trainable) == (None, ["*.position_embeddings.weight[514:]"])


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("name=[a", "name: is made of the letters A-Z and a-z, digits, . _ and - (got"),
        ("name=..", "name: is the name of a folder in runs/, not a path to another (got '..')"),
        ("name=.", "name: is the name of a folder in runs/"),
        ("name=a/b", "name: is made of the letters A-Z and a-z, digits, . _ and - (got"),
        ('name="a\\nb"', "name: is made of the letters A-Z and a-z, digits, . _ and - (got"),
        (f"name={'a' * 300}", "name: string should have at most 150 characters"),
        (
            "train.data=5",
            "train.data: a section whose `kind` is one of rows, packed, segments, stream, classify, tag, answer, "
            "choose, rank, phrases, coreference, generate, embed (got 5)",
        ),
        ("train.data={kind: row}", "train.data: a section whose `kind` is one of rows"),
        ("train.peak_tflops=0", "train.peak_tflops: input should be greater than 0 (got 0)"),
        ("train.optimizer.betas=[2, .9]", "train.optimizer.betas.0: input should be less than 1 (got 2)"),
        ("train.optimizer.learning_rate=.inf", "train.optimizer.learning_rate: input should be a finite number"),
        (f"train.seed={'9' * 30}", "train.seed: input should be less than 9223372036854775808"),
        (f"train.steps={'9' * 5000}", "train.steps: unable to parse"),
        ("train.model=&a {x: *a}", "does an alias (*) stand in its own anchor (&)?"),
        ("train.model={b: !!binary aGk=}", "is a bytes; write it as text or numbers"),
        ("train.model={1: 2}", "the key 1 is not text"),
        ('train.data.corpus="a\\0b"', "holds a character that no file can"),
        ('train.data.corpus="\\ud800"', "holds a character that no file can"),
        ("train.steps=" + "[" * 5000, "nested too deeply"),
        ('ablations=[{name: "a\\nb"}]', "ablations.0.name: is one line"),
    ],
)
def test_a_value_that_cannot_be_is_one_line(override: str, message: str) -> None:
    with pytest.raises(UserError) as raised:
        load_recipe("nezha-base", [override])
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_an_override_that_is_no_yaml_is_text() -> None:
    overrides = ["preprocess.input.paths=*.txt", "examples=[MASK] x", "description=a: b: c", "name=2024-01-01"]
    recipe = load_recipe("nezha-base", overrides)
    assert recipe.preprocess and recipe.preprocess.input.paths == ["*.txt"]
    assert (recipe.examples, recipe.description, recipe.name) == (["[MASK] x"], "a: b: c", "2024-01-01")


@pytest.mark.parametrize("path", ["123", "a: b", "[x", "*.txt", "it's", "null", "é", "a b", "- x", "#x", "", "'q'"])
def test_a_path_is_handed_on_whatever_it_is_called(path: str) -> None:
    train = load_recipe("nezha-base", [override("data.corpus", Path(path))], "train").train
    assert train and train.data.corpus == Path(path)


def test_a_recipe_cannot_stand_over_itself(tmp_path) -> None:
    (tmp_path / "a.yaml").write_text("base: b.yaml\n")
    (tmp_path / "b.yaml").write_text(f"base: {tmp_path}/a.yaml\n")
    for name in ("a", "b"):
        with pytest.raises(UserError, match=rf"{name}\.yaml: its `base` leads back to .*{name}\.yaml"):
            load_recipe(str(tmp_path / f"{name}.yaml"), [])


def numbers_of(model: Any, path: str = "") -> Iterator[tuple[str, set[Any]]]:
    """The dotted name of each number of the sections below, those of every kind of data, and its types."""
    for name, field in model.model_fields.items():
        annotation = field.annotation
        kinds = {annotation, *get_args(annotation)}
        sections = set(sections_in(annotation)) if get_origin(annotation) is not list else set()
        for section in sections:
            yield from numbers_of(section, f"{path}{name}.")
        if kinds & {int, float} and get_origin(annotation) is not dict:
            yield path + name, kinds


def test_every_number_of_a_recipe_has_bounds() -> None:
    names, recipe = dict(numbers_of(Recipe)), load_recipe("nezha-base", []).model_dump(mode="json")
    assert len(names) > 50
    kinds = {"evaluation_": "stream", "reorder_": "segments", "short_": "rows"}
    for name, types in names.items():
        kind = next((kind for part, kind in kinds.items() if name.startswith(f"train.data.{part}")), None)
        given = [] if kind is None else [f"train.data={{kind: {kind}, corpus: x}}"]
        if name.startswith("start."):
            given = ["start={recipe: x}"]
        if name.startswith("preprocess.tokenizer.train."):
            given = ["preprocess.tokenizer={train: {}}"]
        for value in ("-1e300", "1e300", ".nan", ".inf", "-.inf") if float in types else (f"-{10**30}", str(10**30)):
            with pytest.raises(UserError, match=re.escape(name)):
                values = copy.deepcopy(recipe)
                apply_overrides(values, [*given, f"{name}={value}"])
                Recipe.parse(values, "test")


@pytest.mark.parametrize("text", ["#", " ", "|", " | ", " / ", "a # b"])
def test_an_override_keeps_what_yaml_would_drop_of_a_text(text: str) -> None:
    values: dict[str, Any] = {}
    apply_overrides(values, [f"task.label_separator={text}"])
    assert values["train"]["data"]["label_separator"] == text
    apply_overrides(values, [f"task.label_separator={as_yaml(text)}", "task.join=null", "task.format="])
    assert values["train"]["data"] == {"label_separator": text, "join": None, "format": None}


def test_a_setting_where_the_recipe_belongs_is_told_so() -> None:
    with pytest.raises(UserError, match=r"^`steps=3`: a recipe comes first, and then what to change in it: RECIPE st"):
        load_recipe("steps=3", [])
