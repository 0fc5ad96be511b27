"""The command line. Each command lives in a module of its own, imported when it is used and not before."""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import signal
import sys
from types import FrameType
from typing import NoReturn

import click

import reprokit
from reprokit.errors import ReprokitError, one_line

COMMANDS = {
    "env": "reprokit.cli.env:env_command",
    "probe": "reprokit.cli.probe:probe_command",
    "compare": "reprokit.cli.compare:compare_command",
    "baseline": "reprokit.cli.baseline:baseline_group",
    "ci": "reprokit.cli.ci:ci_command",
    "matrix": "reprokit.cli.matrix:matrix_command",
    "image": "reprokit.cli.image:image_group",
    "validate": "reprokit.cli.validate:validate_command",
}
INTERRUPTED = 130


class LazyGroup(click.Group):
    """A group whose commands are imported by name."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The commands in the order in which a user needs them."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command; None when there is none of that name."""
        if cmd_name not in COMMANDS:
            return None
        module, _, function = COMMANDS[cmd_name].partition(":")
        command: click.Command = getattr(importlib.import_module(module), function)
        return command


@click.group(
    cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(reprokit.__version__, prog_name="reprokit")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def cli(debug: bool) -> None:
    """A determinism gate for machine learning: measure a machine, compare it with what was approved, say why.

    \b
    reprokit probe -o now.json                         measure this machine
    reprokit baseline approve now.json --cell cpu      approve what it gives
    reprokit compare .reprokit/baselines/cpu.json now.json

    Exit codes: 0 holds, 1 leaves tolerance, 2 usage or invalid input, 3 the engine, image or probe failed,
    4 a registry failed, 5 no baseline for this class of hardware.
    """


def main() -> NoReturn:
    """Run the command line and exit; errors are one line on standard error."""
    debug = "--debug" in sys.argv[1:2]
    gc.disable()  # a command lives for a moment; collecting cycles is a tenth of it
    try:
        _settle_streams()
        signal.signal(signal.SIGTERM, _terminated)
        code = cli.main(standalone_mode=False)
        sys.stdout.flush()
    except ReprokitError as error:
        code = _report(str(error), error.exit_code, debug)
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except (click.Abort, KeyboardInterrupt):
        code = _report("interrupted", INTERRUPTED, debug)
    except (
        BrokenPipeError,
        SystemExit,
    ):  # click meets a closed pipe by exiting with 1, which is a verdict here
        code = _give_up_output()
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        code = _report(f"{where}{error.strerror or error}", ReprokitError.exit_code, debug)
    except Exception as error:  # exit code 1 is a verdict, and no fault of this program may look like one
        what = f"{type(error).__name__}: {error}"
        code = _report(
            f"this is a fault of reprokit, please report it (--debug shows where): {what}", 2, debug
        )
    sys.exit(code if isinstance(code, int) else 0)


def _settle_streams() -> None:
    """Make both streams exist and take every character, so that no output fault decides an exit code."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed by the caller
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123, SIM115 - lives on
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def _terminated(number: int, frame: FrameType | None) -> NoReturn:
    """End as Ctrl-C does, so that what was started is ended too."""
    raise KeyboardInterrupt


def _give_up_output() -> int:
    """The reader of a pipe went away: nothing is left to tell it, and the interpreter must not try at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return ReprokitError.exit_code


def _report(message: str, code: int, debug: bool) -> int:
    if debug:
        import traceback

        traceback.print_exc()
    from reprokit.github.runtime import harmless_line  # what failed may have chosen the words

    with contextlib.suppress(OSError):  # a full standard error cannot be told of itself
        click.echo(harmless_line(f"reprokit: {one_line(message)}"), err=True)
    return code
