"""Extracts the text of a page by resiliparse; runs in a child process (`confined`), as 50 kB may take gigabytes."""

from collections.abc import Iterator

from reread.preprocessing.errors import first_line
from reread.preprocessing.input.confined import ConfinedError


def load() -> None:
    """Import resiliparse, for `confined`."""
    import resiliparse.extract.html2text  # noqa: F401


def extracted(page: str, main: bool) -> Iterator[str]:
    """Yields the text of a page, or only its main text; raises `ConfinedError` if the page cannot be parsed."""
    from resiliparse.extract.html2text import extract_plain_text

    try:
        text = extract_plain_text(page, main_content=main, alt_texts=False, links=False)
    except MemoryError:
        raise
    except Exception as error:  # the parser gives up, perhaps for lack of memory
        raise ConfinedError(f"cannot be parsed ({first_line(error)})") from None
    yield text.strip()
