"""Wikitext as plain text."""

import pytest

from reread.preprocessing.input.formats.wikitext import plain_text


@pytest.mark.parametrize(
    ("wikitext", "text"),
    [
        ("'''柏林'''（{{lang-de|Berlin}}{{IPA|bɛʁ}}，{{x}}）是[[德国]][[首都|都城]]。", "柏林（Berlin，）是德国都城。"),
        ("甲（{{a}}；）乙({{b}}, c) , d", "甲乙(c), d"),
        ("{{Infobox|a={{b|{{c}}}}|d=[[e]]\n|f={|\n|x\n|}\n}}正文{{unclosed 仍在", "正文{{unclosed 仍在"),
        ("前\n{| class=x\n! h\n|-\n| {{a|b}} || c\n{|\n|内\n|}\n|}\n后", "前\n后"),
        ("甲<ref name=a>[[乙]]{{丙}}</ref>丁<ref name=a />戊<ref>没完 己<ref>庚</ref>辛", "甲丁戊没完 己辛"),
        ("[[File:a.jpg|thumb|[[乙]]的[http://x.y 图] [1.1]]]文[[Category:丙]][[de:Berlin]][[:en:Foo|bar]]", "文bar"),
        ("[[ファイル:a.jpg|thumb|図]]本文[[画像:b.png]][[カテゴリ:丙]]", "本文"),
        ("[[文件:a.jpg]][[:Category:丙]] [http://a.b 站] [http://a.b] http://c.d", "Category:丙 站  http://c.d"),
        (
            "a<!-- b -->c<br />d<span style='x'>e</span> 3 &lt; 4 &nbsp;<nowiki>[[f]] ''g''</nowiki>",
            "ac\nde 3 < 4 \xa0[[f]] ''g''",
        ),
        ("-{zh-hant:電腦;zh-hans:计算机}--{T|題}--{字}-", "计算机字"),
        ("__NOTOC__\n* 一\n** 二\n# 三\n: 四\n----\n五", "一\n二\n三\n四\n五"),
        ("高{{convert|5|km|mi}}，{{nowrap|[[a|b]] c}}{{link-en|中|English}}", "高5 km，b c中"),
        ("{{cite|a}}\n<gallery>\nFile:x.jpg|y\n</gallery>\n<math>x^2</math>尾", "尾"),
    ],
)
def test_plain_text(wikitext: str, text: str) -> None:
    assert plain_text(wikitext) == text


def test_headings_stand_above_text_and_back_matter_goes() -> None:
    wikitext = "导言\n== 历史 ==\n=== 古代 ===\n一\n=== 空 ===\n{{x}}\n"
    wikitext += "== 参考文献 ==\n* 书\n=== 注 ===\n二\n== 地理 ==\n三\n==External links==\n四"
    assert plain_text(wikitext) == "导言\n历史\n古代\n一\n地理\n三"


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "unit",
    [
        "{{",
        "[[",
        "{|\n",
        "<ref>",
        "<!--",
        "-{",
        "[[a|",
        "{{a|",
        "'''",
        "==",
        "(",
        "[http://a ",
        "[//a",
        "|}\n",
        " ",
        "&#1",
    ],
)
def test_broken_markup_does_not_hang(unit: str) -> None:
    plain_text(unit * 200_000)  # quadratic work would take minutes


@pytest.mark.slow
@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("before", "unit", "after"),
    [
        ("= ", " ", "a"),  # no heading
        ("a", " ", "b"),  # a hole before no comma
        ("a", " ,", ""),
        ("a", " ", ","),
        (":", "*{|", ""),  # a table that does not begin a line
        ("a", "\n |}", ""),
        ("{{", " ", "x"),  # a template without parameters
        ("{{a|", "|", "}}"),
        ("{{a|", "|", ""),
        ("[//a", " ", "["),
        ("{{" * 200_000, "\n|}", ""),
        ("{|\n" * 200_000, "}}", ""),
        ("[[a", " ]", ""),
        ("&#", "1", ";"),
    ],
)
def test_work_on_one_construct_grows_with_its_length_alone(before: str, unit: str, after: str) -> None:
    plain_text(before + unit * 200_000 + after)


def test_a_number_of_thousands_of_digits_is_no_character() -> None:
    assert plain_text("a&#" + "9" * 5000 + ";b&#65;") == "a\ufffdbA"


def test_headings_of_uneven_sides_keep_the_rest_in_their_name() -> None:
    wikitext = "== 甲 =\n一\n= 乙 ==\n二\n=\n三\n==\n四\n======= 丙 =======\n五"
    assert plain_text(wikitext) == "= 甲\n一\n乙 =\n二\n=\n三\n\n四\n= 丙 =\n五"


@pytest.mark.parametrize("after", ["", "]", "[x]", "]]", "[[x]]"])
def test_bars_in_links_separate_no_parameters(after: str) -> None:
    assert plain_text("{{nowrap|[[a|b]]" + after + "|c}}") == plain_text("[[a|b]]" + after)
