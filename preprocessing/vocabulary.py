"""Reading vocabularies, and training one by `tokenizers` or `sentencepiece`: the same text gives the same bytes."""

import io
import json
import logging
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

from preprocessing.config import VocabularySettings
from preprocessing.corpus import write_atomically
from preprocessing.errors import UserError

logger = logging.getLogger("reread")

BERT_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
ROBERTA_TOKENS = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]


def train_vocabulary(texts: Iterable[str], settings: VocabularySettings, lowercase: bool, folder: Path) -> Path:
    """Train on `texts` (read once) and write the vocabulary into `folder`; returns the path to load.

    Special tokens get the first ids. `lowercase` is WordPiece's. Raises `UserError` if there is no text.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder) as temporary:  # the trainers want their text twice, and as lines
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
        else:
            path = _train_sentencepiece(spool, settings.size, folder)
    logger.info("tokenizer: trained %s on %d characters: %s", settings.type, characters.total(), path)
    return path


def _train_wordpiece(spool: Path, characters: Counter[str], size: int, lowercase: bool, folder: Path) -> Path:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    alphabet: Counter[str] = Counter()
    for character, count in sorted(characters.items()):
        for normal in tokenizer.normalizer.normalize_str(character).replace(" ", ""):
            alphabet[normal] += count
    # Half of the vocabulary at most goes to single characters, the commonest; a Han character is never part of more.
    kept = sorted(alphabet, key=lambda character: (-alphabet[character], character))[: size // 2]
    # The trainer numbers continuing characters in the order of a hash table, and breaks ties by number. Naming them
    # all beforehand, as if they were special, makes the result the same every time.
    continuing = [f"##{character}" for character in sorted(kept) if _joins(tokenizer, character)]
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

    model = io.BytesIO()
    pad, unknown, *symbols = BERT_TOKENS
    SentencePieceTrainer.Train(
        sentence_iterator=_lines(spool),
        model_writer=model,
        model_type="unigram",
        vocab_size=size,
        hard_vocab_limit=False,  # a small text may not fill the vocabulary
        character_coverage=0.9995,
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
    path = folder / "spiece.model"
    write_atomically(path, model.getvalue())
    return path


def _lines(spool: Path) -> Iterator[str]:
    with spool.open(encoding="utf-8", newline="\n") as file:
        for line in file:
            if line := line.strip():
                yield line


def read_vocabulary(path: Path) -> list[str]:
    """One token a line, in id order; `token<tab>id` (ERNIE) is read too."""
    lines = path.read_bytes().decode("utf-8-sig").split("\n")
    tokens = [line.removesuffix("\r") for line in lines]
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


def check_lowercase(path: Path, lowercase: bool) -> None:
    try:
        said = json.loads(path.with_name("tokenizer_config.json").read_text(encoding="utf-8")).get("do_lower_case")
    except (OSError, ValueError):
        return
    if said is not None and said != lowercase:
        word = str(said).lower()
        raise UserError(
            f"tokenizer.lowercase: {path.parent}/tokenizer_config.json says {word}; write `lowercase: {word}`"
        )


def read_wordpiece_json(path: Path) -> tuple[list[str], bool]:
    values = json.loads(path.read_text(encoding="utf-8"))
    normalizer = values.get("normalizer") or {}
    if (
        normalizer.get("type") != "BertNormalizer"
        or (values.get("pre_tokenizer") or {}).get("type") != "BertPreTokenizer"
    ):
        raise UserError(f"{path}: a WordPiece without BERT's normaliser and pre-tokeniser; only BERT's own are read")
    vocabulary = values["model"]["vocab"]
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    if [vocabulary[token] for token in tokens] != list(range(len(tokens))):
        raise UserError(f"{path}: its ids have gaps; write the vocabulary as a vocab.txt")
    return tokens, normalizer["lowercase"]
