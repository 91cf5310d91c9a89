"""Finds secrets in addresses and commands: passwords, tokens and signatures that are not written as `${NAME}`."""

import re
from collections.abc import Iterator
from urllib.parse import unquote

VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
"""An environment variable in an address."""

_USER = re.compile(r"""(?<![A-Za-z0-9+.-])(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<value>[^/?#\s'"]+)@""")
_LOGIN = re.compile(
    r"""(?:(?<![^\s/'"`=(])(?P<value>[^\s/@:'"`]+:(?!/)[^\s/@'"]*)|(?<=://)(?P<odd>[^\s/@:'"]{1,256}:(?!\d+/)[^\s@'"]{0,256}))@
    |(?:-u|--user)[=\s]\s*['"]?(?P<option>[^\s:'"]+:[^\s'"]+)
    |\bcurl\s[^|;&]{0,1000}?(?<=\s)-[A-Za-z]{0,16}u['"]?(?P<joined>[^\s:'"]+:[^\s'"]+)
    |\bcurl\s[^|;&]{0,1000}?(?<=\s)-[A-Za-z]{1,16}u\s+['"]?(?P<several>[^\s:'"]+:[^\s'"]+)""",
    re.VERBOSE,
)
"""A user and a password if the scheme is mistyped or the password contains a slash; and curl's option `--user`, also
behind other letters (`-sSu me:password`) and without a blank (`-ume:password`)."""
_PARAMETER = re.compile(
    r"""[?&;#](?P<name>[\w.-]{0,64}(?:signature|token|secret|passw|credential|jwt|(?:api|access|auth)[-_]?key)[\w.-]{0,64}
    |x-(?:amz|goog|oss|cos|obs)-[\w.-]+|sig|sign|key|auth|pwd|pass|sas|hmac|code|session)=(?P<value>[^&;#\s'"`]+?)(?=[:,.)]*(?:[&;#\s'"`]|$))""",
    re.IGNORECASE | re.VERBOSE,
)
_ESCAPED = re.compile(r"""[?&;#](?P<name>[\w.%-]{0,64}%[0-9A-Fa-f]{2}[\w.%-]{0,64})=(?P<value>[^&;#\s'"`]+)""")
"""A parameter with escapes in its name, which a server reads as the letters."""
_LONG = re.compile(r"""[?&;#](?P<name>(?:[\w.-]+=)?)(?P<value>(?=[^&;#]*\d)(?=[^&;#]*[A-Za-z])[\w%+/=.~-]{24,})""")
"""A long value of letters and digits, whatever its name: such a value was generated and not chosen by a person."""
_OPTION = re.compile(
    r"""(?P<name>--[\w-]{0,64}(?:password|token|secret|key|bearer)[=\s]|authorization:(?:\s*(?:basic|bearer|token)\s)?|
    \b[\w-]{0,64}(?:token|api-?key|secret|password|cookie)[\w-]{0,64}:\s|\bsshpass\s+-p|
    (?<=\s)(?:-b|--cookie)[=\s]*(?=['"]?[^\s'"=]+=)|
    \b\w{0,64}(?:TOKEN|SECRET|PASSWORD|PASSWD|API_?KEY|ACCESS_KEY)\w{0,64}=)\s*(?!basic\s|bearer\s|token\s)['"]?
    (?P<value>[^\s'"]+)""",
    re.VERBOSE | re.IGNORECASE,
)
"""A secret in the command of a `pipe:` address."""
_OF_A_STORE = ("abfs", "abfss")
"""Schemes whose addresses begin with CONTAINER@ACCOUNT, which is no user and host."""
_OF_A_REPOSITORY = re.compile(r"github://[\w.-]+:[\w.-]+@")
"""ORGANISATION:REPOSITORY, which is no user and password."""
_VERSIONS = ("versionid=", "version_id=")
"""Names of long values that only say which version of a file is meant."""


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
    repositories = [match.span() for match in _OF_A_REPOSITORY.finditer(text)]
    for start, stop, kind in _suspects(text):
        if not any(begin <= start and stop <= end for begin, end in repositories):
            yield start, stop, kind


def _suspects(text: str) -> Iterator[tuple[int, int, str]]:
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
    yield from _parameters(text)
    if "pipe:" in text or "export " in text:
        for match in _OPTION.finditer(text):
            if not _is_given(match["value"], text):
                yield *match.span("value"), f"a password or a token (`{match['name'].strip()}`)"


def _parameters(text: str) -> Iterator[tuple[int, int, str]]:
    for match in _ESCAPED.finditer(text):
        if _PARAMETER.match(f"?{unquote(match['name'])}=x") and not _is_given(match["value"], text):
            yield *match.span("value"), f"a signature or a token (`{match['name']}`)"
    for pattern in (_PARAMETER, _LONG):
        for match in pattern.finditer(text):
            if not _is_given(match["value"], text) and match["name"].lower() not in _VERSIONS:
                yield *match.span("value"), f"a signature or a token (`{match['name'].rstrip('=')}`)"


def _is_given(value: str, text: str) -> bool:
    """Whether a value is an environment variable, in a command also `$NAME` or the output of another command; or what
    `redacted` put in the place of a secret."""
    is_command = "pipe:" in text or "export " in text
    return (
        (bool(value) and not value.strip("."))
        or bool(VARIABLE.fullmatch(value))
        or (is_command and value.startswith(("$", "`")))
    )
