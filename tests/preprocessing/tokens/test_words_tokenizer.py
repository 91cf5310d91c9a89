"""Whole words as tokens: order, ends of lines, unknowns, and what language models and others read of such a corpus."""

import json
import lzma
from collections import Counter
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers

from reread.preprocessing.config import (
    CleanSettings,
    PreprocessSettings,
    TokenizerSettings,
    VocabularySettings,
    WordSettings,
)
from reread.preprocessing.corpus import CONTINUES_WORD, PARAGRAPH_END, SENTENCE_END, Corpus
from reread.preprocessing.errors import UserError
from reread.preprocessing.execution.build import build
from reread.preprocessing.text.clean import Cleaner
from reread.preprocessing.text.words import WordSegmenter
from reread.preprocessing.tokens.encode import Encoder
from reread.preprocessing.tokens.tokenizer import Tokenizer, load_tokenizer
from reread.preprocessing.tokens.vocabulary import train_vocabulary
from reread.training.data.rows.samples import RowSettings, Samples
from reread.training.data.rows.stream import Stream, StreamSettings
from tests.conftest import shared

TEXT = """= Lobster =
The lobster , a species of <unk> lobster , is 0 @.@ 7 m long . It is the U.S. lobster 's 1 @,@ 500 th .
It may grow ."""


def trained(folder: Path, texts: list[str], size: int = 100, **settings: Any) -> Tokenizer:
    path = train_vocabulary(iter(texts), VocabularySettings(type="words", size=size), False, folder, **settings)
    return load_tokenizer(path, TokenizerSettings(path=path))


def tokens_of(tokenizer: Tokenizer, folder: Path) -> list[str]:
    tokenizer.save(folder)
    backend = Backend.from_file(str(folder / "tokenizer.json"))
    return [backend.id_to_token(number) or "" for number in range(tokenizer.vocab_size)]


def words_of(tokenizer: Tokenizer, text: str, folder: Path) -> list[str]:
    names = tokens_of(tokenizer, folder)
    return [names[number] for number in tokenizer.encode(text)[0].tolist()]


@pytest.fixture(scope="module")
def segmenter() -> WordSegmenter:
    return WordSegmenter(WordSettings())


def test_ids_rise_as_frequency_falls_and_unk_stands_by_what_it_stands_for(tmp_path: Path) -> None:
    text = "b b b b b c c c a a a z z <unk> <eos> d"
    assert tokens_of(trained(tmp_path / "a", [text], split_punctuation=False), tmp_path / "b") == (
        ["<eos>", "b", "c", "a", "z", "<unk>", "d"]  # equals in the order of the text; <unk> and <eos> are 2 unknown
    )
    many = [" ".join(f"w{number}" for number in range(199) for _ in range(200 - number))]
    bounded = tokens_of(trained(tmp_path / "c", many), tmp_path / "d")
    assert bounded == ["<eos>", "<unk>", *(f"w{number}" for number in range(98))]  # 101 words dropped: 5,151 in all
    plain = tokens_of(trained(tmp_path / "e", ["only these"]), tmp_path / "f")
    assert plain == ["<eos>", "only", "these", "<unk>"]


def test_a_line_ends_with_eos_which_ends_its_sentence_and_paragraph(tmp_path: Path, segmenter: WordSegmenter) -> None:
    tokenizer = trained(tmp_path / "a", [TEXT])
    encoder = Encoder(tokenizer, segmenter)
    ((ids, flags),) = encoder.encode([TEXT])
    names = tokens_of(tokenizer, tmp_path / "b")
    words = [names[number] for number in ids.tolist()]
    assert words == [*" <eos> ".join(TEXT.split("\n")).split(), "<eos>"]
    ends = [place for place, word in enumerate(words) if word == "<eos>"]
    assert len(ends) == 3
    assert np.flatnonzero(flags & PARAGRAPH_END).tolist() == ends
    assert np.flatnonzero(flags & SENTENCE_END).tolist() == sorted([*ends, words.index("long") + 1])
    assert not (flags & CONTINUES_WORD).any()
    assert encoder.counts["unknown_tokens"] == 1
    assert encoder.counts["words"] == len(words)


def test_joined_documents_and_long_texts_encode_as_they_do_alone(
    tmp_path: Path, segmenter: WordSegmenter, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = Encoder(trained(tmp_path, [TEXT]), segmenter)
    texts = [*TEXT.split("\n"), "", "nobody knows", TEXT, ""]
    alone = [encoder.encode([text])[0] for text in texts]
    monkeypatch.setattr("reread.preprocessing.tokens.base.PIECE_CHARACTERS", 7)
    for (ids, flags), (joined_ids, joined_flags) in zip(alone, encoder.encode(texts), strict=True):
        assert np.array_equal(ids, joined_ids)
        assert np.array_equal(flags, joined_flags)
    assert [len(ids) for ids, _ in alone[3:5]] == [0, 3]


def test_blank_lines_yield_no_eos(tmp_path: Path) -> None:
    tokenizer = trained(tmp_path / "a", ["a b"])
    assert words_of(tokenizer, "\na\n\n \nb\n", tmp_path / "b") == ["a", "<eos>", "b", "<eos>"]
    assert len(tokenizer.encode("")[0]) == 0


def test_punctuation_is_split_off_and_the_tokens_of_wikitext_stay_whole(tmp_path: Path) -> None:
    expected = {
        'He didn\'t go; "never!"': ["He", "didn", "'t", "go", ";", '"', "never", "!", '"'],
        "_I_, at 3.14 or 2,718": ["_", "I", "_", ",", "at", "3.14", "or", "2,718"],
        "the U.S. friend--Mr. Smith’s": ["the", "U.S.", "friend", "--", "Mr", ".", "Smith", "’s"],
        "a well-known 1990s café...": ["a", "well", "-", "known", "1990s", "café", "..."],
        "red @-@ <unk> 's 0 @.@ 7 1 @,@ 5": ["red", "@-@", "<unk>", "'s", "0", "@.@", "7", "1", "@,@", "5"],
        "don 't 'tis": ["don", "'t", "'", "tis"],
    }
    for number, (text, words) in enumerate(expected.items()):
        tokenizer = trained(tmp_path / f"a{number}", [text])
        assert words_of(tokenizer, text, tmp_path / f"b{number}") == [*words, "<eos>"]
    raw = "No. 5 'awiil well-known"
    tokenizer = trained(tmp_path / "c", [raw], split_punctuation=False)
    assert words_of(tokenizer, raw, tmp_path / "d") == [*raw.split(), "<eos>"]


@pytest.mark.parametrize("split", [True, False])
def test_unknown_words_and_case_and_special_tokens_in_text(tmp_path: Path, split: bool) -> None:
    tokenizer = trained(tmp_path / "a", ["the lobster"], split_punctuation=split)
    assert words_of(tokenizer, "The lobster <unk>", tmp_path / "b") == ["<unk>", "lobster", "<unk>", "<eos>"]
    literal = words_of(tokenizer, "the <eos> lobster", tmp_path / "b")
    assert literal == ["the", *["<unk>"] * (3 if split else 1), "lobster", "<eos>"]


def test_what_is_saved_loads_again_and_in_transformers(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    for split in (True, False):
        tokenizer = trained(tmp_path / f"a{split}", [TEXT], split_punctuation=split)
        folder = tmp_path / f"b{split}"
        tokenizer.save(folder)
        for path in (folder, folder / "tokenizer.json"):
            for kind in ("auto", "words"):
                again = load_tokenizer(path, TokenizerSettings(path=path, type=kind))
                assert again.describe() == tokenizer.describe()
        saved = transformers.AutoTokenizer.from_pretrained(folder)
        assert saved.eos_token_id == tokenizer.special["eos"] == 0
        assert saved.unk_token_id == tokenizer.special["unk"]
        assert len(saved) == tokenizer.vocab_size
        assert list(saved(TEXT)) == ["input_ids"]
        for line in [*TEXT.split("\n"), 'Unheard-of "lobsters" , 0.7']:
            assert saved(line)["input_ids"] == tokenizer.encode(line)[0].tolist()


def test_a_vocabulary_given_as_a_list_is_read(tmp_path: Path) -> None:
    path = tmp_path / "vocab.txt"
    path.write_text("<eos>\nthe\n<unk>\nend.\n", encoding="utf-8")
    settings = TokenizerSettings(type="words", path=path, split_punctuation=False)
    assert load_tokenizer(path, settings).encode("the end. the\nx")[0].tolist() == [1, 3, 1, 0, 2, 0]
    assert load_tokenizer(tmp_path, settings).encode("end.")[0].tolist() == [3, 0]
    split = load_tokenizer(path, settings.model_copy(update={"split_punctuation": True}))
    assert split.encode("end.")[0].tolist() == [2, 2, 0]
    path.write_text("the\n<unk>\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"vocab\.txt: the token <eos> is missing"):
        load_tokenizer(path, settings)


def test_other_tokenizers_are_not_taken_for_whole_words(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    settings = TokenizerSettings(type="words", path=path)
    for model, way, message in [
        (models.BPE(), pre_tokenizers.WhitespaceSplit(), "not a tokenizer of whole words"),
        (
            models.WordLevel({"<eos>": 0, "<unk>": 1}, unk_token="<unk>"),
            pre_tokenizers.Whitespace(),
            "splits text in an unsupported way",
        ),
        (models.WordLevel({"<eos>": 0, "<unk>": 2}, unk_token="<unk>"), pre_tokenizers.WhitespaceSplit(), "have gaps"),
    ]:
        backend = Backend(model)
        backend.pre_tokenizer = way
        backend.save(str(path))
        with pytest.raises(UserError, match=rf"tokenizer\.json: .*{message}"):
            load_tokenizer(path, settings)


def preprocess(folder: Path, **settings: Any) -> Corpus:
    values = {"words": {"engine": "jieba"}, "dedup": {"documents": False}, "workers": 1, **settings}
    build(PreprocessSettings.parse({"output": folder, **values}, "test"))
    return Corpus(folder)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    folder = tmp_path_factory.mktemp("words")
    generator = np.random.default_rng(0)
    for name, documents in (("train", 40), ("valid", 5)):
        words = generator.zipf(1.5, (documents, 60)).clip(max=300).astype(str)
        lines = [f"{' '.join(line[:30])} . It {' '.join(line[30:])} ." for line in words]
        (folder / f"{name}.txt").write_text(" \n \n ".join(lines) + f" heldout{name}\n", encoding="utf-8")
    return preprocess(
        folder / "corpus",
        input={"paths": [f"{folder}/*.txt"], "validation_paths": f"{folder}/valid.txt", "format": "document-per-line"},
        tokenizer={"train": {"type": "words", "size": 150}},
        validation_share=0,
        part_bytes=2000,
    )


@pytest.mark.slow
def test_files_given_for_validation_are_held_out_and_their_words_not_learnt(corpus: Corpus) -> None:
    held_out = Corpus(corpus.folder, "validation")
    assert corpus.documents == 40 and held_out.documents == 5
    names = json.loads((corpus.folder / "tokenizer" / "tokenizer.json").read_text(encoding="utf-8"))["model"]["vocab"]
    assert len(names) == 150 == corpus.manifest.tokenizer["vocab_size"]
    tokens = np.concatenate([corpus.document(number)[0] for number in range(corpus.documents)])
    counts = Counter(tokens.tolist())
    ranked = [counts[number] for number in range(1, 150)]
    assert ranked == sorted(ranked, reverse=True)
    assert counts[0] == 40
    report = (corpus.folder / "report.md").read_text(encoding="utf-8")
    statistics = corpus.manifest.statistics
    both = (corpus, held_out)
    unknown = sum(
        np.count_nonzero(split.document(number)[0] == names["<unk>"])
        for split in both
        for number in range(split.documents)
    )
    assert 0 < unknown == statistics["unknown_tokens"]
    assert f"| unknown tokens | {unknown:,} ({100 * unknown / statistics['tokens']:.2f} %) |" in report


@pytest.mark.slow
def test_workers_and_part_sizes_change_no_token(corpus: Corpus, tmp_path: Path) -> None:
    record = json.loads((corpus.folder / "preprocess.json").read_text(encoding="utf-8"))["settings"]
    again = preprocess(tmp_path / "again", **{**record, "workers": 2})
    assert again.fingerprint == corpus.fingerprint
    other = preprocess(tmp_path / "other", **{**record, "part_bytes": 100_000})
    settings = StreamSettings(kind="stream", corpus=corpus.folder)
    rows = [Stream(split, settings).rows(np.array([0]), corpus.tokens) for split in (corpus, other)]
    assert all(np.array_equal(rows[0][name], rows[1][name]) for name in rows[0])


def test_a_language_model_reads_it_and_a_masked_one_refuses_it_in_one_line(corpus: Corpus) -> None:
    stream = Stream(corpus, StreamSettings(kind="stream", corpus=corpus.folder))
    rows = stream.rows(np.array([0]), len(stream))
    assert stream.vocab_size == 150
    assert rows["begins_word"].all()
    assert np.array_equal(rows["paragraph_ends"], rows["input_ids"] == 0)
    assert np.count_nonzero(rows["paragraph_ends"]) == 40 < np.count_nonzero(rows["sentence_ends"])
    assert not (rows["paragraph_ends"] & ~rows["sentence_ends"]).any()
    with pytest.raises(
        UserError, match=r"data\.corpus: .*words.* no token for pad, cls, sep, mask; .*stream"
    ) as raised:
        Samples(corpus, RowSettings(corpus=corpus.folder, sequence_length=64), 0)
    assert "\n" not in str(raised.value)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["bpe", "wordpiece"])
def test_a_corpus_of_pieces_is_a_stream_too(kind: str, tmp_path: Path) -> None:
    (tmp_path / "text.jsonl").write_text(
        "\n".join(json.dumps({"text": f"{TEXT}\nnumber {7919 + 104729 * number}"}) for number in range(8)),
        encoding="utf-8",
    )
    corpus = preprocess(
        tmp_path / "corpus",
        input={"paths": [f"{tmp_path}/text.jsonl"]},
        tokenizer={"train": {"type": kind, "size": 290 if kind == "bpe" else 100}},
        validation_share=0,
    )
    stream = Stream(corpus, StreamSettings(kind="stream", corpus=corpus.folder))
    rows = stream.rows(np.array([0]), len(stream) - 1)
    ids, flags = (np.concatenate(parts) for parts in zip(*map(corpus.document, range(8)), strict=True))
    assert np.array_equal(rows["input_ids"][0], ids[:-1])
    assert np.array_equal(rows["begins_word"][0], flags[1:] & CONTINUES_WORD == 0)
    assert not rows["begins_word"].all()
    assert np.count_nonzero(rows["paragraph_ends"]) == 8 * 4 - 1


def test_transformers_gives_the_ids_of_the_corpus_on_real_text(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    wikitext = lzma.decompress(shared("en_wikitext2/valid.txt.xz").read_bytes()).decode()[:150_000]
    book = lzma.decompress(shared("en_books/pg84.txt.xz").read_bytes()).decode()[:80_000]
    for text, split in ((wikitext, False), (wikitext, True), (book, True)):
        clean = Cleaner(CleanSettings(nfkc=split, join_wrapped_lines=text is book)).clean(text)
        folder = tmp_path / f"{len(clean)}-{split}"
        tokenizer = trained(folder / "a", [clean], size=3000, split_punctuation=split)
        tokenizer.save(folder / "b")
        saved = transformers.AutoTokenizer.from_pretrained(folder / "b")
        ids = tokenizer.encode(clean)[0].tolist()
        assert ids == [number for line in saved(clean.split("\n"))["input_ids"] for number in line]
        if not split:  # exactly Transformer-XL's words, but for its <eos> of blank lines
            lines = [line.split() for line in text.split("\n") if line.strip()]
            assert len(ids) == sum(map(len, lines)) + len(lines)
            expected = ["<eos>", *(word for word, _ in Counter(chain.from_iterable(lines)).most_common())]
            names = tokens_of(tokenizer, folder / "c")
            names.remove("<unk>")
            expected.remove("<unk>")
            assert names == expected[:2999]
