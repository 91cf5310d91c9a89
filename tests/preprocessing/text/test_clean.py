"""Cleaning: what stays, what goes, and that the fast way is Unicode's own."""

import bz2
import lzma
import random
import re
import shutil
import subprocess
import sys
import unicodedata
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis.strategies import DataObject, data, lists, sampled_from

from reread.preprocessing.config import CleanSettings
from reread.preprocessing.text.clean import KEPT_PUNCTUATION, Cleaner
from reread.preprocessing.text.simplify import simplify
from tests.conftest import shared

CLEANER = Cleaner(CleanSettings())
clean = CLEANER.clean


def reference(text: str) -> str:
    """The definition, a character at a time: categories from unicodedata, NFKC between kept punctuation."""
    text = re.sub("\r\n|[\r\v\f\x85\u2028\u2029]", "\n", text)
    text = re.sub("[\t\xa0\u1680\u2000-\u200a\u202f\u205f\u3000]", " ", text)
    kept = []
    for character in text:
        code = ord(character)
        noncharacter = 0xFDD0 <= code <= 0xFDEF or code & 0xFFFE == 0xFFFE or code >= 0x40000
        variation = 0xFE00 <= code <= 0xFE0F or 0x180B <= code <= 0x180F or code == 0x034F
        newer = code in (0x0890, 0x0891) or 0x13430 <= code <= 0x1343F  # format characters of later Unicode versions
        if character == "\n" or not (
            unicodedata.category(character) in ("Cc", "Cf", "Co", "Cs")
            or (noncharacter or variation or newer or code == 0x2065 or 0xFFF0 <= code <= 0xFFFD)
        ):
            kept.append(character)
    pieces = re.split(f"([{KEPT_PUNCTUATION}])", "".join(kept))
    text = "".join(piece if piece in KEPT_PUNCTUATION else unicodedata.normalize("NFKC", piece) for piece in pieces)
    text = re.sub("(?<=[0-9A-Za-z])．(?=[0-9A-Za-z])", ".", text)
    lines = (re.sub(" +", " ", line).strip(" ") for line in text.split("\n"))
    return "\n".join(line for line in lines if line)


def random_texts(count: int) -> list[str]:
    rng = random.Random(7)
    # Characters that combine, compose across each other, or stand at the edges of what is dropped, weigh most.
    awkward = "eaA一ñ́̈̀ؐᅡᆨ가각ᄀㄱﾡﾊﾟｶﾞがᆷাে𝄞𝅗𝅥ﬁ①㈠３．Ａ，！～…　 \n\r\t\u200b\u2028\xa0\xad\ufeff\ue000\ufffd\ud800̸َّ＝=<"
    texts = []
    for _ in range(count):
        characters = rng.choices(awkward, k=rng.randint(1, 20))
        if rng.random() < 0.5:
            characters += [chr(rng.randrange(sys.maxunicode + 1)) for _ in range(8)]
            rng.shuffle(characters)
        texts.append("".join(characters))
    return texts


@pytest.mark.parametrize(
    ("raw", "cleaned"),
    [
        ("　　第一回　Ａ１２，好！？\r\n\r\n\t （一）～…\u2028二", "第一回 A12，好！？\n（一）～…\n二"),
        ("３．５％，也．故", "3.5%，也．故"),
        ("ｶﾞ ﬁ ㎡ ①", "ガ fi m2 1"),
        ("a\u200bb\ufeffc\ue000d\ufffde\x07f\xadg", "abcdefg"),
        ("&lt;p&gt; &amp;", "&lt;p&gt; &amp;"),
        ("“你”‘好’、《书》【注】「引」——。", "“你”‘好’、《书》【注】「引」——。"),
        ("e\u200b\u0301", "é"),
        (" \n\u3000\n", ""),
    ],
)
def test_clean(raw: str, cleaned: str) -> None:
    assert clean(raw) == cleaned


@pytest.mark.slow
def test_every_character_is_cleaned_as_defined() -> None:
    left_out = (range(0x3400, 0xA000), range(0xAC00, 0xD700), range(0x20000, 0x2F800), range(0x30000, 0xE0000))
    codes = [code for code in range(0xE1000) if not any(code in part for part in left_out)]
    for start in range(0, len(codes), 500):
        text = "y ".join(f"x{chr(code)}" for code in codes[start : start + 500])
        assert clean(text) == reference(text), hex(codes[start])


@pytest.mark.slow
def test_nfkc_by_runs_is_nfkc() -> None:
    for text in random_texts(20_000):
        assert clean(text) == reference(text), ascii(text)


@pytest.mark.parametrize("nfkc", [True, False])
def test_cleaning_again_changes_nothing(nfkc: bool) -> None:
    cleaner = Cleaner(CleanSettings(nfkc=nfkc))
    for text in random_texts(10_000):
        once = cleaner.clean(text)
        assert cleaner.clean(once) == once, ascii(text)


def test_wrapped_lines_are_joined_to_paragraphs() -> None:
    cleaner = Cleaner(CleanSettings(join_wrapped_lines=True))
    book = "CHAPTER I\r\n\r\nIt is a truth,\r\n  universally “known”\r\n“so”.\r\n \t\r\n\r\nNext.\r\n"
    assert cleaner.clean(book) == "CHAPTER I\nIt is a truth, universally “known” “so”.\nNext."
    assert cleaner.clean("他说：\n“今天下\n雨。”\n走了\n\nPython\n很好") == "他说：“今天下雨。”走了\nPython 很好"


def test_without_nfkc_forms_stay() -> None:
    assert Cleaner(CleanSettings(nfkc=False)).clean("Ａ①\u200b　　３．５ ") == "Ａ① ３．５"


@pytest.mark.parametrize("name", ["zh_novels/红楼梦.txt.xz", "zh_wiki_bertformat/cn_wiki_sample.txt.xz"])
def test_real_text_is_cleaned_as_defined(name: str) -> None:
    text = lzma.decompress(shared(name).read_bytes()).decode()[:400_000]
    assert clean(text) == reference(text)


def test_reasons_to_drop() -> None:
    assert CLEANER.reason_to_drop("") == "empty"
    assert CLEANER.reason_to_drop("字") is None
    sized = Cleaner(CleanSettings(minimum_characters=3, maximum_characters=5))
    assert [sized.reason_to_drop("字" * size) for size in (2, 3, 5, 6)] == ["too short", None, None, "too long"]
    letters = Cleaner(CleanSettings(minimum_letter_share=0.5))
    assert letters.reason_to_drop("a 字 12") is None and letters.reason_to_drop("a字 123") == "few letters"
    han = Cleaner(CleanSettings(minimum_han_share=0.5))
    assert han.reason_to_drop("汉字ab\n") is None and han.reason_to_drop("汉字abc") == "few Han characters"


def test_simplified_as_opencc_does() -> None:
    from opencc import OpenCC

    cleaner = Cleaner(CleanSettings(simplify=True))
    assert cleaner.clean("乾隆皇帝吃乾飯，一目瞭然。") == "乾隆皇帝吃干饭，一目了然。"
    assert cleaner.clean("hello 简体") == "hello 简体"
    for text in ("著名的乾坤大挪移，憑藉著計算機；後來髮型變了", "於是他籌畫了一番 么麼小丑 沈默地看著"):
        assert simplify(text) == OpenCC("t2s").convert(text)


@pytest.mark.parametrize("name", ["zh_pg_single_line/吶喊.txt.xz", "zh_wiki_xml/dbpedia-minidump-zh.xml.bz2"])
def test_real_text_is_simplified_as_opencc_does(name: str) -> None:
    from opencc import OpenCC

    decompress = lzma.decompress if name.endswith(".xz") else bz2.decompress
    text = decompress(shared(name).read_bytes()).decode()[:20_000]
    assert simplify(text) == OpenCC("t2s").convert(text)


@cache
def opencc_phrases() -> list[str]:
    """Both sides of the phrases of `t2s`, from the dictionary in OpenCC's wheel, read by OpenCC's own program."""
    import opencc

    library = Path(opencc.__file__).parent / "clib"
    with TemporaryDirectory() as folder:
        program, table = Path(folder) / "opencc_dict", Path(folder) / "phrases.txt"
        shutil.copy(library / "bin" / "opencc_dict", program)
        program.chmod(0o700)  # pip does not make it executable
        phrases = library / "share" / "opencc" / "TSPhrases.ocd2"
        subprocess.run([program, "-f", "ocd2", "-t", "text", "-i", phrases, "-o", table], check=True)
        lines = table.read_text(encoding="utf-8").splitlines()
    return sorted({side.split(" ")[0] for line in lines for side in line.split("\t")})


def test_each_han_character_and_phrase_simplified_twice_is_as_once() -> None:
    from opencc import OpenCC

    blocks = (range(0x3000, 0x3100), range(0x3400, 0xA000), range(0xF900, 0xFB00), range(0x20000, 0x32400))
    for word in [*(chr(code) for block in blocks for code in block), *opencc_phrases()]:
        once = simplify(word)
        assert simplify(once) == once, word
    convert = OpenCC("t2s").convert
    unlike = [word for word in opencc_phrases() if simplify(word) != convert(word)]
    assert "乾清宫" in unlike and "乾清宮" not in unlike
    assert all(simplify(word) == word or convert(convert(word)) == simplify(word) for word in unlike)
    assert simplify("薴乾清宮") == "苎乾清宫"


@given(data())
def test_words_side_by_side_simplified_twice_are_as_once(chosen: DataObject) -> None:
    words = opencc_phrases()
    text = "".join(chosen.draw(lists(sampled_from([*words, *sorted(set("".join(words)))]), max_size=12)))
    once = simplify(text)
    assert simplify(once) == once
    cleaner = Cleaner(CleanSettings(simplify=True))
    assert cleaner.clean(cleaner.clean(text)) == cleaner.clean(text)


@pytest.mark.timeout(60)
def test_work_on_a_line_without_stops_grows_with_its_length_alone() -> None:
    assert simplify("乾坤大圖" * 100_000) == "乾坤大图" * 100_000
    clean = Cleaner(CleanSettings()).clean
    marks = clean("a" + "\u0301\u0316" * 200_000)  # so does putting marks of two kinds in their order
    assert clean(marks) == marks and len(marks) < 1000
    assert clean("e\u0323\u0302x") == "ệx"
