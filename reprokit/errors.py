"""The errors a user can meet, each with the exit code of its kind.

A message is one line: what was wrong, where, what to do. Exit code 1 is no error: it is the verdict `drifted`.
"""


class ReprokitError(Exception):
    """Base of every error that is reported to the user in one line."""

    exit_code = 2


class InvalidInput(ReprokitError):
    """Wrong usage, or a document that cannot be trusted."""

    exit_code = 2


class ProbeFailed(ReprokitError):
    """The probe, its interpreter or its container failed: nothing was measured."""

    exit_code = 3


class ServiceFailed(ReprokitError):
    """A service that is needed, such as a registry, failed or knows nothing of what was asked."""

    exit_code = 4


def one_line(message: str) -> str:
    """`message` on one line, with nothing in it that a terminal would obey."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in message)
