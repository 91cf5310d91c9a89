"""Reads vocabularies, and trains them by `tokenizers` or `sentencepiece`; the same text always gives the same bytes."""

import io
import json
import logging
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

from reread.preprocessing.config import VocabularySettings
from reread.preprocessing.errors import UserError
from reread.preprocessing.files import write_atomically
from reread.preprocessing.text.clean import BLANKS
from reread.preprocessing.tokens.wordlevel import train_words

logger = logging.getLogger("reread")

BERT_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
ROBERTA_TOKENS = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
_COVERAGE = 0.9995
"""The share of all characters in the text that SentencePiece must cover; it recommends this value for Chinese."""


def train_vocabulary(
    texts: Iterable[str],
    settings: VocabularySettings,
    lowercase: bool,
    folder: Path,
    *,
    split_punctuation: bool = True,
) -> Path:
    """Train a vocabulary on `texts`, which are read once, and write it into `folder`; returns the path to load.

    Special tokens get the first ids, except with `words`. `lowercase` is for WordPiece alone, `split_punctuation` for
    `words` alone. Raises `UserError` if there is no text, or if the size is too small for it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder) as temporary:  # the trainers read their text twice, by lines
        spool = Path(temporary) / "text"
        characters: Counter[str] = Counter()
        with spool.open("w", encoding="utf-8", errors="ignore", newline="\n") as file:
            for text in texts:
                file.write(text + "\n")
                characters.update(text)
        if not characters:
            raise UserError("tokenizer.train: there is no text to train a vocabulary on")
        if settings.type == "wordpiece":
            path = _train_wordpiece(spool, characters, settings.size, lowercase, folder)
        elif settings.type == "bpe":
            path = _train_bpe(spool, settings.size, folder)
        elif settings.type == "words":
            path = train_words(_lines(spool), settings.size, split_punctuation, folder)
        else:
            path = _train_sentencepiece(spool, settings.size, folder)
    logger.info("tokenizer: trained %s on %s characters", settings.type, f"{characters.total():,}")
    return path


def _train_wordpiece(spool: Path, characters: Counter[str], size: int, lowercase: bool, folder: Path) -> Path:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    alphabet: Counter[str] = Counter()
    for character, count in sorted(characters.items()):
        for normal in tokenizer.normalizer.normalize_str(character).replace(" ", ""):
            alphabet[normal] += count
    # Letters join to longer tokens, which need room in the vocabulary; Han characters do not. So the share of the
    # vocabulary for single characters is the share of the text that consists of Han characters, but at least a half.
    joining = {character for character in alphabet if _joins(tokenizer, character)}
    alone = 1 - sum(alphabet[character] for character in joining) / alphabet.total()
    kept = sorted(alphabet, key=lambda character: (-alphabet[character], character))[: int(size * max(0.5, alone))]
    room = size - len(BERT_TOKENS) - np.cumsum([1 + (character in joining) for character in kept])  # `a` and `##a`
    kept = kept[: np.count_nonzero(room >= 0)]
    # The trainer numbers continuing characters in the order of a hash table and breaks ties by number. The result is
    # deterministic if all of them are listed as special tokens.
    continuing = [f"##{character}" for character in sorted(joining.intersection(kept))]
    trainer = trainers.WordPieceTrainer(
        vocab_size=size,
        show_progress=False,
        special_tokens=BERT_TOKENS + continuing,
        initial_alphabet=sorted(kept),
        limit_alphabet=len(kept),
    )
    tokenizer.train([str(spool)], trainer)
    vocabulary = tokenizer.get_vocab()
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    path = folder / "vocab.txt"
    write_atomically(path, "".join(f"{token}\n" for token in tokens).encode())
    return path


def _joins(tokenizer: Tokenizer, character: str) -> bool:
    """Whether the character can continue a word: Han characters and punctuation cannot."""
    normal = tokenizer.normalizer.normalize_str(f"a{character}")
    return len(tokenizer.pre_tokenizer.pre_tokenize_str(normal)) == 1


def _train_bpe(spool: Path, size: int, folder: Path) -> Path:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        show_progress=False,
        special_tokens=ROBERTA_TOKENS,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    tokenizer.train([str(spool)], trainer)
    model = json.loads(tokenizer.to_str())["model"]
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    write_atomically(folder / "merges.txt", "\n".join(["#version: 0.2", *merges, ""]).encode())
    path = folder / "vocab.json"
    write_atomically(path, json.dumps(model["vocab"], ensure_ascii=False).encode())
    return path


def _train_sentencepiece(spool: Path, size: int, folder: Path) -> Path:
    from sentencepiece import SentencePieceTrainer
    from sentencepiece.sentencepiece_model_pb2 import ModelProto  # type: ignore[attr-defined]

    model = io.BytesIO()
    pad, unknown, *symbols = BERT_TOKENS
    # The text is clean already, so the model normalises only white space. Its default rules would turn `，` into a
    # comma, and the rule `identity` would turn a line end into an unknown character.
    rules = spool.with_name("rules.tsv")
    rules.write_text("".join(f"{ord(blank):X}\t20\n" for blank in BLANKS), encoding="ascii")
    try:
        SentencePieceTrainer.Train(
            sentence_iterator=_lines(spool),
            model_writer=model,
            model_type="unigram",
            vocab_size=size,
            hard_vocab_limit=False,  # a small text may not fill the vocabulary
            character_coverage=_COVERAGE,
            normalization_rule_tsv=str(rules),
            max_sentence_length=1 << 20,
            pad_id=0,
            pad_piece=pad,
            unk_id=1,
            unk_piece=unknown,
            bos_id=-1,
            eos_id=-1,
            control_symbols=symbols,
            num_threads=1,  # sums of floats depend on it
            minloglevel=2,
        )
    except RuntimeError as error:  # `INTERNAL: file(line) [condition] what is wrong`
        reason = str(error).rpartition("] ")[2]
        if needed := re.search(r"smaller than required_chars\. \d+ vs (\d+)", reason):
            raise UserError(
                f"tokenizer.train.size: {size} is too small for SentencePiece: {needed[1]} tokens are needed for the "
                f"characters that make up {100 * _COVERAGE:g} % of the text, and more for words; set a larger size"
            ) from None
        raise UserError(
            f"tokenizer.train.size: {size} does not work for SentencePiece on this text: {reason}"
        ) from None
    proto = ModelProto.FromString(model.getvalue())
    proto.normalizer_spec.normalization_rule_tsv = ""  # a temporary file, with another name each time
    path = folder / "spiece.model"
    write_atomically(path, proto.SerializeToString())
    return path


def _lines(spool: Path) -> Iterator[str]:
    with spool.open(encoding="utf-8", newline="\n") as file:
        for line in file:
            if line := line.strip():
                yield line


def read_vocabulary(path: Path) -> list[str]:
    """The tokens of a vocabulary file in id order: one token per line, or `token<tab>id` as ERNIE has it.

    Lines end at "\\n", "\\r\\n" and "\\r" alone, as in transformers' `load_vocab`: bert-base-chinese has the token
    U+2028, which `str.splitlines` would take for a line end. Raises `UserError` for an empty or repeated line.
    """
    try:
        tokens = path.read_text(encoding="utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: byte {error.start} is not UTF-8; save the file as UTF-8") from None
    while tokens and not tokens[-1]:
        tokens.pop()
    if tokens and all(token.endswith(f"\t{number}") for number, token in enumerate(tokens)):
        tokens = [token.rpartition("\t")[0] for token in tokens]
    seen: dict[str, int] = {}
    for number, token in enumerate(tokens, 1):
        if not token:
            raise UserError(f"{path}: line {number} is empty; a vocabulary holds one token a line")
        if token in seen:
            raise UserError(f"{path}: line {number} repeats {token!r} of line {seen[token]}; each token has one id")
        seen[token] = number
    return tokens
