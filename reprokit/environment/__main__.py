"""Print this interpreter's environment as JSON: `python -m reprokit.environment [--detail full]`."""

from __future__ import annotations

import argparse
import contextlib
from datetime import datetime, timezone
from typing import Any, NoReturn

from reprokit import launch
from reprokit.environment import DETAILS, collect, exercise, onednn, other_variables
from reprokit.model import canonical


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the exercise, collect, print and end the process."""
    parser = argparse.ArgumentParser(prog="python -m reprokit.environment", description=__doc__)
    parser.add_argument(
        "--detail", choices=DETAILS, default="private", help="full also shows what names the machine"
    )
    detail = parser.parse_args(arguments).detail
    started = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")

    launch.end_with_parent()
    output = launch.claim_output()
    launch.hand_over(output, canonical.encode(report(detail, started)))


def report(detail: str, started: str) -> dict[str, Any]:
    """The document `EnvironmentReport`, sealed with its digest."""
    # Before the first operator, because oneDNN tells its instruction set only once. What fails here is asked
    # again, and recorded, by the collector.
    with contextlib.suppress(Exception):
        onednn.effective()
    exercise.run()
    return canonical.sealed(
        {
            "document": "environment",
            "schema_version": 1,
            **collect(detail),
            "run": {"detail": detail, "other_variables": other_variables(detail), "started": started},
        }
    )


if __name__ == "__main__":
    main()
