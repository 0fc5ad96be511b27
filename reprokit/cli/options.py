"""Options that several commands have."""

from __future__ import annotations

from pathlib import Path

import click

config = click.option(
    "--config",
    type=click.Path(path_type=Path),
    default="reprokit.yml",
    show_default=True,
    metavar="FILE",
    help="The configuration; `reprokit validate FILE` checks it.",
)
