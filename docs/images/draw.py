"""Draw the pictures of README and tutorial again, from the corpus and the run that `make quickstart` leaves here."""

import html
import os
import re
import subprocess
import sys
import tempfile
from io import StringIO
from pathlib import Path

from PIL import Image
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from reread.preprocessing.errors import UserError, one_line
from tests.browser import CHROMIUM, browser

HERE = Path(__file__).parent
COMMAND = "reread inspect corpora/quickstart --recipe quickstart --samples 3"
WIDTH = 104


@one_line()
def main() -> None:
    if not CHROMIUM:
        raise UserError("no Chromium to draw with; install it (Debian's package chromium)")
    picture_of(Path("runs/quickstart/report.html"), HERE / "report.png")
    environment = os.environ | {"FORCE_COLOR": "1", "COLUMNS": str(WIDTH)}
    shown = subprocess.run(
        [sys.executable, "-m", "reread", *COMMAND.split()[1:]],
        env=environment, check=True, capture_output=True, encoding="utf-8",
    ).stdout  # fmt: skip
    console = Console(record=True, width=WIDTH, file=StringIO())
    console.print(Text.from_ansi(shown))
    picture = _spaced(console.export_svg(title=COMMAND, unique_id="inspect"))
    # rich names a font on a server; a picture in a README may load nothing, so the reader's own font is used
    picture = re.sub(r"@font-face \{.*?\}\n", "", picture, flags=re.DOTALL)
    (HERE / "inspect.svg").write_text(
        "\n".join(line.rstrip() for line in picture.splitlines()) + "\n", encoding="utf-8"
    )


def _spaced(picture: str) -> str:
    """The picture with Chinese characters two columns wide; rich counts each as one where it states a text's length."""

    def spaced(found: re.Match[str]) -> str:
        text, length = html.unescape(found[3]), float(found[1])
        return f'textLength="{length * cell_len(text) / len(text):g}"{found[2]}>{found[3]}<'

    return re.sub(r'textLength="([\d.]+)"([^>]*)>([^<]+)<', spaced, picture)


def picture_of(report: Path, picture: Path) -> None:
    """The losses of a report as PNG of 256 colours, by Chromium."""
    with tempfile.TemporaryDirectory() as profile, browser(Path(profile)) as page:
        page.show(report, 1400)
        page.picture(picture, 1400, int(page.value("document.getElementById('training').offsetTop")))
    with Image.open(picture) as drawn:
        drawn.convert("RGB").quantize(256).save(picture, optimize=True)


main()
