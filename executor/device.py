"""The only place where CPU and GPU differ: device, backend, clock, synchronisation, peak memory."""

from __future__ import annotations

import os
import platform
import time
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class Backend:
    """A kind of device with its collective backend.

    Attributes
    ----------
    device : torch.device
        Device of this rank.
    collectives : str
        ``"gloo"`` or ``"nccl"``.
    """

    device: torch.device
    collectives: str

    @property
    def is_cuda(self) -> bool:
        """Whether work is queued on a stream instead of done when a call returns."""
        return self.device.type == "cuda"

    def synchronize(self) -> None:
        """Wait until everything that was queued has run."""
        if self.is_cuda:
            torch.cuda.synchronize(self.device)

    def mark(self) -> Any:
        """A point in time on the compute stream; `seconds` turns two of them into a duration.

        On CUDA it is an event, so the time between two marks around a wait is the time for
        which the compute stream stood still.
        """
        if not self.is_cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds(self, start: Any, end: Any) -> float:
        """Seconds between two marks (after `synchronize`)."""
        return float(start.elapsed_time(end)) / 1e3 if self.is_cuda else float(end - start)

    def reset_peak(self) -> None:
        """Start a new peak of allocated memory, where the device keeps one."""
        if self.is_cuda:
            torch.cuda.reset_peak_memory_stats(self.device)

    def peak_bytes(self) -> int | None:
        """Peak of allocated bytes since `reset_peak`; None where the device keeps none (CPU)."""
        return int(torch.cuda.max_memory_allocated(self.device)) if self.is_cuda else None

    def environment(self) -> dict[str, Any]:
        """Facts about the machine and the software that a measurement travels with."""
        facts: dict[str, Any] = {
            "torch": torch.__version__,
            "python": platform.python_version(),
            "device": self.device.type,
            "backend": self.collectives,
            "cores": os.cpu_count(),
            "threads_per_rank": torch.get_num_threads(),
            "processor": _processor(),
        }
        if self.is_cuda:
            facts["gpu"] = torch.cuda.get_device_name(self.device)
            facts["cuda"] = torch.version.cuda
        return facts


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())
    except OSError:
        return platform.machine()


def choose(kind: str, local_rank: int) -> Backend:
    """The backend of a rank: ``"cpu"``, ``"cuda"``, or ``"auto"`` (CUDA where there is a GPU for each rank)."""
    if kind == "auto":
        local_world = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        kind = "cuda" if torch.cuda.is_available() and torch.cuda.device_count() >= local_world else "cpu"
    if kind == "cuda":
        device = torch.device("cuda", local_rank)
        torch.cuda.set_device(device)
        return Backend(device, "nccl")
    return Backend(torch.device("cpu"), "gloo")
