"""How good predictions are: errors per group, ranking within families, the one-constant baseline.

Nothing here reads a file or predicts; it scores `RowResult`s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from planner.compare.rows import Row
from planner.layout import Layout
from planner.results import Interval

FloatArray = NDArray[np.float64]

PAIR_THRESHOLD = 0.04
"""Measured times closer than this are the same: replicas of one run differ by 2-4 % (MLPerf)."""

FAMILY_LAYOUTS = 4
"""Distinct layouts that make a ranking family."""

_LAYOUT_FLAGS = ("grad_accum", "recompute_modules", "pp_layout")
"""Parts of `other_flags` that restate the layout, not the software."""


@dataclass(frozen=True, slots=True)
class RowResult:
    """One row with what was predicted for it.

    Attributes
    ----------
    row : Row
    enough : bool
        The row states enough configuration (see `planner.compare.measurements.enough`).
    reason : str
        Why there is no prediction; empty when there is one.
    framework : str
        The preset used.
    layout : Layout or None
    assumed : tuple of str
        What the source does not say and which default was taken.
    step_s : Interval or None
        Predicted seconds.
    tokens_per_s_per_gpu : float or None
    mfu : float or None
    peak_bytes : float or None
        Predicted peak of the rank and in the sense that the row's figure has.
    verdict : str
    """

    row: Row
    enough: bool
    reason: str = ""
    framework: str = ""
    layout: Layout | None = None
    assumed: tuple[str, ...] = ()
    step_s: Interval | None = None
    tokens_per_s_per_gpu: float | None = None
    mfu: float | None = None
    peak_bytes: float | None = None
    verdict: str = ""

    @property
    def time_pair(self) -> tuple[str, float, float] | None:
        """(metric, measured, predicted) of the time, or None where either is missing."""
        measured = self.row.measured
        if measured is None or self.step_s is None or self.row.oom:
            return None
        metric, value = measured
        predicted = self.step_s.mid if metric == "step_time" else self.tokens_per_s_per_gpu
        return None if predicted is None else (metric, value, predicted)

    @property
    def memory_pair(self) -> tuple[float, float] | None:
        """(measured, predicted) peak bytes, or None where either is missing."""
        measured = self.row.measured_peak_bytes
        if measured is None or self.peak_bytes is None or self.row.oom:
            return None
        return measured, self.peak_bytes


@dataclass(frozen=True, slots=True)
class GroupScore:
    """Error of one group in one metric; None where a key does not apply. Per cent."""

    group: str
    metric: str
    n: int
    mean_abs_pct: float
    median_abs_pct: float
    p90_abs_pct: float
    max_abs_pct: float
    bias_pct: float
    kendall_tau: float | None = None
    regret_pct: float | None = None
    baseline_mean_abs_pct: float | None = None
    families: int = 0

    def to_json(self) -> dict[str, Any]:
        """The object that ``validate --json`` prints for the group."""
        return {name: getattr(self, name) for name in self.__slots__}


def errors_pct(predicted: ArrayLike, measured: ArrayLike) -> FloatArray:
    """Signed error in per cent: (predicted / measured - 1) * 100, element by element."""
    return np.asarray((np.asarray(predicted, dtype=float) / np.asarray(measured, dtype=float) - 1.0) * 100.0)


def kendall_tau(measured: Sequence[float], predicted: Sequence[float]) -> tuple[float | None, int]:
    """τ-b over the pairs whose measured times differ by more than `PAIR_THRESHOLD`.

    τ-b = (C - D) / sqrt((C + D + Tx)(C + D + Ty)) with C concordant and D discordant pairs, Tx
    pairs tied in the prediction only and Ty in the measurement only (Kendall 1945). Pairs tied
    in the measurement are left out, so Ty = 0.

    Returns
    -------
    tau : float or None
        None where no pair differs enough, or all of them are tied in the prediction.
    pairs : int
        Pairs that count.
    """
    concordant = discordant = tied = 0
    for i in range(len(measured)):
        for j in range(i):
            slow, fast = max(measured[i], measured[j]), min(measured[i], measured[j])
            if slow <= fast * (1.0 + PAIR_THRESHOLD):
                continue
            sign = np.sign(measured[i] - measured[j]) * np.sign(predicted[i] - predicted[j])
            concordant += sign > 0
            discordant += sign < 0
            tied += sign == 0
    pairs = concordant + discordant + tied
    if pairs == 0:
        return None, 0
    if concordant + discordant == 0:
        return 0.0, pairs
    denominator = float(np.sqrt(float(concordant + discordant + tied) * float(concordant + discordant)))
    return (concordant - discordant) / denominator, pairs


def regret_pct(measured: Sequence[float], predicted: Sequence[float]) -> float:
    """Measured time of the predicted best over the measured best, minus 1, in per cent.

    Where several share the best prediction, their mean measured time counts.
    """
    times, guess = np.asarray(measured, dtype=float), np.asarray(predicted, dtype=float)
    chosen = times[guess == guess.min()].mean()
    return float(chosen / times.min() - 1.0) * 100.0


def baseline_mean_abs_pct(unit: ArrayLike, measured: ArrayLike) -> float:
    """Mean absolute error of the best single constant c with prediction c * `unit`.

    Minimises mean |c u / m - 1| = mean(r |c - 1/r|) with r = u/m: the weighted median of 1/r
    with weights r. With `unit` the step time at MFU 1, 1/c is the one MFU that explains the
    group best, so a model that does not beat this says nothing.
    """
    ratio = np.asarray(unit, dtype=float) / np.asarray(measured, dtype=float)
    points = 1.0 / ratio
    order = np.argsort(points, kind="stable")
    weight = np.cumsum(ratio[order])
    c = points[order][int(np.searchsorted(weight, weight[-1] / 2.0))]
    return float(np.mean(np.abs(c * ratio - 1.0)) * 100.0)


def family_key(row: Row) -> tuple[Any, ...]:
    """Rows with equal keys differ in layout only."""
    kept = [
        part.strip()
        for part in row.other_flags.split(";")
        if part.strip() and not part.strip().startswith(_LAYOUT_FLAGS)
    ]
    return (row.source, row.model, row.gpu, row.n_gpus, row.gbs, row.seq_len, row.precision, row.framework, tuple(kept))


def families(results: Iterable[RowResult]) -> list[list[RowResult]]:
    """Ranking families: equal `family_key`, at least `FAMILY_LAYOUTS` distinct layouts, a time each."""
    found: dict[tuple[Any, ...], list[RowResult]] = {}
    for result in results:
        if result.time_pair is not None and result.layout is not None:
            found.setdefault(family_key(result.row), []).append(result)
    return [members for members in found.values() if len({m.layout for m in members}) >= FAMILY_LAYOUTS]


def _seconds(result: RowResult) -> tuple[float, float]:
    """Measured and predicted time in a unit that falls with speed, whatever the metric."""
    pair = result.time_pair
    if pair is None:
        raise ValueError("a result without time has no place in a family")
    metric, measured, predicted = pair
    return (measured, predicted) if metric == "step_time" else (1.0 / measured, 1.0 / predicted)


def ranking(results: Iterable[RowResult]) -> tuple[float | None, float | None, int]:
    """τ-b averaged over families weighted by pairs, mean regret in per cent, number of families."""
    taus, weights, regrets = [], [], []
    found = families(results)
    for members in found:
        measured, predicted = zip(*(_seconds(m) for m in members), strict=True)
        tau, pairs = kendall_tau(measured, predicted)
        if tau is not None:
            taus.append(tau)
            weights.append(pairs)
        regrets.append(regret_pct(measured, predicted))
    tau_mean = float(np.average(taus, weights=weights)) if taus else None
    return tau_mean, float(np.mean(regrets)) if regrets else None, len(found)


def _group_score(group: str, metric: str, predicted: FloatArray, measured: FloatArray, **more: Any) -> GroupScore:
    error = errors_pct(predicted, measured)
    size = np.abs(error)
    return GroupScore(
        group, metric, len(error), float(size.mean()), float(np.median(size)), float(np.percentile(size, 90)),
        float(size.max()), float(error.mean()), **more,
    )  # fmt: skip


def _time_score(group: str, metric: str, results: list[RowResult]) -> GroupScore:
    pairs = [pair for r in results if (pair := r.time_pair) is not None]
    measured = np.asarray([p[1] for p in pairs])
    predicted = np.asarray([p[2] for p in pairs])
    tau, regret, n_families = ranking(results)
    baseline = None
    utilisation = [r.mfu for r in results if r.mfu]
    if len(utilisation) == len(results):
        # predicted time x MFU is the time at MFU 1; a rate is its inverse
        scale = np.asarray(utilisation)
        unit = predicted * scale if metric == "step_time" else predicted / scale
        baseline = baseline_mean_abs_pct(unit, measured)
    return _group_score(
        group,
        metric,
        predicted,
        measured,
        kendall_tau=tau,
        regret_pct=regret,
        baseline_mean_abs_pct=baseline,
        families=n_families,
    )


def memory_kind(row: Row) -> str:
    """What the row's memory figure counts: ``allocated``, ``reserved`` or ``unstated``."""
    text = row.mem_kind.split("(")[0].lower() if "max_memory_allocated" in row.mem_kind else row.mem_kind.lower()
    return next((kind for kind in ("allocated", "reserved") if kind in text), "unstated")


def score(results: Sequence[RowResult]) -> list[GroupScore]:
    """One score a group and metric, in order of appearance.

    Memory figures that count different things are never mixed: where a group has several
    kinds, its metric is ``peak_memory:KIND`` each.
    """
    by_time: dict[tuple[str, str], list[RowResult]] = {}
    by_memory: dict[str, dict[str, list[RowResult]]] = {}
    for result in results:
        if (pair := result.time_pair) is not None:
            by_time.setdefault((result.row.group, pair[0]), []).append(result)
        if result.memory_pair is not None:
            by_memory.setdefault(result.row.group, {}).setdefault(memory_kind(result.row), []).append(result)
    scores = [_time_score(group, metric, members) for (group, metric), members in by_time.items()]
    for group, kinds in by_memory.items():
        for kind, members in kinds.items():
            metric = "peak_memory" if len(kinds) == 1 else f"peak_memory:{kind}"
            pairs = np.asarray([m.memory_pair for m in members], dtype=np.float64)
            scores.append(_group_score(group, metric, pairs[:, 1], pairs[:, 0]))
    return scores


def oom_counts(results: Iterable[RowResult]) -> dict[str, int]:
    """Verdicts against what happened.

    Returns
    -------
    dict
        ``true_oom`` rows that ran out of memory (and were predicted), ``called_oom`` and
        ``called_at_risk`` of those; ``false_oom`` rows that worked but were called out of
        memory, ``at_risk_of_worked`` rows that worked and were called at risk.
    """
    predicted = [r for r in results if r.verdict]

    def n(test: Callable[[RowResult], bool]) -> int:
        return sum(1 for r in predicted if test(r))

    return {
        "true_oom": n(lambda r: r.row.oom),
        "called_oom": n(lambda r: r.row.oom and r.verdict == "out of memory"),
        "called_at_risk": n(lambda r: r.row.oom and r.verdict == "at risk"),
        "false_oom": n(lambda r: not r.row.oom and r.verdict == "out of memory"),
        "at_risk_of_worked": n(lambda r: not r.row.oom and r.verdict == "at risk"),
    }
