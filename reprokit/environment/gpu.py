"""The GPUs that this process can see: one entry per GPU, or per MIG instance where a GPU is partitioned.

NVML answers without CUDA in torch; what only CUDA knows is taken from torch where it has CUDA.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import Any, TypeVar

from reprokit.environment.absence import PRIVATE_BY_DEFAULT, Absences, Unavailable, reason_of
from reprokit.environment.nvml import Nvml

T = TypeVar("T")
_MIG_NAME = re.compile(r" MIG (\S+)$")
_NVSWITCH = 2
_MOST_LINKS = 36
# Per compute capability, from NVIDIA's programming guide: CUDA cores and resident threads per multiprocessor.
_PER_SM = {
    "5.0": (128, 2048), "5.2": (128, 2048), "5.3": (128, 2048), "6.0": (64, 2048), "6.1": (128, 2048),
    "6.2": (128, 2048), "7.0": (64, 2048), "7.2": (64, 2048), "7.5": (64, 1024), "8.0": (64, 2048),
    "8.6": (128, 1536), "8.7": (128, 1536), "8.9": (128, 1536), "9.0": (128, 2048), "10.0": (128, 2048),
    "10.3": (128, 2048), "12.0": (128, 1536), "12.1": (128, 1536),
}  # fmt: skip
_PRIVATE = ("uuid", "pci_bus_id", "vbios")
_READABLE = (
    "cuda_index", "name", "compute_capability", "sm_count", "max_threads_per_sm", "memory_bytes",
    "persistence_mode", "power_limit_watts", "nvlinks", "nvswitch",
)  # fmt: skip


def collect(absences: Absences, nvml: Nvml, detail: str) -> list[dict[str, Any]]:
    """The section `gpus`."""
    count = absences.read("gpus", lambda: nvml.ask("nvmlDeviceGetCount"))
    if count == 0:
        absences.unavailable("gpus", "the NVIDIA driver shows no GPU to this process")
    if not count:
        return []
    cuda = _Cuda()
    entries: list[dict[str, Any]] = []
    for index in range(count):
        for instance in _instances(nvml, index):
            reader = _Device(absences, nvml, f"gpus[{len(entries)}]")
            entries.append(reader.entry(index, instance, cuda, detail))
    return entries


def _instances(nvml: Nvml, index: int) -> list[Any]:
    """Handles of the MIG instances of one GPU; one null, standing for the GPU itself, where it has none."""
    try:
        parent = nvml.ask("nvmlDeviceGetHandleByIndex", index)
        if not nvml.ask("nvmlDeviceGetMigMode", parent)[0]:
            return [None]
        most = nvml.ask("nvmlDeviceGetMaxMigDeviceCount", parent)
    except Unavailable:  # the entry of the GPU itself meets the same failure, and records it
        return [None]
    instances = []
    for number in range(most):
        try:
            instances.append(nvml.ask("nvmlDeviceGetMigDeviceHandleByIndex", parent, number))
        except Unavailable:  # places without an instance, or with one that this process may not use
            continue
    return instances or [None]


class _Cuda:
    """Torch's CUDA devices by UUID, without the word before it; `missing` says why one is not among them."""

    def __init__(self) -> None:
        self.devices: dict[str, tuple[int, Any]] = {}
        self.missing = "hidden from CUDA in this process"
        torch: Any = sys.modules.get("torch")
        try:
            if torch is None or not torch.cuda.is_available():
                self.missing = "torch does not use CUDA in this process"
                return
            for index in range(torch.cuda.device_count()):
                properties = torch.cuda.get_device_properties(index)
                uuid = str(getattr(properties, "uuid", "")).removeprefix("GPU-").removeprefix("MIG-").lower()
                self.devices[uuid] = (index, properties)
        except Exception as error:  # CUDA fails in many ways; each entry says which
            self.missing = reason_of(error)


class _Device:
    """Reads the fields of one entry; `path` is its place in the document."""

    def __init__(self, absences: Absences, nvml: Nvml, path: str) -> None:
        self._absences = absences
        self._nvml = nvml
        self._path = path

    def entry(self, index: int, instance: Any, cuda: _Cuda, detail: str) -> dict[str, Any]:
        """The entry of GPU `index`, or of its MIG `instance` when that is not null."""
        try:
            gpu = self._nvml.ask("nvmlDeviceGetHandleByIndex", index)
        except Unavailable as error:
            self._absences.unavailable(f"{self._path}.*", str(error))
            return _unreadable(index)
        device = gpu if instance is None else instance
        uuid = self._read("cuda_index", lambda: str(self._nvml.ask("nvmlDeviceGetUUID", device)))
        cuda_index, properties = self._in_cuda(uuid, cuda)
        capability = self._read("compute_capability", lambda: self._capability(gpu))
        ecc = self._read("ecc.*", lambda: self._nvml.ask("nvmlDeviceGetEccMode", gpu)) or [None, None]
        links = self._read("nvlinks", lambda: self._links(gpu))
        return {
            "index": index,
            "cuda_index": cuda_index,
            "name": self._read("name", lambda: _MIG_NAME.sub("", self._nvml.ask("nvmlDeviceGetName", gpu))),
            "compute_capability": capability,
            "sm_count": self._read("sm_count", lambda: self._sm_count(gpu, capability, instance, properties)),
            "max_threads_per_sm": self._read("max_threads_per_sm", lambda: _threads(capability, properties)),
            "memory_bytes": self._read(
                "memory_bytes", lambda: int(self._nvml.ask("nvmlDeviceGetMemoryInfo", device).total)
            ),
            "ecc": {"current": _switch(ecc[0]), "pending": _switch(ecc[1])},
            "mig": self._mig(gpu, instance),
            "persistence_mode": self._read(
                "persistence_mode", lambda: bool(self._nvml.ask("nvmlDeviceGetPersistenceMode", gpu))
            ),
            "power_limit_watts": self._read(
                "power_limit_watts", lambda: self._nvml.ask("nvmlDeviceGetEnforcedPowerLimit", gpu) / 1000
            ),
            "nvlinks": links,
            "nvswitch": self._read("nvswitch", lambda: self._switched(gpu, links)),
            **self._identity(gpu, device, detail),
        }

    def _read(self, field: str, reading: Callable[[], T]) -> T | None:
        return self._absences.read(f"{self._path}.{field}", reading)

    def _in_cuda(self, uuid: str | None, cuda: _Cuda) -> tuple[int | None, Any]:
        """Torch's index and properties of the device with this UUID."""
        key = (uuid or "").partition("-")[2].lower()
        if key in cuda.devices:
            return cuda.devices[key]
        if uuid is not None:
            self._absences.unavailable(f"{self._path}.cuda_index", cuda.missing)
        return None, None

    def _capability(self, gpu: Any) -> str:
        major, minor = self._nvml.ask("nvmlDeviceGetCudaComputeCapability", gpu)
        return f"{major}.{minor}"

    def _sm_count(self, gpu: Any, capability: str | None, instance: Any, properties: Any) -> int:
        if properties is not None and instance is None:
            return int(properties.multi_processor_count)
        cores = self._nvml.ask("nvmlDeviceGetNumGpuCores", gpu)
        if capability not in _PER_SM:
            raise Unavailable("the cores per multiprocessor of this GPU are not known")
        return int(cores) // _PER_SM[capability][0]

    def _mig(self, gpu: Any, instance: Any) -> dict[str, Any]:
        mode = self._read("mig.mode", lambda: bool(self._nvml.ask("nvmlDeviceGetMigMode", gpu)[0]))
        if instance is None:
            if mode:
                for field in ("mig.profile", "mig.sm_count"):
                    self._absences.unavailable(f"{self._path}.{field}", "no MIG instance can be used")
            return {"mode": mode, "profile": None, "sm_count": None}
        return {
            "mode": mode,
            "profile": self._read("mig.profile", lambda: self._profile(instance)),
            "sm_count": self._read(
                "mig.sm_count", lambda: int(self._attributes(instance).multiprocessorCount)
            ),
        }

    def _profile(self, instance: Any) -> str:
        """From the instance's name where it tells it, else from its slices and memory."""
        if match := _MIG_NAME.search(str(self._nvml.ask("nvmlDeviceGetName", instance))):
            return match[1]
        attributes = self._attributes(instance)
        slices, compute = attributes.gpuInstanceSliceCount, attributes.computeInstanceSliceCount
        profile = f"{slices}g.{round(attributes.memorySizeMB / 1024)}gb"
        return profile if compute == slices else f"{compute}c.{profile}"

    def _attributes(self, instance: Any) -> Any:
        return self._nvml.ask("nvmlDeviceGetAttributes_v2", instance)

    def _links(self, gpu: Any) -> int:
        return len(self._active_links(gpu))

    def _active_links(self, gpu: Any) -> list[int]:
        active = []
        for link in range(_MOST_LINKS):
            try:
                if self._nvml.ask("nvmlDeviceGetNvLinkState", gpu, link):
                    active.append(link)
            except Unavailable as error:
                # A GPU without this link says so in one of two ways.
                if str(error).endswith(("not supported by this GPU", "invalid argument")):
                    break
                raise
        return active

    def _switched(self, gpu: Any, links: int | None) -> bool:
        if links is None:
            raise Unavailable("its links could not be read")
        return any(
            self._nvml.ask("nvmlDeviceGetNvLinkRemoteDeviceType", gpu, link) == _NVSWITCH
            for link in (self._active_links(gpu) if links else ())
        )

    def _identity(self, gpu: Any, device: Any, detail: str) -> dict[str, Any]:
        if detail != "full":
            for field in _PRIVATE:
                self._absences.not_asked(f"{self._path}.{field}", PRIVATE_BY_DEFAULT)
            return dict.fromkeys(_PRIVATE)
        return {
            "uuid": self._read("uuid", lambda: str(self._nvml.ask("nvmlDeviceGetUUID", device))),
            "pci_bus_id": self._read(
                "pci_bus_id", lambda: _text(self._nvml.ask("nvmlDeviceGetPciInfo", gpu).busId)
            ),
            "vbios": self._read("vbios", lambda: str(self._nvml.ask("nvmlDeviceGetVbiosVersion", gpu))),
        }


def _threads(capability: str | None, properties: Any) -> int:
    if properties is not None:
        return int(properties.max_threads_per_multi_processor)
    if capability not in _PER_SM:
        raise Unavailable("the threads per multiprocessor of this GPU are not known")
    return _PER_SM[capability][1]


def _switch(value: int | None) -> bool | None:
    return None if value is None else bool(value)


def _text(value: bytes | str) -> str:
    return value.decode("ascii", "replace") if isinstance(value, bytes) else value


def _unreadable(index: int) -> dict[str, Any]:
    """The entry of a GPU that does not answer."""
    return {
        "index": index,
        **dict.fromkeys(_READABLE),
        "ecc": {"current": None, "pending": None},
        "mig": {"mode": None, "profile": None, "sm_count": None},
        **dict.fromkeys(_PRIVATE),
    }
