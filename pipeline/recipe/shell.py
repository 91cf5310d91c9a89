"""The shell commands in a recipe: those of `pipe:` addresses, and the lines that jobs of Slurm run first."""

import logging

from reread.pipeline.recipe.phases import phases_of
from reread.pipeline.recipe.schema import Recipe
from reread.preprocessing.errors import UserError
from reread.training.data.settings import DataSettings

log = logging.getLogger("reread")


def refuse_commands(data: DataSettings) -> None:
    """Raises `UserError` if opening the data would run a command of the recipe."""
    if data.commands:
        raise UserError(
            f"{data.commands[0]}: opening it runs a command on this machine, which may be anything in a recipe of "
            "somebody else; read it, and give --allow-pipe to run it"
        )


def commands_line(recipe: Recipe) -> str:
    """The line of the log about the commands that run when the corpus of a recipe is read, or when one of its jobs
    begins; empty if there are none."""
    read = [command for phase in phases_of(recipe) for command in phase.data.commands] if recipe.train else []
    commands = [*dict.fromkeys(read), *(recipe.slurm.setup if recipe.slurm else ())]
    if not commands:
        return ""
    return f"recipe {recipe.name}: a recipe can run commands on this machine; this one runs {', '.join(commands)}"


def log_commands(recipe: Recipe) -> None:
    if line := commands_line(recipe):
        log.warning("%s", line)
