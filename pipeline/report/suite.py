"""The table of a suite: its tasks' scores and their mean beside published ones."""

from pathlib import Path

from reread.pipeline.display.terminal import print_wide
from reread.pipeline.recipe.load import written_recipe
from reread.pipeline.recipe.schema import Recipe
from reread.pipeline.report.papers import PaperTable, as_text, published_table
from reread.preprocessing.errors import escaped
from reread.preprocessing.files import write_atomically
from reread.training.run.files import RunFile


def is_suite(folder: Path) -> bool:
    """Whether a folder is that of a suite, which has a recipe without a model of its own."""
    path = RunFile.RECIPE.of(folder)
    return path.exists() and not (recipe := written_recipe(path)).train and bool(recipe.then)


def report_suite(folder: Path) -> None:
    """Print the table of a suite and write it to RUN/table.md."""
    recipe = written_recipe(RunFile.RECIPE.of(folder))
    table = published_table(recipe, folder.parent)
    if table is None:
        return
    print_wide(as_text(table, f"{recipe.name} | published"))
    print("\n".join(table.notes))
    path = RunFile.TABLE.of(folder)
    write_atomically(path, as_markdown(recipe, table).encode())
    print(escaped(f"table: {path}"))


def as_markdown(recipe: Recipe, table: PaperTable) -> str:
    ruler = ["---", *["---:"] * len(table.columns)]
    rows = [["", *table.columns], ruler, *([name, *cells] for name, cells in table.rows)]
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    notes = [f"- {note}" for note in table.notes]
    return "\n".join([f"# {recipe.name}", "", *lines, "", *notes]) + "\n"
