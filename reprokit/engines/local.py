"""The probe side as a process of this machine."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from reprokit.engines import gpus, side
from reprokit.engines.job import Job
from reprokit.engines.listening import Listener
from reprokit.errors import ProbeFailed

# What a process needs to start as this user on this machine, and the GPUs that a scheduler gave to it. Everything
# else that a runner has, secrets above all, is not the probe's.
_KEPT = (
    "PATH", "HOME", "USER", "LOGNAME", "LANG", "LANGUAGE", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES",
    "NVIDIA_VISIBLE_DEVICES",
)  # fmt: skip
_KEPT_PREFIXES = ("LC_",)
_GRACE_SECONDS = 5
_SCHEDULER = ("SLURM_", "PMI_", "PMIX_")  # for a prefix such as `srun`


def run(job: Job, say: Callable[[str], None]) -> bytes:
    """The document of the probe, run by an interpreter that is not this one; `say` gets every line.

    Raises:
        ProbeFailed: the interpreter is missing, has no torch, or the probe failed or took too long.
    """
    variables = {**kept(os.environ, scheduler=bool(job.prefix)), **job.variables}
    first = job.prefix[0] if job.prefix else job.python  # behind a prefix, another machine's PATH counts
    if shutil.which(first, path=variables.get("PATH")) is None:
        raise ProbeFailed(
            f"{first}: no such command; `exec:` of the cell is what runs its interpreter"
            if job.prefix
            else f"{first}: no such interpreter; `python:` of the cell names the one that has torch and NumPy"
        )
    listener = Listener(say)
    with side.staged() as folder:
        try:
            return heard(job.command(str(folder)), listener, variables, job.timeout)
        except ProbeFailed as error:
            raise ProbeFailed(gpus.explained(str(error), listener.text)) from error


def kept(environment: Mapping[str, str], scheduler: bool = False) -> dict[str, str]:
    """What of this process's environment the probe gets besides the cell's variables."""
    prefixes = (*_KEPT_PREFIXES, *_SCHEDULER) if scheduler else _KEPT_PREFIXES
    return {name: value for name, value in environment.items() if name in _KEPT or name.startswith(prefixes)}


def heard(
    command: Sequence[str],
    listener: Listener,
    variables: Mapping[str, str] | None = None,
    timeout: float | None = None,
) -> bytes:
    """Standard output of a command that must succeed, its standard error heard line by line.

    Raises:
        ProbeFailed: it cannot be started, failed, or took longer than `timeout` seconds.
    """
    # the document goes to a file, so that reading the progress cannot block the one who writes it
    with tempfile.TemporaryFile() as document:
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=document,
                stderr=subprocess.PIPE,
                env=variables,
                text=True,
                errors="replace",
                start_new_session=True,  # so that all of it can be ended at once
            )
        except OSError as error:
            raise ProbeFailed(f"{command[0]}: cannot be started: {error.strerror}") from error
        expired = threading.Event()

        def expire() -> None:
            expired.set()
            _end(process)

        timer = threading.Timer(timeout or threading.TIMEOUT_MAX, expire)
        timer.daemon = True
        timer.start()
        try:
            assert process.stderr is not None
            with process.stderr:
                for line in process.stderr:
                    listener.hear(line)
            code = process.wait()
        except BaseException:
            _end(process)
            raise
        finally:
            timer.cancel()
        if expired.is_set():
            raise ProbeFailed(f"the probe took longer than {timeout:g} s, the cell's timeout, and was ended")
        if code:
            raise ProbeFailed(listener.failure(code))
        document.seek(0)
        return document.read()


def _end(process: subprocess.Popen[str]) -> None:
    """End a process and all of its group: kindly, so that a prefix such as `srun` ends what it started elsewhere."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_SECONDS)
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
