"""Whatever is in a file: no exception but `UserError`, no hang, and nothing lost but what is damaged."""

import bz2
import gzip
import json
import lzma
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from reread.preprocessing.config import InputSettings
from reread.preprocessing.errors import UserError
from reread.preprocessing.input.read import Document, Problem, read
from reread.preprocessing.input.sources import find_files, plan_parts
from tests.preprocessing.input.test_hostile_input import make_tar, old_sparse

ENCODINGS = [
    "utf-8",
    "utf-8-sig",
    "gb18030",
    "big5",
    "utf-16",
    "utf-16-le",
    "utf-32",
    "shift_jis",
    "cp037",
    "utf-7",
    "hz",
]
COMPRESSIONS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": lambda data: gzip.compress(data, mtime=0),
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": zstandard.ZstdCompressor().compress,
}
PAGE = "<page><title>{0}</title><ns>0</ns><revision><text>{1}</text></revision></page>\n"
WRAPS: dict[str, Callable[[list[str]], str]] = {
    "document-per-file": "\n".join,
    "document-per-line": "\n".join,
    "blank-line": "\n\n".join,
    "jsonl": lambda texts: "\n".join(json.dumps({"text": text}) for text in texts),
    "wikiextractor": lambda texts: "".join(f'<doc id="1" title="a">\na\n\n{text}\n</doc>\n' for text in texts),
    "mediawiki": lambda texts: f"<mediawiki>{''.join(PAGE.format(*pair) for pair in enumerate(texts))}</mediawiki>",
}
TEXTS = st.lists(st.text("天地人我们 ab<>&;{}[]|='\"。\u2028\u3000\ud800", max_size=30), min_size=1, max_size=5)
NAMES = st.binary(min_size=1, max_size=12).filter(lambda name: not set(name) & set(b"\0/.~*?[") and name.strip())


@st.composite
def damaged(draw: st.DrawFn, data: bytes) -> bytes:
    """`data` cut short, with bytes of it altered, or with a piece of it left out, doubled or put elsewhere."""
    kind = draw(st.sampled_from(["whole", "cut", "altered", "spliced", "foreign"]))
    first, last = sorted(draw(st.integers(0, len(data))) for _ in range(2))
    if kind == "cut":
        return data[:first]
    if kind == "altered":
        changed = bytearray(data)
        for place in draw(st.lists(st.integers(0, max(0, len(data) - 1)), max_size=8)):
            if data:
                changed[place] = draw(st.integers(0, 255))
        return bytes(changed)
    if kind == "spliced":
        where = draw(st.integers(0, len(data)))
        piece = data[first:last] * draw(st.integers(0, 2))
        return data[:where] + piece + data[where:] if piece else data[:first] + data[last:]
    return data[:first] + draw(st.binary(max_size=40)) + data[last:] if kind == "foreign" else data


@st.composite
def file_of(draw: st.DrawFn) -> tuple[str, str, bytes]:
    """Suffix of a name, format and bytes of a file that was once whole."""
    format = draw(st.sampled_from([*WRAPS, "parquet", "tar"]))
    suffix = draw(st.sampled_from([*COMPRESSIONS]))
    texts = draw(TEXTS)
    if format == "parquet":
        with tempfile.TemporaryFile() as file:
            column = [text.encode("utf-8", "replace").decode() for text in texts]
            kind = draw(st.sampled_from(["none", "gzip", "zstd"]))
            pyarrow.parquet.write_table(pyarrow.table({"text": column}), file, compression=kind, row_group_size=2)
            file.seek(0)
            return ".parquet", "auto", draw(damaged(file.read()))
    if format == "tar":
        members = {
            f"m{inner}.txt{inner}": draw(damaged(compress(text.encode("utf-8", "replace"))))
            for text, (inner, compress) in zip(texts, COMPRESSIONS.items(), strict=False)
        }
        data = old_sparse(1 << 40) + make_tar(members) if draw(st.booleans()) else make_tar(members)
        return f".tar{suffix}", "auto", draw(damaged(COMPRESSIONS[suffix](draw(damaged(data)))))
    data = WRAPS[format](texts).encode(draw(st.sampled_from(ENCODINGS)), "replace")
    return f".txt{suffix}", format, draw(damaged(COMPRESSIONS[suffix](draw(damaged(data)))))


def read_folder(folder: Path, part_bytes: int, **values: Any) -> tuple[list[Document], list[Problem]]:
    chosen = InputSettings.model_validate({"paths": [str(folder)], **values})
    problems: list[Problem] = []
    parts = plan_parts(find_files([chosen]), part_bytes)
    return [found for part in parts for piece in part for found in read(piece, chosen, problems.append)], problems


@pytest.mark.timeout(120)
@given(file_of(), NAMES, st.sampled_from(ENCODINGS), st.sampled_from([40, 1 << 30]), st.sampled_from([60, 10**6]))
def test_no_file_ends_the_reading_of_the_others(
    file: tuple[str, str, bytes], name: bytes, encoding: str, part_bytes: int, longest: int
) -> None:
    suffix, format, data = file
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(os.fsencode(folder), b"m" + name + suffix.encode())
        with open(path, "wb") as opened:
            opened.write(data)
        whole = "ab".encode(encoding)
        for other in ("a", "z"):
            text = WRAPS["jsonl"](["ab"]).encode(encoding) if format == "jsonl" else whole
            (Path(folder) / other).write_bytes(text)
        values = {"format": format, "encoding": encoding, "maximum_document_bytes": longest, "maximum_expansion": 20}
        documents, problems = read_folder(Path(folder), part_bytes, **values)
        assert {os.fsencode(problem.path) for problem in problems} <= {path} or format in ("mediawiki", "wikiextractor")
        if format not in ("mediawiki", "wikiextractor"):
            others = [found for found in documents if os.fsencode(found.path) != path]
            assert [found.text for found in others] == ["ab", "ab"]
        try:
            again, _ = read_folder(Path(folder), part_bytes, bad_input="refuse", **values)
            assert again == documents and not problems
        except UserError as error:
            assert problems and str(error).isprintable()


@given(st.lists(st.text('天地ab{}"', max_size=9), min_size=1, max_size=8), st.data())
def test_a_damaged_line_costs_that_line(texts: list[str], chosen: st.DataObject) -> None:
    lines = [json.dumps({"text": f"x{text}"}, ensure_ascii=False).encode() for text in texts]
    bad = chosen.draw(st.integers(0, len(lines) - 1))
    damage = chosen.draw(damaged(lines[bad])).replace(b"\n", b"")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.jsonl"
        path.write_bytes(b"\n".join([*lines[:bad], damage, *lines[bad + 1 :]]))
        for part_bytes in (7, 20, 1 << 20):
            documents, problems = read_folder(Path(folder), part_bytes)
            found = [document.text for document in documents]
            assert len(problems) <= 1
            if [problem.position for problem in problems] == ["whole file"]:  # its first bytes are those of no text
                assert not documents
                continue
            kept = [f"x{text}" for text in texts]
            assert found[:bad] == kept[:bad] and found[len(found) - len(kept) + bad + 1 :] == kept[bad + 1 :]
