"""Rows measured on this machine -> coefficients (`calibrate`). SciPy is imported while fitting only.

Rows are any objects with the attributes of the protocols below: `hwmodels` knows nothing of who
measured them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Protocol

import numpy as np

from hwmodels.device import Coefficient, Device
from hwmodels.errors import Fault, InputError
from hwmodels.estimate import FloatArray
from hwmodels.fit.attention import ATTENTION_FREE
from hwmodels.fit.gemm import GEMM_FREE
from hwmodels.fit.solve import Free, rms, solve, with_coefficients
from hwmodels.kernels.attention import attention_seconds
from hwmodels.kernels.gemm import gemm_seconds
from hwmodels.kernels.memory import memory_seconds


class GemmRow(Protocol):
    """Seconds of one ``m x n x k`` product."""

    @property
    def m(self) -> int:
        """Rows of the result."""

    @property
    def n(self) -> int:
        """Columns of the result."""

    @property
    def k(self) -> int:
        """Length of the sums."""

    @property
    def dtype(self) -> str:
        """Number format."""

    @property
    def seconds(self) -> float:
        """Measured time."""


class MemoryRow(Protocol):
    """Seconds of `kernels` memory-bound kernels that move `nbytes` together; `name` is the operator."""

    @property
    def name(self) -> str:
        """Operator."""

    @property
    def nbytes(self) -> float:
        """Bytes."""

    @property
    def kernels(self) -> int:
        """Kernels."""

    @property
    def seconds(self) -> float:
        """Measured time."""


class AttentionRow(Protocol):
    """Seconds of causal attention, ``forward`` or ``backward`` alone."""

    @property
    def batch(self) -> int:
        """Sequences."""

    @property
    def seq_len(self) -> int:
        """Positions."""

    @property
    def n_heads(self) -> int:
        """Query heads."""

    @property
    def n_kv_heads(self) -> int:
        """Key-value heads."""

    @property
    def head_dim(self) -> int:
        """Width of a head."""

    @property
    def dtype(self) -> str:
        """Number format."""

    @property
    def direction(self) -> str:
        """``forward`` or ``backward``."""

    @property
    def seconds(self) -> float:
        """Measured time."""


class CollectiveRow(Protocol):
    """Seconds of a collective of `nbytes` (nccl-tests convention)."""

    @property
    def op(self) -> str:
        """Name of the collective."""

    @property
    def group_size(self) -> int:
        """Ranks."""

    @property
    def nbytes(self) -> float:
        """Bytes."""

    @property
    def seconds(self) -> float:
        """Measured time."""


class OverlapRow(Protocol):
    """Compute and a collective, each alone and both at once."""

    @property
    def compute_s(self) -> float:
        """Compute alone."""

    @property
    def collective_s(self) -> float:
        """Collective alone."""

    @property
    def both_s(self) -> float:
        """Both at once."""


# An uncalibrated CPU's peak and bandwidth are guesses, so shares of them may well be above one.
CPU_GEMM_FREE = (
    Free("cpu_efficiency", 0.8, 0.01, 20.0), Free("cpu_half_m", 8.0, 1e-3, 500.0), Free("cpu_half_n",
    16.0, 1e-3, 500.0),
    Free("cpu_half_k", 16.0, 1e-3, 500.0), Free("cpu_read", 0.5, 1e-3, 20.0), Free("cpu_write", 1.0, 1e-3, 40.0),
    Free("cpu_floor", 5e-6, 5e-7, 2e-4),
)  # fmt: skip
MEMORY_FREE = (Free("efficiency", 0.8, 0.01, 20.0), Free("launch", 3e-6, 2e-7, 5e-3))
CPU_ATTENTION_FREE = (
    Free("forward.efficiency", 0.5, 0.005, 20.0), Free("backward.efficiency", 0.4, 0.005, 20.0),
    Free("launch", 2e-5, 1e-6, 2e-3),
)  # fmt: skip


def _seconds(rows: Sequence[GemmRow | MemoryRow | AttentionRow | CollectiveRow], what: str) -> FloatArray:
    """Times of the rows; InputError for one that is not finite and positive."""
    values = np.asarray([row.seconds for row in rows], dtype=np.float64)
    bad = ~(np.isfinite(values) & (values > 0))
    if bad.any():
        why = "a measured time is finite and above zero"
        raise InputError([Fault(f"row {i} took {values[i]} s", f"{what} rows", why) for i in np.flatnonzero(bad)[:10]])
    return values


def fit_device(
    device: Device,
    gemm_rows: Iterable[GemmRow],
    memory_rows: Iterable[MemoryRow],
    attention_rows: Iterable[AttentionRow],
    *,
    source: str = "measured by calibrate",
) -> dict[str, Coefficient]:
    """Coefficients of the kernel laws of `device` from rows measured on it.

    Parameters
    ----------
    device : Device
        Its datasheet figures stay; shares of them are fitted.
    gemm_rows, memory_rows, attention_rows : iterable
        Kinds with fewer than 4 rows are left as they are.
    source : str
        Recorded with each coefficient.

    Returns
    -------
    dict[str, Coefficient]
        To be handed to `hwmodels.cluster.with_calibration`.

    Raises
    ------
    InputError
        For a time that is not finite and positive, or a dtype that the device does not have.
    """
    found: dict[str, Coefficient] = {}
    by_dtype: dict[str, list[GemmRow]] = defaultdict(list)
    for row in gemm_rows:
        by_dtype[row.dtype].append(row)
    for dtype, rows in by_dtype.items():
        if len(rows) >= 4:
            found |= _fit_gemm(device, dtype, rows, source)
    memory = list(memory_rows)
    if len(memory) >= 4:
        found |= _fit_memory(device, memory, source)
    attention = list(attention_rows)
    if len(attention) >= 4:
        found |= _fit_attention(device, attention, source)
    return found


def _named(
    prefix: str, free: Sequence[Free], values: FloatArray, errors: FloatArray, source: str
) -> dict[str, Coefficient]:
    residual = rms(errors)
    return {
        prefix + f.name: Coefficient(float(v), source, errors.size, residual) for f, v in zip(free, values, strict=True)
    }


def _fit_gemm(device: Device, dtype: str, rows: list[GemmRow], source: str) -> dict[str, Coefficient]:
    device.peak(dtype)
    m, n, k = (np.asarray([getattr(row, name) for row in rows], dtype=np.float64) for name in "mnk")
    free: Sequence[Free] = CPU_GEMM_FREE if device.kind == "cpu" else GEMM_FREE
    prefix = f"gemm.{dtype}."
    if len(rows) < 2 * len(free):
        free = free[:1]

    def predict(values: FloatArray) -> FloatArray:
        numbers = {prefix + f.name: float(v) for f, v in zip(free, values, strict=True)}
        return gemm_seconds(with_coefficients(device, numbers), m, n, k, dtype=dtype).mid

    values, errors = solve(predict, free, _seconds(rows, "GEMM"), scale=0.1, prior=0.03)
    return _named(prefix, free, values, errors, source)


def _fit_memory(device: Device, rows: list[MemoryRow], source: str) -> dict[str, Coefficient]:
    """The law over all operators, and one for each that has 3 rows (``memory.<name>.efficiency``).

    Operators that compute much for each byte (SiLU, cross-entropy) are slower than copies.
    """
    flat = with_coefficients(device, {"memory.ramp_s": 0.0})
    found = _memory_law(flat, rows, "", source)
    by_name: dict[str, list[MemoryRow]] = defaultdict(list)
    for row in rows:
        by_name[row.name].append(row)
    for name, mine in by_name.items():
        if name and len(mine) >= 3 and len(by_name) > 1:
            found |= _memory_law(flat, mine, name, source)
    return found | {"memory.ramp_s": Coefficient(0.0, source + "; part of memory.launch", len(rows), 0.0)}


def _memory_law(device: Device, rows: list[MemoryRow], name: str, source: str) -> dict[str, Coefficient]:
    kernels = np.asarray([row.kernels for row in rows], dtype=np.float64)
    nbytes = np.asarray([row.nbytes for row in rows], dtype=np.float64)
    prefix = f"memory.{name}." if name else "memory."

    def predict(values: FloatArray) -> FloatArray:
        numbers = {prefix + f.name: float(v) for f, v in zip(MEMORY_FREE, values, strict=True)}
        return memory_seconds(with_coefficients(device, numbers), nbytes / kernels, impl=name).mid * kernels

    values, errors = solve(predict, MEMORY_FREE, _seconds(rows, "memory"), scale=0.2, prior=0.02)
    return _named(prefix, MEMORY_FREE, values, errors, source)


def _fit_attention(device: Device, rows: list[AttentionRow], source: str) -> dict[str, Coefficient]:
    def column(name: str) -> FloatArray:
        return np.asarray([getattr(row, name) for row in rows], dtype=np.float64)

    backward = np.asarray([row.direction == "backward" for row in rows])
    free: Sequence[Free] = CPU_ATTENTION_FREE
    if device.kind != "cpu":
        free = ATTENTION_FREE
    free = [f for f in free if backward.any() or not f.name.startswith("backward")]
    free = [f for f in free if not backward.all() or not f.name.startswith("forward")]
    flat = with_coefficients(device, {"attention.head_dim_half": 0.0}) if device.kind == "cpu" else device
    dtypes = np.asarray([row.dtype for row in rows])
    length, dim = column("seq_len"), column("head_dim")

    def predict(values: FloatArray) -> FloatArray:
        moved = with_coefficients(flat, {f"attention.{f.name}": float(v) for f, v in zip(free, values, strict=True)})
        result = np.zeros(len(rows))
        for dtype in set(dtypes):
            for direction, chosen in (("forward", ~backward), ("backward", backward)):
                its = chosen & (dtypes == dtype)
                if not its.any():
                    continue
                result[its] = attention_seconds(
                    moved, batch=column("batch")[its], q_len=length[its], kv_len=length[its],
                    n_heads=column("n_heads")[its], n_kv_heads=column("n_kv_heads")[its], qk_dim=dim[its],
                    v_dim=dim[its], causal=True, direction=direction, dtype=str(dtype),
                ).mid  # fmt: skip
        return result

    values, errors = solve(predict, free, _seconds(rows, "attention"), scale=0.2, prior=0.02)
    found = _named("attention.", free, values, errors, source)
    if device.kind == "cpu":
        found["attention.head_dim_half"] = Coefficient(0.0, source + "; a CPU has no tile to fill", errors.size, 0.0)
    return found


Tables = dict[str, dict[int, tuple[tuple[float, float], ...]]]


def fit_collectives(rows: Iterable[CollectiveRow]) -> tuple[Tables, float]:
    """Increasing curves through measured collectives: op -> ranks -> ((bytes, seconds), ...).

    Rows of equal size are reduced to their median; where a larger size came out faster, the two are
    pooled (isotonic regression of the logarithm, by pool-adjacent-violators).

    Returns
    -------
    tables : dict
        For `hwmodels.cluster.with_calibration`.
    residual : float
        Root mean square relative distance of the rows from their curve.

    Raises
    ------
    InputError
        For a time that is not finite and positive, or a group of fewer than 2 ranks.
    """
    every = list(rows)
    _seconds(every, "collective")
    small = sorted({row.group_size for row in every if row.group_size < 2})
    if small:
        raise InputError(Fault(f"a group has {small[0]} rank", "collective rows", "a group of one moves nothing"))
    grouped: dict[tuple[str, int], dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in every:
        grouped[row.op, int(row.group_size)][float(row.nbytes)].append(float(row.seconds))
    tables: Tables = defaultdict(dict)
    errors: list[float] = []
    for (op, size), points in sorted(grouped.items()):
        nbytes = np.asarray(sorted(points))
        times = np.asarray([np.median(points[b]) for b in nbytes])
        weight = np.asarray([len(points[b]) for b in nbytes], dtype=np.float64)
        curve = np.exp(isotonic(np.log(times), weight))
        tables[op][size] = tuple((float(b), float(s)) for b, s in zip(nbytes, curve, strict=True))
        for b, s in zip(nbytes, curve, strict=True):
            errors += [float(np.log(t / s)) for t in points[b]]
    return dict(tables), rms(np.asarray(errors))


def isotonic(values: FloatArray, weight: FloatArray) -> FloatArray:
    """The non-decreasing sequence nearest to `values` (weighted least squares; Ayer et al. 1955)."""
    blocks: list[list[float]] = []
    for value, w in zip(values, weight, strict=True):
        blocks.append([float(value), float(w), 1.0])
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            last, before = blocks.pop(), blocks.pop()
            total = last[1] + before[1]
            mean = (last[0] * last[1] + before[0] * before[1]) / total
            blocks.append([mean, total, last[2] + before[2]])
    return np.concatenate([np.full(int(count), value) for value, _, count in blocks])


def fit_overlap(rows: Iterable[OverlapRow], *, source: str = "measured by calibrate") -> Coefficient | None:
    """Share of an overlapped collective's duration that it does not take from compute; None without rows.

    ``1 - (both - max(compute, collective)) / min(compute, collective)``, cut to 0..1: 1 when the longer
    of the two hides the other, 0 when they run one after the other. Median of the rows.

    Raises
    ------
    InputError
        For a time that is not finite and positive.
    """
    every = list(rows)
    if not every:
        return None
    parts = np.asarray([(row.compute_s, row.collective_s, row.both_s) for row in every], dtype=np.float64)
    if not (np.isfinite(parts).all() and (parts > 0).all()):
        raise InputError(Fault("a time is not finite and above zero", "overlap rows"))
    longer, shorter = parts[:, :2].max(axis=1), parts[:, :2].min(axis=1)
    share = np.clip(1.0 - (parts[:, 2] - longer) / shorter, 0.0, 1.0)
    spread = float(np.median(np.abs(share - np.median(share)))) if share.size > 1 else 0.2
    return Coefficient(float(np.median(share)), source, share.size, spread)
