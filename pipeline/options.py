"""Settings that are typed as options, as other tools take theirs: `--lr 1e-4`."""

from typing import Any

import typer

from reread.preprocessing.errors import UserError, close_to
from reread.preprocessing.settings import NEAR
from reread.preprocessing.synonyms import answer, meaning_of

WITH_SETTINGS = {"ignore_unknown_options": True}
"""Of a command that takes KEY=VALUE: what looks like an option and is none reaches `no_option`."""


def no_option(context: typer.Context, given: Any) -> Any:
    """Raises `UserError` for an argument that is written like an option, as other tools take their settings."""
    for one in given if isinstance(given, list) else [given]:
        if isinstance(one, str) and one.startswith("-"):
            raise UserError(f"`{one}`: {_as_setting(one, context)}")
    return given


def _as_setting(text: str, context: typer.Context) -> str:
    """The way out for a text that begins with a dash and is no option of the command."""
    options = {name.lstrip("-"): name for parameter in context.command.params for name in parameter.opts}
    written = text.lstrip("-").partition("=")[0]
    near = [options[name] for name in close_to(written, options, NEAR) if options[name].startswith("-")]
    if near:
        return f"no such option; did you mean `{near[0]}`?"
    key = written.replace("-", "_")
    meaning = meaning_of(key)
    way_out = f"; {answer(meaning)}" if meaning else f": {key}=VALUE"
    return f"no such option; a setting is written KEY=VALUE, without dashes{way_out}"
