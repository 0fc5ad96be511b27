"""The NVIDIA driver's management library, with every failure turned into a reason."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from reprokit.environment.absence import Unavailable, reason_of

# NVML's own numbers, which never change their meaning.
NOT_SUPPORTED, NOT_FOUND, FUNCTION_NOT_FOUND = 3, 6, 13
_REASONS = {
    1: "NVML is not initialised",
    2: "NVML: invalid argument",
    NOT_SUPPORTED: "not supported by this GPU",
    4: "NVML: no permission",
    NOT_FOUND: "NVML: not found",
    9: "the NVIDIA driver is not loaded",
    12: "no NVIDIA driver: libnvidia-ml.so.1 not found",
    15: "NVML: the GPU is lost",
    16: "NVML: the GPU requires a reset",
    17: "NVML: the operating system blocks the request",
    18: "the NVIDIA driver and its libraries differ in version",
    28: "NVML: the GPU was not found",
    999: "NVML: Unknown Error: the GPU or its control group is lost",
}


class Nvml:
    """NVML as it answered: `failure` is null, or the reason for which every question fails."""

    def __init__(self, module: Any, failure: str | None) -> None:
        self._module = module
        self.failure = failure

    def ask(self, function: str, *arguments: Any) -> Any:
        """The answer of NVML's `function`.

        Raises:
            Unavailable: with the reason, also when the driver or the Python module is too old to know it.
        """
        if self.failure is not None:
            raise Unavailable(self.failure)
        known = getattr(self._module, function, None)
        if known is None:
            raise Unavailable(f"the Python module pynvml lacks {function}")
        try:
            return known(*arguments)
        except self._module.NVMLError as error:
            raise Unavailable(_reason(error.value, function)) from None


@contextlib.contextmanager
def connected() -> Iterator[Nvml]:
    """NVML for the time of the block; one that always answers with its failure where there is none."""
    try:
        import pynvml  # optional, and slow to import where torch has not done so
    except Exception as error:
        missing = isinstance(error, ModuleNotFoundError)
        yield Nvml(
            None, "the Python module pynvml (nvidia-ml-py) is not installed" if missing else reason_of(error)
        )
        return
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        yield Nvml(pynvml, _reason(error.value, "nvmlInitWithFlags"))
        return
    try:
        yield Nvml(pynvml, None)
    finally:
        with contextlib.suppress(
            pynvml.NVMLError
        ):  # a driver that is lost meanwhile has nothing to give back
            pynvml.nvmlShutdown()


def _reason(code: int, function: str) -> str:
    if code == FUNCTION_NOT_FOUND:
        return f"the driver lacks {function}"
    return _REASONS.get(code, f"NVML error {code} of {function}")
