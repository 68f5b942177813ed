"""Host constants of a framework preset from its measured runs: seconds a kernel, a micro-batch and a step.

The constants of `planner.frameworks` are the only numbers that a preset may hold besides switches, and they are
fitted over all groups that ran the framework at once: coordinate by coordinate, in the steps of `SCANS`, for the
least mean over groups of the mean absolute logarithm of predicted over measured time. Groups count alike, so
that one with hundreds of small models does not speak for all; of a large group evenly spaced rows are
taken. A constant that does not lower the error by a twentieth of it is left at 0: three constants and a group or two
fit noise. Rows of trust C, whose times are
good for a smoke check only, take no part.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from hwmodels.errors import Fault, InputError
from planner import frameworks
from planner.compare.fit_rows import Errors
from planner.compare.measurements import framework_of
from planner.compare.rows import Row, read_rows
from planner.compare.validation import TRAINING
from planner.frameworks import HostConstant


@dataclass(frozen=True, slots=True)
class Scan:
    """Values of one constant that are tried: from 0 to `most` by `coarse`, then by `fine` around the best."""

    most: float
    coarse: float
    fine: float

    def first(self) -> list[float]:
        """The coarse values."""
        return [i * self.coarse for i in range(round(self.most / self.coarse) + 1)]

    def around(self, value: float) -> list[float]:
        """The fine values less than a coarse step from `value`."""
        reach = round(self.coarse / self.fine)
        near = [value + i * self.fine for i in range(1 - reach, reach)]
        return [v for v in near if -1e-12 <= v <= self.most + 1e-12]


SCANS: dict[str, Scan] = {
    "kernel_s": Scan(200e-6, 25e-6, 5e-6), "microbatch_s": Scan(30e-3, 5e-3, 1e-3), "step_s": Scan(0.5, 0.1, 10e-3),
}  # fmt: skip
"""Constant -> the values that are believed.

A lowered kernel stands for its companions, which move little and are not lowered: the views, copies, bias sums and
autograd nodes around each, and the random states that a checkpoint saves. Eager PyTorch 1.x launches two to four
operators of 10 to 20 us for one of ours, and a host that waits for each of them as many returns.
"""
GAIN = 0.05
"""Share of the error that a constant must take away."""

Score = Callable[[Mapping[str, float]], Errors]


@dataclass(frozen=True, slots=True)
class HostFit:
    """Fitted constants of one preset.

    Attributes
    ----------
    constants : dict of str to HostConstant
        With the rows and the mean absolute error over the groups of the fit itself.
    before_pct, after_pct : dict of str to float
        Error of each group without host constants and with the fitted ones.
    left_out_pct, left_out : dict
        Error of each group with constants fitted on the others, and those constants; empty for a single group.
    """

    preset: str
    constants: dict[str, HostConstant]
    before_pct: Errors
    after_pct: Errors
    left_out_pct: Errors = field(default_factory=dict)
    left_out: dict[str, dict[str, float]] = field(default_factory=dict)


def fit_host(preset: str, rows: Mapping[str, int], score: Score, rounds: int = 2) -> HostFit:
    """Fit the constants of `preset`.

    Parameters
    ----------
    preset : str
    rows : mapping of str to int
        Rows that are scored, by group.
    score : callable
        Constants -> error in per cent by group (`planner.compare.fit_rows.host_errors`).
    rounds : int
        Passes over the three constants.
    """
    known: dict[tuple[float, ...], Errors] = {}

    def scored(values: Mapping[str, float]) -> Errors:
        key = tuple(round(values[name] / scan.fine) for name, scan in SCANS.items())
        if key not in known:
            known[key] = score(values)
        return known[key]

    found = _search(scored, tuple(rows), rounds)
    before, after = scored(dict.fromkeys(SCANS, 0.0)), scored(found)
    rest = {group: tuple(name for name in rows if name != group) for group in rows if len(rows) > 1}
    left_out = {group: _search(scored, others, rounds) for group, others in rest.items()}
    left_out_pct = {group: scored(values)[group] for group, values in left_out.items()}
    residual = round(_mean(after, tuple(rows)) / 100.0, 3)
    text = "least mean absolute error over " + " and ".join(f"{n} rows of {group}" for group, n in rows.items())
    constants = {
        name: HostConstant(value, f"{text}, in steps of {SCANS[name].fine * 1e6:g} us", sum(rows.values()), residual)
        for name, value in found.items()
    }
    return HostFit(preset, constants, before, after, left_out_pct, left_out)


def _search(scored: Score, groups: Sequence[str], rounds: int) -> dict[str, float]:
    """Constants with the least mean error over `groups`."""
    found = dict.fromkeys(SCANS, 0.0)
    best = _mean(scored(found), groups)
    for _ in range(rounds):
        for name, scan in SCANS.items():
            tried: dict[float, float] = {}

            def error(value: float, name: str = name, tried: dict[float, float] = tried) -> float:
                if value not in tried:
                    tried[value] = _mean(scored({**found, name: value}), groups)
                return tried[value]

            least = min(scan.first(), key=error)
            least = min(scan.around(least), key=error)
            if error(least) < (1.0 - GAIN) * best:
                best, found[name] = error(least), float(f"{least:.6g}")
    return found


def _mean(errors: Errors, groups: Sequence[str]) -> float:
    return float(np.mean([errors[group] for group in groups]))


def measurements(path: str | Path) -> Path:
    """The CSV itself, or the ``training_measurements.csv`` of a folder."""
    return Path(path) / TRAINING if Path(path).is_dir() else Path(path)


def preset_rows(data: str | Path, preset: str) -> list[Row]:
    """Rows of `data` with a time that ran `preset`.

    Raises
    ------
    hwmodels.errors.InputError
        For an unknown preset, a broken file, or one without rows of it.
    """
    frameworks.get(preset)
    rows = [row for row in usable(data) if framework_of(row) == preset]
    if not rows:
        raise InputError(Fault(f"no row ran {preset}", str(data), fix="another preset or file"))
    return rows


def fitted_presets(data: str | Path) -> list[str]:
    """Presets that rows of `data` ran, in the order of the table."""
    ran = {framework_of(row) for row in usable(data)}
    return [name for name in frameworks.names() if name in ran]


def usable(data: str | Path) -> list[Row]:
    """Rows of `data` whose times may be fitted: measured, to the end, of trust A or B."""
    return [row for row in read_rows(data) if row.measured and not row.oom and row.trust != "C"]
