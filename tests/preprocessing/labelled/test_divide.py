import json
import lzma
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from reread.preprocessing.errors import UserError
from reread.preprocessing.labelled.divide import By, divide, parts_of
from reread.preprocessing.labelled.read import read_examples

COUNT = 120
WORDS = [f"word{number % 60}" for number in range(COUNT)]
"""Each twice, so that equal contents must stay together."""
LABELS = ["rare" if number % 6 == 0 else "common" for number in range(COUNT)]
ROWS = list(zip(WORDS, LABELS, strict=True))
CONLL = [f"{word} B-PER\n{number % 60} O\n\n" for number, (word, _) in enumerate(ROWS)]
FILES = {
    "a.jsonl": "".join(json.dumps({"id": n, "text": text, "label": one}) + "\n" for n, (text, one) in enumerate(ROWS)),
    "a.tsv": "text_a\tlabel\n" + "".join(f"{text}\t{label}\r\n" for text, label in ROWS),
    "a.csv": "text,label\n" + "".join(f'"{text},\n""quoted""",{label}\n' for text, label in ROWS),
    "a.conll": "".join(CONLL).rstrip("\n") + "\n",
    "a.json": json.dumps(
        {"version": 1, "data": [{"title": text, "paragraphs": [{"context": text, "qas": []}]} for text in WORDS]}
    ),
    "list.json": json.dumps(
        [[[text], [{"question": "?", "choice": ["a"], "answer": "a"}], str(n)] for n, text in enumerate(WORDS)]
    ),
    "a.txt": "".join(f"{text}\n\n" for text in WORDS),
}


def write(folder: Path, name: str, text: str) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text, encoding="utf-8", newline="")
    return folder / name


@pytest.mark.parametrize("name", FILES)
def test_each_record_is_in_one_file_of_the_same_form_and_equal_ones_together(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / "in", name, FILES[name])
    written = divide(path, (60, 20, 20), By(), tmp_path / "out")
    assert [Path(one).suffix for one in written] == [path.suffix] * 3
    assert sum(count.total() for count in written.values()) == COUNT
    texts = [Path(one).read_text(encoding="utf-8") for one in written]
    found = [set(re.findall(r"word[0-9]+", text)) for text in texts]
    assert sum(map(len, found)) == 60 and set.union(*found) == set(WORDS)
    again = divide(path, (60, 20, 20), By(), tmp_path / "out")
    assert again == written and texts == [Path(one).read_text(encoding="utf-8") for one in written]


@pytest.mark.parametrize(
    ("name", "task"), [("a.jsonl", "classify"), ("a.tsv", "classify"), ("a.csv", "classify"), ("a.conll", "tag")]
)
def test_the_files_hold_the_examples_of_the_whole_one(tmp_path: Path, name: str, task: str) -> None:
    path = write(tmp_path, name, FILES[name])

    def examples(path: Path) -> Counter[object]:
        return Counter((one.content, one.target) for one in read_examples(path, task).examples)

    parts = [examples(Path(one)) for one in divide(path, (50, 50), By())]
    assert sum(parts, Counter()) == examples(path)


def test_folders_and_compressed_files_are_divided_too(tmp_path: Path) -> None:
    for number, (text, label) in enumerate(ROWS):
        (tmp_path / "data" / label).mkdir(parents=True, exist_ok=True)
        write(tmp_path / "data" / label, f"{number}.txt", text)
    written = divide(tmp_path / "data", (80, 20), By("label"))
    assert list(written) == [str(tmp_path / f"data-{part}.jsonl") for part in ("train", "dev")]
    found = [one for name in written for one in read_examples(Path(name), "classify").examples]
    assert Counter((one.content[0], one.target) for one in found) == Counter(ROWS)  # type: ignore[index]
    (tmp_path / "b.tsv.xz").write_bytes(lzma.compress(FILES["a.tsv"].encode()))
    assert list(divide(tmp_path / "b.tsv.xz", (80, 20), By())) == [
        str(tmp_path / f"b-{part}.tsv") for part in ("train", "dev")
    ]


def test_labels_are_spread_and_groups_are_whole(tmp_path: Path) -> None:
    rows = [{"text": f"{n}", "label": "rare" if n % 10 == 0 else "common", "author": n // 10} for n in range(1000)]
    path = write(tmp_path, "a.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    by_label = divide(path, (80, 10, 10), By("label"), tmp_path / "label")
    assert [dict(count) for count in by_label.values()] == [
        {"rare": 80, "common": 720},
        {"rare": 10, "common": 90},
        {"rare": 10, "common": 90},
    ]
    authors = []
    for name in divide(path, (80, 10, 10), By(group="author"), tmp_path / "group"):
        authors.append({json.loads(line)["author"] for line in Path(name).read_text().splitlines()})
    assert sum(map(len, authors)) == 100 and min(map(len, authors)) > 3


def test_a_record_stays_in_its_part_when_the_file_grows_and_another_seed_moves_it(tmp_path: Path) -> None:
    def train(text: str, seed: int) -> set[str]:
        path = write(tmp_path, f"{len(text)}-{seed}.txt", text)
        return set(Path(next(iter(divide(path, (50, 50), By(seed=seed))))).read_text().split())

    lines = [f"line{number}\n" for number in range(200)]
    before, after = train("".join(lines[:100]), 0), train("".join(lines), 0)
    assert before == {line for line in after if int(line[4:]) < 100}
    assert train("".join(lines), 1) != after


def test_hashes_are_cut_by_the_shares_of_each_kind() -> None:
    random = np.random.default_rng(0)
    hashes = np.repeat(random.integers(0, 2**64, 500, dtype=np.uint64), 2)
    kinds = np.repeat(np.arange(500) % 3, 2)
    part = parts_of(hashes, kinds, (3, 1, 1))
    assert all(len(set(part[hashes == one])) == 1 for one in np.unique(hashes))
    for kind in range(3):
        shares = np.bincount(part[kinds == kind], minlength=3) / (kinds == kind).sum()
        np.testing.assert_allclose(shares, (0.6, 0.2, 0.2), atol=2 / 166)
    np.testing.assert_allclose(np.bincount(parts_of(hashes, None, (3, 1, 1))) / 1000, (0.6, 0.2, 0.2), atol=0.06)


@pytest.mark.parametrize(
    ("name", "text", "by", "error"),
    [
        ("a.jsonl", FILES["a.jsonl"], By("labl"), r"a\.jsonl:1: no field `labl`; did you mean `label`\?"),
        ("a.tsv", FILES["a.tsv"], By(group="[1]"), r"a\.tsv:2: no field `\[1\]`"),
        ("a.tsv", "text_a\tlabel\none\t1\nonly\n", By(), r"a\.tsv:3: 1 columns, where the first row has 2"),
        ("a.csv", 'text,label\n"open,1\n', By(), r"a\.csv:2: not CSV"),
        ("a.jsonl", '{"text": "a"}\n{"text": \n', By(), r"a\.jsonl:2: not JSON"),
        ("a.json", '{"a":\n1}', By(), "no records to divide"),
        ("a.txt", "one\n", By(), "no record would be in"),
        ("a.txt", "", By(), "no record would be in train"),
    ],
)
def test_a_mistake_is_one_line_and_nothing_is_written(tmp_path: Path, name: str, text: str, by: By, error: str) -> None:
    path = write(tmp_path, name, text)
    with pytest.raises(UserError, match=error):
        divide(path, (80, 20), by, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_file_of_other_records_is_not_overwritten(tmp_path: Path) -> None:
    path = write(tmp_path, "a.txt", FILES["a.txt"])
    written = [Path(one) for one in divide(path, (80, 20), By())]
    before = [one.read_bytes() for one in written]
    with pytest.raises(UserError, match=r"a-train\.txt: exists and holds other records"):
        divide(path, (80, 20), By(seed=1))
    assert [one.read_bytes() for one in written] == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a-dev.txt", "a-train.txt", "a.txt"]


def test_a_table_without_a_header_has_numbered_columns(tmp_path: Path) -> None:
    path = write(tmp_path, "a.tsv", "".join(f"{text} {number}\t{label}\n" for number, (text, label) in enumerate(ROWS)))
    written = divide(path, (50, 50), By("[1]"))
    assert [dict(count) for count in written.values()] == [{"rare": 10, "common": 50}] * 2
