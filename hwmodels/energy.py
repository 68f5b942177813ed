"""Watts by utilisation, joules of a step, and the carbon dioxide of a grid.

A device draws::

    P = P_idle + (P_board - P_idle) x min(1, a u_c + b u_m)

with `u_c` the share of the dense tensor peak and `u_m` the share of the memory bandwidth that a phase reaches, between
idle power and board power (the datasheet's TDP, or a lower cap). No source of ours measures power, so the three shares
are assumed and marked so: an idle share, and weights such that a large GEMM at the efficiency where parts begin to
throttle (about 0.8 of the peak, with a quarter of the memory bandwidth; data/README, trap 6) draws the whole board
power, and a kernel at full memory bandwidth half of what lies above idle. Where training steps say what the tensor
cores sustain, `a` is the device's own (`hwmodels.kernels.sustained.compute_weight`). The rows of power-capped H100 in
the serving data are no measurement of power: they are those of the H100 times exactly 1.3 (prefill) and 1.0 (decode),
and the cap is not stated.

What a rack draws beyond its GPUs (host, fans, network) is an input (`host_w`); what the building adds is the PUE.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import ArrayLike

from hwmodels.device import Coefficient, Device
from hwmodels.errors import Fault, InputError
from hwmodels.estimate import Estimate, FloatArray, total
from hwmodels.kernels.sustained import compute_weight
from hwmodels.records import dataclass

IDLE_SHARE = Coefficient(
    0.12, "assumed: idle accelerators of the SXM class draw an eighth of their board power", 0, 0.4
)
MEMORY_WEIGHT = Coefficient(0.5, "assumed: full memory bandwidth alone draws half of what lies above idle", 0, 0.3)
POWER_SPREAD = 0.25
"""Relative half-width of any watt: that of the assumed weights, between idle (surer of board power) and busy."""

PUE = Coefficient(
    1.2, "assumed, 2026: a recent air-cooled data centre; liquid-cooled ones reach 1.1, older ones 1.5", 0, 0.15
)
GRID_KG_PER_KWH = Coefficient(
    0.45, "assumed, 2026: about the mean of the world's grids; give the site's own figure, 0.02 to 0.8", 0, 0.6
)
JOULES_PER_KWH = 3.6e6


@dataclass(frozen=True, slots=True, eq=False)
class Phase:
    """A stretch of a step with one utilisation.

    Attributes
    ----------
    seconds : ndarray
        Its duration, any shape.
    compute : ndarray
        Share of the dense tensor peak that it reaches, 0..1; broadcast against `seconds`.
    memory : ndarray
        Share of the memory bandwidth that it reaches, 0..1.
    """

    seconds: FloatArray
    compute: FloatArray
    memory: FloatArray

    @classmethod
    def of(cls, seconds: ArrayLike, compute: ArrayLike = 0.0, memory: ArrayLike = 0.0) -> Phase:
        """Build from anything array-like.

        Raises
        ------
        InputError
            For a negative duration, or a utilisation outside 0..1.
        """
        arrays = np.broadcast_arrays(*(np.asarray(a, np.float64) for a in (seconds, compute, memory)))
        _check(
            ("seconds", arrays[0], np.inf),
            ("compute utilisation", arrays[1], 1.0),
            ("memory utilisation", arrays[2], 1.0),
        )
        return cls(*arrays)


def _check(*columns: tuple[str, FloatArray, float]) -> None:
    """Refuse numbers that are not between 0 and their most, all at once."""
    faults = []
    for name, array, most in columns:
        bad = ~(np.isfinite(array) & (array >= 0) & (array <= most * (1.0 + 1e-9)))
        if bad.any():
            fix = "0 or more" if np.isinf(most) else f"a value in 0..{most:g}"
            faults.append(Fault(f"{name} is {np.asarray(array)[bad].flat[0]:g}", "energy", fix=fix))
    if faults:
        raise InputError(faults)


def board_power_w(device: Device, cap_w: float | None = None) -> float:
    """Watts that a device may draw: its datasheet's board power, or the cap where that is lower.

    Raises
    ------
    InputError
        For a device whose datasheet gives no power, or a cap that is not above idle.
    """
    if device.tdp_w <= 0:
        why = "its datasheet gives no board power"
        raise InputError(Fault(f"the power of {device.name} is not known", "energy", why, "tdp: 700W in its entry"))
    if cap_w is None:
        return device.tdp_w
    if not (np.isfinite(cap_w) and cap_w > IDLE_SHARE.value * device.tdp_w):
        idle = f"{IDLE_SHARE.value * device.tdp_w:.0f} W"
        raise InputError(Fault(f"a cap of {cap_w:g} W is not above idle ({idle})", "energy", fix=f"{device.tdp_w:g} W"))
    return min(device.tdp_w, cap_w)


def power_w(
    device: Device,
    compute_utilisation: ArrayLike,
    memory_utilisation: ArrayLike = 0.0,
    *,
    cap_w: float | None = None,
    dtype: str = "bf16",
) -> Estimate:
    """Watts of one device at a utilisation.

    Parameters
    ----------
    device : Device
    compute_utilisation, memory_utilisation : array_like
        Shares of the dense tensor peak and of the memory bandwidth that are reached, 0..1; broadcast.
    cap_w : float, optional
        Power limit, where it is below the board power. It bounds the watts; how much slower a capped device runs is
        for the kernels' laws to say.
    dtype : str
        Format whose peak the tensor cores reach a share of.

    Returns
    -------
    Estimate
        Watts between idle and board power; rises with either utilisation. Formula in the module's docstring.

    Raises
    ------
    InputError
        For a utilisation outside 0..1, an unknown format, or as `board_power_w`.
    """
    board = board_power_w(device, cap_w)
    compute, memory = np.broadcast_arrays(
        np.asarray(compute_utilisation, np.float64), np.asarray(memory_utilisation, np.float64)
    )
    _check(("compute utilisation", compute, 1.0), ("memory utilisation", memory, 1.0))
    idle = IDLE_SHARE.value * device.tdp_w
    weight = compute_weight(device, dtype).value
    busy = idle + (device.tdp_w - idle) * np.minimum(weight * compute + MEMORY_WEIGHT.value * memory, 1.0)
    return Estimate.of(np.minimum(busy, board), POWER_SPREAD)


def energy_j(
    device: Device,
    seconds: ArrayLike | Estimate,
    compute_utilisation: ArrayLike = 0.0,
    memory_utilisation: ArrayLike = 0.0,
    *,
    gpus: ArrayLike = 1.0,
    host_w: float = 0.0,
    pue: float = 1.0,
    cap_w: float | None = None,
    dtype: str = "bf16",
) -> Estimate:
    """Joules that `gpus` devices take during `seconds`.

    Parameters
    ----------
    device : Device
    seconds : array_like or Estimate
        The spread of an estimate adds to that of the watts.
    compute_utilisation, memory_utilisation : array_like
        As `power_w`; 0 for both is idle.
    gpus : array_like
    host_w : float
        Watts of host, fans and network for each GPU, always on.
    pue : float
        Power of the building over that of its machines, at least 1 (`PUE.value` where it is not known); 1 counts the
        machines alone.
    cap_w : float, optional
    dtype : str
        Both as `power_w`.

    Returns
    -------
    Estimate
        ``(P + host_w) x pue x gpus x seconds``, of the shape that all arrays broadcast to.

    Raises
    ------
    InputError
        For negative numbers, a PUE below 1, or as `power_w`.
    """
    time = seconds if isinstance(seconds, Estimate) else Estimate.of(seconds)
    count = np.asarray(gpus, np.float64)
    _check(("seconds", time.mid, np.inf), ("gpus", count, np.inf), ("host_w", np.asarray(host_w), np.inf))
    if not (np.isfinite(pue) and pue >= 1.0):
        raise InputError(Fault(f"the PUE is {pue:g}", "energy", "a building takes what its machines take", "1 to 2"))
    watts = power_w(device, compute_utilisation, memory_utilisation, cap_w=cap_w, dtype=dtype)
    joules = (watts.mid + host_w) * pue * count * time.mid
    return Estimate.of(joules, np.asarray(watts.spread + time.spread))


def step_energy_j(
    device: Device,
    phases: Iterable[Phase],
    step_s: ArrayLike,
    *,
    gpus: ArrayLike = 1.0,
    host_w: float = 0.0,
    pue: float = 1.0,
    cap_w: float | None = None,
    dtype: str = "bf16",
) -> Estimate:
    """Joules of a step: its phases, and idling for what is left of it (bubbles, waiting).

    Parameters
    ----------
    device : Device
    phases : iterable of Phase
        What one GPU does, one after the other; parts that run side by side are one phase with both utilisations.
    step_s : array_like
        Seconds of the whole step; phases longer than the step are a fault.
    gpus, host_w, pue, cap_w, dtype
        As `energy_j`.

    Raises
    ------
    InputError
        Where the phases take longer than the step, or as `energy_j`.
    """
    parts = list(phases)
    step = np.asarray(step_s, np.float64)
    _check(("step_s", step, np.inf))
    busy = np.asarray(sum((p.seconds for p in parts), np.zeros(())), np.float64)
    if np.any(busy > step * (1.0 + 1e-9)):
        what = f"phases take {float(np.max(busy - step)):g} s more than the step"
        raise InputError(Fault(what, "energy", fix="phases that run side by side given as one"))
    more = {"gpus": gpus, "host_w": host_w, "pue": pue, "cap_w": cap_w, "dtype": dtype}
    found = [energy_j(device, p.seconds, p.compute, p.memory, **more) for p in parts]  # type: ignore[arg-type]
    rest = energy_j(device, np.maximum(step - busy, 0.0), **more)  # type: ignore[arg-type]
    return total([*found, rest])


def co2_kg(joules: ArrayLike | Estimate, kg_per_kwh: float | Coefficient = GRID_KG_PER_KWH) -> Estimate:
    """Kilograms of carbon dioxide of an energy, by the grid's intensity.

    Parameters
    ----------
    joules : array_like or Estimate
        At the meter: with the PUE in it.
    kg_per_kwh : float or Coefficient
        Of the site's grid; a dated world average by default.

    Raises
    ------
    InputError
        For negative numbers.
    """
    energy = joules if isinstance(joules, Estimate) else Estimate.of(joules)
    value, width = (kg_per_kwh.value, kg_per_kwh.residual) if isinstance(kg_per_kwh, Coefficient) else (kg_per_kwh, 0.0)
    _check(("joules", energy.mid, np.inf), ("kg_per_kwh", np.asarray(value, np.float64), np.inf))
    return Estimate.of(energy.mid * value / JOULES_PER_KWH, np.asarray(energy.spread + width))
