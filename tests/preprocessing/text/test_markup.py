"""What the options of `clean` cut, and what they leave."""

import lzma
import tarfile
from collections import Counter

import pytest

from reread.preprocessing.config import CleanSettings
from reread.preprocessing.text.clean import Cleaner
from reread.preprocessing.text.markup import without_gutenberg, without_html, without_wiki_markup
from tests.conftest import shared

BOOK = """\ufeffThe Project Gutenberg eBook of Alice

Title: Alice

*** START OF THE PROJECT GUTENBERG EBOOK ALICE ***

Produced by Arthur DiBianca
and David Widger

CHAPTER I. She sat by *** the bank ***.

End of the Project Gutenberg EBook of Alice, by Lewis Carroll

*** END OF THE PROJECT GUTENBERG EBOOK ALICE ***

Updated editions will replace the previous one.
"""


def test_of_a_gutenberg_book_the_book_is_left() -> None:
    text = "CHAPTER I. She sat by *** the bank ***."
    assert without_gutenberg(BOOK).strip() == text
    assert without_gutenberg(BOOK.replace("\n", "\r\n")).strip() == text
    older = BOOK.replace("START OF THE PROJECT GUTENBERG EBOOK ALICE", "START OF THIS PROJECT GUTENBERG\nEBOOK ALICE")
    assert without_gutenberg(older.replace("GUTENBERG\nEBOOK", "GUTENBERG EBOOK\n")).strip() == text
    print_of_1995 = f"Licence\n*END*THE SMALL PRINT! FOR PUBLIC DOMAIN ETEXTS*Ver.04.29.93*END*\n\n{text}"
    assert without_gutenberg(print_of_1995).strip() == text
    assert without_gutenberg(text) == text


@pytest.mark.slow
@pytest.mark.timeout(60)
@pytest.mark.parametrize("unit", [" ", "\n", "\n ", " \n", "\r\n", "End of Project Gutenberg\n", "***"], ids=repr)
def test_work_on_a_book_grows_with_its_length_alone(unit: str) -> None:
    without_gutenberg("*** x\nEnd of Project Gutenberg" + unit * 200_000 + "x")  # quadratic work would take minutes


@pytest.mark.parametrize(
    ("raw", "left"),
    [
        ("Great.<br /><br />Really <i>great</i>!", "Great.\n\nReally great!"),
        ('<p class="x">A <A HREF="y">link</A></p><hr>', "\nA link\n\n"),
        ("a < b and c > d, <3 <SPOILER> <b", "a < b and c > d, <3 <SPOILER> <b"),
        ("Q&amp;A &#8220;x&#8221; &lt;br&gt; &#" + "9" * 5000 + ";", "Q&A “x” <br> \ufffd"),
        ("a<!-- hidden\n -->b", "ab"),
    ],
)
def test_html_is_cut_and_other_angles_stay(raw: str, left: str) -> None:
    assert without_html(raw) == left


@pytest.mark.parametrize(
    ("raw", "left"),
    [
        ("thumb|left|300px|The city.", "The city."),
        ("thumb|upright=1.2|alt=A map|A map", "A map"),
        ("right|200px|Him", "Him"),
        ("a rule of thumb: left | right", "a rule of thumb: left | right"),
        ("on the left| side", "on the left| side"),
        ('It is.<ref name="a">Smith, p. 3</ref> So<ref name=b/> it<ref> is.</ref>', "It is. So it"),
        ("one<br>two</div>three <nowiki>[x]</nowiki></ref>", "one\ntwo\nthree [x]"),
    ],
)
def test_wiki_markup_is_cut(raw: str, left: str) -> None:
    assert without_wiki_markup(raw) == left


def test_each_option_counts_the_documents_and_characters_that_it_changed() -> None:
    cleaner = Cleaner(CleanSettings(html=True, map_punctuation=True), {"“": '"', "”": '"', "—": "-"})
    assert cleaner.clean("“a”<br /> ——") == '"a"\n--'
    assert cleaner.clean("plain text…") == "plain text…"
    assert cleaner.clean("<i>b</i>") == "b"
    assert cleaner.changed == {
        "html": Counter(documents=2, characters=5 + 7),
        "map_punctuation": Counter(documents=1, characters=4),
    }
    assert Cleaner(CleanSettings(), {"“": '"'}).clean("“<br>") == "“<br>"


def test_real_books_and_reviews_lose_licences_and_tags() -> None:
    for name in ("pg11", "pg1342"):
        text = lzma.decompress(shared(f"en_books/{name}.txt.xz").read_bytes()).decode()
        left = without_gutenberg(text)
        assert 0.85 < len(left) / len(text) < 0.99
        assert "gutenberg" not in left.lower()
    with tarfile.open(shared("en_imdb/train-5000.tar.xz")) as archive:
        reviews = [archive.extractfile(entry).read().decode() for entry in archive if entry.isfile()]  # type: ignore[union-attr]
    assert sum("<br />" in review for review in reviews) > 2000
    assert not any("<br" in without_html(review) for review in reviews)
