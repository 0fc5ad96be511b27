"""`reprokit image`: the pinned images, built, listed and removed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from reprokit.cli import options

if TYPE_CHECKING:
    from docker import DockerClient

    from reprokit.images.recipes import Recipe, Source


@click.group("image")
def image_group() -> None:
    """The pinned images that probes run in: bases by digest, every wheel by hash.

    \b
    reprokit image list                what there is, and what is on this machine
    reprokit image build cuda-12.8     `reprokit ci` does it by itself
    reprokit image prune               remove what no configuration here asks for any more
    """


@image_group.command("build")
@click.argument("name")
@options.config
@click.option(
    "--wheels",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    metavar="FOLDER",
    help="Take the wheels from there and ask no index; their hashes are checked all the same.",
)
def build_command(name: str, config: Path, wheels: Path | None) -> None:
    """Have the image NAME on this machine, and print its id.

    What is there already is not built again: an image is known by its Dockerfile, its base's digest and its
    requirements' hashes. REPROKIT_PIP_CONFIG names a pip configuration for another index, REPROKIT_REGISTRY_MIRROR a
    mirror of Docker Hub.

    \b
    Example:
      reprokit image build cuda-12.8
      pip download -r docker/cpu.lock --require-hashes -d wheels && reprokit image build cpu --wheels wheels
    """
    from reprokit.cli.progress import shown
    from reprokit.engines import docker
    from reprokit.images.prepare import prepare
    from reprokit.images.recipes import find

    source = find(_sources(config), name)
    with docker.connected() as client, shown("image", everything=True) as say:
        prepared = prepare(client, source, say, wheels)
    click.echo(prepared.id)


@image_group.command("list")
@options.config
def list_command(config: Path) -> None:
    """Show every image: what it is made of, the driver that it needs, and whether it is on this machine."""
    from reprokit.engines import docker
    from reprokit.errors import ProbeFailed
    from reprokit.report.table import table

    sources = _sources(config).values()
    try:
        with docker.connected() as client:
            rows = [_row(source, client) for source in sources]
    except ProbeFailed as error:
        click.echo(f"warning: {error}", err=True)
        rows = [_row(source, None) for source in sources]
    click.echo("\n".join(table(("image", "base", "python", "torch", "numpy", "driver", "here"), rows)))


@image_group.command("prune")
@options.config
@click.option("--all", "everything", is_flag=True, help="Also those that are up to date.")
@click.option("--dry-run", is_flag=True, help="Only say what would be removed.")
def prune_command(config: Path, everything: bool, dry_run: bool) -> None:
    """Remove images that reprokit built and no configuration here asks for any more.

    Never one that it did not build, and none that a container uses. Those of other repositories on this machine are
    asked for by nobody here.
    """
    from docker.errors import APIError

    from reprokit.engines import docker
    from reprokit.errors import InvalidInput
    from reprokit.images.prepare import RECIPE, sweep
    from reprokit.images.recipes import OWN_NAMES, recipe

    if not (everything or config.exists()):
        raise InvalidInput(
            f"{config}: no such file, so that nobody knows which images are asked for: name it with --config, or "
            "remove every image of reprokit with --all"
        )
    sources = _sources(config)
    current = {recipe(source).digest for source in sources.values() if source.image.base}
    freed = 0
    with docker.connected() as client:
        if not dry_run:
            sweep(client)
        for image in client.images.list(filters={"label": RECIPE}):
            # what others built upon one of ours inherits the label, and has a name of theirs or none
            ours = [tag for tag in image.tags if tag.startswith(OWN_NAMES)]
            if not ours or (image.labels[RECIPE] in current and not everything):
                continue
            name = ", ".join(ours)
            size = int(image.attrs["Size"])
            if not dry_run:
                try:
                    for tag in ours:
                        client.images.remove(tag)
                except APIError as error:
                    click.echo(f"{name} stays: {error.explanation}", err=True)
                    continue
            freed += size
            click.echo(f"{'would remove' if dry_run else 'removed'} {name} ({_size(size)})")
    click.echo(
        f"{'would free' if dry_run else 'freed'} up to {_size(freed)}" if freed else "nothing to remove"
    )


def _sources(config: Path) -> dict[str, Source]:
    """Every image that is known here: without a configuration, unless one was named, those of reprokit."""
    from click.core import ParameterSource

    from reprokit.images.recipes import available, builtin
    from reprokit.model import matrix

    named = click.get_current_context().get_parameter_source("config") is not ParameterSource.DEFAULT
    read = matrix.read_config(config, builtin()) if named or config.exists() else None
    return available(read, config.parent)


def _row(source: Source, client: DockerClient | None) -> tuple[str, ...]:
    from reprokit.images.recipes import recipe, versions

    image = source.image
    if image.pull is not None:
        return (
            source.name,
            image.pull.partition("@")[0],
            "",
            "",
            "",
            image.driver or "",
            _pulled(source, client),
        )
    made = recipe(source)
    packages = versions(made.requirements)
    here = _built(made, client) if client else "?"
    return (
        source.name,
        made.base.partition("@")[0],
        made.python,
        packages.get("torch", "–"),
        packages.get("numpy", "–"),
        image.driver or "–",
        here,
    )


def _built(made: Recipe, client: DockerClient) -> str:
    from reprokit.images.prepare import built

    found = built(client, made)
    return _size(int(client.images.get(found).attrs["Size"])) if found else "not built"


def _pulled(source: Source, client: DockerClient | None) -> str:
    from docker.errors import ImageNotFound

    from reprokit.images.registry import by_digest

    assert source.image.pull is not None
    if client is None:
        return "?"
    try:
        return _size(int(client.images.get(by_digest(source.image.pull)).attrs["Size"]))
    except ImageNotFound:
        return "not pulled"


def _size(count: int) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"
