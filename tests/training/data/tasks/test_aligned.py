"""Windows that move over a text and its options together (ERNIE-Doc on CAIL2019-SCM)."""

from pathlib import Path

import pytest

from reread.preprocessing.errors import UserError
from reread.preprocessing.labelled.tasks.choose import ChooseExample
from tests.tasks import dataset_of, number_of, task_values, write_tokenizer

A, B, C = "a b c d e f g h i", "k l m n o p q", "r s t u v w x y z"


def test_a_window_holds_the_same_tokens_of_both_texts(tmp_path: Path) -> None:
    """All are cut to the shortest, 7 tokens, in windows of 3 + 3 that move by 2."""
    values = task_values("ernie_doc", "choose", write_tokenizer(tmp_path), form="aligned", sequence_length=9, step=2)
    data = dataset_of(values, [ChooseExample("a", "", A, "", (B, C), 1)])
    sep, cls = data.special["sep"], data.special["cls"]
    found = {}
    for rows in data.passes([0], 8, training=True):
        for row in range(len(rows["option"])):
            found[int(rows["option"][row]), int(rows["window"][row])] = rows["input_ids"][row].tolist()
            first = found[int(rows["option"][row]), int(rows["window"][row])].index(sep)
            assert rows["token_type_ids"][row].tolist() == [0] * (first + 1) + [1] * (8 - first - 1) + [0]

    def row(text: str, option: str) -> list[int]:
        return [*map(number_of, text.split()), sep, *map(number_of, option.split()), sep, cls]

    begins = [slice(0, 5), slice(4, 9), slice(8, 13)]
    assert found == {(k, n): row(A[cut], one[cut]) for k, one in enumerate((B, C)) for n, cut in enumerate(begins)}
    assert data.row_tokens.tolist() == [6 * 9] and data.documents[0].unread == 4
    assert data.remarks() == ["84.00 % of the text is read, since all texts are cut to the shortest"]


def test_a_question_has_no_place_beside_aligned_texts(tmp_path: Path) -> None:
    values = task_values("ernie_doc", "choose", write_tokenizer(tmp_path), form="aligned")
    with pytest.raises(UserError, match=r"a question, which task\.form=aligned has no place for"):
        _ = dataset_of(values, [ChooseExample("a", "f, line 1", A, "why?", (B, C), 1)]).documents
