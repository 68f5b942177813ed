"""The only place where CPU and GPU differ: device, backend, clock, synchronisation, peak memory."""

from __future__ import annotations

import os
import platform
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class BenchmarkSizes:
    """Sizes that microbenchmarks cover on a kind of device: what fits its speed.

    Attributes
    ----------
    dtype : str
        Dtype of GEMM and attention.
    gemm : tuple of (features in, features out)
    tokens : tuple of int
        Rows of a GEMM, small ones included.
    memory_elements : tuple of int
    attention : tuple of (batch, seq, heads, kv heads, head dim)
    collective_bytes : tuple of int
    """

    dtype: str
    gemm: tuple[tuple[int, int], ...]
    tokens: tuple[int, ...]
    memory_elements: tuple[int, ...]
    attention: tuple[tuple[int, int, int, int, int], ...]
    collective_bytes: tuple[int, ...]


_CPU_SIZES = BenchmarkSizes(
    "fp32",
    (
        (128, 128),
        (256, 256),
        (512, 512),
        (512, 256),
        (256, 512),
        (512, 1376),
        (1376, 512),
        (688, 512),
        (512, 2048),
        (1024, 1024),
    ),
    (8, 64, 256, 1024),
    (1 << 14, 1 << 17, 1 << 19, 1 << 21),
    (
        (1, 128, 4, 4, 64),
        (1, 256, 8, 8, 64),
        (4, 256, 4, 4, 64),
        (2, 256, 8, 2, 64),
        (1, 512, 8, 8, 64),
        (1, 1024, 4, 4, 64),
    ),
    tuple(1 << p for p in range(10, 25, 2)),
)
_GPU_SIZES = BenchmarkSizes(
    "bf16",
    (
        (1024, 1024),
        (2048, 2048),
        (4096, 4096),
        (4096, 1024),
        (4096, 14336),
        (14336, 4096),
        (8192, 8192),
        (8192, 1024),
        (8192, 3584),
    ),
    (16, 128, 1024, 4096, 16384),
    (1 << 17, 1 << 20, 1 << 23, 1 << 26),
    ((1, 2048, 32, 8, 128), (1, 4096, 32, 8, 128), (4, 2048, 16, 16, 128), (1, 8192, 8, 1, 128), (8, 1024, 16, 16, 64)),
    tuple(1 << p for p in range(10, 29, 2)),
)


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

    @property
    def sizes(self) -> BenchmarkSizes:
        """What microbenchmarks cover here."""
        return _GPU_SIZES if self.is_cuda else _CPU_SIZES

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


class _RmsNorm(torch.autograd.Function):
    """RMSNorm in few passes for devices where PyTorch has no fused kernel.

    ``y = x r w`` with ``r = (mean(x^2) + eps)^(-1/2)`` (Zhang and Sennrich 2019, arXiv 1910.07467).
    With ``h = x r`` and ``p = dy h``: ``dw = sum(p)``, ``dx = r (dy w - h (p . w) / d)``.
    """

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        width = x.shape[-1]
        r = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_().div_(width).add_(eps).rsqrt_()
        h = x * r
        ctx.save_for_backward(h, r, weight)
        return h * weight

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        h, r, weight = ctx.saved_tensors
        p = dy * h
        dot = torch.matmul(p, weight).div_(h.shape[-1]).unsqueeze(-1)
        dx = torch.addcmul(dy * weight, h, dot, value=-1.0).mul_(r)
        return dx, p.flatten(0, -2).sum(0), None


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """RMSNorm over the last dimension: PyTorch's fused kernel on CUDA; on a CPU, where its backward
    is a long chain of operators, one written in few passes.
    """
    if x.is_cuda or x.dtype != weight.dtype:
        return torch.nn.functional.rms_norm(x, (x.shape[-1],), weight, eps)
    out: torch.Tensor = _RmsNorm.apply(x, weight, eps)
    return out


def _processor() -> str:
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8") as lines:
            return next(
                (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine()
            )
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
