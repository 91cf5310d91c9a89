"""Preprocessing by others: exact deduplication and tokens by datatrove; words by jieba with tokens by tokenizers."""

import json
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.harness import cpu_seconds


def datatrove(folder: Path, seed: int) -> dict[str, float]:
    """CPU seconds until duplicates are found, and until the ids of all other documents are written, in their order."""
    from datatrove.data import Document
    from datatrove.executor.local import LocalPipelineExecutor
    from datatrove.pipeline.dedup import ExactDedupConfig, ExactDedupFilter, ExactDedupSignature, ExactFindDedups
    from datatrove.pipeline.readers import JsonlReader
    from datatrove.pipeline.tokens import DocumentTokenizer

    def text_of(document: Document) -> str:
        return document.text

    begin, config = cpu_seconds(), ExactDedupConfig(text_of)
    with TemporaryDirectory(dir=folder) as work:
        tokenizer = str(Path(work) / "tokenizer.json")
        _tokenizer(folder).save(tokenizer)

        def run(name: str, *steps: Any) -> float:
            LocalPipelineExecutor([*steps], logging_dir=f"{work}/{name}").run()
            return cpu_seconds() - begin

        def read() -> Any:
            return JsonlReader(str(folder), glob_pattern="documents.jsonl")

        run("signatures", read(), ExactDedupSignature(f"{work}/sigs", config))
        found = run("duplicates", ExactFindDedups(f"{work}/sigs", f"{work}/found", config))
        written = DocumentTokenizer(f"{work}/ids", tokenizer, shuffle_documents=False)
        whole = run("tokens", read(), ExactDedupFilter(f"{work}/found", config), written)
    return {"duplicates": found, "corpus": whole}


def jieba(folder: Path, seed: int) -> dict[str, float]:
    import jieba

    jieba.initialize()
    return _words_and_tokens(folder, jieba.lcut)


def rjieba(folder: Path, seed: int) -> dict[str, float]:
    import rjieba

    rjieba.cut("加载词典")
    return _words_and_tokens(folder, rjieba.cut)


def _words_and_tokens(folder: Path, cut: Callable[[str], list[str]]) -> dict[str, float]:
    """CPU seconds of words, ids and offsets alone: nothing is deduplicated or written."""
    tokenizer = _tokenizer(folder)
    begin = cpu_seconds()
    with (folder / "documents.jsonl").open(encoding="utf-8") as file:
        for line in file:
            for paragraph in json.loads(line)["text"].split("\n"):
                cut(paragraph)
                encoding = tokenizer.encode(paragraph, add_special_tokens=False)
                _ = encoding.ids, encoding.offsets
    return {"corpus": cpu_seconds() - begin}


def _tokenizer(folder: Path) -> Any:
    from tokenizers.implementations import BertWordPieceTokenizer

    return BertWordPieceTokenizer(str(folder / "vocab.txt"))
