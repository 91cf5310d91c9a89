"""`reread split`: a labelled file divided into files to train on, to choose by and to test on."""

from pathlib import Path

from reread.preprocessing.errors import UserError
from reread.preprocessing.labelled.divide import PARTS, By, divide

_SHOWN = 10
"""Labels that a line shows."""


def split(file: Path, shares: str, by: By, folder: Path | None) -> None:
    """Divide `file` and print a line for each file written."""
    written = divide(file, _numbers(shares), by, folder)
    total = sum(count.total() for count in written.values())
    for name, count in written.items():
        labels = ", ".join(f"{label} {number:,}" for label, number in sorted(count.items())[:_SHOWN] if label)
        more = ", ..." if len(count) > _SHOWN else ""
        share = f"{count.total():,} records, {count.total() / total:.1%}"
        print(f"{name}: {share}{f' ({labels}{more})' if labels else ''}")


def _numbers(shares: str) -> list[float]:
    """Raises `UserError` unless `shares` is two or three numbers above 0, such as 80/10/10."""
    try:
        numbers = [float(share) for share in shares.split("/")]
    except ValueError:
        numbers = []
    if len(numbers) not in (2, len(PARTS)) or not all(0 < number < float("inf") for number in numbers):
        raise UserError(
            f"`{shares}` is not two or three shares above 0; write {' / '.join(PARTS)} as 80/10/10 or 90/10"
        )
    return numbers
