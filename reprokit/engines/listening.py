"""What a probe side says while it works: its steps, and why it ended."""

from __future__ import annotations

import re
import signal
from collections import deque
from collections.abc import Callable

STEPS = (
    "invariant",
    "rng",
    "data",
    "weights",
    "quantize",
    "layers",
    "kernel",
    "batch",
    "sampling",
    "training",
    "collective",
    "metrics",
    "under load",
    "environment",
    "fresh process",
    "kernel names",
)
_PLAN = re.compile(r"(\d{1,3}) steps")  # the first line of a probe side: how many of them there will be
SAYS = "reprokit.probe: "  # how the probe side starts its own lines
_KEPT_LINES = 20


class Listener:
    """Passes the lines of a probe side on, steps as `probe [2/10] rng`, and remembers the last ones."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._steps, self._planned = 0, len(STEPS)
        self._lines: deque[str] = deque(maxlen=_KEPT_LINES)

    def hear(self, line: str) -> None:
        """Take one line."""
        line = line.rstrip()
        self._lines.append(line)
        if line.startswith(SAYS):
            said = line.removeprefix(SAYS)
            if plan := _PLAN.fullmatch(said):
                self._planned = max(int(plan[1]), 1)
                return
            if said in STEPS:
                self._steps = min(self._steps + 1, self._planned)
                line = f"probe [{self._steps}/{self._planned}] {said}"
        self._say(line)

    @property
    def text(self) -> str:
        """The last lines."""
        return "\n".join(self._lines)

    def failure(self, code: int) -> str:
        """Why the probe side ended with `code`: its own last word, else the signal, else the last line of its log."""
        said = [line.removeprefix(SAYS) for line in self._lines if line.startswith(SAYS)]
        words = [word for word in said if word not in STEPS and not _PLAN.fullmatch(word)]
        if words:
            return words[-1]
        number = -code if code < 0 else code - 128  # a shell or a container adds 128 to a signal's number
        if number in set(signal.Signals):
            during = said[-1] if said else "its start"
            return f"the probe was ended by {signal.Signals(number).name} during {during}"
        last = self._lines[-1] if self._lines else "it said nothing"
        return f"the probe ended with exit code {code}: {last}"
