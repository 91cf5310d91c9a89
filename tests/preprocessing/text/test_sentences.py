"""Sentence and paragraph ends. Each text marks the expected ends with `|`."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reread.preprocessing.text import sentences
from reread.preprocessing.text.sentences import sentence_ends


def cut(text: str) -> str:
    parts = np.split(np.array(list(text)), sentence_ends(text))
    return "|".join("".join(part) for part in parts)


@pytest.mark.parametrize(
    "marked",
    [
        "他走了。|她留下；|我呢？|好！|",
        "“你来了？”|他问。|“来了。”|",
        "“你好。|我走了。”|他说。|",
        "他说：“……算了，”便走了。|",
        "什么？！|不会吧！！！|真的……|是的。|",
        "「好。」|他道。|『不。』|",
        "他读《你好！李焕英》（真好看！）哭了。|",
        "他走了。|（他没有回来。）|她留下。|",
        "这是（见第三章。）一个例子。|",
        '他说:"你好。"|然后走了。|"再见。"|她说。|',
        "圆周率是3.14。|第2.5版发布了。|",
        "也．|故曰甄士隐云云．|但书中所记何事何人？|",
        "1．概述",
        "你好吗?|我很好!|他走了.|她来了",
        "见http://a.cn/b?c=d 一文。|",
        "天地玄黄 宇宙洪荒",
    ],
)
def test_chinese_sentences(marked: str) -> None:
    marked = marked.removesuffix("|") + "|"
    assert cut(marked.replace("|", "")) == marked


@pytest.mark.parametrize(
    "marked",
    [
        "It rained.| We stayed in.| Why not?| Good!|",
        "Mr. Bennet met Dr. J. R. R. Tolkien on Jan. 5 at St. Paul's.| He smiled.|",
        '"Really?" he said.| "Yes." She left.|'.replace('" She', '"| She'),
        "It cost 3.50 dollars, e.g. in the U.S. market.| It rose to 4.5.|",
        "He lived in the U.S. The war began.|".replace("S. The", "S.| The"),
        "Well... he left.| So...| Then nothing.|",
        "“Go!” cried she.| “Why?”| “Because.”| He went.|",
        "1. First item.| Next one.|",
        "See Fig. 3 and No. 7.| No.| I do not.|",
        "We use Python (see docs.python.org).| Then stop.|",
        "He is taller than I.| They agree.|",
    ],
)
def test_english_sentences(marked: str) -> None:
    assert cut(marked.replace("|", "")) == marked


def test_mixed_text() -> None:
    assert cut("他说Hello.然后走了。I see. 好的。") == "他说Hello.然后走了。|I see.| 好的。|"


def test_every_paragraph_end_is_a_sentence_end() -> None:
    text = "第一回\n话说天下大势。分久必合\nThe end"
    assert sentence_ends(text).tolist() == [3, 11, 15, 23]
    assert sentence_ends("").tolist() == []


def test_ends_are_increasing_and_local_to_paragraphs() -> None:
    random.seed(1)
    characters = "天地人。。！？…；．!?..”’」》）\"'“《（ ,，aAbB1\n𠀀"
    for _ in range(2000):
        paragraphs = ["".join(random.choices(characters, k=random.randint(1, 30))).replace("\n", "") for _ in range(3)]
        paragraphs = [paragraph.strip() or "空" for paragraph in paragraphs]
        text = "\n".join(paragraphs)
        ends = sentence_ends(text)
        assert (np.diff(ends) > 0).all() and ends[-1] == len(text)
        assert {place for place, character in enumerate(text) if character == "\n"} <= set(ends.tolist())
        start, alone = 0, []
        for paragraph in paragraphs:
            alone += (sentence_ends(paragraph) + start).tolist()
            start += len(paragraph) + 1
        assert ends.tolist() == alone


class CountedText(str):
    """Counts the characters that searches in it look at."""

    looked_at = 0

    def count(self, sub: str, start: int = 0, end: int = 1 << 62) -> int:  # type: ignore[override]
        self.looked_at += min(end, len(self)) - start
        return super().count(sub, start, end)

    def rfind(self, sub: str, start: int = 0, end: int = 1 << 62) -> int:  # type: ignore[override]
        self.looked_at += min(end, len(self)) - start
        return super().rfind(sub, start, end)


@pytest.mark.parametrize("unit", ['他说:"你好。"好', 'He said: "Go."x', ".'a", "!\"'a"])
def test_straight_quotes_are_counted_once(unit: str) -> None:
    for count in (100, 200, 400):
        text = CountedText(unit * count)
        sentence_ends(text)
        assert len(text) / 2 < text.looked_at <= 2 * len(text)


@pytest.mark.slow
@pytest.mark.timeout(60)
@pytest.mark.parametrize("unit", ['."', "' ", "1. ", "（", "《", '…"', "!(", "“。", ". “"])
def test_work_on_a_line_grows_with_its_length_alone(unit: str) -> None:
    sentence_ends(unit * 200_000)  # quadratic work would take minutes


def test_a_backslash_closes_no_sentence() -> None:
    assert sentence_ends("甲。\\n乙。").tolist() == [2, 6]


MARKED = st.lists(
    st.sampled_from(
        [
            *"aZ5 \n.!?。！…\"')(（）《》“”’,，、²éÉ\t\x1f１-\\",
            *[" A", " b", "Mr", "U.S", "e.g", "no", "I", "The", "messrs", " Smith", "electricity", " .", ".' "],
            *["。”", "（甲。）", "（甲。乙）", "《甲。》"],
        ]
    ),
    max_size=30,
).map("".join)


@given(MARKED)
def test_the_marks_decided_for_the_whole_text_end_what_they_end_one_by_one(text: str) -> None:
    """The reference looks at each mark of each paragraph in turn, as `_find_ends` does where marks are mixed."""
    expected: set[int] = set()
    begin = 0
    for paragraph in text.split("\n"):
        within: list[int] = []
        sentences._find_ends(text, begin, begin + len(paragraph), within)
        expected.update(within, [begin + len(paragraph)] if paragraph else [])
        begin += len(paragraph) + 1
    assert sentence_ends(text).tolist() == sorted(expected)
