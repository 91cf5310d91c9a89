"""Pairs, triplets, scores, and BEIR's files: the forms that people have such data in, and a line for each mistake."""

import json
from pathlib import Path
from typing import Any

import pytest

from reread.preprocessing.errors import UserError
from reread.preprocessing.labelled.read import read_examples
from reread.training.data.tasks.kept import _stamps


def read(path: Path, content: str, **how: Any) -> list[Any]:
    path.write_text(content, encoding="utf-8")
    found: list[Any] = read_examples(path, "embed", **how).examples
    return found


def beir(folder: Path, qrels: str = "q1\ta\t2\nq1\tb\t0\nq2\tb\t1\n", name: str = "qrels/test.tsv") -> Path:
    (folder / "qrels").mkdir(parents=True, exist_ok=True)
    corpus = [{"_id": one, "title": one.upper(), "text": f"text {one}", "metadata": {}} for one in "abc"]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(one) + "\n" for one in corpus))
    queries = [{"_id": f"q{number}", "text": f"query {number}"} for number in (1, 2, 3)]
    (folder / "queries.jsonl").write_text("".join(json.dumps(one) + "\n" for one in queries))
    (folder / name).write_text(f"query-id\tcorpus-id\tscore\n{qrels}")
    return folder / name


def test_pairs_triplets_and_scores_are_read_in_the_forms_that_people_have(tmp_path: Path) -> None:
    forms = {
        "ours.jsonl": '{"text": "a", "positives": ["b", "c"], "negatives": ["d"]}\n',
        "flag.jsonl": '{"query": "a", "pos": ["b", "c"], "neg": ["d"], "prompt": ""}\n',
    }
    for name, content in forms.items():
        (one,) = read(tmp_path / name, content)
        assert (one.text, one.positives, one.negatives, one.score) == ("a", ("b", "c"), ("d",), None)
    (one,) = read(tmp_path / "nli.csv", 'sent0,sent1,hard_neg\n"a, a",b,c\n')
    assert (one.text, one.positives, one.negatives) == ("a, a", ("b",), ("c",))
    pair, other = read(tmp_path / "pairs.tsv", "anchor\tpositive\tnegative\na\tb\t\nc\td\te\n")
    assert (pair.negatives, other.negatives) == ((), ("e",))
    (one,) = read(tmp_path / "sts.tsv", "index\tgenre\tsentence1\tsentence2\tscore\n0\tnews\ta\tb\t3.8\n")
    assert (one.text, one.positives, one.score) == ("a", ("b",), 3.8)
    (one,) = read(tmp_path / "lcqmc.jsonl", '{"sentence1": "a", "sentence2": "b", "label": "1"}\n')
    assert (one.positives, one.score) == (("b",), 1.0)
    assert [one.text for one in read(tmp_path / "t", "a b\nc\n", format="document-per-line")] == ["a b", "c"]
    assert all(one.can_be_learned for one in read(tmp_path / "t.jsonl", '{"text": "a"}\n'))


def test_a_query_has_the_texts_of_its_judged_documents_and_others_follow(tmp_path: Path) -> None:
    path = beir(tmp_path)
    for given in (path, tmp_path):
        document, first, second = (one for one in read_examples(given, "embed").examples)
        assert (document.id, document.text, document.document) == ("document c", "C text c", True)
        assert (first.id, first.positives, first.negatives) == ("q1", ("A text a",), ("B text b",))
        assert (first.grades, first.ids, second.ids) == ((2.0,), ("a", "b"), ("b",))
        assert [one.can_be_learned for one in (document, first, second)] == [False, True, True]
    before = _stamps(path)
    (tmp_path / "corpus.jsonl").write_text((tmp_path / "corpus.jsonl").read_text().replace("text c", "other c"))
    assert _stamps(path) != before  # what is kept of it is made again


@pytest.mark.parametrize(
    ("name", "content", "line"),
    [
        ("a.tsv", "a\tb\nc\td\n", "a.tsv:1: no column for the text among a, b; name it by `task.columns.text`"),
        ("a.tsv", "text\tpositive\na\t\n", "a.tsv:2: positive 0 is empty"),
        ("a.tsv", "text\tpositive\tscore\na\tb\thigh\n", "a.tsv:2: score: .*number"),
        ("a.tsv", "text\tpositive\tscore\na\tb\tnan\n", "a.tsv:2: score: .*finite"),
        ("a.jsonl", '{"text": "a", "score": 3}\n', "a.jsonl:1: a score is of two texts"),
        ("a.jsonl", '{"text": "a", "negatives": ["b"]}\n', "a.jsonl:1: negatives without a positive"),
        ("a.jsonl", '{"txet": "a", "positive": "b"}\n', "a.jsonl:1: .*`txet`.*`text`"),
        ("a.jsonl", "plain text\n", "a.jsonl: of no known format"),
        ("a.jsonl", "", "a.jsonl: "),
    ],
)
def test_a_mistake_in_pairs_is_one_line(tmp_path: Path, name: str, content: str, line: str) -> None:
    with pytest.raises(UserError, match=line) as found:
        read(tmp_path / name, content)
    assert "\n" not in str(found.value)


def test_a_mistake_in_beirs_files_is_one_line(tmp_path: Path) -> None:
    for number, (rows, line) in enumerate(
        {
            "q1\tz\t1\n": "document `z`, which query `q1` names, is not in corpus.jsonl",
            "q9\ta\t1\n": "query `q9` is not in .*queries.jsonl",
            "q1\ta\n": "test.tsv:2: not query-id, corpus-id, score with a number last",
            "q1\ta\tyes\n": "test.tsv:2: not query-id",
        }.items()
    ):
        with pytest.raises(UserError, match=line):
            read_examples(beir(tmp_path / str(number), rows), "embed")
    path = beir(tmp_path / "right")
    beir(tmp_path / "right", name="qrels/dev.tsv")
    with pytest.raises(UserError, match=r"name a file of qrels, as .*test.tsv \(dev.tsv, test.tsv there\)"):
        read_examples(tmp_path / "right", "embed")
    with pytest.raises(UserError, match=r"no column for the text among query-id.*it may be beir"):
        read_examples(path, "embed", "tsv")
    with pytest.raises(UserError, match="its first line is not query-id corpus-id score"):
        read_examples(path.parent.parent / "queries.jsonl", "embed", "beir")
    (tmp_path / "right" / "corpus.jsonl").rename(tmp_path / "gone")
    with pytest.raises(UserError, match=r"but no corpus.jsonl beside it or in the folder above"):
        read_examples(path, "embed")
    with pytest.raises(UserError, match=r"a folder without corpus.jsonl and qrels/ \(BEIR\)"):
        read_examples(path.parent, "embed")
