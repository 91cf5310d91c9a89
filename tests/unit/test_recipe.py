"""Recipes: inheritance, overrides, and mistakes told in one line."""

import pytest
import yaml

from pipeline.recipe import (
    Recipe,
    available_recipes,
    check_same_run,
    load_recipe,
    write_recipe,
)
from preprocessing.errors import UserError


def test_every_built_in_recipe_is_valid() -> None:
    for name in available_recipes():
        assert load_recipe(name, []).name == name


def test_nezha_recipes_hold_the_papers_numbers() -> None:
    base, large = load_recipe("nezha-base", []).train, load_recipe("nezha-large", []).train
    assert base and large
    assert (base.global_batch, base.optimizer.learning_rate, base.schedule.warmup_steps) == (14400, 1.8e-4, 1800)
    assert (large.global_batch, large.optimizer.learning_rate, large.schedule.warmup_steps) == (5120, 1e-4, 1800)
    assert (base.schedule.decay, large.schedule.decay) == ("linear", "polynomial")
    assert (large.model["hidden_size"], large.model["num_hidden_layers"]) == (1024, 24)
    assert load_recipe("nezha-base-wwm", []).train.data.masking.strategy == "whole-word"  # type: ignore[union-attr]
    assert load_recipe("nezha-base-span", []).train.data.masking.strategy == "span"  # type: ignore[union-attr]


def test_lm_recipes_hold_the_papers_numbers() -> None:
    from training.models import model_spec
    from training.models.build import check_data, model_config

    base, large = load_recipe("lm-base", []).train, load_recipe("lm-large", []).train
    assert base and large
    for train, expected in (
        (base, (16, 410, 10, 150, 150, 64, 640, 64, 200_000, 0)),
        (large, (18, 1024, 16, 384, 384, 128, 1600, 128, 400_000, 16_000)),
    ):
        data, spec = train.data, model_spec("transformer_xl")
        assert data.kind == "stream"
        config = model_config(spec, train.model, 267_735, None)
        check_data(spec, config, data)
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
        ("train.stepz=1", "unknown key `train.stepz`; did you mean `steps`?"),
        ("train.data.masking.stratgy=span", "did you mean `strategy`?"),
        ("train.data.masking.strategy=words", "train.data.masking.strategy: input should be 'token', 'whole-word'"),
        ("train.steps=many", "train.steps: input should be a valid integer"),
        ("preprocess.tokenizer.train.size=500", "either `path` (an existing vocabulary) or `train`"),
        ("trian.steps=1", "did you mean `train`?"),
        ("start={recipe: x, convert: {lenght: 8}}", "unknown key `start.convert.lenght`; did you mean `length`?"),
        ("start={recipe: x, convert: {length: long}}", "start.convert.length: input should be a valid integer"),
        ("steps", "an override is written key=value"),
        ("train.steps.more=1", "`steps` holds a value, not a section"),
    ],
)
def test_a_wrong_key_or_value_names_the_field_and_the_way_out(override: str, message: str) -> None:
    with pytest.raises(UserError) as raised:
        load_recipe("nezha-base", [override])
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_an_unknown_recipe_names_the_nearest() -> None:
    with pytest.raises(UserError, match="did you mean `nezha-base-wwm`"):
        load_recipe("nezha-base-wmm", [])


def test_overrides_may_leave_out_their_section() -> None:
    short = load_recipe("nezha-base", ["steps=7", "data.masking.strategy=span", "train.seed=3"], "train").train
    assert short and (short.steps, short.data.masking.strategy, short.seed) == (7, "span", 3)


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
    with pytest.raises(UserError, match=r"optimizer\.learning_rate: 0\.003 -> 0\.5"):
        check_same_run(tmp_path, load_recipe("quickstart", ["train.optimizer.learning_rate=0.5"]))


def test_a_relaunch_may_change_how_held_out_text_is_read(tmp_path) -> None:
    write_recipe(load_recipe("lm-base", []), tmp_path / "recipe.yaml")
    (tmp_path / "checkpoints" / "step-00000001").mkdir(parents=True)
    data = ["train.data.evaluation_length=32", "train.data.evaluation_memory=150"]
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
