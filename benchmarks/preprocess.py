"""What `reread preprocess` costs, beside its rivals on the same text in the same run.

    python benchmarks/preprocess.py TEXT... --vocabulary vocab.txt

TEXT are files or folders of Chinese text. CPU seconds of `reread preprocess` are those of a fresh process with all its
imports, dictionaries and pictures; the rivals are charged for their loops alone. Sides alternate; medians are printed.
"""

import json
import random
import resource
import shutil
import statistics
import tempfile
import time
import unicodedata
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import chain, count, pairwise
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

ROUNDS = 3
BERT_MEGABYTES = 6.5  # it holds all its samples in memory
COPIES = 10


class Cost(NamedTuple):
    cpu_seconds: float
    peak_megabytes: float
    """Of the largest process."""
    result: Any


def measured(function: Callable[..., Any], *arguments: Any) -> Cost:
    """Run `function` in a fresh process; one that times itself returns its seconds."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(_measure, function, arguments).result()


def _measure(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Cost:
    before, _ = _usage()
    result = function(*arguments)
    seconds, peak = _usage()
    return Cost(seconds - before, peak, result)


def _usage() -> tuple[float, float]:
    """CPU seconds of this process and its children so far, and the peak memory of the largest in MB."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    seconds = sum(usage.ru_utime + usage.ru_stime for usage in usages)
    return seconds, max(usage.ru_maxrss for usage in usages) / 1024


def preprocess(text: Path, vocabulary: Path, output: Path, workers: int) -> dict[str, Any]:
    from preprocessing.config import PreprocessSettings
    from preprocessing.execution.build import build

    shutil.rmtree(output, ignore_errors=True)
    values = {
        "input": {"paths": [str(text)]},
        "output": str(output),
        "tokenizer": {"path": str(vocabulary)},
        "workers": workers,
    }
    return build(PreprocessSettings.parse(values, "benchmark")).statistics


def segment_and_encode(text: Path, vocabulary: Path) -> float:
    """The rival of the whole: rjieba's words, then `tokenizers` with offsets. Returns CPU seconds."""
    import rjieba
    from tokenizers.implementations import BertWordPieceTokenizer

    tokenizer = BertWordPieceTokenizer(str(vocabulary))
    rjieba.cut("加载词典")
    begin = time.process_time()
    with text.open(encoding="utf-8") as file:
        for line in file:
            for paragraph in json.loads(line)["text"].split("\n"):
                rjieba.cut(paragraph)
                encoding = tokenizer.encode(paragraph, add_special_tokens=False)
                _ = encoding.ids, encoding.offsets
    return time.process_time() - begin


# -- BERT's own recipe: pure Python, one sequence at a time, all copies held and shuffled, then written out.
# Devlin et al. 2019, appendix A.2, and the passes its published script makes over the text. TensorFlow's records, which
# it wrote, are JSON here.


def bert_static_copies(text: Path, vocabulary: Path, output: Path, length: int = 128) -> float:
    """`COPIES` copies of masked sentence pairs. Returns CPU seconds."""
    from preprocessing.text.sentences import sentence_ends

    ids = {token: number for number, token in enumerate(vocabulary.read_text(encoding="utf-8").split("\n"))}
    words = list(ids)
    generator = random.Random(0)
    with text.open(encoding="utf-8") as file:
        texts = [json.loads(line)["text"] for line in file]
    split = [[t[a:b] for a, b in pairwise([0, *sentence_ends(t).tolist()])] for t in texts]  # its input: one a line
    begin = time.process_time()
    tokenised = [[python_wordpiece(sentence, ids) for sentence in document] for document in split]
    documents = [document for sentences in tokenised if (document := [tokens for tokens in sentences if tokens])]
    generator.shuffle(documents)
    samples = []
    for _ in range(COPIES):
        for number in range(len(documents)):
            for first, second, is_random in sentence_pairs(documents, number, length - 3, generator):
                samples.append((*masked_pair(first, second, words, generator), is_random))
    generator.shuffle(samples)
    with output.open("w", encoding="utf-8") as file:
        for sample in samples:
            file.write(json.dumps(features(sample, ids, length)) + "\n")
    return time.process_time() - begin


def python_wordpiece(text: str, ids: dict[str, int]) -> list[str]:
    """Clean, part Han characters, split at spaces, strip accents, split at punctuation, match greedily."""
    cleaned = []
    for character in text:
        if ord(character) in (0, 0xFFFD) or is_control(character):
            continue
        cleaned.append(" " if is_space(character) else character)
    parted = []
    for character in "".join(cleaned):
        if is_chinese(ord(character)):
            parted += [" ", character, " "]
        else:
            parted.append(character)
    pieces = []
    for word in "".join(parted).strip().split():
        pieces += split_at_punctuation(without_accents(word.lower()))
    tokens = []
    for piece in " ".join(pieces).split():
        tokens += greedy_match(piece, ids)
    return tokens


def is_space(character: str) -> bool:
    return character in " \t\n\r" or unicodedata.category(character) == "Zs"


def is_control(character: str) -> bool:
    return character not in "\t\n\r" and unicodedata.category(character) in ("Cc", "Cf")


def is_chinese(code: int) -> bool:
    return any(low <= code <= high for low, high in HAN)


def is_punctuation(character: str) -> bool:
    code = ord(character)
    if 33 <= code <= 47 or 58 <= code <= 64 or 91 <= code <= 96 or 123 <= code <= 126:
        return True
    return unicodedata.category(character).startswith("P")


HAN = ((0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F), (0x2B740, 0x2B81F), (0xF900, 0xFAFF))


def without_accents(word: str) -> str:
    kept = []
    for character in unicodedata.normalize("NFD", word):
        if unicodedata.category(character) != "Mn":
            kept.append(character)
    return "".join(kept)


def split_at_punctuation(word: str) -> list[str]:
    pieces: list[list[str]] = []
    opens_piece = True
    for character in word:
        if is_punctuation(character):
            pieces.append([character])
            opens_piece = True
        else:
            if opens_piece:
                pieces.append([])
            pieces[-1].append(character)
            opens_piece = False
    return ["".join(piece) for piece in pieces]


def greedy_match(word: str, ids: dict[str, int]) -> list[str]:
    letters, pieces, start = list(word), [], 0
    while start < len(letters):
        end = len(letters)
        while end > start:
            piece = ("##" if start else "") + "".join(letters[start:end])
            if piece in ids:
                break
            end -= 1
        if end == start:
            return ["[UNK]"]
        pieces.append(piece)
        start = end
    return pieces


def sentence_pairs(
    documents: list[list[list[str]]], number: int, longest: int, generator: random.Random
) -> Iterator[tuple[list[str], list[str], bool]]:
    document = documents[number]
    target = generator.randint(2, longest) if generator.random() < 0.1 else longest
    chunk: list[list[str]] = []
    size = place = 0
    while place < len(document):
        chunk.append(document[place])
        size += len(document[place])
        if place == len(document) - 1 or size >= target:
            cut = generator.randint(1, len(chunk) - 1) if len(chunk) >= 2 else 1
            first = list(chain.from_iterable(chunk[:cut]))
            is_random = len(chunk) == 1 or generator.random() < 0.5
            if is_random:
                other = number
                for _ in range(10):
                    other = generator.randint(0, len(documents) - 1)
                    if other != number:
                        break
                begin = generator.randint(0, len(documents[other]) - 1)
                second: list[str] = []
                for sentence in documents[other][begin:]:
                    second += sentence
                    if len(second) >= target - len(first):
                        break
                place -= len(chunk) - cut  # what was not used comes again
            else:
                second = list(chain.from_iterable(chunk[cut:]))
            while len(first) + len(second) > longest:
                longer = first if len(first) > len(second) else second
                longer.pop(0 if generator.random() < 0.5 else -1)
            if first and second:
                yield first, second, is_random
            chunk, size = [], 0
        place += 1


def masked_pair(
    first: list[str], second: list[str], words: list[str], generator: random.Random
) -> tuple[list[str], list[int], list[int], list[str]]:
    tokens, segments = ["[CLS]"], [0]
    for segment, part in enumerate((first, second)):
        for token in part:
            tokens.append(token)
            segments.append(segment)
        tokens.append("[SEP]")
        segments.append(segment)
    candidates = []
    for place, token in enumerate(tokens):
        if token not in ("[CLS]", "[SEP]"):
            candidates.append([place])  # a list of one: whole words are an option of the procedure
    generator.shuffle(candidates)
    wanted = min(20, max(1, round(0.15 * len(tokens))))
    masked, covered = list(tokens), set()
    chosen: list[tuple[int, str]] = []
    for places in candidates:
        if len(chosen) >= wanted:
            break
        if len(chosen) + len(places) > wanted or any(place in covered for place in places):
            continue
        for place in places:
            covered.add(place)
            if generator.random() < 0.8:
                masked[place] = "[MASK]"
            elif generator.random() >= 0.5:
                masked[place] = words[generator.randint(0, len(words) - 1)]
            chosen.append((place, tokens[place]))
    chosen.sort()
    return masked, segments, [place for place, _ in chosen], [token for _, token in chosen]


def features(sample: tuple[Any, ...], ids: dict[str, int], length: int) -> dict[str, list[int]]:
    tokens, segments, positions, labels, is_random = sample
    rows = {
        "input_ids": [ids[token] for token in tokens],
        "input_mask": [1] * len(tokens),
        "segment_ids": list(segments),
    }
    for row in rows.values():
        while len(row) < length:
            row.append(0)
    predictions = {
        "masked_lm_positions": list(positions),
        "masked_lm_ids": [ids[label] for label in labels],
        "masked_lm_weights": [1] * len(labels),
    }
    for row in predictions.values():
        while len(row) < 20:
            row.append(0)
    return rows | predictions | {"next_sentence_labels": [int(is_random)]}


# -- the text -------------------------------------------------------------------------------------------------------


def documents_of(paths: list[str]) -> Iterator[str]:
    from preprocessing.config import CleanSettings, InputSettings
    from preprocessing.input.readers import read
    from preprocessing.input.sources import find_files, plan_parts
    from preprocessing.text.clean import Cleaner

    settings, cleaner = InputSettings(paths=paths), Cleaner(CleanSettings())
    for piece in chain.from_iterable(plan_parts(find_files(settings), 1 << 26)):
        for document in read(piece, settings, lambda problem: None):
            yield cleaner.clean(document.text)


def recombined(documents: list[str]) -> Iterator[str]:
    """Documents without end, none twice: lines drawn at random, under a running number."""
    lines = [line for document in documents for line in document.split("\n")]
    generator = random.Random(0)
    for number in count():
        yield "\n".join([f"第{number}篇", *generator.choices(lines, k=20)])


def write_json_lines(path: Path, documents: Iterator[str], megabytes: float) -> Path:
    size = 0
    with path.open("w", encoding="utf-8") as file:
        for document in documents:
            size += file.write(json.dumps({"text": document}, ensure_ascii=False) + "\n") and len(document.encode())
            if size >= megabytes * 1e6:
                break
    return path


def row(*cells: str) -> None:
    print("| " + " | ".join(cells) + " |", flush=True)


def main(
    text: Annotated[list[str], typer.Argument(help="Files or folders of Chinese text.")],
    vocabulary: Annotated[Path, typer.Option(help="vocab.txt")],
    megabytes: Annotated[float, typer.Option(help="Most of the text to use for the speeds.")] = 60.0,
    sizes: Annotated[list[int], typer.Option(help="Megabytes of input for the memory.")] = [30, 100, 300],  # noqa: B006
) -> None:
    documents = list(documents_of(text))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        speeds(folder, documents, vocabulary, megabytes)
        memory(folder, documents, vocabulary, sizes)


def speeds(folder: Path, documents: list[str], vocabulary: Path, megabytes: float) -> None:
    corpus = folder / "corpus"
    whole = write_json_lines(folder / "whole.jsonl", iter(documents), megabytes)
    small = write_json_lines(folder / "small.jsonl", iter(documents), BERT_MEGABYTES)
    sizes = {path: sum(len(json.loads(line)["text"].encode()) for line in path.open()) / 1e6 for path in (whole, small)}
    ours, rival, bert = [], [], []
    for _ in range(ROUNDS):
        ours.append(sizes[whole] / measured(preprocess, whole, vocabulary, corpus, 1).cpu_seconds)
        rival.append(sizes[whole] / measured(segment_and_encode, whole, vocabulary).result)
        bert.append(sizes[small] / measured(bert_static_copies, small, vocabulary, folder / "copies.jsonl").result)
    ours_speed, rival_speed, bert_speed = map(statistics.median, (ours, rival, bert))
    print(f"\n{sizes[whole]:.0f} MB of text ({sizes[small]:.1f} MB for BERT's recipe), medians of {ROUNDS} runs\n")
    row("", "MB / CPU-s", "ours is faster")
    row("---", "---:", "---:")
    row("reread preprocess, whole", f"{ours_speed:.2f}", "1")
    row("rjieba + tokenizers with offsets", f"{rival_speed:.2f}", f"{ours_speed / rival_speed:.1f}")
    row(f"reread preprocess for {COPIES} copies (masks are drawn when read)", f"{ours_speed:.2f}", "1")
    row(f"BERT's recipe, {COPIES} static copies", f"{bert_speed:.3f}", f"{ours_speed / bert_speed:.0f}")


def memory(folder: Path, documents: list[str], vocabulary: Path, sizes: list[int]) -> None:
    from preprocessing.text.dedup import KEY

    print()
    row("MB of input", "documents", "peak MB", "MB / CPU-s", "keys, MB on disk")
    row("---:", "---:", "---:", "---:", "---:")
    for size in sizes:
        path = write_json_lines(folder / "recombined.jsonl", recombined(documents), size)
        cost = measured(preprocess, path, vocabulary, folder / "corpus", 1)
        total = cost.result["documents_read"]
        assert cost.result["documents"] == total
        keys = KEY.itemsize * total / 1e6
        row(str(size), f"{total:,}", f"{cost.peak_megabytes:.0f}", f"{size / cost.cpu_seconds:.2f}", f"{keys:.2f}")
    print(f"\nDeduplication keys: {KEY.itemsize} bytes a document.")


if __name__ == "__main__":
    typer.run(main)
