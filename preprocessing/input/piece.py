"""A piece of input (a file, or a byte range of one), and the state of reading it, for the readers of all formats."""

import lzma
import re
import tarfile
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple
from xml.parsers.expat import ExpatError

import zstandard

from reread.preprocessing.config import InputSettings
from reread.preprocessing.errors import NOT_OF_THE_SYSTEM, UserError
from reread.preprocessing.input.encodings import SAMPLE, encoding_of, encoding_that_fits, is_plain
from reread.preprocessing.input.fields import FieldText
from reread.preprocessing.input.streams import ExpansionError, is_wide


@dataclass(frozen=True)
class Piece:
    """A file, or the byte range [start, end) of an uncompressed line-based file.

    `bytes` and `changed` (in ns) are the size and the modification time of the file when it was found; None if they are
    not to be compared.
    """

    path: str
    format: str
    start: int = 0
    end: int | None = None
    bytes: int | None = None
    changed: int | None = None
    section: int = 0
    """The number of the section of `input` whose settings apply."""


class Document(NamedTuple):
    """A document of a file, before cleaning."""

    text: str
    path: str
    position: str
    """`line 12`, `row 3`, `page 柏林`, or `whole file`; in an archive preceded by the member's name."""


class Problem(NamedTuple):
    """A part of a file that could not be read."""

    path: str
    position: str
    reason: str


def most_frequent(reasons: Iterable[str]) -> str:
    """The first of the most frequent reasons; reasons that differ only in numbers count as equal."""
    first: dict[str, str] = {}
    counts: Counter[str] = Counter()
    for reason in reasons:
        kind = re.sub(r"\d+", "", reason)
        first.setdefault(kind, reason)
        counts[kind] += 1
    return first[counts.most_common(1)[0][0]]


DAMAGE = (
    EOFError,
    ExpansionError,
    ExpatError,
    OSError,
    UnicodeError,
    lzma.LZMAError,
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
    zstandard.ZstdError,
)
"""Errors of libraries for a damaged file; those of pyarrow are caught in `formats.column_rows`."""
_STATE_IT = "if it is in another encoding, such as gb18030, set `input.encoding`"


class PieceReader:
    """The state of reading a piece: its encoding, and the current position for error messages."""

    def __init__(
        self,
        piece: Piece,
        settings: InputSettings,
        report: Callable[[Problem], None],
        check_unchanged: Callable[[], None],
        count_encoding: Callable[[str], None],
    ) -> None:
        self.piece, self.settings, self.report = piece, settings, report
        self.check_unchanged, self.count_encoding = check_unchanged, count_encoding
        self.limit = settings.maximum_document_bytes
        self.spend: Callable[[int], None] = lambda size: None
        """Called with the number of decompressed bytes; raises ExpansionError if there are too many."""
        self.encoding = self.stated = settings.encoding
        self.is_undecided = False
        """Whether the file so far is ASCII, so that `encoding: auto` has not chosen yet."""
        self.member = ""
        """The member of an archive that is being read, as a prefix of positions."""
        self.last = "the start"
        """The position of the last document."""
        self._fitting: str | None = None
        self._guesses = 0
        self._undecoded = bytearray()
        """The data from which an encoding is guessed; a single line of a table may be too short."""

    def choose_encoding(self, sample: bytes | bytearray) -> bool:
        """Choose among the candidates of `encoding: auto`; False if none fits, which is reported."""
        candidates = self.settings.encodings
        default = next((name for name in candidates if not is_wide(name)), "utf-8")
        chosen = default if is_plain(sample) else encoding_of(sample, candidates)
        self.is_undecided = is_plain(sample)
        if chosen is not None:
            self.encoding = self.stated = chosen
        elif self.piece.start == 0:
            fits = encoding_that_fits(sample)
            hint = f"`input.encoding={fits}` would fit" if fits and fits not in candidates else _STATE_IT
            self.problem("whole file", f"not clearly one of {', '.join(candidates)} (`input.encodings`); {hint}")
        return chosen is not None

    def problem(self, position: str, reason: str) -> None:
        """Report bad input; raises `UserError` if `bad_input` is `refuse`."""
        if self.settings.bad_input == "refuse":
            self.check_unchanged()  # a file that is being written looks damaged
            way_out = "repair it, or set `input.bad_input=report` to skip it"
            raise UserError(f"{self.piece.path}:{self.member}{position}: {reason}; {way_out}")
        self.report(Problem(self.piece.path, self.member + position, reason))

    def too_long(self, position: str) -> None:
        self.problem(
            position, f"longer than {self.limit:,} bytes (`input.maximum_document_bytes`); is it a single document?"
        )

    def damaged(self, error: Exception) -> None:
        """Report one of the errors `DAMAGE` as a problem; an error of the operating system is raised again."""
        if isinstance(error, OSError) and error.errno not in NOT_OF_THE_SYSTEM:
            raise error
        self.problem(f"after {self.last}", f"damaged or cut short ({str(error) or type(error).__name__})")

    def document(self, text: str, position: str) -> Document:
        """The document `text`, whose position becomes the last one."""
        self.last = position
        return Document(text, self.piece.path, self.member + position)

    def texts(self, texts: Iterable[FieldText], position: str, has_several: bool = False) -> Iterator[Document]:
        """The documents of the texts that `TextField` found in a record at `position`; problems are reported."""
        for number, (text, problem) in enumerate(texts, 1):
            value = f"{position}, value {number}" if has_several else position
            if problem:
                self.problem(value, problem)
            elif len(text) > self.limit // 4 and len(text.encode("utf-8", "surrogatepass")) > self.limit:
                self.too_long(value)
            else:
                yield self.document(text, value)

    def decode(self, data: bytes | bytearray, position: str) -> str | None:
        """`data` as text; None if it cannot be decoded, which is reported."""
        if self.is_undecided and not is_plain(data):
            chosen = encoding_of(data, self.settings.encodings)
            if chosen is not None:
                self.encoding, self.stated, self.is_undecided = chosen, chosen, False
        try:
            return data.decode(self.encoding).removeprefix("\ufeff")
        except UnicodeError as error:
            if not self._fitting and self._guesses < 10:  # guessing at every line of a large file would take days
                self._undecoded += data[:SAMPLE]
                self._fitting, self._guesses = encoding_that_fits(self._undecoded), self._guesses + 1
            fits = self._fitting and self._fitting != self.encoding
            hint = f"`input.encoding={self._fitting}` would fit" if fits else _STATE_IT
            where = str(error)
            if isinstance(error, UnicodeDecodeError):
                line = data.count(b"\n", 0, error.start) + 1
                where = f"byte {error.start}" + (f", line {line}" if line > 1 else "")
            self.problem(position, f"not {self.stated} ({where} of it); {hint}")
            return None
