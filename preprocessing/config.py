"""The `preprocess` section of a recipe: the settings of `reread preprocess`."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag, field_validator, model_validator

from reread.preprocessing.settings import FieldPath, Retired, Settings

BadInput = Literal["report", "refuse"]
OneOrMore = BeforeValidator(lambda value: [value] if isinstance(value, str) else value)


def _encoding_of_text(name: str) -> str:
    if name == "auto":
        return name
    try:
        "a".encode(name)  # base64, rot13 and the like are codecs but not encodings
    except (LookupError, ValueError):
        raise ValueError(f"unknown encoding {name!a}; try utf-8, gb18030 or big5") from None
    return name


class InputSettings(Settings):
    """Where raw text comes from and how it is read; `input` is one such section or a list of them."""

    paths: Annotated[list[str], OneOrMore] = Field(min_length=1)
    """Files, folders or globs; folders are walked in sorted order, except corpora in them."""
    validation_paths: Annotated[list[str], OneOrMore] = []
    """Files, folders or globs of text that is entirely held out (wiki.valid.tokens), even if `paths` names it, too."""
    format: Literal[
        "auto", "document-per-file", "blank-line", "document-per-line", "jsonl", "json", "csv", "tsv", "html", "epub",
        "parquet", "arrow", "wikiextractor", "mediawiki",
    ] = "auto"  # fmt: skip
    """`auto` goes by the file name (.jsonl, .csv, .parquet, .xml, AA/wiki_00, ...). Any other file is one document; if
    its first bytes look like another format, it is bad input. JSON lines in a .json file are recognised, but such a
    file is divided into parts only if `format` is `jsonl`."""
    text_field: FieldPath = Field(default="text", min_length=1)
    """The field (JSON), column (CSV, parquet) or path (`data[].paragraphs[].context`: each is a document; `[1]`: the
    second column of a table without header) that holds the text, or a template of several: `{title}\\n{body}`."""
    join: str | None = None
    """The separator with which the texts that a path such as `turns[].text` finds in a record are joined to one
    document; null: each text is a document."""
    encoding: Annotated[str, AfterValidator(_encoding_of_text)] = "utf-8"
    """Encoding of text files; novels from China are often `gb18030`. `auto` chooses among `encodings` for each file."""
    encodings: Annotated[list[Annotated[str, AfterValidator(_encoding_of_text)]], OneOrMore] = Field(
        default=["utf-8", "gb18030", "big5"], min_length=1
    )
    """The candidates of `encoding: auto`: encodings of Unicode, of Chinese, or of single bytes such as `cp1252`. A file
    that is not clearly in one of them is bad input."""
    bad_input: BadInput = "report"
    """What happens if a line, document or file cannot be read: `report` counts and lists it, `refuse` stops."""
    maximum_document_bytes: int = Field(default=256_000_000, ge=1)
    """A longer document is bad input, and so is a longer line (of JSON, with all its fields). Memory grows with this
    number, so raise it only if single documents are that long and `format` is right."""
    maximum_expansion: int = Field(default=200, ge=1)
    """A compressed file that expands to more than this many times its size plus `maximum_document_bytes` is bad input
    from there on; compression usually shrinks text to between a third and a tenth."""

    @field_validator("encodings")
    @classmethod
    def _encodings_are_named(cls, names: list[str]) -> list[str]:
        if "auto" in names:
            raise ValueError("must name encodings; `auto` is a value of `encoding`")
        return names


class CleanSettings(Settings):
    """Normalisation and filters; every dropped document is counted under the name of the filter."""

    as_is: bool = False
    """Keep every character, blank lines and runs of spaces, too, as language models of characters learn them (text8,
    enwik8). Set `nfkc: false` with it; filters stay."""
    nfkc: bool = True
    """Normalise by Unicode NFKC, except that Chinese full-width punctuation keeps its form."""
    simplify: bool = False
    """Convert traditional to simplified Chinese by OpenCC."""
    gutenberg: bool = False
    """Remove Project Gutenberg's header, credits and licence, which its marks of a book's start and end delimit."""
    html: bool = False
    """Remove HTML tags; blocks and `<br />` become line ends, and references such as `&amp;` characters."""
    wiki_remains: bool = False
    """Remove wiki markup that extractors leave: `thumb|left|300px|`, references, stray `<br>` and `<nowiki>`."""
    map_punctuation: bool = False
    """Replace quotation marks, dashes and ellipses that the vocabulary at `tokenizer.path` lacks by marks that it has.
    A vocabulary that is trained has all of them."""
    join_wrapped_lines: bool = False
    """Make each paragraph one line, for text that is cut into lines of even length with blank lines between paragraphs
    (Project Gutenberg). Verse and tables are joined, too. Leave it off if each line is a paragraph (Wikipedia,
    novels)."""
    minimum_characters: int = Field(default=1, ge=1)
    """Drop documents of fewer characters."""
    maximum_characters: int | None = Field(default=None, ge=1)
    """Drop documents of more characters; null: no limit."""
    minimum_letter_share: float = Field(default=0.0, ge=0, le=1)
    """Drop a document whose share of letters and Han characters among non-space characters is lower."""
    minimum_han_share: float = Field(default=0.0, ge=0, le=1)
    """Drop a document whose share of Han characters among non-space characters is lower."""

    @model_validator(mode="after")
    def _changes_nothing(self) -> "CleanSettings":
        changing = ("nfkc", "simplify", "gutenberg", "html", "wiki_remains", "map_punctuation", "join_wrapped_lines")
        if self.as_is and (named := next((name for name in changing if getattr(self, name)), None)):
            raise ValueError(
                f"as_is keeps every character, but {named} changes them; set {named}: false, or drop as_is"
            )
        return self


class NearDuplicateSettings(Settings):
    """Near-duplicates by MinHash over n-grams. Of a cluster the first document in source order stays; documents of
    `input.validation_paths` come before all others."""

    similarity: float = Field(default=0.8, gt=0, lt=1)
    """The Jaccard similarity of their sets of n-grams from which on two documents are near-duplicates. MinHash
    estimates it with an error of at most 0.04 in two cases of three."""
    ngram: int = Field(default=5, ge=1, le=100)
    """The number of Han or kana characters, or of words of other scripts, in an n-gram; punctuation and case make no
    difference."""


class DedupSettings(Settings):
    """What is dropped as a repetition: exact duplicates by the MD5 of the cleaned text, of which the first in source
    order stays; near-duplicates; and training documents that contain text of evaluation sets."""

    documents: bool = True
    """Drop documents whose cleaned text equals that of an earlier one."""
    near: NearDuplicateSettings | None = None
    """`{}` also drops near-duplicates, from a similarity of 0.8 on; null drops only exact duplicates."""
    evaluation: Annotated[list[str], OneOrMore] = []
    """Files, folders or globs of evaluation sets, labelled or raw; training documents that contain a run of their text
    are dropped. Of JSON files every string is read."""
    evaluation_words: int = Field(default=13, ge=5, le=1000)
    """The number of words in such a run."""
    evaluation_characters: int = Field(default=30, ge=5, le=1000)
    """The number of characters in such a run if it has Han or kana characters; a word of another script counts as one
    character."""
    paragraphs: bool = False
    """Drop paragraphs that occur earlier in the corpus, except those of fewer than 20 characters, since headings repeat
    legitimately."""

    retired = {"minimum_paragraph_characters": Retired((20,), "it is always 20 now; leave the key out")}


class WordSettings(Settings):
    """How Chinese words are found: by jieba's dictionary and HMM."""

    engine: Literal["auto", "jieba", "rjieba"] = "auto"
    """`rjieba` gives jieba's boundaries about 15 times faster; `auto` uses it unless a user dictionary is given."""
    user_dictionaries: Annotated[list[Path], OneOrMore] = []
    """Files with further words, in jieba's format."""


class VocabularySettings(Settings):
    """A new vocabulary, trained on the deduplicated text."""

    type: Literal["wordpiece", "bpe", "sentencepiece", "words"] = "wordpiece"
    """`words`: whole words by decreasing frequency, for language models; trained on the training split alone."""
    size: int = Field(default=21128, ge=100, le=1 << 24)
    """The maximum number of tokens, including special ones; 261 with `bpe`: every byte is a token."""
    sample_bytes: int = Field(default=1_000_000_000, ge=1)
    """The bytes of text that are used for training, sampled evenly from all parts."""


def _words_or_their_number(value: object) -> object:
    if value is None or isinstance(value, str | Path) or (type(value) is int and 1 <= value <= 1 << 20):
        return value
    raise ValueError("a file with a word in each line, or how many words of the corpus are found, at most 1,048,576")


class TokenizerSettings(Settings):
    """The tokenizer: exactly one of `path` and `train` is given."""

    type: Literal["auto", "wordpiece", "sentencepiece", "bpe", "words"] = "auto"
    """`auto`: vocab.txt is WordPiece, *.model SentencePiece, vocab.json BPE; a tokenizer.json names its type."""
    path: Path | None = None
    """vocab.txt, a SentencePiece .model, tokenizer.json, or a folder that holds them."""
    lowercase: bool = True
    """WordPiece only: lower-case and strip accents, as bert-base-chinese does."""
    split_punctuation: bool = True
    """`words` only: punctuation and `'s` are separate words. Set it to false for text that is tokenised already
    (WikiText), where only spaces separate words."""
    train: VocabularySettings | None = None
    extend: Annotated[int | Path | None, BeforeValidator(_words_or_their_number)] = None
    """New words for the vocabulary of `path`: a file with a word in each line, or how many words of the corpus, those
    that save the most tokens. A model that knows the old vocabulary starts from it by `init` (of a new row the mean of
    the word's old ones)."""

    retired = {"fast": Retired((True, False), "ids are the same either way; leave the key out")}

    @model_validator(mode="after")
    def _path_or_train(self) -> "TokenizerSettings":
        if (self.path is None) == (self.train is None):
            raise ValueError("give either `path` (an existing vocabulary) or `train` (a new one)")
        if self.extend is not None and self.path is None:
            raise ValueError("`extend` is for an existing vocabulary (`path`); a new one takes its words from the text")
        return self


class PreprocessSettings(Settings):
    """How raw text is turned into a corpus."""

    input: Annotated[
        Annotated[InputSettings, Tag("")] | Annotated[list[InputSettings], Tag(" "), Field(min_length=1)],
        Discriminator(lambda value: " " if isinstance(value, list) else ""),
    ]
    """One section, or a list of them, each with its own paths. A file belongs to the first section that names it."""
    output: Path
    """The folder of the corpus."""
    clean: CleanSettings = CleanSettings()
    dedup: DedupSettings = DedupSettings()
    words: WordSettings = WordSettings()
    tokenizer: TokenizerSettings
    validation_share: float = Field(default=0.005, ge=0, lt=1)
    """The share of documents that is held out, chosen by their MD5, in addition to `input.validation_paths`."""
    part_bytes: int = Field(default=64_000_000, ge=1_000, le=1 << 50)
    """The bytes of input in one part, which one task reads. The corpus depends on it, unlike on the number of
    workers."""
    workers: int = Field(default=0, ge=0, le=10_000)
    """The number of tasks that are done at once; 0: one per CPU core."""
    executor: Literal["processes", "ray"] = "processes"
    """`ray`: tasks run on the Ray cluster of RAY_ADDRESS, on one found on this machine, or else on a new one on this
    machine. All nodes must see the files under the same paths and require a token (RAY_AUTH_MODE=token)."""

    @property
    def inputs(self) -> list[InputSettings]:
        """The sections of `input`."""
        return self.input if isinstance(self.input, list) else [self.input]
