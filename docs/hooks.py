"""What mkdocs does beyond mkdocs.yml: pages from outside docs/, links between files, the reference of the library.

Links in the Markdown files are those of the repository, so that they work wherever it is browsed.
"""

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
OUTSIDE = {
    "README.md": "index.md",
    "slurm/README.md": "cluster.md",
    "benchmarks/README.md": "benchmarks.md",
    "benchmarks/peers/README.md": "peers.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}
"""File outside docs/ -> its page."""
LINK = r"\[([^\]]*)\]\(([^)\s]+)\)"
REFERENCE = (
    "reread.preprocess",
    "reread.open_corpus",
    "reread.dataset",
    "reread.train",
    "reread.finetune",
    "reread.load",
    "reread.pipeline.library.runs.Run",
    "reread.pipeline.library.reader.Reader",
    "reread.pipeline.library.batches.Batches",
)
"""What docs/api.md describes, from the docstrings."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for source, page in OUTSIDE.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / source)))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    sources = {name: source for source, name in OUTSIDE.items()}
    folder = posixpath.dirname(sources.get(page.file.src_uri, f"docs/{page.file.src_uri}"))
    markdown = re.sub(LINK, lambda link: site_link(link, folder), markdown)
    markdown = re.sub(r'(?<= src=")(?!http)[^"]+', lambda image: _page(image[0], folder) or image[0], markdown)
    if page.file.src_uri == "api.md":
        markdown += "\n## Reference\n\n" + "\n\n".join(f"::: {name}" for name in REFERENCE) + "\n"
    return markdown


def on_page_content(html: str, **_: object) -> str:
    """Long names in tables may be broken after a slash or an underscore."""
    return re.sub(r"(?<=<code>)[^<\s]{24,}(?=</code>)", lambda name: re.sub("([/_])", r"\1<wbr>", name[0]), html)


def site_link(link: re.Match[str], folder: str) -> str:
    """A link of the repository as one of the site; of a file that is no page, only the text."""
    text, target = link.groups()
    path, mark, heading = target.partition("#")
    if not path or "://" in path or path.startswith("mailto:"):
        return link[0]
    if page := _page(path, folder):
        return f"[{text}]({page}{mark}{heading})"
    return text if (ROOT / folder / path).exists() else link[0]


def _page(path: str, folder: str) -> str | None:
    """The page of a file that `path` names from `folder` of the repository; None if it has none."""
    file = posixpath.normpath(posixpath.join(folder, path))
    return file.removeprefix("docs/") if file.startswith("docs/") else OUTSIDE.get(file)
