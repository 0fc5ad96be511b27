"""`reprokit validate`: is this file a document that the gate would trust?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Iterator

    from reprokit.errors import InvalidInput
    from reprokit.model.yaml_reading import Text


@click.command("validate")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FILE...")
def validate_command(files: tuple[Path, ...]) -> None:
    """Check documents against their schemas, their digests against their content, and their content against itself.

    Says for each file what is wrong: JSON pointer, what was expected, what stood there. The type of a JSON
    document is its key `document`; a file ending in .yml or .yaml is read as a configuration.

    \b
    reprokit validate fingerprint.json .reprokit/baselines/*.json

    Exit code 2 when any file is not valid.
    """
    invalid = sum(not _validate(path) for path in files)
    if invalid and len(files) > 1:
        click.echo(f"reprokit: {invalid} of {len(files)} files not valid", err=True)
    if invalid:
        click.get_current_context().exit(2)


def _validate(path: Path) -> bool:
    from reprokit.errors import InvalidInput, one_line
    from reprokit.github.runtime import harmless_line

    try:
        document, problems = _checked(path)
    except InvalidInput as error:
        document, problems = "", [str(error)]
    for problem in problems:
        click.echo(harmless_line(one_line(problem)), err=True)
    if not problems:
        click.echo(harmless_line(one_line(f"{path}: a valid {document}")))
    return not problems


def _checked(path: Path) -> tuple[str, list[str]]:
    """The type of a document and what is wrong with it.

    Raises:
        InvalidInput: it cannot be read, or says of itself that it is none.
    """
    from reprokit.model import reading

    if path.suffix in (".yml", ".yaml"):
        from reprokit.images.recipes import builtin
        from reprokit.model import matrix
        from reprokit.model.yaml_reading import Text

        text = Text(path)
        found = [text.error(*problem) for problem in matrix.problems(text, builtin())]
        return "config", [str(error) for error in found or _missing_files(text)]
    document, raw = reading.load_any(path)
    wrong = list(reading.explain(raw, document)) or list(_contradictions(document, raw, path))
    return document, [f"{path}: {problem}" for problem in wrong]


def _missing_files(text: Text) -> Iterator[InvalidInput]:
    """What a valid configuration names and is not there."""
    folder = Path(text.path).parent
    for name, image in text.data.get("images", {}).items():
        for key in ("requirements", "wheels"):
            if key in image and not (folder / image[key]).exists():
                yield text.error(("images", name, key), f"{folder / image[key]}: no such file or folder")


def _contradictions(document: str, raw: Any, path: Path) -> Iterator[str]:
    """What a schema cannot say of a document that keeps it.

    Raises:
        InvalidInput: its digest is not that of its content.
    """
    from reprokit.model import baseline, fingerprint, reading
    from reprokit.model.schema import DOCUMENTS

    decoded: Any = reading.decode(raw, DOCUMENTS[document], str(path))
    if document == "fingerprint":
        yield from fingerprint.contradictions(decoded)
    if document == "baseline":
        yield from baseline.contradictions(decoded)
