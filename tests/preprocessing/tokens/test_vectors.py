"""Text files of word vectors: the forms of GloVe, fastText and word2vec, and what people have by mistake."""

import gzip
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from reread.preprocessing.errors import UserError
from reread.preprocessing.tokens.vectors import read_vectors

LINES = ["the 0.5 -1 2e-1", ". 1 2 3", "Paris 4 5 6", "paris 7 8 9"]


def written(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@pytest.mark.parametrize(
    "text",
    [
        "\n".join(LINES),
        "4 3\n" + "".join(f"{line} \n" for line in LINES),  # fastText ends each line with a blank
        "\ufeff" + "\r\n".join(LINES) + "\r\n\r\n",
        "\n".join(LINES).replace(" ", "\t"),
        "\n".join(LINES) + "\n. . . 9 9 9\nat name@domain.com 8 8 8\nParis 0 0 0\n",  # as in GloVe's 840B
        b"\n".join([line.encode() for line in LINES] * 50 + [b"caf\xe9 1 2 3"]),
    ],
    ids=["GloVe", "fastText", "mark and CRLF", "tabs", "words with blanks, and twice", "a word in another encoding"],
)
def test_forms_give_the_same_vectors(text: str | bytes, tmp_path: Path) -> None:
    found = read_vectors(written(tmp_path / "v.txt", text), 3, {".", "Paris", "at", "absent"}, 1)
    assert list(found) == ["the", ".", "Paris"]
    assert found["the"].dtype == np.float32
    np.testing.assert_array_equal(np.stack(list(found.values())), np.float32([[0.5, -1, 0.2], [1, 2, 3], [4, 5, 6]]))


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("v.txt", "\n".join(LINES[:2]) + "\nParis 4 5", "line 3 has 2 numbers, not 3; was it cut off?"),
        ("v.txt", "9 3\n" + "\n".join(LINES), "its first line says 9 words, but it holds 4; was it cut off?"),
        ("v.txt", "4 2\nthe 1 2", "its vectors have 2 numbers, but the model's words 3: set model.hidden_size to 2"),
        ("v.txt", "the 1 2 3 4\n. 1 2 3 4", "its vectors have 4 numbers"),
        ("v.txt", "the 1 2 3\nParis 1 nan 3", "line 2, `Paris`: a number that is not finite"),
        ("v.txt", "the 1 2 3\nParis 1 x 3", "line 2, `Paris`: could not convert string to float: b'x'"),
        ("v.txt", b"2 3\nthe \0\0\x80?", "line 2 is not text; give the vectors in text form"),
        ("v.txt", "the 1 2 3".encode("utf-16"), "line 1 is not text"),
        ("v.txt", "thé 1 2 3\nça 1 2 3".encode("latin-1"), "2 of 2 words are not UTF-8"),
        ("v.txt", "", "holds no word vectors"),
        ("v.txt.gz", gzip.compress(LINES[0].encode(), mtime=0), "is compressed; unpack it"),
        ("v.zip", b"PK", "is compressed; unpack it"),
    ],
)
def test_what_is_wrong_is_one_line(name: str, text: str | bytes, says: str, tmp_path: Path) -> None:
    path = written(tmp_path / name, text)
    with pytest.raises(UserError) as error:
        read_vectors(path, 3, {"Paris"}, 1)
    assert str(error.value).startswith(f"{path}: ") and says in str(error.value)
    assert "\n" not in str(error.value)


def test_a_file_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="No such file"):
        read_vectors(tmp_path / "v.txt", 3, set(), 1)


def test_memory_is_that_of_the_words_that_are_wanted(tmp_path: Path) -> None:
    peaks = []
    for words in (500, 4000):
        lines = (f"w{number} " + " ".join([str(number)] * 50) for number in range(words))
        path = written(tmp_path / f"{words}.txt", "\n".join(lines))
        tracemalloc.start()
        assert len(read_vectors(path, 50, {"w7", "w450"}, 20)) == 21
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < peaks[0] + 20_000
