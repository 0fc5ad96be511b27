"""One run of the probe side, whatever runs it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from reprokit import launch


@dataclass(frozen=True)
class Job:
    """What to run, and with what.

    Attributes:
        arguments: those of `python -m reprokit.probe`.
        variables: environment variables of the probe.
        prefix: words before the interpreter, such as `srun`.
        python: the interpreter, which has torch and NumPy.
        timeout: seconds after which it is ended.
        told: what the probe side cannot know of itself: `image`, `commit`, `dirty`.
    """

    arguments: list[str]
    variables: dict[str, str]
    prefix: list[str]
    python: str
    timeout: float
    told: dict[str, Any] = field(default_factory=dict)

    def command(self, side: str, output: str | None = None) -> list[str]:
        """The whole command line; `side` is the folder of the staged probe side, `output` where the document goes."""
        arguments = [*self.arguments, "--told", json.dumps(self.told)]
        arguments += ["--output", output] if output else []
        return [*self.prefix, *launch.command("reprokit.probe", *arguments, python=self.python, side=side)]
