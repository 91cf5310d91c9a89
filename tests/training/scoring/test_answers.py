"""EM and F1 of answers: small cases by hand, and the human figures of CMRC2018 and DRCD."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reread.training.scoring.answers import answer_f1, cmrc_units, exact_match, squad_normal, triviaqa_normal
from tests.training.scoring.real_data import questions


def score(answers: list[str], predicted: str | None, style) -> tuple[float, float]:
    gold, guess = {"q": answers}, {} if predicted is None else {"q": predicted}
    return exact_match(gold, guess, style), answer_f1(gold, guess, style)


def test_squad_normalisation() -> None:
    assert squad_normal("  The  quick,\nbrown fox's an-swer. ") == "quick brown foxs answer"
    assert score(["the Norman Conquest"], "Norman conquest!", "squad") == (100, 100)
    assert score(["four men"], "men four five", "squad") == (0, pytest.approx(80))
    assert score(["a b b"], "b b b", "squad") == (0, pytest.approx(80))  # a bag: 2 shared of 3 and, without "a", of 2


def test_triviaqa_makes_blanks_of_punctuation() -> None:
    assert triviaqa_normal("The_Isle ‘of’ Man-made´s") == "isle of man made s"
    assert score(["man made"], "Man-made", "triviaqa") == (100, 100)
    assert score(["man made"], "Man-made", "squad") == (0, 0)


def test_the_best_of_several_answers_counts_and_no_answer_is_an_empty_one() -> None:
    assert score(["red", "dark blue"], "blue", "squad") == (0, pytest.approx(200 / 3))
    for style in ("squad", "triviaqa", "cmrc"):
        assert score([], "", style) == (100, 100)
        assert score([], "text", style) == (0, 0)
        assert score(["text"], "", style) == (0, 0)
        assert score([], None, style) == score(["text"], None, style) == (0, 0)


@pytest.mark.parametrize(
    ("text", "units"),
    [
        ("《战国无双3》", "战 国 无 双 3"),
        ("约1,500.5米", "约 1,500.5 米"),
        ("Mr. Smith，Dr.Who", "mr. smithdr.who"),  # the comma is deleted before words are sought
        ("a（b）-c", "abc"),
        ("‘好’", "‘ 好"),  # one of the two quotation marks is missing from the list
        ("省略……号", "省 略 …… 号"),  # and so is the ellipsis
        ("92％,25℃", "92％,25℃"),
        ("(x), y?", "( x ) , y ?"),
        ('约"甲" ("b c")', '约 “ 甲 “ ( “ b c " )'),  # a quotation mark after a character of Chinese begins a word
        ("中文. 英文", "中 文 . 英 文"),
    ],
)
def test_units_of_the_chinese_f1(text, units) -> None:
    assert cmrc_units(text) == tuple(units.split())


def test_yes_and_no_are_right_or_wrong() -> None:
    """hotpot_evaluate_v1.py: where one side is yes, no or noanswer, the other must be the same."""
    assert score(["yes"], "Yes.", "hotpotqa") == (100, 100)
    assert score(["yes"], "yes it is", "hotpotqa") == (0, 0)
    assert score(["no"], "yes", "hotpotqa") == (0, 0)
    assert score(["yes men"], "yes", "hotpotqa") == (0, 0)
    assert score(["yes"], "yes it is", "squad") == (0, 50)
    assert score(["yes men"], "the men", "hotpotqa") == (0, pytest.approx(200 / 3))


def test_the_chinese_f1_takes_the_longest_contiguous_run() -> None:
    assert score(["甲乙丙丁戊"], "甲乙，丙丁", "cmrc") == (0, pytest.approx(100 * 8 / 9))
    assert score(["甲乙丙丁"], "甲乙己丙丁", "cmrc") == (0, pytest.approx(100 * 4 / 9))  # 2 units, not 4
    assert score(["《Abc》"], " aBC ", "cmrc") == (100, 100)
    assert score(["甲.乙"], "甲乙", "cmrc")[0] == 0  # an ASCII full stop stays


@given(st.text("甲乙a 1，", min_size=1, max_size=12), st.text("甲乙a 1，", min_size=1, max_size=12))
def test_the_run_is_that_of_the_table_of_common_endings(one, other) -> None:
    a, b = cmrc_units(one), cmrc_units(other)
    longest = max(
        (
            length
            for i in range(len(a))
            for j in range(len(b))
            for length in range(1, min(len(a) - i, len(b) - j) + 1)
            if a[i : i + length] == b[j : j + length]
        ),
        default=0,
    )
    if a and b:
        expected = 0.0
        if longest:
            precision, recall = longest / len(b), longest / len(a)
            expected = 100 * 2 * precision * recall / (precision + recall)
        assert score([one], other, "cmrc")[1] == pytest.approx(expected, rel=1e-12)


answers_with_words = st.lists(st.text("甲乙ab,《 ", max_size=6).map("甲".__add__), max_size=3)


@given(st.dictionaries(st.text("ab", max_size=3), answers_with_words, min_size=1))
def test_a_gold_answer_gives_100_in_any_order(gold) -> None:
    for style in ("squad", "triviaqa", "cmrc"):
        right = {name: answers[-1] if answers else "" for name, answers in gold.items()}
        backwards = dict(reversed(gold.items()))
        assert exact_match(gold, right, style) == answer_f1(backwards, right, style) == 100


@pytest.mark.long
def test_the_human_figures_of_cmrc_and_drcd() -> None:
    cmrc = questions("zh_cmrc2018/cmrc2018_dev.json.xz")
    first_two, third = {q.id: q.answers[:2] for q in cmrc}, {q.id: q.answers[2] for q in cmrc}
    assert len(first_two) == 3219
    assert exact_match(first_two, third, "cmrc") == pytest.approx(77.8, abs=0.05)
    assert answer_f1(first_two, third, "cmrc") == pytest.approx(93.4, abs=0.05)
    drcd = questions("zh_drcd/DRCD_dev.json.xz")
    second, first = {q.id: q.answers[1:] for q in drcd}, {q.id: q.answers[0] for q in drcd}
    assert exact_match(second, first, "cmrc") == pytest.approx(80.3, abs=0.05)
    assert answer_f1(second, first, "cmrc") == pytest.approx(91.8, abs=0.05)
