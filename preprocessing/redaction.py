"""Finds secrets in addresses and commands: passwords, tokens and signatures that are not written as `${NAME}`."""

import re
from collections.abc import Iterator

VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
"""An environment variable in an address."""

_USER = re.compile(r"""(?<![A-Za-z0-9+.-])(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<value>[^/?#\s'"]+)@""")
_LOGIN = re.compile(
    r"""(?:(?<![^\s/'"`=(])(?P<value>[^\s/@:'"`]+:(?!/)[^\s/@'"]*)|(?<=://)(?P<odd>[^\s/@:'"]{1,256}:(?!\d+/)[^\s@'"]{0,256}))@
    |(?:-u|--user)[=\s]\s*['"]?(?P<option>[^\s:'"]+:[^\s'"]+)""",
    re.VERBOSE,
)
"""A user and a password if the scheme is mistyped or the password contains a slash; and curl's option `--user`."""
_PARAMETER = re.compile(
    r"""[?&;#](?P<name>[\w.-]{0,64}(?:signature|token|secret|passw|credential|jwt|(?:api|access)[-_]?key)[\w.-]{0,64}
    |x-(?:amz|goog|oss|cos|obs)-[\w.-]+|sig|sign|key|auth|pwd|code|session)=(?P<value>[^&;#\s'"`]+?)(?=[:,.)]*(?:[&;#\s'"`]|$))""",
    re.IGNORECASE | re.VERBOSE,
)
_LONG = re.compile(r"""[?&;#](?P<name>(?:[\w.-]+=)?)(?P<value>(?=[^&;#]*\d)(?=[^&;#]*[A-Za-z])[\w%+/=.~-]{24,})""")
"""A long value of letters and digits, whatever its name: such a value was generated and not chosen by a person."""
_OPTION = re.compile(
    r"""(?P<name>--[\w-]{0,64}(?:password|token|secret|key)[=\s]|authorization:(?:\s*(?:basic|bearer|token)\s)?|
    \b\w{0,64}(?:TOKEN|SECRET|PASSWORD|PASSWD|API_?KEY|ACCESS_KEY)\w{0,64}=)\s*(?!basic\s|bearer\s|token\s)['"]?
    (?P<value>[^\s'"]+)""",
    re.VERBOSE | re.IGNORECASE,
)
"""A secret in the command of a `pipe:` address."""
_OF_A_STORE = ("abfs", "abfss")
"""Schemes whose addresses begin with CONTAINER@ACCOUNT, which is no user and host."""


def find_secret(address: str) -> str | None:
    """The kind of the first secret in an address or path, such as `a password`; None if there is none."""
    return next((what for _, _, what in _secrets(address)), None)


def redacted(text: str) -> str:
    """`text` with `...` in place of the secrets in its addresses and commands."""
    for start, stop, _ in sorted(_secrets(text), reverse=True):
        text = f"{text[:start]}...{text[stop:]}"
    return text


def _secrets(text: str) -> Iterator[tuple[int, int, str]]:
    """(start, stop, kind) of each secret in the text; they do not overlap."""
    stop = 0
    for found in sorted(_candidates(text), key=lambda one: (one[0], -one[1])):
        if found[1] > stop:
            yield max(found[0], stop), found[1], found[2]
            stop = found[1]


def _candidates(text: str) -> Iterator[tuple[int, int, str]]:
    for match in _USER.finditer(text):
        name, colon, password = match["value"].partition(":")
        if colon and not _is_given(password, text):
            yield *match.span("value"), "a password"
        elif not colon and match["scheme"] not in _OF_A_STORE and not _is_given(name, text):
            yield *match.span("value"), "a user's name or a token"
    for match in _LOGIN.finditer(text):
        group = match.lastgroup or ""
        if not _is_given(match[group].partition(":")[2], text):
            yield *match.span(group), "a password"
    for pattern in (_PARAMETER, _LONG):
        for match in pattern.finditer(text):
            if not _is_given(match["value"], text):
                yield *match.span("value"), f"a signature or a token (`{match['name'].rstrip('=')}`)"
    if "pipe:" in text:
        for match in _OPTION.finditer(text):
            if not _is_given(match["value"], text):
                yield *match.span("value"), f"a password or a token (`{match['name'].strip()}`)"


def _is_given(value: str, text: str) -> bool:
    """Whether a value is an environment variable; in a command also `$NAME` or the output of another command."""
    return bool(VARIABLE.fullmatch(value)) or ("pipe:" in text and value.startswith(("$", "`")))
