"""Draw the README's pictures again, from the corpus and the run that `make quickstart` leaves in this folder."""

import os
import re
import shutil
import subprocess
import sys
from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.text import Text

HERE = Path(__file__).parent
COMMAND = "reread inspect corpora/quickstart --recipe quickstart --samples 3"
WIDTH = 104


def main() -> None:
    shutil.copy("runs/quickstart/loss.png", HERE / "loss.png")
    environment = os.environ | {"FORCE_COLOR": "1", "COLUMNS": str(WIDTH)}
    shown = subprocess.run(
        [sys.executable, "-m", "pipeline.cli", *COMMAND.split()[1:]],
        env=environment, check=True, capture_output=True, encoding="utf-8",
    ).stdout  # fmt: skip
    console = Console(record=True, width=WIDTH, file=StringIO())
    console.print(Text.from_ansi(shown))
    picture = console.export_svg(title=COMMAND, unique_id="inspect")
    # rich names a font on a server; a picture in a README may load nothing, so the reader's own font is used
    picture = re.sub(r"@font-face \{.*?\}\n", "", picture, flags=re.DOTALL)
    (HERE / "inspect.svg").write_text(
        "\n".join(line.rstrip() for line in picture.splitlines()) + "\n", encoding="utf-8"
    )


main()
