"""An exported model predicts as its run does: all that decides a prediction travels with it."""

import ast
import io
import itertools
import json
import re
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reread.pipeline.commands.predict import predict
from reread.pipeline.recipe.load import write_recipe
from reread.pipeline.recipe.schema import Recipe
from reread.pipeline.run_folder.export import export
from reread.preprocessing.errors import UserError
from reread.preprocessing.labelled.tasks.choose import ChooseExample
from reread.training import prediction
from reread.training.config import TrainSettings
from reread.training.data.kinds import KINDS
from reread.training.data.tasks import kept
from reread.training.data.tasks.examples import forget_examples
from reread.training.models import model_spec
from reread.training.models.build import vocabulary_of
from reread.training.objectives import OBJECTIVES
from reread.training.objectives.task import TaskObjective
from reread.training.parallel.mesh import Mesh
from reread.training.prediction import task_of_export, texts_of
from reread.training.trainer import Trainer
from tests.conftest import rarer, thinned
from tests.tasks import DECODERS, LETTERS, objective_of, task_values, write_lines, write_tokenizer

MODELS = ["nezha", "ernie_doc", "ran", "longformer"]
TASKS = ["one", "set", "number", "tag", "answer", "choose", "rank", "phrases", "coreference"]
"""The answers of classification, and the other kinds that all models serve."""

COMMON: dict[str, Any] = {
    "format": "jsonl",
    "columns": {"text": "words"},
    "join": " ",
    "wrong": "skip",
    "sequence_length": 24,
    "step": 3,
    "longest": 33,
    "other_length": 5,
    "learns": "last",
    "predict": "last",
    "head_dropout": 0.25,
    "retrospective": True,
    "labels": ["v", "u"],
    "frame": "segments",
}
OTHER: dict[str, dict[str, Any]] = {
    "classify": {
        **COMMON,
        **{"answer": "set", "pooling": "mean", "label_separator": "|", "pairs": False},
        **{"class_weights": [1.0, 2.0], "threshold": "each", "thresholds": [0.25, 0.75]},
    },
    "tag": {
        **COMMON,
        **{"scheme": "BIOES", "crf": True, "characters": True, "split": "characters", "class_weights": [1.0, 2.0]},
    },
    "answer": {
        **COMMON,
        "form": "marked",
        "evidence_paragraphs": 2,
        "answers": False,
        "occurrences": "all",
        "without": "skip",
        "no_answer": 0.01,
        "style": "cmrc",
        "answer_length": 3,
        "misplaced": 0.5,
        "question": "why?",
        "question_form": "a {question} b",
        "question_tokens": True,
        "choices": ["YES"],
    },
    "choose": {
        **COMMON,
        **{
            "form": "aligned",
            "pooling": "mean",
            "question": "why?",
            "options": ["x", "y"],
            "question_option_length": 9,
            "shuffled": True,
        },
    },
    "rank": {**COMMON, "pooling": "mean", "passages": 3, "loss": "binary", "irrelevant": 0.5},
    "coreference": {
        **COMMON,
        **{"span_words": 3, "spans_per_word": 0.5, "antecedents": 3, "head_size": 8, "split": "characters"},
    },
    "generate": {**COMMON, "target_length": 5, "long_targets": "cut", "beams": 3, "frame": "bare"},
    "phrases": {**COMMON, "phrase_words": 3, "phrases": 7, "split": "characters", "misplaced": 0.5},
}
"""Kind of task -> each of its settings, away from its default."""


@pytest.mark.parametrize("kind", OTHER)
def test_every_setting_of_a_task_travels_with_the_export(kind: str, tmp_path: Path) -> None:
    fields = KINDS[kind].settings.model_fields
    given = OTHER[kind]
    missing = fields.keys() - given.keys() - {"kind", "train", "dev", "test", "tokenizer"}
    assert not missing, f"a new setting: give {missing} a value in OTHER that is not the default"
    assert not [name for name, value in given.items() if fields[name].default == value]
    spec = model_spec("ran" if kind == "generate" else "ernie_doc")
    values = {**task_values(spec.name, kind, tmp_path), "init": None}
    values["data"] |= {**given, "dev": "dev.jsonl", "test": "test.jsonl"}
    run = TrainSettings.parse(values, "test").data
    config = spec.config(vocab_size=9)
    OBJECTIVES[kind].configure(config, run)
    config.architectures = [spec.heads[kind].__name__]
    (tmp_path / "config.json").write_text(config.to_json_string())
    exported = TrainSettings.parse(task_of_export(tmp_path), "test").data
    files = {"train": Path(), "dev": None, "test": None, "tokenizer": tmp_path}
    assert exported == run.model_copy(update=files)
    written = (tmp_path / "config.json").read_text()
    assert "dev.jsonl" not in written and "test.jsonl" not in written and str(tmp_path) not in written


def words(generator: np.random.Generator, most: int) -> str:
    return " ".join(generator.choice(list(LETTERS), int(generator.integers(1, most))))


def example(task: str, number: int, generator: np.random.Generator) -> dict[str, Any]:
    text = words(generator, 50)
    if task == "tag":
        tokens = text.split(" ")
        return {"tokens": tokens, "tags": [["O", "B-p", "I-p"][ord(token) % 3] for token in tokens]}
    if task == "answer":
        return {"text": text, "question": words(generator, 9), "answers": [{"start": 0, "text": text[0]}]}
    if task == "choose":
        options = list(dict.fromkeys(words(generator, 9) for _ in range(4)))
        return {"text": text, "question": words(generator, 9), "options": options, "label": 0}
    if task in ("phrases", "coreference"):
        clusters = [[[0, 1], [len(text) - 1, len(text)]]]
        return {"text": text, **({"phrases": [text[:3], text[-1]]} if task == "phrases" else {"clusters": clusters})}
    if task in ("rank", "generate"):
        passages = [words(generator, 14) for _ in range(4)]
        ranked = {"query": text, "passages": passages, "grades": [0, 1, 0, 2]}
        return ranked if task == "rank" else {"source": text, "target": text[:7]}
    label = {"one": "uv"[number % 2], "set": ["u", "v"][: number % 3], "number": number / 3}[task]
    return {"text": text, "second": words(generator, 9), "label": label}


def settings_of(model: str, task: str) -> dict[str, Any]:
    """The settings of `OTHER` that this task and model can have: those that decide how a text is read."""
    kind = task if task in OTHER else "classify"
    # tests/training/objectives/test_joined.py and test_marked.py have `form` and what belongs to it
    without = {"columns", "frame", "form", "answers", "shuffled"}
    if model not in ("nezha", "ernie_doc", "modernbert"):
        without.add("pooling")
    if task != "set":
        without |= {"label_separator", "class_weights", "threshold", "thresholds"}
    if model != "ran":
        without.add("characters")
    given = {key: value for key, value in OTHER[kind].items() if key not in without}
    given |= {"retrospective": model == "ernie_doc", "labels": []}
    if kind == "classify":
        given |= {"answer": task, "labels": [] if task == "number" else ["u", "v"]}
    if kind == "tag":
        given["labels"] = ["O", "B-p", "I-p"]
    return given


def trained(folder: Path, name: str, values: dict[str, Any]) -> Path:
    """A run without steps: the weights that it begins with are those it ends with."""
    run = folder / name
    recipe = Recipe.parse({"name": name, "train": {**values, "steps": 0}}, "test")
    run.mkdir()
    write_recipe(recipe, run / "recipe.yaml")
    assert recipe.train is not None
    Trainer(recipe.train, run, Mesh()).train()
    return run


def predictions(model: Path, file: Path, *overrides: str) -> list[dict[str, Any]]:
    output = model.parent / "predicted.jsonl"
    predict(model, file, ["micro_batch=8", *overrides], output, None)
    return [json.loads(line) for line in output.read_text().splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "model"),
    [
        *thinned(itertools.product(TASKS, MODELS), 3),
        ("generate", "ran"),
        ("generate", "led"),
        rarer("choose", "bert"),
        ("tag", "modernbert"),
    ],
)
def test_run_export_and_export_of_the_export_predict_the_same(task: str, model: str, tmp_path: Path) -> None:
    """With every setting away from its default; they matter for these examples."""
    generator = np.random.default_rng(1)
    lines = [example(task, number, generator) for number in range(6)]
    file = write_lines(tmp_path / "some.jsonl", lines)
    kind, tokenizer = task if task in OTHER else "classify", write_tokenizer(tmp_path / "tokenizer")
    values = task_values(model, kind, tokenizer, **settings_of(model, task), train=str(file))
    less = {"init_std": 0.5} if model in DECODERS else {"initializer_range": 0.5, "num_hidden_layers": 1}
    values["model"] |= less
    if (model, task) == ("ran", "tag"):
        values["model"]["character_filters"] = 8
    run = trained(tmp_path, "run", values)
    first = export(run, tmp_path / "first")
    again = {
        **values,
        "init": str(first),
        "model": {"type": model},
        "data": {**values["data"], "tokenizer": str(first)},
    }
    second = export(trained(tmp_path, "again", again), tmp_path / "second")
    found = [predictions(one, file) for one in (run, first, second)]
    assert len(found[0]) == 6
    assert task != "answer" or ".tril(3 - 1)" in (first / "README.md").read_text()
    assert found[0] == found[1] == found[2]
    if task == "tag" and model == "nezha":
        short = min(found[0], key=lambda one: len(one["tokens"]))  # others are longer than what is read at most
        assert tags_by_the_card(first, " ".join(short["tokens"])) == short["tags"]
    if task == "phrases" and model == "nezha":
        short = min(range(6), key=lambda number: len(lines[number]["text"]))
        best = printed_by_the_card(first, lines[short]["text"])[0].split(" ", 1)
        expected = found[0][short]["phrases"][0]
        assert best[1] == expected["text"]
        assert float(best[0]) == pytest.approx(expected["probability"], rel=1e-5)
    if task == "generate":
        short = min(range(6), key=lambda number: len(lines[number]["source"]))
        assert printed_by_the_card(first, lines[short]["source"]) == [found[0][short]["target"]]
    assert task != "coreference" or any(one["clusters"] for one in found[0])
    if task == "coreference" and model == "nezha":
        short = min(range(6), key=lambda number: len(lines[number]["text"]))
        clusters = [[one["text"] for one in cluster] for cluster in found[0][short]["clusters"]]
        assert list(map(ast.literal_eval, printed_by_the_card(first, lines[short]["text"]))) == clusters
    others = ["task.longest=null", "task.other_length=64", "task.predict=mean"]
    others = ["task.sequence_length=48"] if task == "generate" else others
    assert predictions(first, file, *others) != found[0]
    spec = model_spec(model)  # transformers' own copy of the export keeps it, too
    spec.config.from_pretrained(first).save_pretrained(tmp_path / "copy")
    assert task_of_export(tmp_path / "copy")["data"] == {
        **task_of_export(first)["data"],
        "tokenizer": str(tmp_path / "copy"),
    }


def tags_by_the_card(folder: Path, text: str) -> list[str]:
    return list(ast.literal_eval(printed_by_the_card(folder, text)[-1]))


def printed_by_the_card(folder: Path, text: str) -> list[str]:
    """The lines that the examples of an export's card print, of another text."""
    code = "\n".join(re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(), re.S))
    printed = io.StringIO()
    with redirect_stdout(printed):
        exec(code.replace("this/folder", str(folder)).replace("A text.", text), {})
    return printed.getvalue().splitlines()


def test_options_in_one_row_are_predicted_by_run_export_and_card(tmp_path: Path) -> None:
    """The export's tokenizer has the task's own tokens; a text of several windows."""
    lines = [
        {"text": words, "question": "t ?", "options": ["p q", "r", "s"], "label": 1} for words in ("a b", "c " * 40)
    ]
    file = write_lines(tmp_path / "some.jsonl", lines)
    values = task_values("nezha", "choose", write_tokenizer(tmp_path / "tokenizer"), train=str(file), form="joined")
    values["data"] |= {"sequence_length": 40}
    values["model"] |= {"initializer_range": 0.5, "num_hidden_layers": 1, "vocab_size": 36}
    run = trained(tmp_path, "run", values)
    folder = export(run, tmp_path / "export")
    found = predictions(run, file)
    assert found == predictions(folder, file) and len(found) == 2
    text = json.dumps(lines[1]["text"])
    card = (folder / "README.md").read_text().replace('"This is a text."', text).replace("What is this?", "t ?")
    (folder / "README.md").write_text(card.replace('["a text", "a question"]', '["p q", "r", "s"]'))
    best, _, shares = printed_by_the_card(folder, "")[0].partition(" [")
    assert best == found[1]["text"]
    assert ast.literal_eval(f"[{shares}") == pytest.approx(found[1]["probabilities"], abs=2e-6)


@pytest.mark.parametrize(
    ("model", "sizes", "given"),
    [
        ("ernie_doc", {}, {"retrospective": True, "predict": "last"}),
        ("ernie_doc", {"recurrence": "full"}, {"retrospective": True}),
        ("ran", {"window_handover": True}, {}),
    ],
)
def test_windows_over_text_and_option_are_predicted_by_run_export_and_card(
    model: str, sizes: dict[str, Any], given: dict[str, Any], tmp_path: Path
) -> None:
    """Of three windows, read twice where there is memory (CAIL2019-SCM)."""
    generator = np.random.default_rng(1)
    texts = [" ".join(generator.choice(list(LETTERS), count)) for count in (25, 17, 20)]
    file = write_lines(tmp_path / "some.json", [{**dict(zip("ABC", texts, strict=True)), "label": "C"}])
    values = task_values(model, "choose", write_tokenizer(tmp_path / "tokenizer"), train=str(file), form="aligned")
    values["data"] |= {"format": "cail", "sequence_length": 17, "step": 5, **given}
    values["model"] |= {"initializer_range": 0.5, "num_hidden_layers": 2, **sizes}
    run = trained(tmp_path, "run", values)
    folder = export(run, tmp_path / "export")
    found = predictions(run, file)
    assert found == predictions(folder, file) and len(found) == 1
    card = (folder / "README.md").read_text().replace('"This is a text."', json.dumps(texts[0]))
    (folder / "README.md").write_text(card.replace('["a text", "a question"]', json.dumps(texts[1:])))
    best, _, shares = printed_by_the_card(folder, "")[0].partition(" [")
    assert best == found[0]["text"]
    assert ast.literal_eval(f"[{shares}") == pytest.approx(found[0]["probabilities"], abs=2e-6)


def test_a_question_about_several_texts_has_one_line(tmp_path: Path) -> None:
    """That of its best text, wherever they stand in the file."""
    asked = [("d", "q"), ("e", "r"), ("f", "q"), ("g", None)]
    lines = [
        {"id": name, "text": f"{name} a {name} b", "question": "?", "question_id": question} for name, question in asked
    ]
    alone = write_lines(tmp_path / "alone.jsonl", [{**line, "question_id": None} for line in lines])
    values = task_values("nezha", "answer", write_tokenizer(tmp_path / "tokenizer"), sequence_length=16)
    learned = {**lines[0], "answers": [{"start": 0, "text": "d"}]}
    values["data"]["train"] = str(write_lines(tmp_path / "train.jsonl", [learned]))
    values["model"] |= {"initializer_range": 0.5, "num_hidden_layers": 1}
    run = trained(tmp_path, "run", values)
    each = {line["id"]: line for line in predictions(run, alone)}
    found = predictions(run, write_lines(tmp_path / "file.jsonl", lines))
    assert [line["id"] for line in found] == ["q", "r", "g"] and list(each) == list("defg")
    best = {line["id"]: line.get("document", "g") for line in found}
    assert best["q"] in "df" and best["r"] == "e"
    assert all(line["answer"] == each[best[line["id"]]]["answer"] for line in found)


def test_a_model_of_pairs_predicts_for_no_text_alone(tmp_path: Path) -> None:
    """One of texts alone or of both, or of an earlier version, which has not kept what it learned from, does."""
    lines = write_lines(tmp_path / "train.jsonl", [{"text": "a b", "second": "c", "label": "u"}])
    alone = write_lines(tmp_path / "alone.jsonl", [{"text": "a", "second": "b"}, {"text": "a"}])
    (tmp_path / "plain.txt").write_text("a b\n")
    (tmp_path / "table.tsv").write_text("text\tother\na\tb\n")
    tokenizer = write_tokenizer(tmp_path / "tokenizer")
    run = {
        name: trained(
            tmp_path,
            name,
            task_values("nezha", "classify", tokenizer, train=str(lines), labels=["u", "v"], pairs=pairs),
        )
        for name, pairs in (("pairs", True), ("both", False), ("earlier", None))
    }
    plain, columns = "task.format=document-per-line", "task.columns.second=other"
    for model in (run["pairs"], export(run["pairs"], tmp_path / "export")):
        for name, at, overrides in (
            ("alone.jsonl", f"{alone}:2", []),
            ("plain.txt", f"{tmp_path}/plain.txt:1", [plain]),
            ("table.tsv", f"{tmp_path}/table.tsv:2", []),
        ):
            with pytest.raises(UserError) as caught:
                predictions(model, tmp_path / name, *overrides)
            assert str(caught.value) == (
                f"{at}: one text, and the model learned from pairs; give it a second one, `second` beside `text` in a "
                "line of JSON or a column of a table (task.columns.second=NAME); or predict for one by task.pairs=false"
            )
        assert len(predictions(model, lines)) == len(predictions(model, tmp_path / "table.tsv", columns)) == 1
        assert len(predictions(model, alone, "task.pairs=false")) == 2
    for name in ("both", "earlier"):
        assert (
            len(predictions(run[name], alone)) == 2 and len(predictions(run[name], tmp_path / "plain.txt", plain)) == 1
        )


def test_a_model_without_a_task_is_read_with_defaults_that_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    spec = model_spec("nezha")
    config = spec.config(vocab_size=9, reading={"length": 16, "step": 2, "predict": "last"})
    config.architectures = ["NezhaForQuestionAnswering"]
    path = tmp_path / "config.json"
    path.write_text(config.to_json_string())
    with caplog.at_level("INFO", "reread"):
        data = task_of_export(tmp_path)["data"]
    assert (data["sequence_length"], data["step"], data["predict"]) == (16, 2, "last")
    (line,) = caplog.messages
    assert "answer_length" in line and "no_answer" in line and "tokenizer" not in line and "predict" not in line
    for wrong in ("[]", '{"model_type": "nezha", "architectures": ["NezhaModel"]}', "{"):
        path.write_text(wrong)
        with pytest.raises(UserError, match=str(tmp_path)):
            task_of_export(tmp_path)


def test_a_tokenizer_without_unk_and_cut_weights_are_one_line_that_names_the_export(tmp_path: Path) -> None:
    file = write_lines(tmp_path / "some.jsonl", [{"text": "a b", "label": "u"}])
    values = task_values("nezha", "classify", write_tokenizer(tmp_path / "tokenizer"), labels=["u", "v"])
    first = export(
        trained(tmp_path, "run", {**values, "data": {**values["data"], "train": str(file)}}), tmp_path / "first"
    )
    tokenizer = first / "tokenizer.json"
    kept = tokenizer.read_text(encoding="utf-8")
    values = json.loads(kept)
    values["model"]["unk_token"] = "[GONE]"
    tokenizer.write_text(json.dumps(values), encoding="utf-8")
    file.write_text('{"text": "a 天 b"}\n', encoding="utf-8")
    with pytest.raises(UserError, match=rf"{first}.*cannot read the texts"):
        predictions(first, file)
    tokenizer.write_text(kept, encoding="utf-8")
    weights = first / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(UserError, match=rf"^{first}.*model.safetensors cannot be read"):
        predictions(first, file)


# --- raw text ---


@pytest.fixture(scope="module")
def tagger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that tags words, with random weights and a recipe that pins CoNLL."""
    folder = tmp_path_factory.mktemp("tagger")
    (folder / "train.conll").write_text("a O\nb B-p\nc I-p\n\nd O\n")
    task = {"format": "conll", "split": "words", "labels": ["O", "B-p", "I-p"], "sequence_length": 12}
    task["train"] = str(folder / "train.conll")
    values = task_values("nezha", "tag", write_tokenizer(folder / "tokenizer"), **task)
    values["model"] |= {"initializer_range": 0.5, "num_hidden_layers": 1}
    return trained(folder, "run", values)


TEXTS = ["  a b,c  d? e f g h i j k l m n", "x  y", "b c a b c"]


def test_raw_text_is_tagged_with_its_characters_and_text(
    tagger: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = tmp_path / "lines.txt"
    lines.write_text("\n".join(TEXTS))
    as_json = write_lines(tmp_path / "lines.jsonl", [{"text": text} for text in TEXTS])
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(lines.read_bytes())))
    found = predictions(tagger, lines, "task.format=document-per-line")
    assert found == predictions(tagger, as_json, "task.format=jsonl")
    assert found == predictions(tagger, Path("-"), "task.format=document-per-line")
    words = write_lines(tmp_path / "words.jsonl", [{"tokens": one["tokens"]} for one in found])
    assert [one["tags"] for one in predictions(tagger, words, "task.format=jsonl")] == [one["tags"] for one in found]
    assert sum(len(one["entities"]) for one in found) > 2
    for text, one in zip(TEXTS, found, strict=True):
        assert [text[begin:end] for begin, end in one["spans"]] == one["tokens"] == re.findall(r"\w|[,?]", text)
        for entity in one["entities"]:
            assert text[entity["start"] : entity["end"]] == entity["text"]
            first = one["spans"].index(next(span for span in one["spans"] if span[0] == entity["start"]))
            assert one["tags"][first] == f"B-{entity['entity']}"
    (whole,) = predictions(tagger, lines, "task.format=document-per-file")
    assert whole["id"] == "lines.txt" and len(whole["tokens"]) == sum(len(one["tokens"]) for one in found)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("今天天气很好，我们去公园散步。\n", "prose:1: lines of text"),
        ("It was the best of times.\n", "prose:1: 6 columns"),
        ("Hello world\nGood morning\n", "prose:1: the model has no tag `world`"),
        ('{"text": "a b"}\n', "prose:1: looks like jsonl"),
        ('{"text":"a"}\n', "prose:1: looks like jsonl"),
        ("label\ttext\nx\ta\ny\tb\n", "prose:1: the model has no tag `text`"),
    ],
)
def test_text_given_to_a_recipe_that_pins_conll_is_one_line(text: str, line: str, tagger: Path, tmp_path: Path) -> None:
    path = tmp_path / "prose"
    path.write_text(text)
    with pytest.raises(UserError) as caught:
        predict(tagger, path, [], tmp_path / "out.jsonl", None)
    assert line in str(caught.value) and "task.format" in str(caught.value)
    assert not (tmp_path / "out.jsonl").exists()


@pytest.mark.parametrize("labels", ["[]", "[O]", "[O,B-q,I-q]", "null"])
def test_labels_that_the_model_has_not_learned_are_refused(labels: str, tagger: Path, tmp_path: Path) -> None:
    file = write_lines(tmp_path / "new.jsonl", [{"text": "a b"}])
    with pytest.raises(UserError, match=r"task\.labels: the model has learned O, B-p, I-p; leave this setting out"):
        predictions(tagger, file, f"task.labels={labels}", "task.format=jsonl")
    assert predictions(tagger, file, "task.labels=[O,B-p,I-p]", "task.format=jsonl")
    with pytest.raises(UserError, match=r"task\.frame: the model has learned ''; leave this setting out"):
        predictions(tagger, file, "task.frame=segments", "task.format=jsonl")


def test_predictions_are_written_to_a_new_folder_and_not_over_one(tagger: Path, tmp_path: Path) -> None:
    file = write_lines(tmp_path / "new.jsonl", [{"text": "a b"}])
    predict(tagger, file, ["task.format=jsonl"], tmp_path / "new" / "out.jsonl", None)
    assert (tmp_path / "new" / "out.jsonl").read_text(encoding="utf-8").count("\n") == 1
    with pytest.raises(UserError, match="new: is a folder; give the name of a file"):
        predict(tagger, file, ["task.format=jsonl"], tmp_path / "new", None)


def test_echo_writes_what_was_read_beside_the_prediction(tagger: Path, tmp_path: Path) -> None:
    lines = tmp_path / "lines.txt"
    lines.write_text("\n".join(TEXTS))
    output = tmp_path / "out.jsonl"
    plain = predictions(tagger, lines, "task.format=document-per-line")
    predict(tagger, lines, ["micro_batch=8", "task.format=document-per-line"], output, None, echo=True)
    echoed = [json.loads(line) for line in output.read_text().splitlines()]
    assert [one.pop("input") for one in echoed] == [{"text": text} for text in TEXTS]
    assert echoed == plain
    choice = ChooseExample("1", "a:1", "t", "q", ("x", "y"), 0)
    assert texts_of(choice) == {"text": "t", "question": "q", "options": ("x", "y")}


def test_a_large_file_is_read_once_and_predicted_as_one_in_memory(
    tagger: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also by a command that goes on after another: it maps what that one has kept."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(prediction, "PART", 2)
    lines = write_lines(tmp_path / "lines.jsonl", [{"text": text} for text in TEXTS])
    expected = predictions(tagger, lines, "task.format=jsonl")
    written = (tagger.parent / "predicted.jsonl").read_bytes()
    reads: list[Any] = []
    read, predict_part = kept.read_examples, TaskObjective.predict
    monkeypatch.setattr(kept, "LARGE", 0)
    monkeypatch.setattr(kept, "read_examples", lambda *given, **how: reads.append(given) or read(*given, **how))

    def killed(objective: Any, dataset: Any, examples: Any) -> Any:
        if examples[0] == 2:
            raise KeyboardInterrupt
        return predict_part(objective, dataset, examples)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(TaskObjective, "predict", killed)
        forget_examples()  # as another process would not have them
        predictions(tagger, lines, "task.format=jsonl")
    forget_examples()
    assert predictions(tagger, lines, "task.format=jsonl") == expected
    assert (tagger.parent / "predicted.jsonl").read_bytes() == written
    assert [path for path, *_ in reads] == [lines], "by the first command alone"
    assert {path.name.split("-")[0] for path in (tmp_path / "runs" / ".labelled").iterdir()} >= {"examples", "tokens"}


def test_a_tokenizer_that_does_not_fit_its_model_is_one_line(tmp_path: Path) -> None:
    """`tokenizers` panics over the prefix, which no except clause for Exception catches."""
    folder = write_tokenizer(tmp_path / "export")
    values = task_values("nezha", "classify", folder, labels=["u", "v"], sequence_length=12)
    objective_of(values, []).model.float().save_pretrained(folder)
    text, tokenizer = tmp_path / "a.txt", folder / "tokenizer.json"
    text.write_text("a b\n")
    overrides = ["task.format=document-per-line", "micro_batch=8"]
    predict(folder, text, overrides, tmp_path / "out", None)
    kept = json.loads(tokenizer.read_text())
    long = {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]]}
    vocabulary = {**kept["model"]["vocab"], "more": 99}
    for model, line in (
        ({**long, "continuing_subword_prefix": "x" * 50}, r"tokenizer\.json: not a tokenizer\.json \(range"),
        ({**kept["model"], "vocab": vocabulary}, "export: its tokenizer has ids up to 99 and its weights 32 tokens"),
    ):
        tokenizer.write_text(json.dumps({**kept, "model": model}))
        with pytest.raises(UserError, match=line):
            predict(folder, text, overrides, tmp_path / "out", None)
    with pytest.raises(UserError, match=r"not a tokenizer\.json"):
        tokenizer.write_text(json.dumps({**kept, "model": {**long, "continuing_subword_prefix": "x" * 50}}))
        vocabulary_of(folder)


def test_standard_input_is_for_one_process(tagger: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="standard input: only one process can"):
        predict(tagger, Path("-"), ["parallel.processes=2"], tmp_path / "out.jsonl", None)


def test_columns_of_the_training_file_are_not_asked_of_plain_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(
        "reread.training.prediction.predict", lambda _, settings, *rest: seen.append(settings.data.columns)
    )
    path = tmp_path / "recipe.yaml"
    values = task_values("nezha", "classify", tmp_path, columns={"text": "review"})
    write_recipe(Recipe.parse({"name": "run", "train": values}, "test"), path)
    stated = ["task.format=jsonl", "task.columns.text=x"]  # which is refused later
    for overrides in ([], ["task.format=document-per-line"], ["task.format=csv"], stated):
        predict(tmp_path, tmp_path / "new", overrides, None, None)
    assert seen == [{"text": "review"}, {}, {"text": "review"}, {"text": "x"}]


def test_a_command_goes_on_after_the_parts_that_an_interrupted_one_wrote(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Killed in its third part, in the middle of a line. Another file or another way to predict begins anew."""
    caplog.set_level("INFO", "reread")
    monkeypatch.setattr(prediction, "PART", 4)
    generator = np.random.default_rng(1)
    lines = [example("one", number, generator) for number in range(11)]
    file = write_lines(tmp_path / "some.jsonl", lines)
    values = task_values(
        "nezha", "classify", write_tokenizer(tmp_path / "tokenizer"), labels=["u", "v"], train=str(file)
    )
    run = trained(tmp_path, "run", values)
    expected = predictions(run, file)
    written = (tmp_path / "predicted.jsonl").read_bytes()
    assert [one["id"] for one in expected] == [str(number) for number in range(1, 12)]
    original, asked = TaskObjective.predict, []

    def killed(objective: Any, dataset: Any, examples: Any) -> Any:
        asked.append(examples.tolist())
        if examples[0] == 8 and len(asked) == 3:
            raise KeyboardInterrupt
        return original(objective, dataset, examples)

    def interrupt() -> Path:
        (tmp_path / "predicted.jsonl").unlink(missing_ok=True)
        asked.clear()
        with pytest.raises(KeyboardInterrupt):
            predictions(run, file)
        assert not (tmp_path / "predicted.jsonl").exists()
        (left,) = tmp_path.glob(".predicted.jsonl.*.reread-tmp")
        with left.open("ab") as lines:
            lines.write(written.splitlines(keepends=True)[8][:9])
        return left

    monkeypatch.setattr(TaskObjective, "predict", killed)
    interrupt()
    assert predictions(run, file) == expected and asked[3:] == [[8, 9, 10]]
    assert (tmp_path / "predicted.jsonl").read_bytes() == written
    assert "an interrupted command wrote 8 predictions; going on after them" in caplog.text
    assert list(tmp_path.glob(".predicted*")) == []
    for change in ("task.predict=last", "task.sequence_length=19"):
        left = interrupt()
        assert len(predictions(run, file, change)) == 11 and len(asked) == 6
        assert not left.exists()
    interrupt()
    write_lines(file, lines[:10])
    assert len(predictions(run, file)) == 10 and len(asked) == 6
