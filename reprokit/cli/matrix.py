"""`reprokit matrix`: the cells as the matrix of a workflow."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from reprokit.cli import options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reprokit.model.config import Cell, Config


@click.command("matrix")
@options.config
@click.option(
    "--include", multiple=True, metavar="GLOB", help="Only cells whose name is like this; may be repeated."
)
@click.option(
    "--exclude", multiple=True, metavar="GLOB", help="No cell whose name is like this; may be repeated."
)
def matrix_command(config: Path, include: tuple[str, ...], exclude: tuple[str, ...]) -> None:
    """Print the cells as JSON for the matrix of a workflow.

    One entry for each cell, with cell, runs-on, device, engine, level and, where there is one, image; cells with a
    `matrix` of their own are taken apart. At most 256, which is GitHub's limit.

    \b
    jobs:
      plan:
        runs-on: ubuntu-24.04
        outputs:
          matrix: ${{ steps.cells.outputs.matrix }}
        steps:
          - id: cells
            run: |
              matrix=$(reprokit matrix)
              echo "matrix=$matrix" >> "$GITHUB_OUTPUT"
      gate:
        needs: plan
        strategy:
          fail-fast: false
          matrix: ${{ fromJSON(needs.plan.outputs.matrix) }}
        runs-on: ${{ matrix.runs-on }}
        steps:
          - uses: reprokit/reprokit@…
            with:
              cell: ${{ matrix.cell }}
    """
    import json

    from reprokit.images.recipes import builtin
    from reprokit.model import matrix

    read = matrix.read_config(config, builtin())
    cells = _chosen(matrix.expanded(read), include, exclude)
    entries = [_entry(cell, read) for cell in cells]
    click.echo(json.dumps({"include": entries}, separators=(",", ":")))


def _chosen(cells: Sequence[Cell], include: Sequence[str], exclude: Sequence[str]) -> list[Cell]:
    """The cells that are asked for.

    Raises:
        InvalidInput: a pattern is like no cell's name, or no cell is left: a gate over nothing would always pass.
    """
    from fnmatch import fnmatchcase

    from reprokit.errors import InvalidInput
    from reprokit.model.matrix import listed

    names = [cell.name for cell in cells]
    for pattern in (*include, *exclude):
        if not any(fnmatchcase(name, pattern) for name in names):
            raise InvalidInput(f"no cell is like {pattern!a}: the cells are {listed(names)}")
    chosen = [
        cell
        for cell in cells
        if (not include or any(fnmatchcase(cell.name, pattern) for pattern in include))
        and not any(fnmatchcase(cell.name, pattern) for pattern in exclude)
    ]
    if not chosen:
        raise InvalidInput("no cell is left, and a gate over no cell would always pass")
    return chosen


def _entry(cell: Cell, config: Config) -> dict[str, Any]:
    """What a job needs to know of its cell before it runs."""
    entry = {
        "cell": cell.name,
        "runs-on": cell.runs_on,
        "device": cell.device,
        "engine": cell.engine or ("docker" if cell.image else "local"),
        "level": cell.level,
    }
    if cell.image:
        entry["image"] = cell.image
        if cell.engine == "local":  # for the job's own `container:`
            entry["container"] = config.images[cell.image].pull or ""
    return entry
