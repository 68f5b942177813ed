"""Microbenchmarks of this machine under torch.distributed, as rows for `hwmodels.fit`. Imports no torch."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from executor.launch import require_torch, torchrun
from hwmodels.errors import Fault, InputError
from planner.files import read_json, write_json

SCHEMA = 1


@dataclass(frozen=True, slots=True)
class GemmRow:
    """Seconds of one m x k by k x n product; orientation forward, dgrad or wgrad."""

    m: int
    n: int
    k: int
    dtype: str
    orientation: str
    seconds: float


@dataclass(frozen=True, slots=True)
class MemoryRow:
    """Seconds of memory-bound operators: bytes they must read and write, and how many they are."""

    name: str
    nbytes: int
    kernels: int
    seconds: float


@dataclass(frozen=True, slots=True)
class AttentionRow:
    """Seconds of causal attention; direction forward, or backward alone."""

    batch: int
    seq_len: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    dtype: str
    direction: str
    seconds: float


@dataclass(frozen=True, slots=True)
class CollectiveRow:
    """Seconds of a collective; bytes by the nccl-tests convention, ranks `stride` apart."""

    op: str
    group_size: int
    stride: int
    nbytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class OverlapRow:
    """An all-reduce of `nbytes` beside `gemms` products of (m, n, k): each alone, and both together.

    `hidden_share` is ``(compute_s + collective_s - both_s) / min(compute_s, collective_s)``, cut to 0..1.
    """

    nbytes: int
    gemms: int
    m: int
    n: int
    k: int
    compute_s: float
    collective_s: float
    both_s: float
    hidden_share: float


@dataclass(frozen=True, slots=True)
class CalibrationRows:
    """Everything that was measured, with all ranks busy at once.

    Attributes
    ----------
    gemm, memory, attention, collectives, overlap : tuple of rows
    launch_s : float
        Host seconds of one eager operator.
    skew : float
        By how much the slowest rank exceeded the mean of the ranks, relative, over stretches of
        0.1 s of equal work that all did at once.
    environment : dict
        torch version, backend, processor, ranks.
    """

    gemm: tuple[GemmRow, ...]
    memory: tuple[MemoryRow, ...]
    attention: tuple[AttentionRow, ...]
    collectives: tuple[CollectiveRow, ...]
    overlap: tuple[OverlapRow, ...]
    launch_s: float
    skew: float = 0.0
    environment: dict[str, Any] = field(default_factory=dict)


_ROWS: dict[str, type] = {
    "gemm": GemmRow,
    "memory": MemoryRow,
    "attention": AttentionRow,
    "collectives": CollectiveRow,
    "overlap": OverlapRow,
}


def measure(
    ranks: int = 2,
    *,
    budget_s: float | None = None,
    quick: bool = True,
    device: str = "auto",
    threads: int = 1,
    on_progress: Callable[[str], None] | None = None,
) -> CalibrationRows:
    """Run the microbenchmarks on `ranks` processes of this machine.

    Parameters
    ----------
    ranks : int
        World size; collectives are measured for group sizes 2, 4 … up to it.
    budget_s : float, optional
        Wall seconds of measuring, beyond start and the least number of rounds; 40 (quick) or 150.
    quick : bool
        Fewer sizes and rounds.
    device : {'auto', 'cpu', 'cuda'}
    threads : int
        CPU threads per rank; plans run with one.
    on_progress : callable, optional

    Raises
    ------
    hwmodels.errors.InputError
        Where PyTorch is not installed, or `ranks` is below 1.
    hwmodels.errors.RunError
        When a rank fails or time runs out.
    """
    require_torch()
    if ranks < 1:
        raise InputError(Fault(f"ranks is {ranks}", "ranks", "something must be measured", "2"))
    budget = budget_s if budget_s is not None else (40.0 if quick else 150.0)
    with tempfile.TemporaryDirectory(prefix="meshwright-") as scratch:
        out = Path(scratch) / "rows.json"
        command = [
            "-m",
            "executor.calibrate_worker",
            "--out",
            str(out),
            "--budget",
            str(budget),
            "--device",
            device,
            "--threads",
            str(threads),
            *(["--quick"] if quick else []),
        ]
        torchrun(command, ranks, 120.0 + 10.0 * budget, on_progress)
        return from_dict(read_json(out))


def from_dict(content: Mapping[str, Any], source: str = "calibration rows") -> CalibrationRows:
    """Rows from plain content; `InputError` with every fault."""
    faults: list[Fault] = []
    parts: dict[str, Any] = {}
    if not isinstance(content, Mapping):
        raise InputError(Fault("is not an object", source, "", "a file written by calibrate"))
    for name, kind in _ROWS.items():
        wanted = {f.name for f in fields(kind)}
        rows = []
        for i, row in enumerate(content.get(name, ())):
            if not isinstance(row, Mapping) or set(row) != wanted:
                faults.append(
                    Fault("is not a row", f"{source}: {name}[{i}]", "its keys are others", ", ".join(sorted(wanted)))
                )
            else:
                rows.append(kind(**row))
        parts[name] = tuple(rows)
    launch = content.get("launch_s")
    if isinstance(launch, bool) or not isinstance(launch, (int, float)) or launch <= 0:
        faults.append(Fault(f"is {launch!r}", f"{source}: launch_s", "seconds above zero are expected", "5e-06"))
    skew = content.get("skew", 0.0)
    if isinstance(skew, bool) or not isinstance(skew, (int, float)) or skew < 0:
        faults.append(Fault(f"is {skew!r}", f"{source}: skew", "a share of at least 0 is expected", "0.05"))
    if faults:
        raise InputError(faults)
    environment = dict(content.get("environment", {}))
    return CalibrationRows(**parts, launch_s=float(launch or 0.0), skew=float(skew), environment=environment)


def load(path: str | Path) -> CalibrationRows:
    """Read a file of rows; `InputError` with every fault."""
    return from_dict(read_json(path), str(path))


def save(rows: CalibrationRows, path: str | Path) -> Path:
    """Write a file of rows beside its target and rename it; returns the path."""
    return write_json(path, {"schema": SCHEMA, **asdict(rows)})
