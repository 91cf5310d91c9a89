"""Settings that are typed as options, as other tools take theirs: `--lr 1e-4`."""

from collections.abc import Callable
from inspect import Parameter, Signature, signature
from typing import Annotated, Any

import typer

from reread.pipeline.recipe.sections import key_of
from reread.preprocessing.errors import UserError, close_to
from reread.preprocessing.settings import NEAR, Settings
from reread.preprocessing.synonyms import answer, meaning_of

WITH_SETTINGS = {"ignore_unknown_options": True}
"""Of a command that takes KEY=VALUE: what looks like an option and is none reaches `no_option`."""


def no_option(context: typer.Context, given: Any) -> Any:
    """Raises `UserError` for an argument that is written like an option, as other tools take their settings."""
    for one in given if isinstance(given, list) else [given]:
        if isinstance(one, str) and one.startswith("-"):
            raise UserError(f"`{one}`: {_as_setting(one, context)}")
    return given


def with_keys_of(section: type[Settings]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """For a command whose last parameter is `**options`: an option for each key of a section, with its sentence.

    What is given arrives as text, for the section to check; None: not given.
    """
    keys = [key_of(section, name, field) for name, field in section.model_fields.items()]
    options = [
        Parameter(
            key.name,
            Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[str | None, typer.Option(metavar=key.name.upper(), help=key.sentence.rstrip("."))],
        )
        for key in keys
    ]

    def taking(command: Callable[..., None]) -> Callable[..., None]:
        *own, _ = signature(command).parameters.values()
        parameters = [*own, *options]
        command.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {one.name: one.annotation for one in parameters}
        return command

    return taking


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
