"""What `reread preprocess` can be told: the `preprocess` section of a recipe."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from preprocessing.settings import Settings

BadInput = Literal["report", "refuse"]
OneOrMore = BeforeValidator(lambda value: [value] if isinstance(value, str) else value)


def _encoding_of_text(name: str) -> str:
    try:
        "a".encode(name)  # base64, rot13 and the like are codecs and no encodings
    except (LookupError, ValueError):
        raise ValueError(f"unknown encoding {name!a}; try utf-8, gb18030 or big5") from None
    return name


class InputSettings(Settings):
    """Where raw text comes from."""

    paths: Annotated[list[str], OneOrMore] = Field(min_length=1)
    """Files, folders or globs; folders are walked in sorted order."""
    validation_paths: Annotated[list[str], OneOrMore] = []
    """The same, held out whole (wiki.valid.tokens), also where `paths` names them too."""
    format: Literal[
        "auto", "document-per-file", "blank-line", "document-per-line", "jsonl", "parquet", "wikiextractor", "mediawiki"
    ] = "auto"
    """`auto` goes by the file name (.jsonl, .parquet, .xml, AA/wiki_00) and takes any other for one document a file."""
    text_field: str = "text"
    """The field (jsonl) or column (parquet) that holds the text."""
    encoding: Annotated[str, AfterValidator(_encoding_of_text)] = "utf-8"
    """Of text files; novels from China are often `gb18030`."""
    bad_input: BadInput = "report"
    """A line, document or file that cannot be read: count and report it, or stop."""
    maximum_document_bytes: int = Field(default=256_000_000, ge=1)
    """A document of more bytes is bad input, and so is a line (of JSON, with all its fields). Memory grows with it:
    raise it only where one document is that long, and it is not the format that is wrong."""
    maximum_expansion: int = Field(default=200, ge=1)
    """A compressed file that expands to more than so many times its size, and one `maximum_document_bytes` besides, is
    bad input from there on; text shrinks to a third or a tenth."""


class CleanSettings(Settings):
    """Normalisation and filters; every document dropped is counted under the filter's name."""

    nfkc: bool = True
    """Unicode NFKC, except that Chinese full-width punctuation keeps its form."""
    simplify: bool = False
    """Traditional to simplified Chinese by OpenCC."""
    join_wrapped_lines: bool = False
    """For text cut into lines of even length with blank lines between paragraphs (Project Gutenberg): each paragraph
    becomes one line. Verse and tables are joined too; where a line is a paragraph (Wikipedia, novels), leave it off."""
    minimum_characters: int = Field(default=1, ge=1)
    maximum_characters: int | None = Field(default=None, ge=1)
    minimum_letter_share: float = Field(default=0.0, ge=0, le=1)
    """Drop a document whose share of letters and Han characters among non-space characters is lower."""
    minimum_han_share: float = Field(default=0.0, ge=0, le=1)
    """Drop a document whose share of Han characters among non-space characters is lower."""


class DedupSettings(Settings):
    """Exact deduplication by MD5 of the normalised text; the first in source order stays."""

    documents: bool = True
    paragraphs: bool = False
    minimum_paragraph_characters: int = Field(default=20, ge=1)
    """Shorter paragraphs are never dropped as duplicates (headings repeat by right)."""


class WordSettings(Settings):
    """Word boundaries by jieba's dictionary and HMM."""

    engine: Literal["auto", "jieba", "rjieba"] = "auto"
    """`rjieba` gives jieba's boundaries about 15 times faster; `auto` takes it unless a user dictionary is given."""
    user_dictionaries: Annotated[list[Path], OneOrMore] = []


class VocabularySettings(Settings):
    """Train a new vocabulary from the deduplicated text."""

    type: Literal["wordpiece", "bpe", "sentencepiece", "words"] = "wordpiece"
    """`words`: whole words by falling frequency, for language models; learned from the training split alone."""
    size: int = Field(default=21128, ge=100, le=1 << 24)
    """At most so many tokens, special ones counted."""
    sample_bytes: int = Field(default=1_000_000_000, ge=1)
    """Text used for training, taken evenly over the parts."""


class TokenizerSettings(Settings):
    """Exactly one of `path` and `train`."""

    type: Literal["auto", "wordpiece", "sentencepiece", "bpe", "words"] = "auto"
    """`auto`: vocab.txt is WordPiece, *.model SentencePiece, tokenizer.json or vocab.json + merges.txt as they say."""
    path: Path | None = None
    """vocab.txt, a SentencePiece .model, tokenizer.json, or a folder that holds them."""
    lowercase: bool = True
    """WordPiece only: lower-case and strip accents, as bert-base-chinese does."""
    split_punctuation: bool = True
    """`words` only: punctuation and `'s` are words of their own. Text that is tokenised already (WikiText) is exactly
    its words between spaces without."""
    train: VocabularySettings | None = None
    fast: bool = True
    """WordPiece only: the exact table-driven encoder; false runs `tokenizers` itself."""

    @model_validator(mode="after")
    def _one_source(self) -> "TokenizerSettings":
        if (self.path is None) == (self.train is None):
            raise ValueError("give either `path` (an existing vocabulary) or `train` (a new one)")
        return self


class PreprocessSettings(Settings):
    """Raw text -> corpus."""

    input: InputSettings
    output: Path
    clean: CleanSettings = CleanSettings()
    dedup: DedupSettings = DedupSettings()
    words: WordSettings = WordSettings()
    tokenizer: TokenizerSettings
    validation_share: float = Field(default=0.005, ge=0, lt=1)
    """Share of documents held out, chosen by their MD5, besides those of `input.validation_paths`."""
    part_bytes: int = Field(default=64_000_000, ge=1_000, le=1 << 50)
    """Size of one part task in bytes of input; part of the corpus' identity, unlike the number of workers."""
    workers: int = Field(default=0, ge=0, le=10_000)
    """Parts worked on at once; 0 is one a CPU core."""
    executor: Literal["processes", "ray"] = "processes"
    """`ray`: parts are Ray tasks, on the cluster that is running (RAY_ADDRESS, or one found here) or else on this
    machine. All its nodes must see the files under the same paths."""

    def stages(self) -> list[str]:
        """The stages of part tasks that these settings need, in order."""
        stages = {
            "read": True,
            "duplicates": self.dedup.documents,
            "paragraphs": self.dedup.paragraphs,
            "duplicate-paragraphs": self.dedup.paragraphs,
            "vocabulary": self.tokenizer.train is not None,
            "encode": True,
        }
        return [stage for stage, needed in stages.items() if needed]
