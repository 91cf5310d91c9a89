"""What `reread preprocess` costs, beside its rivals on the same text in the same run.

    python benchmarks/preprocess.py TEXT... --vocabulary vocab.txt

TEXT are files or folders of Chinese text. CPU seconds are those of a fresh process and its children, from the start of
the interpreter; the rivals are charged for their loops alone. Sides alternate, and medians are printed.
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
from itertools import chain, count
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

ROUNDS = 3
BERT_MEGABYTES = 1.0
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
    result = function(*arguments)
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    seconds = sum(usage.ru_utime + usage.ru_stime for usage in usages)
    return Cost(seconds, max(usage.ru_maxrss for usage in usages) / 1024, result)


def preprocess(text: Path, vocabulary: Path, output: Path, workers: int) -> dict[str, Any]:
    from preprocessing.build import build
    from preprocessing.config import PreprocessSettings

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


# -- BERT's own recipe: pure Python, one sequence at a time, copies written out (Devlin et al. 2019, appendix A.2) ----


def bert_static_copies(text: Path, vocabulary: Path, output: Path, length: int = 128) -> float:
    """Tokenise, then write `COPIES` copies of sentence pairs with their own masks. Returns CPU seconds."""
    from preprocessing.sentences import sentence_ends

    ids = {token: number for number, token in enumerate(vocabulary.read_text(encoding="utf-8").split("\n"))}
    generator = random.Random(0)
    begin = time.process_time()
    documents = []
    with text.open(encoding="utf-8") as file:
        for line in file:
            document, start = json.loads(line)["text"], 0
            sentences = []
            for end in sentence_ends(document).tolist():
                sentences.append(python_wordpiece(document[start:end], ids))
                start = end
            documents.append([sentence for sentence in sentences if sentence])
    documents = [document for document in documents if document]
    words = list(ids)
    with output.open("w", encoding="utf-8") as file:
        for _ in range(COPIES):
            for number in range(len(documents)):
                for first, second, is_random in sentence_pairs(documents, number, length - 3, generator):
                    tokens = ["[CLS]", *first, "[SEP]", *second, "[SEP]"]
                    segments = [0] * (len(first) + 2) + [1] * (len(second) + 1)
                    tokens, positions, labels = mask(tokens, words, generator)
                    sequence = [ids[token] for token in tokens]
                    padding = [0] * (length - len(sequence))
                    features = {
                        "input_ids": sequence + padding,
                        "input_mask": [1] * len(sequence) + padding,
                        "segment_ids": segments + padding,
                        "masked_lm_positions": positions,
                        "masked_lm_ids": [ids[label] for label in labels],
                        "next_sentence_labels": int(is_random),
                    }
                    file.write(json.dumps(features) + "\n")
    return time.process_time() - begin


def python_wordpiece(text: str, ids: dict[str, int]) -> list[str]:
    spaced = []
    for character in text.lower():
        if "\u4e00" <= character <= "\u9fff" or unicodedata.category(character)[0] == "P":
            spaced += [" ", character, " "]
        else:
            spaced.append(character)
    tokens = []
    for word in "".join(spaced).split():
        pieces, start = [], 0
        while start < len(word):
            end = len(word)
            while end > start and ("##" if start else "") + word[start:end] not in ids:
                end -= 1
            if end == start:
                pieces = ["[UNK]"]
                break
            pieces.append(("##" if start else "") + word[start:end])
            start = end
        tokens += pieces
    return tokens


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
                place -= len(chunk) - cut
            else:
                second = list(chain.from_iterable(chunk[cut:]))
            while len(first) + len(second) > longest:
                longer = first if len(first) > len(second) else second
                longer.pop(0 if generator.random() < 0.5 else -1)
            if first and second:
                yield first, second, is_random
            chunk, size = [], 0
        place += 1


def mask(tokens: list[str], words: list[str], generator: random.Random) -> tuple[list[str], list[int], list[str]]:
    candidates = [place for place, token in enumerate(tokens) if token not in ("[CLS]", "[SEP]")]
    generator.shuffle(candidates)
    chosen = sorted(candidates[: min(20, max(1, round(0.15 * len(tokens))))])
    masked = list(tokens)
    for place in chosen:
        if generator.random() < 0.8:
            masked[place] = "[MASK]"
        elif generator.random() >= 0.5:
            masked[place] = words[generator.randint(0, len(words) - 1)]
    return masked, chosen, [tokens[place] for place in chosen]


# -- the text -------------------------------------------------------------------------------------------------------


def documents_of(paths: list[str]) -> Iterator[str]:
    from preprocessing.clean import Cleaner
    from preprocessing.config import CleanSettings, InputSettings
    from preprocessing.sources import find_files, plan_parts, read

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
    small = write_json_lines(folder / "small.jsonl", (d for d in documents if len(d) < 100_000), BERT_MEGABYTES)
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
    from preprocessing.dedup import KEY

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
