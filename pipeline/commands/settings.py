"""The settings of a recipe as tables, from the typed models: `reread settings` and docs/settings.md."""

import logging

from rich import box
from rich.console import Console
from rich.table import Table

from reread.pipeline.recipe.sections import Section, all_sections, model_section
from reread.preprocessing.errors import UserError, close_to
from reread.preprocessing.settings import NEAR
from reread.preprocessing.synonyms import answer, meaning_of
from reread.training.models import MODELS

log = logging.getLogger("reread")

INTRODUCTION = """# Settings

Made by `reread settings --markdown > docs/settings.md` from the typed models; a test keeps it up to date. A key is
written in a recipe below its section, or as `section.key=value` on the command line; each command lets you leave out
its own section's name. `base: NAME` at the root of a recipe begins with the values of another. `scales` there
holds values by name, which the override `scale=NAME` puts over the recipe's own and over those of `then`. `task` is
another name for `train.data` of a recipe that fine-tunes. The keys of `train.model` are those of the model's
configuration: `reread settings model` ([models.md](models.md)). A path may begin with `~`, the home folder.

`reread show RECIPE --write my.yaml` writes a recipe whole, each key below its sentence, to be edited. What other tools
call `lr`, `batch_size` or `max_length` is answered with the key of this page, also by `reread settings lr`.
"""


def print_settings(wanted: str | None) -> None:
    """Print the sections, or the keys of the one `wanted`, a dotted name or the end of one; also of a single key.

    Raises `UserError` for a name that no section and no key has.
    """
    console = Console(markup=False, emoji=False)  # `[n:]` and `[CLS]` are text
    if wanted is None:
        table = Table("section", "what it sets", box=box.SIMPLE, title="reread settings SECTION lists its keys")
        for section in all_sections():
            table.add_row(section.title, section.sentence)
        console.print(table)
        return
    for section in _found(wanted):
        table = Table(box=box.SIMPLE, title=f"{section.title}: {section.sentence}", title_justify="left")
        for column in ("key", "type", "default", "meaning"):
            table.add_column(column, overflow="fold")
        for key in section.keys:
            table.add_row(key.name, key.type, key.default or "required", key.sentence)
        console.print(table)


def as_markdown() -> str:
    """The content of docs/settings.md."""
    parts = [INTRODUCTION]
    for section in all_sections():
        rows = [
            (f"`{key.name}`", key.type, f"`{key.default}`" if key.default else "required", key.sentence)
            for key in section.keys
        ]
        cells = [("key", "type", "default", "meaning"), ("---",) * 4, *rows]
        table = "\n".join(
            "| " + " | ".join(cell.replace("|", "\\|").replace("<", "&lt;") for cell in row) + " |" for row in cells
        )
        parts.append(f"## {section.title}\n\n{section.sentence}\n\n{table}\n")
    return "\n".join(parts)


def _found(wanted: str) -> list[Section]:
    if wanted in MODELS or wanted in ("model", "train.model"):
        return [model_section(name) for name in MODELS if wanted in (name, "model", "train.model")]
    sections = all_sections()
    found = [one for one in sections if wanted in (one.path, one.kind) or one.path.endswith(f".{wanted}")]
    if found:
        return found
    if not any(wanted == key.name for section in sections for key in section.keys) and (meaning := meaning_of(wanted)):
        log.info("%s: %s", wanted, answer(meaning))
        model = meaning.key.startswith("train.model.")
        return _found("train.model" if model else meaning.key.partition("=")[0])
    outer, _, last = wanted.rpartition(".")
    for section in sections:
        keys = [key for key in section.keys if key.name == last]
        if keys and (section.path == outer or section.path.endswith(f".{outer}") or not outer):
            found.append(section._replace(keys=keys))
    if found:
        return found
    known = [*MODELS, *(one.path for one in sections if one.path), *(key.name for one in sections for key in one.keys)]
    near = [f"did you mean `{one}`?" for one in close_to(wanted, dict.fromkeys(known), NEAR)[:1]]
    raise UserError(f"settings: {near[0] if near else '`reread settings` lists the sections'} (got {wanted})")
