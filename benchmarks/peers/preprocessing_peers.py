"""Preprocessing by others: exact deduplication and tokens by datatrove; words by jieba with tokens by tokenizers."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.data.preprocess import by_rjieba, segment_and_encode
from benchmarks.harness import cpu_seconds


def datatrove(folder: Path, seed: int) -> dict[str, float]:
    """CPU seconds until duplicates are found, and until the ids of all other documents are written, in their order."""
    from datatrove.data import Document
    from datatrove.executor.local import LocalPipelineExecutor
    from datatrove.pipeline.dedup import ExactDedupConfig, ExactDedupFilter, ExactDedupSignature, ExactFindDedups
    from datatrove.pipeline.readers import JsonlReader
    from datatrove.pipeline.tokens import DocumentTokenizer
    from tokenizers.implementations import BertWordPieceTokenizer

    def text_of(document: Document) -> str:
        return document.text

    begin, config = cpu_seconds(), ExactDedupConfig(text_of)
    with TemporaryDirectory(dir=folder) as work:
        tokenizer = str(Path(work) / "tokenizer.json")
        BertWordPieceTokenizer(str(folder / "vocab.txt")).save(tokenizer)

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

    return {"corpus": segment_and_encode(jieba.lcut, folder / "documents.jsonl", folder / "vocab.txt")}


def rjieba(folder: Path, seed: int) -> dict[str, float]:
    return {"corpus": by_rjieba(folder / "documents.jsonl", folder / "vocab.txt")}
