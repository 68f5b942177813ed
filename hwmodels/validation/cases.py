"""`Cases`: the predicted rows of any number of files in one set of arrays, and the errors of a selection."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hwmodels.estimate import FloatArray
from hwmodels.validation.floor import Floor, floor
from hwmodels.validation.scored import AMOUNTS, TAGS, Scored

Words = NDArray[np.object_]
QUANTILE = {"median": 0.5, "p90": 0.9, "worst": 1.0}


@dataclass(frozen=True, slots=True, eq=False)
class Cases:
    """Predicted rows, one element each; fields as in `Scored`, and the kind of law of each row.

    Attributes
    ----------
    kind, identity, group, pool, key : ndarray of str
        ``identity`` is ``file:line``.
    measured_s, predicted_s, spread, x : ndarray
    tags : dict[str, ndarray of str]
    amounts : dict[str, ndarray]
    """

    kind: Words
    identity: Words
    group: Words
    pool: Words
    key: Words
    measured_s: FloatArray
    predicted_s: FloatArray
    spread: FloatArray
    x: FloatArray
    tags: dict[str, Words]
    amounts: dict[str, FloatArray]

    @classmethod
    def of(cls, parts: Sequence[Scored]) -> Cases:
        """The predicted rows of `parts`."""
        kept = [part.predicted for part in parts]

        def words(name: str) -> Words:
            return np.concatenate(
                [np.zeros(0, object), *(getattr(p, name)[k] for p, k in zip(parts, kept, strict=True))]
            )

        def numbers(name: str) -> FloatArray:
            return np.concatenate([np.zeros(0), *(getattr(p, name)[k] for p, k in zip(parts, kept, strict=True))])

        kinds = [np.full(int(k.sum()), p.kind, object) for p, k in zip(parts, kept, strict=True)]
        names = [
            np.asarray([f"{Path(p.file).name}:{line}" for line in p.line[k]], object)
            for p, k in zip(parts, kept, strict=True)
        ]
        tags, amounts = {}, {}
        for name in TAGS:
            found = [p.tags[name][k] for p, k in zip(parts, kept, strict=True)]
            tags[name] = np.concatenate([np.zeros(0, object), *found])
        for name in AMOUNTS:
            sizes = [p.amounts[name][k] for p, k in zip(parts, kept, strict=True)]
            amounts[name] = np.concatenate([np.zeros(0), *sizes])
        empty = np.zeros(0, object)
        return cls(
            np.concatenate([empty, *kinds]), np.concatenate([empty, *names]), words("group"), words("pool"),
            words("key"), numbers("measured_s"), numbers("predicted_s"), numbers("spread"), numbers("x"), tags, amounts,
        )  # fmt: skip

    def __len__(self) -> int:
        return int(self.measured_s.size)

    def take(self, keep: NDArray[np.bool_] | NDArray[np.int_]) -> Cases:
        """The rows where `keep` is true, or those at the places `keep`."""
        return Cases(
            self.kind[keep], self.identity[keep], self.group[keep], self.pool[keep], self.key[keep],
            self.measured_s[keep], self.predicted_s[keep], self.spread[keep], self.x[keep],
            {name: values[keep] for name, values in self.tags.items()},
            {name: values[keep] for name, values in self.amounts.items()},
        )  # fmt: skip

    @property
    def error(self) -> FloatArray:
        """Predicted over measured, minus 1."""
        return np.asarray(self.predicted_s / self.measured_s - 1.0)

    @property
    def inside(self) -> NDArray[np.bool_]:
        """Rows whose measured time lies in the interval: predicted / (1 + spread) to predicted * (1 + spread)."""
        wide = 1.0 + self.spread
        return np.asarray(
            (self.measured_s >= self.predicted_s / wide) & (self.measured_s <= self.predicted_s * wide), np.bool_
        )

    def floor(self) -> Floor:
        """What rows that are equal in all inputs leave."""
        return floor(self.key, self.measured_s)

    def figure(self, metric: str) -> float:
        """``median``, ``p90`` or ``worst`` absolute relative error, per cent; there must be rows."""
        return float(np.quantile(100.0 * np.abs(self.error), QUANTILE[metric]))


def baseline_pct(x: FloatArray, seconds: FloatArray) -> float | None:
    """Mean absolute error, per cent, of the best single rate: what one efficiency number for the group would reach.

    A time is c * x with x the FLOP or bytes of a row. The c of least mean |c x / t - 1| = mean (x / t) |c - t / x| is
    the median of t / x with weights x / t.

    Parameters
    ----------
    x, seconds : ndarray, shape (n,)

    Returns
    -------
    float or None
        None where a row has no size.
    """
    if not x.size or (x <= 0).any():
        return None
    rate = x / seconds
    order = np.argsort(1.0 / rate)
    weight = np.cumsum(rate[order])
    best = 1.0 / rate[order][int(np.searchsorted(weight, weight[-1] / 2.0))]
    return float(100.0 * np.mean(np.abs(best * rate - 1.0)))


def statistics(cases: Cases) -> dict[str, Any]:
    """The figures of one group, as in ``validate --json``; there must be rows."""
    error = 100.0 * cases.error
    size = np.abs(error)
    left = cases.floor()
    base = baseline_pct(cases.x, cases.measured_s)

    def short(value: float | None) -> float | None:
        return None if value is None else round(float(value), 2)

    return {
        "metric": "kernel_time", "n": len(cases), "mean_abs_pct": short(size.mean()),
        "median_abs_pct": short(np.median(size)), "p90_abs_pct": short(np.quantile(size, 0.9)),
        "max_abs_pct": short(size.max()), "bias_pct": short(error.mean()), "kendall_tau": None, "regret_pct": None,
        "baseline_mean_abs_pct": short(base), "floor_median_pct": short(left.median_pct),
        "floor_p90_pct": short(left.p90_pct), "twins": left.twins, "coverage": short(cases.inside.mean()),
    }  # fmt: skip


def grouped(cases: Cases, names: Words) -> list[dict[str, Any]]:
    """`statistics` of each distinct name, in alphabetical order."""
    return [
        {"group": name, **statistics(cases.take(np.asarray(names == name, np.bool_)))}
        for name in sorted({str(name) for name in names.tolist()})
    ]
