"""Host constants of a framework preset from its measured runs: seconds a kernel, a micro-batch and a step.

The constants of `planner.frameworks` are the only numbers that a preset may hold besides switches, and they are
fitted over all groups that ran the framework at once: coordinate by coordinate (bounded Brent search) for the
least mean over groups of the mean absolute logarithm of predicted over measured time. Groups count alike, so
that one with hundreds of small models does not speak for all; of a large group evenly spaced rows are
taken. A constant that does not lower the error by a hundredth of it is left at 0. SciPy is imported here only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from hwmodels.errors import Fault, InputError, RunError
from planner import frameworks
from planner.compare.measurements import framework_of
from planner.compare.rows import Row, read_rows
from planner.compare.validation import TRAINING
from planner.frameworks import HostConstant

MOST: dict[str, float] = {"kernel_s": 200e-6, "microbatch_s": 30e-3, "step_s": 0.5}
"""Constant -> the largest value that is believed.

A lowered kernel stands for its companions, which move little and are not lowered: the views, copies, bias sums and
autograd nodes around each, and the random states that a checkpoint saves. Eager PyTorch 1.x launches two to four
operators of 10 to 20 us for one of ours, and a host that waits for each of them as many returns.
"""
ROWS_A_GROUP = 48


@dataclass(frozen=True, slots=True)
class HostFit:
    """Fitted constants of one preset, and the error before and after by group."""

    preset: str
    constants: dict[str, HostConstant]
    before_pct: dict[str, float]
    after_pct: dict[str, float]


def fit_host(
    data: str | Path, preset: str, score: Callable[[Sequence[Row]], dict[str, float]], rounds: int = 2
) -> HostFit:
    """Fit the constants of `preset` on the rows of `data` that ran it.

    Parameters
    ----------
    data : str or Path
        A CSV of training measurements.
    preset : str
    score : callable
        Rows -> mean absolute error in per cent by group (`planner.compare.validation.errors_by_group`).
    rounds : int
        Passes over the three constants.

    Raises
    ------
    hwmodels.errors.InputError
        For an unknown preset, a broken file, or one without rows of it.
    RunError
        Where SciPy is not installed.
    """
    try:
        from scipy.optimize import minimize_scalar
    except ImportError:
        raise RunError("fitting needs SciPy, which is not installed. Try: pip install 'meshwright[fit]'") from None

    frameworks.get(preset)
    rows = sampled([row for row in read_rows(data) if framework_of(row) == preset and row.measured and not row.oom])
    if not rows:
        raise InputError(Fault(f"no row ran {preset}", str(data), fix="another preset or file"))

    def error(values: dict[str, float]) -> float:
        with trial(preset, values):
            return float(np.mean(list(score(rows).values())))

    found = dict.fromkeys(MOST, 0.0)
    with trial(preset, found):
        before = score(rows)
    best = float(np.mean(list(before.values())))
    for _ in range(rounds):
        for name, most in MOST.items():
            best, found[name] = _along(minimize_scalar, error, found, name, most, best)
    with trial(preset, found):
        after = score(rows)
    residual = float(np.mean(list(after.values()))) / 100.0
    text = f"least mean absolute error over {', '.join(sorted(after))} of training_measurements.csv"
    constants = {n: HostConstant(float(f"{v:.2g}"), text, len(rows), round(residual, 3)) for n, v in found.items()}
    return HostFit(preset, constants, before, after)


def measurements(path: str | Path) -> Path:
    """The CSV itself, or the ``training_measurements.csv`` of a folder."""
    return Path(path) / TRAINING if Path(path).is_dir() else Path(path)


def fitted_presets(data: str | Path) -> list[str]:
    """Presets that rows of `data` ran, in the order of the table."""
    ran = {framework_of(row) for row in read_rows(data) if row.measured and not row.oom}
    return [name for name in frameworks.names() if name in ran]


def _along(
    search: Callable[..., object],
    error: Callable[[dict[str, float]], float],
    found: dict[str, float],
    name: str,
    most: float,
    best: float,
) -> tuple[float, float]:
    """Error and value after a search along one constant; the old ones where it gains less than a hundredth."""
    result: object = search(
        lambda x: error({**found, name: float(x) * most}), bounds=(0.0, 1.0), method="bounded",
        options={"xatol": 0.02, "maxiter": 9},
    )  # fmt: skip
    value, least = float(result.x) * most, float(result.fun)  # type: ignore[attr-defined]
    return (least, value) if least < 0.99 * best else (best, found[name])


def sampled(rows: Sequence[Row]) -> list[Row]:
    """At most `ROWS_A_GROUP` evenly spaced rows of each group, in the order of the file."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.group, []).append(row)
    kept: list[Row] = []
    for members in groups.values():
        index = np.unique(np.linspace(0, len(members) - 1, min(len(members), ROWS_A_GROUP)).round().astype(int))
        kept += [members[i] for i in index]
    return kept


@contextmanager
def trial(preset: str, values: dict[str, float]) -> Iterator[None]:
    """Predictions with other constants of a preset while the block runs."""
    base = frameworks.get(preset)
    constants = {name: HostConstant(value, "trial") for name, value in values.items()}
    with frameworks.instead(replace(base, **constants)):  # type: ignore[arg-type]
        yield
