"""Seconds of a GEMM, grouped GEMM, attention or memory-bound kernel on a `Device`.

Every numeric argument is array_like and broadcast; one call prices a whole batch.
"""

from hwmodels.kernels.attention import attention_seconds
from hwmodels.kernels.gemm import gemm_seconds, grouped_gemm_seconds
from hwmodels.kernels.launch import launch_seconds, run_seconds
from hwmodels.kernels.memory import epilogue_seconds, memory_seconds
from hwmodels.kernels.sustained import sustained_seconds
from hwmodels.kernels.traffic import kernel_bytes, kernel_seconds

__all__ = [
    "attention_seconds", "epilogue_seconds", "gemm_seconds", "grouped_gemm_seconds", "kernel_bytes", "kernel_seconds",
    "launch_seconds", "memory_seconds", "run_seconds", "sustained_seconds",
]  # fmt: skip
