"""Word boundaries: rjieba's, corrected, are those of jieba."""

import json
import logging
import lzma
import marshal
import os
import random
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import jieba
import numpy as np
import pytest

from reread.preprocessing.config import WordSettings
from reread.preprocessing.errors import UserError
from reread.preprocessing.text import words
from reread.preprocessing.text.words import WordSegmenter
from tests.conftest import shared


@pytest.fixture(scope="module", autouse=True)
def no_cache_of_others(tmp_path_factory: pytest.TempPathFactory) -> None:
    jieba.dt.tmp_dir = str(tmp_path_factory.mktemp("jieba"))  # what is compared with is jieba as its wheel has it


@pytest.fixture(scope="module")
def fast() -> WordSegmenter:
    segmenter = WordSegmenter(WordSettings())
    assert segmenter.engine == "rjieba"
    return segmenter


@pytest.fixture(scope="module")
def exact() -> WordSegmenter:
    return WordSegmenter(WordSettings(engine="jieba"))


def read(name: str) -> str:
    return lzma.decompress(shared(name).read_bytes()).decode()


def split(segmenter: WordSegmenter, text: str) -> list[str]:
    bounds = [*np.flatnonzero(segmenter.starts(text)), len(text)]
    return [text[begin:end] for begin, end in pairwise(bounds)]


@pytest.mark.slow
def test_both_engines_cut_as_jieba_does(fast: WordSegmenter, exact: WordSegmenter) -> None:
    for text in [
        "",
        "他来到了网易杭研大厦。",
        "hizhu.com2 Pro-BTC 3-5.2 v1.2.3% a--b --..-- x.5%",
        "AT&T公司用C++11写卡拉OK.T恤，3D打印AA制c#代码，AT&T恤",
        "㐀㐁鿖鿗中文豈𠀀𠀁",
        "First line.\r\nSecond\n\r\r\n  line　end",
        "Plain English, 3.5% of it; don't e.g. C++ été",
    ]:
        expected = jieba.lcut(text)
        assert split(exact, text) == expected
        assert split(fast, text) == expected


@pytest.mark.slow
def test_random_mixtures_of_han_and_ascii_are_cut_as_jieba_does(
    fast: WordSegmenter, exact: WordSegmenter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(words, "PIECE_CHARACTERS", 16)
    jieba.initialize()
    random_ = random.Random(0)
    lexicon = [word for word, count in jieba.dt.FREQ.items() if count]
    mixed = [word for word in lexicon if not word.isalpha() or any(c.isascii() for c in word)]
    ascii_, other = "abXY0123.+-#&_%..", "。，\r\n \t㐀㐁鿖豈𠀀éＡ"
    for number in range(8_000):
        parts = []
        for _ in range(random_.randrange(1, 12)):
            kind = random_.randrange(5) if number % 3 else 3 + random_.randrange(2)
            if kind < 2:
                parts.append(random_.choice(lexicon))
            elif kind == 2:
                parts.append(random_.choice(mixed) + chr(random_.randrange(0x4E00, 0x9FD6)))
            else:
                parts += random_.choices(ascii_ if kind == 3 else other, k=random_.randrange(1, 5))
        text = "".join(parts)
        np.testing.assert_array_equal(fast.starts(text), exact.starts(text), err_msg=repr(text))


def test_the_dictionary_holds_no_ascii_word_that_is_not_listed() -> None:
    jieba.initialize()
    for word, count in jieba.dt.FREQ.items():
        if count and word.isascii():
            assert words._ASCII_WORD.fullmatch(word), word
        assert not (count and len(word) == 1 and word.isascii()), word  # else a run of single letters could win


def test_the_pairs_that_six_decimals_decide_are_listed_and_cut_as_jieba_does(
    fast: WordSegmenter, exact: WordSegmenter
) -> None:
    """Every pair x y, after a start or E or S and before an end or B or S, where rounding turns BE into SS or back."""
    from jieba import finalseg

    characters = [chr(code) for code in range(0x4E00, 0x9FD6)]
    start, move, emit = finalseg.start_P, finalseg.trans_P, finalseg.emit_P
    full = {state: np.array([emit[state].get(c, np.nan) for c in characters]) for state in "BES"}
    rounded = {state: values.round(6) for state, values in full.items()}
    before = [start["B"] - start["S"], *(move[state]["B"] - move[state]["S"] for state in "ES")]
    after = [0.0, *(move["E"][state] - move["S"][state] for state in "BS")]
    pairs = set()
    for constant in [x + y + move["B"]["E"] - move["S"]["S"] for x in before for y in after]:
        second = full["E"] - full["S"]
        order = np.argsort(second)
        low, high = (np.searchsorted(second[order], full["S"] - full["B"] - constant + by) for by in (-3e-6, 3e-6))
        for x in np.flatnonzero((low < high) & ~np.isnan(full["B"] - full["S"])):
            for y in order[low[x] : high[x]]:
                margin, other = (p["B"][x] - p["S"][x] + p["E"][y] - p["S"][y] + constant for p in (full, rounded))
                if (margin > 0) != (other > 0):
                    pairs.add(characters[x] + characters[y])
    assert len(pairs) == 36
    for pair in sorted(pairs):
        assert words._TIE.fullmatch(pair), pair
        for text in (pair, f"{pair}在心", f"他{pair}，{pair}Pro-X{pair}的", f"。有{pair}地中{pair}", f"manson经{pair}"):
            np.testing.assert_array_equal(fast.starts(text), exact.starts(text), err_msg=text)


@pytest.mark.long
@pytest.mark.slow
def test_real_text_is_cut_as_jieba_does(fast: WordSegmenter, exact: WordSegmenter) -> None:
    novel = read("zh_novels/红楼梦.txt.xz")
    apps = read("zh_iflytek_fewclue/dev_few_all.json.xz")
    tales = "常在地中，食死人脑。但愿常在不患贫。亦元末置，洪武十五年"
    wiki = read("zh_wiki_bertformat/cn_wiki_sample.txt.xz")
    book = read("en_books/pg84.txt.xz")
    described = "\n".join(json.loads(line)["sentence"] for line in apps.split("\n")[:400] if line)
    for text in (novel[:200_000], tales, described, wiki[:150_000], book[:100_000]):
        np.testing.assert_array_equal(fast.starts(text), exact.starts(text))


@pytest.mark.slow
def test_a_user_dictionary_joins_its_words_and_changes_the_description(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    dictionary = tmp_path / "names.txt"
    lines = ["石墨烯电池组 100 n", "约·翰", "电池 3 n # 注", "电池\t3", "电池 3.5", "", "石墨 3"]
    dictionary.write_text("\n".join(lines), encoding="utf-8")
    plain = WordSegmenter(WordSettings())
    assert plain.description == WordSegmenter(WordSettings(engine="jieba")).description
    with caplog.at_level(logging.INFO, "reread"):
        segmenter = WordSegmenter(WordSettings(user_dictionaries=[dictionary]))
    assert segmenter.engine == "jieba"
    assert "jieba itself" in caplog.text
    useless = [int(message.split("line ")[1].split()[0]) for message in caplog.messages if "no effect" in message]
    assert useless == [2, 3, 4, 5]
    assert "石墨烯电池组" in split(segmenter, "新的石墨烯电池组问世")
    assert "石墨烯电池组" not in split(plain, "新的石墨烯电池组问世")
    dictionary.write_text("石墨烯 100 n\n", encoding="utf-8")
    changed = WordSegmenter(WordSettings(user_dictionaries=[dictionary]))
    assert len({plain.description, segmenter.description, changed.description}) == 3


def test_wrong_user_dictionaries_are_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nowhere\.txt: No such file"):
        WordSegmenter(WordSettings(user_dictionaries=[tmp_path / "nowhere.txt"]))
    gbk = tmp_path / "gbk.txt"
    gbk.write_bytes("电池 5\n石墨烯 100\n".encode("gbk"))
    with pytest.raises(UserError, match=r"gbk\.txt: line 1 is not UTF-8"):
        WordSegmenter(WordSettings(user_dictionaries=[gbk]))
    with pytest.raises(UserError, match="rjieba takes no user dictionaries"):
        WordSegmenter(WordSettings(engine="rjieba", user_dictionaries=[gbk]))


@pytest.mark.slow
def test_an_rjieba_that_cuts_otherwise_is_not_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import rjieba

    monkeypatch.setattr(rjieba, "cut", list)
    with caplog.at_level(logging.INFO, "reread"):
        assert WordSegmenter(WordSettings()).engine == "jieba"
    assert "unlike jieba" in caplog.text


_CUT = """
import json, sys
events = []
sys.addaudithook(lambda event, values: events.append(str(values)) if event == "open" else None)
from reread.preprocessing.config import WordSettings
from reread.preprocessing.text.words import WordSegmenter
engines = [WordSegmenter(WordSettings(engine=name)) for name in ("jieba", "rjieba")]
starts = [engine.starts("他来到了网易杭研大厦").tolist() for engine in engines]
print(json.dumps([starts, [event for event in events if "/jieba.cache" in event or "pkg_resources" in event]]))
"""


@pytest.mark.slow
def test_neither_a_cache_that_others_left_in_the_temporary_folder_nor_pkg_resources_is_read(tmp_path: Path) -> None:
    root, temporary = Path(words.__file__).parents[2], tmp_path / "temporary"
    temporary.mkdir()
    poisoned = marshal.dumps(({"他来": 10**6, "他": 0, "来到了": 10**6, "来": 0, "来到": 0}, 10**6))
    (temporary / "jieba.cache").write_bytes(poisoned)
    found = subprocess.run(
        [sys.executable, "-c", _CUT],
        env=os.environ | {"TMPDIR": str(temporary), "PYTHONPATH": str(root)},
        capture_output=True,
        check=True,
    )
    (jieba_, rjieba), events = json.loads(found.stdout)
    assert jieba_ == rjieba == [bool(int(flag)) for flag in "1101101010"]  # 他 来到 了 网易 杭研 大厦
    assert not events
    assert [path.name for path in temporary.iterdir()] == ["jieba.cache"]
    assert (temporary / "jieba.cache").read_bytes() == poisoned
