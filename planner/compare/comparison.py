"""Measured against predicted: one plan phase by phase, and the order of several plans."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from hwmodels.errors import Fault, InputError
from planner.plan import Plan, Prediction
from planner.results import PHASES, Comparison, Measurement, PhaseComparison

NOISE_FLOOR = 0.02
"""Relative difference that is taken for noise however quiet a run looks: replicas of the same
MLPerf run differ by 2-4 % (data of training results v3.0-v5.0)."""


@dataclass(frozen=True, slots=True)
class PairOrder:
    """Two plans and whether prediction and measurement put them in the same order.

    Attributes
    ----------
    faster, slower : str
        Names of the plans in measured order.
    measured_gap_pct, noise_pct : float
        How much slower the slower one was; what the noise of the two runs could explain.
    differs : bool
        The gap is above the noise.
    agrees : bool or None
        Whether the prediction orders them the same way; None where they do not differ.
    """

    faster: str
    slower: str
    measured_gap_pct: float
    noise_pct: float
    differs: bool
    agrees: bool | None


@dataclass(frozen=True, slots=True)
class RankingCheck:
    """Comparisons of several plans with the order of each side.

    Attributes
    ----------
    comparisons : tuple of Comparison
        In the order given.
    predicted_order, measured_order : tuple of str
        Plan names, fastest first; plans whose runs are not comparable are left out.
    pairs : tuple of PairOrder
        Every pair of comparable plans.
    agrees : bool or None
        No pair that differs by more than the noise is ordered the wrong way; None where no
        pair differs.
    """

    comparisons: tuple[Comparison, ...]
    predicted_order: tuple[str, ...]
    measured_order: tuple[str, ...]
    pairs: tuple[PairOrder, ...]
    agrees: bool | None


def _means(ranks: Sequence[dict[str, float]]) -> dict[str, float]:
    """Mean over ranks of each phase; a phase that a rank lacks took it no time."""
    keys = {key for rank in ranks for key in rank}
    return {key: sum(rank.get(key, 0.0) for rank in ranks) / len(ranks) for key in keys}


def _phases(predicted: Sequence[dict[str, float]], measured: Measurement) -> list[PhaseComparison]:
    """Phases that either side has, in the order of `PHASES`."""
    if not predicted or not measured.phases:
        return []
    guess, seen = _means(predicted), _means(measured.phases)
    order = [p for p in PHASES if p in guess or p in seen] + sorted((set(guess) | set(seen)) - set(PHASES))
    found = []
    for phase in order:
        p, m = guess.get(phase, 0.0), seen.get(phase, 0.0)
        if p == 0.0 and m == 0.0:
            continue
        error = (p - m) / m * 100.0 if m > 0 else None
        found.append(PhaseComparison(phase, p, m, error, m / measured.median_step_s * 100.0))
    return found


def _rank_memory(plan: Plan, predicted: Prediction) -> list[int]:
    """Predicted peak of every world rank: that of its pipeline rank."""
    if not predicted.peak_bytes:
        return []
    per_stage = plan.layout.world // plan.layout.pp
    return [predicted.peak_bytes[rank // per_stage] for rank in range(plan.layout.world)]


def _reasons(measurement: Measurement) -> list[str]:
    """Why a run cannot be compared; empty when it can."""
    found = []
    if not measurement.stable:
        found.append(f"the run was not stable: step time drifted by {measurement.drift * 100:+.1f} %, measure again")
    if measurement.correctness.get("passed") is False:
        error = measurement.correctness.get("grad_rel_err")
        found.append(f"the run computed something else than one process does (gradient error {error})")
    return found


COMPUTE: tuple[str, ...] = ("forward", "backward", "recompute", "optimizer", "host")
"""Phases of a prediction that are no communication and no bubble."""


def _unexplained(predicted: Prediction, measured_s: float) -> list[str]:
    """What of a measured step that is slower than the interval the prediction explains; nothing otherwise.

    A sum that falls short is no agreement, whatever its parts are: the rest is stated, with the factor by which the run
    was slower than the model of it.
    """
    if measured_s <= predicted.step_high_s or not predicted.phases:
        return []
    mean = _means(predicted.phases)
    compute = sum(mean.get(name, 0.0) for name in COMPUTE)
    exposed = sum(seconds for name, seconds in mean.items() if name.endswith("_comm"))
    parts = f"compute {compute:.3g} s, exposed communication {exposed:.3g} s, bubble {mean.get('bubble', 0.0):.3g} s"
    rest, factor = measured_s - predicted.step_s, predicted.step_s / measured_s
    explained = f"{predicted.step_s:.3g} s of the {measured_s:.3g} s measured are explained ({parts})"
    return [f"{explained}; {rest:.3g} s are not: efficiency factor {factor:.2f}"]


def _check(plan: Plan, measurement: Measurement) -> Prediction:
    faults = []
    if plan.predicted is None:
        faults.append(Fault(f"plan {plan.name} carries no prediction", "plan", "nothing to compare with",
                            "a plan written by search or predict"))  # fmt: skip
    if measurement.plan_hash and measurement.plan_hash != plan.digest():
        faults.append(Fault(f"measured.json is of another plan ({measurement.plan_name})", "measurement",
                            f"its plan hash is {measurement.plan_hash}, the plan's is {plan.digest()}",
                            "the measurement of this plan"))  # fmt: skip
    if not (math.isfinite(measurement.median_step_s) and measurement.median_step_s > 0):
        faults.append(Fault(f"median_step_s is {measurement.median_step_s}", "measurement", "a step takes time",
                            "a run with timed steps"))  # fmt: skip
    if faults or plan.predicted is None:
        raise InputError(faults)
    return plan.predicted


def compare(plan: Plan, measurement: Measurement) -> Comparison:
    """Measured against predicted for one plan.

    Phases are means over ranks on both sides: pipeline ranks of the prediction, world ranks of
    the measurement. `error_pct` is (predicted - measured) / measured * 100.

    Parameters
    ----------
    plan : Plan
        With its prediction.
    measurement : Measurement
        Of that plan.

    Returns
    -------
    Comparison
        `comparable` is False, with the reason among the notes, for a run that drifted or whose
        loss and gradients were not those of a single process.

    Raises
    ------
    hwmodels.errors.InputError
        Where the plan has no prediction or the measurement is of another plan.
    """
    predicted = _check(plan, measurement)
    measured_s = measurement.median_step_s
    error = (predicted.step_s - measured_s) / measured_s * 100.0
    reasons = _reasons(measurement)
    within = predicted.step_low_s <= measured_s <= predicted.step_high_s
    notes = list(reasons)
    if not within:
        notes.append("the measured time lies outside the predicted interval")
    notes += _unexplained(predicted, measured_s)
    if len(measurement.step_s) < 3:
        notes.append(f"only {len(measurement.step_s)} timed steps")
    return Comparison(
        plan=plan.name,
        predicted_s=predicted.step_s,
        measured_s=measured_s,
        error_pct=error,
        within_interval=within,
        phases=_phases(predicted.phases, measurement),
        memory_predicted_bytes=_rank_memory(plan, predicted),
        memory_measured_bytes=list(measurement.peak_bytes),
        comparable=not reasons,
        notes=notes,
    )


def _noise(measurement: Measurement) -> float:
    """Relative noise of a run: the larger of its spread and its drift, at least the floor."""
    return max(NOISE_FLOOR, abs(measurement.cv), abs(measurement.drift))


def _pair(one: tuple[Comparison, Measurement], two: tuple[Comparison, Measurement]) -> PairOrder:
    fast, slow = sorted((one, two), key=lambda item: item[0].measured_s)
    gap = slow[0].measured_s / fast[0].measured_s - 1.0
    # Two independent runs: their relative errors add in squares.
    noise = math.hypot(_noise(fast[1]), _noise(slow[1]))
    differs = gap > noise
    agrees = fast[0].predicted_s < slow[0].predicted_s if differs else None
    return PairOrder(fast[0].plan, slow[0].plan, gap * 100.0, noise * 100.0, differs, agrees)


def compare_many(pairs: Sequence[tuple[Plan, Measurement]]) -> RankingCheck:
    """Compare several plans and check that the prediction orders them as the measurement does.

    Only pairs of comparable plans whose measured times differ by more than the noise of the
    two runs can agree or disagree.

    Raises
    ------
    hwmodels.errors.InputError
        As `compare`, or where two plans have the same name.
    """
    plan_names = [plan.name for plan, _ in pairs]
    twice = sorted({name for name in plan_names if plan_names.count(name) > 1})
    if twice:
        raise InputError(Fault(f"plan names appear twice: {', '.join(twice)}", "plans", "the order is told by name",
                               "one name a plan"))  # fmt: skip
    comparisons = tuple(compare(plan, measurement) for plan, measurement in pairs)
    usable = [(c, m) for c, (_, m) in zip(comparisons, pairs, strict=True) if c.comparable]
    order = [_pair(one, two) for i, one in enumerate(usable) for two in usable[i + 1 :]]
    judged = [pair.agrees for pair in order if pair.agrees is not None]
    return RankingCheck(
        comparisons=comparisons,
        predicted_order=tuple(c.plan for c, _ in sorted(usable, key=lambda item: item[0].predicted_s)),
        measured_order=tuple(c.plan for c, _ in sorted(usable, key=lambda item: item[0].measured_s)),
        pairs=tuple(order),
        agrees=all(judged) if judged else None,
    )
