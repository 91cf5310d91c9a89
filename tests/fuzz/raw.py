"""Raw text: files of each format, packed and not, of which some bytes are others."""

import bz2
import gzip
import io
import json
import lzma
from pathlib import Path
from random import Random

import pyarrow
import pyarrow.parquet
import zstandard

from tests.fuzz.common import Case, changed_bytes, changed_json
from tests.preprocessing.input.test_formats import BOOK
from tests.preprocessing.input.test_hostile_input import make_tar, make_zip, read_all

LINES = "天下大势，分久必合\nIt is so.\n\n合久必分\n".encode()
RECORDS = [{"text": "天下"}, {"text": "a", "b": [1, {"c": None}]}]
DUMP = (
    "<mediawiki><siteinfo><namespaces><namespace key='6'>File</namespace></namespaces></siteinfo><page><title>柏林"
    "</title><ns>0</ns><revision><text>'''a''' [[b|c]] {{d}} {| e |} &lt;ref&gt;</text></revision></page></mediawiki>"
)
FILES = {
    "a.txt": LINES * 3,
    "b.txt": LINES.decode().encode("gb18030"),
    "c.txt": LINES.decode().encode("utf-16"),
    "a.jsonl": b"".join(json.dumps(record).encode() + b"\n" for record in RECORDS),
    "a.json": json.dumps({"data": RECORDS}).encode(),
    "b.json": json.dumps(RECORDS).encode(),
    "a.csv": b'text,label\n"a ""b"",\nc",1\nd,2\n',
    "a.tsv": b"text\tlabel\na\t1\nb\t2\n",
    "a.xml": DUMP.encode(),
    "wiki_00": b'<doc id="1" title="a">\na\n\nb [c]\n</doc>\n<doc id="2" title="b">\nb\n\nc\n</doc>\n',
    "a.html": b"<html><head><meta charset=utf-8></head><body><nav>x</nav><main><p>a<b>b</p><li>c</main></body></html>",
    "a.epub": make_zip(BOOK),
    "a.zip": make_zip({"a.txt": LINES, "b.jsonl": b'{"text": "a"}\n'}),
    "a.tar": make_tar({"a.txt": LINES, "b.csv": b"text\na\n"}),
}
PACK = {"": bytes, ".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress, ".zst": zstandard.compress}
FIELDS = ("text", "text", "data[].text", "[].text", "b[0].c", "{text}\\n{label}", "[0]")


def prepare(folder: Path) -> Case:
    files = dict(FILES)
    table = pyarrow.table({"text": ["a", "天下", None], "b": [["x"], [], ["y", "z"]]})
    buffer = io.BytesIO()
    pyarrow.parquet.write_table(table, buffer)
    files["a.parquet"] = buffer.getvalue()
    buffer = io.BytesIO()
    with pyarrow.ipc.new_stream(buffer, table.schema) as writer:
        writer.write_table(table)
    files["a.arrow"] = buffer.getvalue()

    def case(random: Random) -> None:
        name = random.choice(tuple(files))
        data = files[name]
        if name.endswith(".json") and random.random() < 0.4:
            data = json.dumps(changed_json(random, json.loads(data))).encode()
        elif random.random() < 0.8:
            data = changed_bytes(random, data)
        suffix = random.choice(("", *PACK)) if name[-1] not in "bptw" or name.endswith("txt") else ""
        data = PACK[suffix](data)
        if suffix and random.random() < 0.4:
            data = changed_bytes(random, data)
        path = folder / f"{name}{suffix}"
        path.write_bytes(data)
        try:
            read_all(
                path,
                text_field=random.choice(FIELDS),
                encoding=random.choice(("utf-8", "auto", "auto", "gb18030", "utf-16-le")),
                bad_input=random.choice(("report", "report", "refuse")),
                maximum_document_bytes=random.choice((100, 10**6)),
            )
        finally:
            path.unlink()

    return case
