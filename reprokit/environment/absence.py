"""Why a field is null: every reading is guarded here, and every failure leaves its reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from reprokit.environment.privacy import without_paths

T = TypeVar("T")
PRIVATE_BY_DEFAULT = "private by default: --detail full"
_LONGEST_REASON = 300


class Unavailable(Exception):
    """A reading that cannot succeed on this machine; the message is the reason, one private-safe sentence."""


class Absences:
    """The `absent` section while it is being collected."""

    def __init__(self) -> None:
        self._entries: dict[str, dict[str, str]] = {}

    def unavailable(self, field: str, reason: str) -> None:
        """Record that `field` could not be read."""
        self._add(field, "unavailable", reason)

    def not_asked(self, field: str, reason: str) -> None:
        """Record that `field` was left out on purpose."""
        self._add(field, "not_asked", reason)

    def read(self, field: str, reading: Callable[[], T]) -> T | None:
        """What `reading` returns; when it fails, null and an entry that says why."""
        try:
            return reading()
        except Exception as error:
            self.unavailable(field, reason_of(error))
            return None

    def entries(self) -> list[dict[str, str]]:
        """The section, sorted by field."""
        return [self._entries[field] for field in sorted(self._entries)]

    def _add(self, field: str, state: str, reason: str) -> None:
        self._entries[field] = {"field": field, "state": state, "reason": reason[:_LONGEST_REASON]}


def reason_of(error: Exception) -> str:
    """One sentence for an exception: deterministic, without paths or addresses."""
    if isinstance(error, Unavailable):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        return f"{type(error).__name__}: {error.strerror}"
    first_line = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {without_paths(first_line)}" if first_line else type(error).__name__
