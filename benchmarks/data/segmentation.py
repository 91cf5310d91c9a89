"""Words and WordPiece alone: MB of raw UTF-8 per CPU-second on one core, against rjieba + `tokenizers`.

    python benchmarks/data/segmentation.py [--vocabulary vocab.txt] [FILE ...]

FILE may be .xz; without any, the novels and books of ../shared/data are taken. All ways do the same work: token ids,
where each token begins, and which tokens continue a word of jieba's. They take turns.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from collections.abc import Callable
from functools import partial
from itertools import accumulate

import numpy as np
import rjieba

from benchmarks.data.preprocess import DOCUMENT, cut
from benchmarks.harness import heading, in_turns, open_text, parser, ratio, row, seconds
from reread.preprocessing.config import TokenizerSettings, WordSettings
from reread.preprocessing.errors import one_line
from reread.preprocessing.text.words import WordSegmenter
from reread.preprocessing.tokens.tokenizer import load_tokenizer
from reread.preprocessing.tokens.wordpiece import WordPiece

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
ROUNDS = 3


def read(paths: list[Path]) -> list[str]:
    """Documents of about `DOCUMENT` characters: one of megabytes would be unfair to `tokenizers`."""
    documents: list[str] = []
    for path in paths:
        with open_text(path, newline="") as file:
            documents += cut(file.read(), DOCUMENT)
    return documents


@one_line()
def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("files", nargs="*", type=Path)
    arguments.add_argument("--vocabulary", type=Path)
    options = arguments.parse_args()
    if options.files:
        sets = {"text": (options.files, options.vocabulary or DATA / "vocab/bert-base-chinese.vocab.txt")}
    else:
        novels, books = sorted(DATA.glob("zh_novels/*.xz")), sorted(DATA.glob("en_books/pg*.xz"))
        sets = {
            "Chinese novels": (novels, options.vocabulary or DATA / "vocab/bert-base-chinese.vocab.txt"),
            "English books": (books, options.vocabulary or DATA / "vocab/bert-uncased.vocab.txt"),
        }
    for name, (files, vocabulary) in sets.items():
        measure(name, read(files), vocabulary)


def measure(name: str, texts: list[str], vocabulary: Path) -> None:
    settings = TokenizerSettings(path=vocabulary)
    tokenizer, words = load_tokenizer(vocabulary, settings), WordSegmenter(WordSettings())
    assert isinstance(tokenizer, WordPiece)
    backend = tokenizer.backend

    def rival(text: str) -> list[bool]:
        starts = {0, *accumulate(map(len, rjieba.cut(text)))}
        encoding = backend.encode(text, add_special_tokens=False)
        return [begin not in starts for begin, _ in encoding.offsets]

    def ours(text: str) -> np.ndarray:
        _, starts = tokenizer.encode(text)
        return ~words.starts(text)[starts]

    ways: dict[str, Callable[[str], object]] = {
        "rjieba.cut": rjieba.cut,
        "word starts": words.starts,
        "tokenizers with offsets": lambda text: backend.encode(text, add_special_tokens=False).offsets,
        "table WordPiece": tokenizer.encode,
        "rjieba + tokenizers": rival,
        "starts + table WordPiece": ours,
    }
    megabytes = sum(len(text.encode()) for text in texts) / 1e6
    taken = in_turns({way: partial(encode_all, encode, texts) for way, encode in ways.items()}, ROUNDS)
    print(f"\n{name}: {megabytes:.1f} MB, {vocabulary.name}\n")
    heading("", "MB / CPU-s", "slower than ours")
    for way, found in taken.items():
        row(way, f"{megabytes / min(found):.1f}", ratio(taken["starts + table WordPiece"], found))


def encode_all(encode: Callable[[str], object], texts: list[str]) -> float:
    """CPU seconds."""
    return seconds(lambda: [encode(text) for text in texts])


if __name__ == "__main__":
    main()
