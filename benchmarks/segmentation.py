"""Words and WordPiece alone: MB of raw UTF-8 per CPU-second on one core, against rjieba + `tokenizers`.

    python benchmarks/segmentation.py [--vocabulary vocab.txt] [FILE ...]

FILE may be .xz; without any, the novels and books of ../shared/data are taken. All ways do the same work: token ids,
where each token begins, and which tokens continue a word of jieba's. Medians of alternating rounds.
"""

import argparse
import lzma
import statistics
import time
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path

import numpy as np
import rjieba

from preprocessing.config import TokenizerSettings, WordSettings
from preprocessing.text.words import WordSegmenter
from preprocessing.tokens.tokenizer import load_tokenizer
from preprocessing.tokens.wordpiece import WordPiece

DATA = Path(__file__).resolve().parents[1] / ".." / "shared" / "data"
ROUNDS = 3
DOCUMENT = 10_000


def read(paths: list[Path]) -> list[str]:
    """Documents of about `DOCUMENT` characters: one of megabytes would be unfair to `tokenizers`."""
    documents = []
    for path in paths:
        raw = path.read_bytes()
        text = (lzma.decompress(raw) if path.suffix == ".xz" else raw).decode()
        begin = 0
        while begin < len(text):
            end = text.find("\n", begin + DOCUMENT) + 1 or len(text)
            documents.append(text[begin:end])
            begin = end
    return documents


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--vocabulary", type=Path)
    given = parser.parse_args()
    if given.files:
        sets = {"text": (given.files, given.vocabulary or DATA / "vocab/bert-base-chinese.vocab.txt")}
    else:
        novels, books = sorted(DATA.glob("zh_novels/*.xz")), sorted(DATA.glob("en_books/pg*.xz"))
        sets = {
            "Chinese novels": (novels, given.vocabulary or DATA / "vocab/bert-base-chinese.vocab.txt"),
            "English books": (books, given.vocabulary or DATA / "vocab/bert-uncased.vocab.txt"),
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
    speeds: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(ROUNDS):
        for way, run in ways.items():
            begin = time.process_time()
            for text in texts:
                run(text)
            speeds[way].append(megabytes / (time.process_time() - begin))
    print(f"{name}: {megabytes:.1f} MB, {vocabulary.name}")
    for way, found in speeds.items():
        print(f"  {way:26s} {statistics.median(found):7.1f} MB per CPU-second  (first round {found[0]:.1f})")
    ratio = statistics.median(speeds["starts + table WordPiece"]) / statistics.median(speeds["rjieba + tokenizers"])
    print(f"  both together: {ratio:.1f} times the rival's")


if __name__ == "__main__":
    main()
