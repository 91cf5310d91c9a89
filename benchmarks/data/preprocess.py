"""The cost of `reread preprocess`, beside its rivals on the same text in the same run.

    python benchmarks/data/preprocess.py TEXT... --vocabulary vocab.txt [--megabytes 60] [--sizes 30 100 300]
    python benchmarks/data/preprocess.py --english TEXT... --bpe vocab.json [--megabytes 60]

TEXT are files or folders of Chinese or English text (English in documents of about 10,000 characters, since longer ones
slow `tokenizers` down); merges.txt or, for encoder.json, vocab.bpe is beside --bpe. CPU seconds of `reread preprocess`
are those of a fresh process with all its imports, dictionaries and pictures; the rivals are charged for their loops
alone. The sides take turns.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import json
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import chain, count, pairwise
from typing import Any

from benchmarks.data.bert_recipe import Vocabulary, features, python_wordpiece, samples
from benchmarks.harness import heading, in_process, in_turns, measured, parser, ratio, row
from reread.preprocessing.errors import one_line

ROUNDS = 3
BERT_MEGABYTES = 6.5  # it holds all its samples in memory
DOCUMENT = 10_000
COPIES, LENGTH, PREDICTIONS = 10, 128, 20


def preprocess(text: Path, vocabulary: Path | None, output: Path, workers: int) -> dict[str, Any]:
    """The corpus' statistics; without a vocabulary one of BERT's kind is trained."""
    from reread.preprocessing.config import PreprocessSettings
    from reread.preprocessing.execution.build import build

    shutil.rmtree(output, ignore_errors=True)
    values = {
        "input": {"paths": [str(text)]},
        "output": str(output),
        "tokenizer": {"path": str(vocabulary)} if vocabulary else {"train": {"type": "wordpiece"}},
        "workers": workers,
    }
    return build(PreprocessSettings.parse(values, "benchmark")).statistics


def by_rjieba(text: Path, vocabulary: Path) -> float:
    """The rival of the whole."""
    import rjieba

    return segment_and_encode(rjieba.cut, text, vocabulary)


def segment_and_encode(words: Callable[[str], Any], text: Path, vocabulary: Path) -> float:
    """Words, then `tokenizers` with offsets, of text that nobody deduplicates or writes. Returns CPU seconds."""
    from tokenizers.implementations import BertWordPieceTokenizer

    tokenizer = BertWordPieceTokenizer(str(vocabulary))
    words("加载词典")
    begin = time.process_time()
    with text.open(encoding="utf-8") as file:
        for line in file:
            for paragraph in json.loads(line)["text"].split("\n"):
                words(paragraph)
                encoding = tokenizer.encode(paragraph, add_special_tokens=False)
                _ = encoding.ids, encoding.offsets
    return time.process_time() - begin


def encode_alone(text: Path, vocabulary: Path) -> float:
    """The rival on English: `tokenizers` with offsets and nothing else. Returns CPU seconds."""
    from reread.preprocessing.config import TokenizerSettings
    from reread.preprocessing.tokens.bpe import ByteLevelBpe
    from reread.preprocessing.tokens.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(vocabulary, TokenizerSettings(path=vocabulary))
    assert isinstance(tokenizer, ByteLevelBpe)
    begin = time.process_time()
    with text.open(encoding="utf-8") as file:
        for line in file:
            encoding = tokenizer.backend.encode(json.loads(line)["text"], add_special_tokens=False)
            _ = encoding.ids, encoding.offsets
    return time.process_time() - begin


def bert_static_copies(text: Path, vocabulary: Path, output: Path) -> float:
    """`COPIES` copies of masked sentence pairs, held, shuffled and written out. Returns CPU seconds."""
    from reread.preprocessing.text.sentences import sentence_ends

    ids = {token: number for number, token in enumerate(vocabulary.read_text(encoding="utf-8").split("\n"))}
    tokens = Vocabulary("[CLS]", "[SEP]", "[MASK]", ids.__getitem__, list(ids))
    generator = random.Random(0)
    with text.open(encoding="utf-8") as file:
        texts = [json.loads(line)["text"] for line in file]
    split = [[t[a:b] for a, b in pairwise([0, *sentence_ends(t).tolist()])] for t in texts]  # its input: one a line
    begin = time.process_time()
    tokenised = [[python_wordpiece(sentence, ids) for sentence in document] for document in split]
    documents = [document for sentences in tokenised if (document := [pieces for pieces in sentences if pieces])]
    generator.shuffle(documents)
    rows = [made for _ in range(COPIES) for made in samples(documents, tokens, LENGTH, PREDICTIONS, generator)]
    generator.shuffle(rows)
    with output.open("w", encoding="utf-8") as file:
        for sample in rows:
            file.write(json.dumps(features(sample, tokens, LENGTH, PREDICTIONS)) + "\n")
    return time.process_time() - begin


def documents_of(paths: list[str]) -> Iterator[str]:
    from reread.preprocessing.config import CleanSettings, InputSettings
    from reread.preprocessing.input.read import read
    from reread.preprocessing.input.sources import find_files, plan_parts
    from reread.preprocessing.text.clean import Cleaner

    settings, cleaner = InputSettings(paths=paths), Cleaner(CleanSettings())
    for piece in chain.from_iterable(plan_parts(find_files([settings]), 1 << 26)):
        for document in read(piece, settings, lambda problem: None):
            yield cleaner.clean(document.text)


def short(documents: list[str]) -> Iterator[str]:
    """The documents in pieces of about `DOCUMENT` characters."""
    for document in documents:
        for piece in cut(document, DOCUMENT):
            yield piece.rstrip("\n")


def cut(text: str, characters: int) -> Iterator[str]:
    """Pieces of a text of at least so many characters, each to the end of a line."""
    begin = 0
    while begin < len(text):
        end = text.find("\n", begin + characters) + 1 or len(text)
        yield text[begin:end]
        begin = end


def recombined(documents: list[str]) -> Iterator[str]:
    """Endless documents, each different: lines drawn at random, under a running number."""
    lines = [line for document in documents for line in document.split("\n")]
    generator = random.Random(0)
    for number in count():
        yield "\n".join([f"第{number}篇", *generator.choices(lines, k=20)])


def write_json_lines(path: Path, documents: Iterator[str], megabytes: float) -> Path:
    size = 0
    with path.open("w", encoding="utf-8") as file:
        for document in documents:
            file.write(json.dumps({"text": document}, ensure_ascii=False) + "\n")
            size += len(document.encode())
            if size >= megabytes * 1e6:
                break
    return path


def speeds(folder: Path, documents: list[str], vocabulary: Path, megabytes: float) -> None:
    whole = write_json_lines(folder / "whole.jsonl", iter(documents), megabytes)
    small = write_json_lines(folder / "small.jsonl", iter(documents), BERT_MEGABYTES)
    sizes = {path: sum(len(json.loads(line)["text"].encode()) for line in path.open()) / 1e6 for path in (whole, small)}
    ours, encode, bert = in_turns(
        {
            "ours": lambda: measured(preprocess, whole, vocabulary, folder / "corpus", 1).cpu_seconds / sizes[whole],
            "encode": lambda: in_process(by_rjieba, whole, vocabulary) / sizes[whole],
            "bert": lambda: in_process(bert_static_copies, small, vocabulary, folder / "copies.jsonl") / sizes[small],
        },
        ROUNDS,
    ).values()
    print(f"\n{sizes[whole]:.0f} MB of text ({sizes[small]:.1f} MB for BERT's recipe), best of {ROUNDS} rounds\n")
    heading("", "MB / CPU-s", "ours is faster")
    row("reread preprocess, for one copy or ten (masks are drawn when read)", f"{1 / min(ours):.2f}", "1")
    row("rjieba + tokenizers with offsets", f"{1 / min(encode):.2f}", ratio(ours, encode))
    row(f"BERT's recipe, {COPIES} static copies", f"{1 / min(bert):.3f}", ratio(ours, bert))


def english(folder: Path, documents: list[str], vocabulary: Path, megabytes: float) -> None:
    whole = write_json_lines(folder / "english.jsonl", iter(documents), megabytes)
    start = write_json_lines(folder / "start.jsonl", iter(documents), 0)  # one document
    size = sum(len(json.loads(line)["text"].encode()) for line in whole.open()) / 1e6
    ours, begin, encode = in_turns(
        {
            "ours": lambda: measured(preprocess, whole, vocabulary, folder / "corpus", 1).cpu_seconds / size,
            "begin": lambda: measured(preprocess, start, vocabulary, folder / "corpus", 1).cpu_seconds / size,
            "encode": lambda: in_process(encode_alone, whole, vocabulary) / size,
        },
        ROUNDS,
    ).values()
    besides = [total - fixed for total, fixed in zip(ours, begin, strict=True)]
    print(f"\n{size:.0f} MB of English text, best of {ROUNDS} rounds\n")
    heading("", "MB / CPU-s", "reread preprocess is faster")
    row("reread preprocess", f"{1 / min(ours):.2f}", "1")
    row("reread preprocess, less what it takes for one document", f"{1 / min(besides):.2f}", ratio(ours, besides))
    row("tokenizers with offsets", f"{1 / min(encode):.2f}", ratio(ours, encode))
    row("the same, against what each further MB takes", "", ratio(besides, encode))


def memory(folder: Path, documents: list[str], vocabulary: Path, sizes: list[int]) -> None:
    from reread.preprocessing.text.dedup import KEY

    print()
    heading("MB of input", "documents", "peak MB", "MB / CPU-s", "keys, MB on disk")
    for size in sizes:
        path = write_json_lines(folder / "recombined.jsonl", recombined(documents), size)
        cost = measured(preprocess, path, vocabulary, folder / "corpus", 1)
        total = cost.result["documents_read"]
        assert cost.result["documents"] == total
        keys = KEY.itemsize * total / 1e6
        row(size, f"{total:,}", f"{cost.peak_megabytes:.0f}", f"{size / cost.cpu_seconds:.2f}", f"{keys:.2f}")
    print(f"\nDeduplication keys: {KEY.itemsize} bytes a document.")


@one_line()
def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("text", nargs="*", help="files or folders of Chinese text")
    arguments.add_argument("--vocabulary", type=Path, help="vocab.txt")
    arguments.add_argument("--english", nargs="*", default=[], help="files or folders of English text")
    arguments.add_argument("--bpe", type=Path, help="vocab.json or encoder.json of a byte-level BPE")
    arguments.add_argument("--megabytes", type=float, default=60.0, help="the most text to use for the speeds")
    arguments.add_argument("--sizes", type=int, nargs="*", default=[30, 100, 300], help="MB of input for the memory")
    options = arguments.parse_args()
    for texts, vocabulary in ((options.text, options.vocabulary), (options.english, options.bpe)):
        if bool(texts) != bool(vocabulary):
            arguments.error("TEXT goes with --vocabulary, --english with --bpe")
    with tempfile.TemporaryDirectory() as name:
        if options.text:
            documents = list(documents_of(options.text))
            speeds(Path(name), documents, options.vocabulary, options.megabytes)
            memory(Path(name), documents, options.vocabulary, options.sizes)
        if options.english:
            english(Path(name), list(short(list(documents_of(options.english)))), options.bpe, options.megabytes)


if __name__ == "__main__":
    main()
