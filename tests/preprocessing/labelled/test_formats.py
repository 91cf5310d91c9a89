"""Each format of labelled data gives the examples that stand in it; the texts are our own."""

import bz2
import gzip
import json
import logging
import lzma
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from reread.preprocessing.errors import UserError
from reread.preprocessing.labelled.examples import Example
from reread.preprocessing.labelled.formats.table import FORMATS
from reread.preprocessing.labelled.read import read_examples
from reread.preprocessing.labelled.tasks import TASKS
from reread.preprocessing.labelled.tasks.answer import Answer, AnswerExample, choices_of
from reread.preprocessing.labelled.tasks.choose import ChooseExample
from reread.preprocessing.labelled.tasks.classify import ClassifyExample
from reread.preprocessing.labelled.tasks.tag import TagExample
from tests.preprocessing.labelled.files import REVIEWS, question, squad, tar, write

CLASSES = {"classify": ClassifyExample, "tag": TagExample, "answer": AnswerExample, "choose": ChooseExample}


def read(path: Path, task: Any = "classify", **settings: Any) -> list[Any]:
    found = read_examples(path, task, **settings)
    assert not found.skipped
    return found.examples


def labelled(examples: list[Any]) -> list[tuple[Any, ...]]:
    return [(example.text, example.second, example.label) for example in examples]


# --- our own format ---


@pytest.mark.parametrize("task", CLASSES)
def test_a_line_of_our_format_has_exactly_the_fields_of_the_example(task: str) -> None:
    more = {"text"} if task == "tag" else set()  # which stands for tokens where there are none
    assert set(TASKS[task].model_fields) == {field.name for field in fields(CLASSES[task])} - {"location"} | more


def test_our_format_gives_every_task(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    write(path, [{"id": 7, "text": "好", "second": "坏", "label": 3}, {"text": "中\u2028文", "label": None}])
    assert read(path) == [
        ClassifyExample("7", f"{path}:1", "好", "坏", "3"),
        ClassifyExample("2", f"{path}:2", "中\u2028文"),
    ]
    write(path, [{"id": "x", "tokens": ["John", "ran"], "tags": ["B-PER", "O"], "joiner": " "}])
    assert read(path, "tag") == [TagExample("x", f"{path}:1", ("John", "ran"), ("B-PER", "O"), " ")]
    write(path, [{"tokens": ["我", "A"]}, {"tokens": ["x", "y"], "joiner": " "}, {"tokens": ["去", "B", "吧"]}])
    assert [(example.id, example.text) for example in read(path, "tag")] == [("1", "我A"), ("2", "x y"), ("3", "去B吧")]
    values = {"text": "水在山下", "question": "何处？"}
    write(path, [values | {"answers": [{"start": 2, "text": "山下"}]}, values | {"answers": []}, values])
    assert [example.answers for example in read(path, "answer")] == [(Answer(2, "山下"),), (), None]
    write(path, [values | {"options": ["山上", "山下"], "label": 1, "group": "g"}])
    assert read(path, "choose") == [ChooseExample("1", f"{path}:1", "水在山下", "何处？", ("山上", "山下"), 1, "g")]


@pytest.mark.parametrize(
    ("labels", "value", "expected"),
    [
        ("one", "a", "a"),
        ("one", True, "true"),
        ("one", 0, "0"),
        ("set", ["b", 2, "b"], ("b", "2")),
        ("set", [], ()),
        ("number", 2, 2.0),
        ("number", "-1.5", -1.5),
    ],
)
def test_a_label_is_a_name_a_set_or_a_number(labels: Any, value: object, expected: object, tmp_path: Path) -> None:
    example = read(write(tmp_path / "a.jsonl", [{"text": "x", "label": value}]), labels=labels)[0]
    assert (example.label, type(example.label)) == (expected, type(expected))


# --- tables ---


def test_a_quotation_mark_in_tsv_is_a_character(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", 'label\ttext_a\n1\t"好\n0\t很"坏"\u2028\r, 真的\n')
    assert labelled(read(path)) == [('"好', None, "1"), ('很"坏"\u2028\r, 真的', None, "0")]
    assert [(example.id, example.location) for example in read(path)] == [("2", f"{path}:2"), ("3", f"{path}:3")]


def test_csv_is_quoted_and_may_hold_line_ends(tmp_path: Path) -> None:
    text = "x" * 200_000  # beyond the csv module's own limit
    path = write(tmp_path / "a.csv", f'id,review,label\r\n5,"a ""b"",\nc",1\r\n\r\n6,{text},0\r\n')
    assert labelled(read(path)) == [('a "b",\nc', None, "1"), (text, None, "0")]
    assert [(example.id, example.location) for example in read(path)] == [("5", f"{path}:2"), ("6", f"{path}:5")]


def test_columns_name_what_the_header_calls_otherwise(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", "\ufeffnr\tpremise\thypo\tgold\tmood\nq1\tA\tB\tno\tx, y\n")
    assert labelled(read(path)) == [("A", "B", None)]
    found = read(path, columns={"label": "gold", "id": "nr"})
    assert (found[0].id, *labelled(found)[0]) == ("q1", "A", "B", "no")
    assert labelled(read(path, columns={"label": "mood"}, labels="set")) == [("A", "B", ("x", "y"))]


def test_clue_lines_are_split_at_line_feeds_alone(tmp_path: Path) -> None:
    lines = [
        {"label": 11, "label_des": "薅羊毛", "sentence": "一\u2028二\x85三", "id": 4},
        {"id": 5, "sentence": "无标签"},
    ]
    path = write(tmp_path / "train.json", lines)
    assert labelled(read(path)) == [("一\u2028二\x85三", None, "11"), ("无标签", None, None)]
    assert read(path)[0].id == "4"
    write(path, lines[:1])
    assert labelled(read(path, columns={"label": "label_des"})) == [("一\u2028二\x85三", None, "薅羊毛")]
    write(path, [{"sentence": "长" * 50_000, "keywords": ""}])
    assert len(read(path)[0].text) == 50_000
    write(path, [{"sentence1": "甲", "sentence2": "乙", "label": "0"}])
    assert labelled(read(path)) == [("甲", "乙", "0")]


# --- tags ---


def test_conll_takes_tabs_or_blanks_and_joins_by_the_script(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "李 B-PER\n来 O\n\n \n。 O\n2008年 O\n走 O\n")
    assert read(path, "tag") == [
        TagExample("1", f"{path}:1", ("李", "来"), ("B-PER", "O")),
        TagExample("5", f"{path}:5", ("。", "2008年", "走"), ("O", "O", "O")),
    ]
    write(path, "Ann\tB-PER\r\nruns\tO\r\n.\tO\r\n\r\n")
    (example,) = read(path, "tag")
    assert (example.text, example.tags) == ("Ann runs .", ("B-PER", "O", "O"))
    write(path, "走\n了\n\n好\n")
    assert [(example.text, example.tags) for example in read(path, "tag")] == [("走了", None), ("好", None)]


# --- questions ---


def test_squad_has_several_answers_or_none_or_is_unlabelled(tmp_path: Path) -> None:
    answers = [{"text": "山下", "answer_start": 2, "id": "1"}, {"text": "山下", "answer_start": 5}]
    questions = [
        {"id": 1, "question": "何处？", "answers": answers},
        {"id": "b", "question": "何时？", "answers": [], "is_impossible": True, "plausible_answers": answers},
        {"id": "c", "question": "谁？"},
    ]
    path = write(tmp_path / "a.json", squad(*questions))
    found = read(path, "answer")
    assert [(example.id, example.answers) for example in found] == [
        ("1", (Answer(2, "山下"), Answer(5, "山下"))),
        ("b", ()),
        ("c", None),
    ]
    assert found[0].location == f"{path}: article 1, paragraph 1, question 1"


def test_c3_documents_of_one_id_stay_apart(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """C3's dialogues and its other texts have the same ids, and are used together."""
    question = {"question": "?", "choice": ["a", "b"], "answer": "a"}
    path = write(tmp_path / "c3.json", json.dumps([[["x"], [question], "1"], [["y"], [question, question], "1"]]))
    with caplog.at_level("INFO"):
        found = read_examples(path, "choose", "c3").examples
    assert [example.id for example in found] == ["1-1", "1@2-1", "1@2-2"]
    assert [example.group for example in found] == ["1", "1@2", "1@2"]
    assert "1 documents share the id of another one" in caplog.text


def test_c3_options_that_repeat_are_one_option(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    questions = [
        {"question": "几点？", "choice": ["六点", "五点", "六点"], "answer": "五点"},
        {"question": "谁？", "choice": ["男", "女"], "answer": ""},
    ]
    path = write(tmp_path / "a.json", json.dumps([[["女：五点。", "男：好。"], questions, "9-1"]], indent=1))
    with caplog.at_level(logging.INFO, logger="reread"):
        found = read(path, "choose")
    assert found == [
        ChooseExample(
            "9-1-1", f"{path}: document 1, question 1", "女：五点。\n男：好。", "几点？", ("六点", "五点"), 1, "9-1"
        ),
        ChooseExample(
            "9-1-2", f"{path}: document 1, question 2", "女：五点。\n男：好。", "谁？", ("男", "女"), None, "9-1"
        ),
    ]
    assert "1 questions have an option twice" in caplog.text


def test_cmrc2019_gives_an_example_for_each_blank(tmp_path: Path) -> None:
    context = "早上，[BLANK1]。后来[BLANK2]。"
    article = {"context_id": "D0", "context": context, "choices": ["他走了", "天亮了", "下雨"], "answers": [1, 0]}
    unlabelled = {"context_id": "D1", "context": context, "choices": ["一", "二"]}
    to_predict = {**unlabelled, "context_id": "D2", "answers": []}  # as in its owner's cmrc2019_qualify.json
    path = write(tmp_path / "a.json", [{"data": [article, unlabelled, to_predict]}])
    found = read(path, "choose")
    assert [(example.id, example.question, example.label, example.group) for example in found] == [
        ("D0-BLANK1", "[BLANK1]", 1, "D0"),
        ("D0-BLANK2", "[BLANK2]", 0, "D0"),
        ("D1-BLANK1", "[BLANK1]", None, "D1"),
        ("D1-BLANK2", "[BLANK2]", None, "D1"),
        ("D2-BLANK1", "[BLANK1]", None, "D2"),
        ("D2-BLANK2", "[BLANK2]", None, "D2"),
    ]
    assert found[0].options == ("他走了", "天亮了", "下雨") and found[0].text == context


def test_cails_reading_questions_are_answered_by_a_span_yes_no_or_nothing(tmp_path: Path) -> None:
    """Each question has three annotators' answers; in a file to predict for all values are empty."""

    def question(identity: str, impossible: str, *answers: tuple[int, str]) -> dict[str, Any]:
        found = [{"answer_start": start, "text": text} for start, text in answers]
        return {"question": "？", "answers": found, "id": identity, "is_impossible": impossible}

    questions = [
        question("span", "false", (2, "山下"), (3, "下"), (2, "山下")),
        question("yes", "false", *[(-1, "YES")] * 3),
        question("no", "false", (-1, "NO"), (-1, "NO"), (0, "水在")),
        question("nothing", "true", *[(-1, "")] * 3),
        question("divided", "true", (-1, ""), (-1, ""), (0, "水")),
        question("to predict", ""),
    ]
    path = write(tmp_path / "a.json", squad(*questions))
    found = {one.id: one.answers for one in read(path, "answer")}
    assert found == {
        "span": (Answer(2, "山下"), Answer(3, "下"), Answer(2, "山下")),
        "yes": (Answer(-1, "YES"),) * 3,
        "no": (Answer(-1, "NO"), Answer(-1, "NO"), Answer(0, "水在")),
        "nothing": (),
        "divided": (Answer(-1, ""), Answer(-1, ""), Answer(0, "水")),
        "to predict": None,
    }
    assert choices_of(read(path, "answer")) == ["YES", "NO"]
    write(path, squad(question("maybe", "false", (-1, "MAYBE"))))
    with pytest.raises(UserError, match=r"`MAYBE`, does not stand at character -1"):
        read(path, "answer")


def test_cail_options_are_the_two_cases(tmp_path: Path) -> None:
    lines = [{"A": "甲\n\n一", "B": "乙", "C": "丙", "label": "C"}, {"A": "一", "B": "二", "C": "三"}]
    path = write(tmp_path / "input.txt", lines)
    assert read(path, "choose") == [
        ChooseExample("1", f"{path}:1", "甲\n\n一", "", ("乙", "丙"), 1),
        ChooseExample("2", f"{path}:2", "一", "", ("二", "三")),
    ]


# --- folders and XML ---


def test_a_folder_for_each_class_reads_as_its_archive_does(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name, text in REVIEWS.items():
        write(tmp_path / "aclImdb" / name, text)
    expected = [("neg/0_3.txt", "bad", "neg"), ("neg/1_1.txt", "worse\n<br />", "neg"), ("pos/0_9.txt", "good", "pos")]
    paths = [tmp_path / "aclImdb", tmp_path / "aclImdb" / "train", tar(tmp_path / "a.tar.xz", REVIEWS)]
    paths.append(tar(tmp_path / "a.tgz", REVIEWS, "w:gz"))
    with caplog.at_level(logging.INFO, logger="reread"):
        for path in paths:
            assert [(example.id, example.text, example.label) for example in read(path)] == expected
    assert "in no class are left out: 1 *.md, 1 above, 1 in unsup/" in caplog.text


ARTICLES = """<?xml version="1.0" encoding="UTF-8"?><articles>
  <article id="0001" published-at="2017-09-10" title="A  title">
Before <p>One <a href="x">lin</a>k.</p><p>Two&#160;&amp;
lines.<br/>Three</p> after</article>
  <article id="0002" title=""><p>Other</p></article></articles>"""
TRUTH = '<articles><article hyperpartisan="true" id="0001"/><article hyperpartisan="false" id="0002"/></articles>'


def test_semeval_keeps_paragraphs_apart_and_words_whole(tmp_path: Path) -> None:
    path = write(tmp_path / "articles-training-2.xml", ARTICLES)
    assert [example.label for example in read(path)] == [None, None]
    write(tmp_path / "ground-truth-training-2.xml.gz", gzip.compress(TRUTH.encode()))
    body = "Before\nOne link.\nTwo\xa0& lines.\nThree\nafter"
    first, second = read(path)
    assert (first.id, first.text, first.label) == ("0001", body, "true")
    assert (second.text, second.label) == ("Other", "false")
    parts = read(path, columns={"text": "title+body"})
    assert [example.text for example in parts] == [f"A title\n{body}", "Other"]


# --- CoNLL's shared tasks ---

CONLL_2003 = """-DOCSTART- -X- -X- O

EU NNP B-NP I-ORG
rejects VBZ B-VP O

Peter NNP B-NP I-PER
Blackburn NNP I-NP I-PER
Mary NNP I-NP B-PER
"""
ONTONOTES = (
    "#begin document (a); part 000\n"
    + "\n".join(
        f"a   0   {number}   {word}   NN   (TOP*)   -   -   -   speaker   {entity}   -"
        for number, (word, entity) in enumerate(
            [
                ("Mr.", "*"),
                ("Xi", "(PERSON*"),
                ("Jinping", "*)"),
                ("in", "*"),
                ("New", "(GPE*"),
                ("York", "*"),
                ("City", "*)"),
            ]
        )
    )
    + "\n\na 0 0 Rome NNP * - - - - (GPE) -\n#end document\n"
)


def test_the_last_of_four_columns_is_the_tag_and_iob1_becomes_bio(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="reread")
    found = read(write(tmp_path / "eng.train", CONLL_2003), "tag")
    assert [(one.tokens, one.tags) for one in found] == [
        (("EU", "rejects"), ("B-ORG", "O")),
        (("Peter", "Blackburn", "Mary"), ("B-PER", "I-PER", "B-PER")),
    ]
    assert any(
        "its tags are IOB1, in which an entity begins with I-; they are read as BIO" in one for one in caplog.messages
    )
    as_bio = write(
        tmp_path / "bio", CONLL_2003.replace("I-ORG", "B-ORG").replace("Peter NNP B-NP I", "Peter NNP B-NP B")
    )
    assert [one.tags for one in read(as_bio, "tag")] == [one.tags for one in found]
    bioes = write(tmp_path / "bioes", CONLL_2003.replace("I-ORG", "S-ORG"))
    assert read(bioes, "tag")[1].tags == ("I-PER", "I-PER", "B-PER")  # a mistake of its own, but not IOB1


def test_entities_of_ontonotes_stand_in_brackets(tmp_path: Path) -> None:
    first, second = read(write(tmp_path / "onto", ONTONOTES), "tag")
    assert first.tags == ("O", "B-PERSON", "I-PERSON", "O", "B-GPE", "I-GPE", "I-GPE")
    assert (first.text, second.tokens, second.tags) == ("Mr. Xi Jinping in New York City", ("Rome",), ("B-GPE",))


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("(GPE*", "*)", "6: `.*` in its eleventh column does not fit"),
        ("speaker   *)", "speaker   *", "6: `.GPE.` in its eleventh column does not fit"),
        ("(GPE)", "(GPE*", "10: the entity GPE does not end in its sentence"),
        ("(GPE)", "GPE", "10: `GPE` in its eleventh"),
        (" - - - - (GPE) -", "", "10: 6 columns, not 12 or more"),
    ],
)
def test_a_broken_bracket_is_one_line(tmp_path: Path, old: str, new: str, line: str) -> None:
    with pytest.raises(UserError, match=line):
        read(write(tmp_path / "onto", ONTONOTES.replace(old, new, 1)), "tag")


def test_a_file_without_entities_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no entity in its eleventh column"):
        read(write(tmp_path / "onto", "#begin document (a)\n" + "a 0 0 Rome NNP * - - - - _ (0)\n"), "tag")


ARTICLE = {
    "article_id": "7",
    "article_text": ["one .", " two . "],
    "abstract_text": ["<S> a . </S>", "b"],
    "labels": None,
}


def test_an_article_and_its_abstract_are_their_sentences(tmp_path: Path) -> None:
    lines = [ARTICLE, {**ARTICLE, "article_id": "8", "abstract_text": None, "sections": [["x"]]}]
    first, second = read(write(tmp_path / "val.txt", lines), "generate")
    assert (first.id, first.text, first.target) == ("7", "one .\ntwo .", "a .\nb")
    assert (second.id, second.target) == ("8", None)
    path = write(tmp_path / "empty.txt", [ARTICLE, {**ARTICLE, "article_text": []}])
    with pytest.raises(UserError, match=r"empty\.txt:2: article_text"):
        read(path, "generate")


# --- the format is recognised ---

SPANS = {"span1_text": "a", "span1_index": 0, "span2_text": "b", "span2_index": 1}


def test_every_format_is_recognised_with_a_reason(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    article = {"context_id": 1, "context": "[BLANK1]", "choices": ["a", "b"]}
    files: dict[str, tuple[Any, Any, str]] = {
        "a.jsonl": ("classify", [{"text": "x", "label": "y"}], "jsonl"),
        "a.json": ("classify", [{"sentence": "x", "label": "y"}], "clue"),
        "b.json": ("answer", squad({"id": 1, "question": "?"}), "squad"),
        "c.json": ("choose", '[[["x"], [{"question": "?", "choice": ["a", "b"]}], 1]]', "c3"),
        "f.json": ("rank", '[{"_id": "1", "question": "?", "context": [["a", ["b"]], ["c", ["d"]]]}]', "hotpotqa"),
        "g.json": ("choose", '[{"id": "1", "query": "q", "candidates": ["a", "b"], "supports": ["c"]}]', "wikihop"),
        "d.json": ("choose", [{"data": [article]}], "cmrc2019"),
        "qa/e.json": ("answer", json.dumps({"Data": [question("q", "Emma.txt")]}), "triviaqa"),
        "h.txt": ("generate", [ARTICLE], "arxiv"),
        "a.txt": ("choose", [{"A": "x", "B": "y", "C": "z"}], "cail"),
        "h.json": ("choose", [{"content": ["#idiom1#"], "candidates": ["a", "b"]}], "clue-chid"),
        "i.json": ("classify", [{"text": "ab", "target": SPANS, "label": "true"}], "clue-wsc"),
        "b.txt": ("tag", "x O\n", "conll"),
        "onto.txt": ("tag", ONTONOTES, "conll-2012"),
        "c.txt": ("classify", "label\ttext\n1\tx\n", "tsv"),
        "a.tsv": ("classify", "label\ttext\n1\tx\n", "tsv"),
        "a.csv": ("classify", "label,text\n1,x\n", "csv"),
        "articles.xml": ("classify", ARTICLES, "semeval"),
        "folder/pos/1.txt": ("classify", "x", "folders"),
        "qrels/test.tsv": ("embed", "query-id\tcorpus-id\tscore\nq\ta\t1\n", "beir"),
    }
    write(tmp_path / "corpus.jsonl", [{"_id": "a", "text": "x"}])
    write(tmp_path / "queries.jsonl", [{"_id": "q", "text": "y"}])
    write(tmp_path / "evidence/wikipedia/Emma.txt", "Emma is by Jane Austen.")
    stated = {"document-per-line", "document-per-file", "hotpotqa-sentences", "clue-c3"}
    assert {format for _, _, format in files.values()} == set(FORMATS) - stated
    for name, (task, content, format) in files.items():
        path = write(tmp_path / name, content)
        path = tmp_path / "folder" if format == "folders" else path
        caplog.clear()
        with caplog.at_level(logging.INFO, logger="reread"):
            found: list[Example] = read(path, task)
        assert found and sum(f"{path}: read as {format} (" in message for message in caplog.messages) == 1
        assert read(path, task, format=format) == found


@pytest.mark.parametrize(("suffix", "compress"), [("gz", gzip.compress), ("bz2", bz2.compress), ("xz", lzma.compress)])
def test_compressed_files_read_as_plain_ones(suffix: str, compress: Any, tmp_path: Path) -> None:
    content = "label\ttext\n1\t好\n"
    plain = read(write(tmp_path / "a.tsv", content))
    packed = read(write(tmp_path / f"a.tsv.{suffix}", compress(content.encode())))
    assert labelled(packed) == labelled(plain) == [("好", None, "1")]


@pytest.mark.parametrize("name", ["text", "sentence"])
def test_a_json_list_is_read_as_its_members_a_line_are(tmp_path: Path, name: str) -> None:
    lines = [{name: f"a{number}", "label": str(number % 2)} for number in range(3)]
    (tmp_path / "list.json").write_text(json.dumps(lines, indent=1))
    (tmp_path / "lines.jsonl").write_text("\n".join(map(json.dumps, lines)))
    found, expected = (read_examples(tmp_path / one, "classify").examples for one in ("list.json", "lines.jsonl"))
    assert [(one.id, one.texts, one.label) for one in found] == [(one.id, one.texts, one.label) for one in expected]
    assert found[1].location == f"{tmp_path / 'list.json'}: member 2"
    (tmp_path / "list.json").write_text(json.dumps([lines[0], {name: None, "label": "1"}, 3]))
    with pytest.raises(UserError, match=r"list\.json: member 2: .*the first of 2 mistakes"):
        read_examples(tmp_path / "list.json", "classify")


def test_blanks_around_the_names_of_columns_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text, label\na,x\nb,y\n")
    found = read_examples(tmp_path / "a.csv", "classify").examples
    assert [(one.text, one.label) for one in found] == [("a", "x"), ("b", "y")]


def test_lines_of_squad_by_hugging_face_datasets_are_read(tmp_path: Path) -> None:
    answers = {"text": ["b", "c"], "answer_start": [2, 4]}
    line = {"id": "1", "title": "t", "context": "a b c", "question": "?", "answers": answers}
    (tmp_path / "a.jsonl").write_text(json.dumps(line))
    (one,) = read_examples(tmp_path / "a.jsonl", "answer").examples
    assert (one.text, one.answers) == ("a b c", (Answer(2, "b"), Answer(4, "c")))


@pytest.mark.parametrize(
    ("task", "line", "message"),
    [
        ("answer", {"text": "a b", "question": "?", "answers": "b"}, 'answers: a list of {"start": .., "text": ..}'),
        ("choose", {"text": "a", "question": "?", "options": ["x", "y"], "label": "B"}, "label: the number of the"),
    ],
)
def test_a_label_in_another_form_is_told_the_form(tmp_path: Path, task: str, line: Any, message: str) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps(line))
    with pytest.raises(UserError, match=re.escape(message)):
        read_examples(tmp_path / "a.jsonl", task)
