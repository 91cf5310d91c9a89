"""The one exception a user sees as a single line."""


class UserError(Exception):
    """A mistake the user can mend: the message names the file, the field and the way out.

    `reread` prints it without a traceback and exits with status 2.
    """


class ToldElsewhereError(UserError):
    """The same end for a process whose neighbour prints the line."""
