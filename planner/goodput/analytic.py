"""Closed forms: the best checkpoint interval, and where the time of a run goes.

Time to failure is exponential. With failures at rate λ, D seconds after each in which nothing runs, R seconds of
restart in which failures happen too, and cycles of L seconds (training, then a checkpoint that blocks for δ), a cycle
takes

    E = exp(λ(R + u)) (1/λ + D) (exp(λL) - 1)

in the mean. For u = 0 this is the expectation of Hérault and Robert, Fault-Tolerance Techniques for High-Performance
Computing (2015), chapter 1; without D as well it is the complete model of Daly (2006). With a checkpoint that is in
storage only u seconds after training went on, a failure in these u seconds loses the cycle before as well; and a cycle
of τ < u waits for it, L = u + δ, but for the first after a restart, L' = τ + δ. Let A be the time of a cycle that
starts with its checkpoint in storage, B of one that starts with it on the way, r the mean time of a restart with its
repetitions:

    A = exp(λR) (1/λ + D) (exp(λL') - 1)
    B = exp(λu) (1 - exp(-λL)) (1/λ + D + r + A),    1/λ + D + r = exp(λR) (1/λ + D)

which gives E = B with u + L' - L = min(u, τ) in the place of u. Of it, λE / (1 + λD) failures; each brings D; the rest
is spent on training and checkpoints W = exp(λ min(u, τ)) (exp(λL) - 1) / λ, and on restarts (exp(λR) - 1) W. A cycle
that is kept went through without a failure, and so through its wait, with probability exp(-λL); what else is in W is
done again.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from planner.goodput.job import LOSSES, Job

FloatArray = NDArray[np.float64]
STEPS = 60
"""Newton steps of `best_interval`: 20 reach 1e-12 of the root for checkpoints of a second every century."""


def young_interval(blocked_s: ArrayLike, mtbf_s: ArrayLike) -> FloatArray:
    """Seconds of training between checkpoints by Young's first order: sqrt(2 δ M).

    J. W. Young, A first order approximation to the optimum checkpoint interval, CACM 17 (1974).
    """
    return np.asarray(np.sqrt(2.0 * np.asarray(blocked_s, np.float64) * np.asarray(mtbf_s, np.float64)))


def daly_interval(blocked_s: ArrayLike, mtbf_s: ArrayLike) -> FloatArray:
    """Seconds of training between checkpoints by Daly's higher order, for checkpoints of δ and failures every M.

    sqrt(2 δ M) (1 + sqrt(δ / 2M) / 3 + (δ / 2M) / 9) - δ below δ = 2M, else M: J. T. Daly, A higher order estimate of
    the optimum checkpoint interval for restart dumps, FGCS 22 (2006), equation 37.
    """
    delta, mean = np.broadcast_arrays(np.asarray(blocked_s, np.float64), np.asarray(mtbf_s, np.float64))
    with np.errstate(invalid="ignore"):
        half = delta / (2.0 * mean)
        found = np.sqrt(2.0 * delta * mean) * (1.0 + np.sqrt(half) / 3.0 + half / 9.0) - delta
    return np.asarray(np.where(half < 1.0, found, mean))


def best_interval(job: Job) -> FloatArray:
    """Seconds of training between checkpoints with the highest goodput of `shares`; infinite where nothing fails.

    The derivative of τ / (exp(λ(τ + δ)) - 1) is zero where log(1 - x) + x + λδ = 0, x = λτ (Hérault and Robert (2015)
    solve it by Lambert's W). Newton's steps from x = 1 - exp(-1 - λδ), where that is negative and
    concave, go down to it. Below the lag of an asynchronous checkpoint the cycle stays as long, so that more training
    in it costs no more than what a failure in it loses, which pays up to 1/λ. Training that stragglers or missing
    replicas stretch by g takes g τ.
    """
    blocked, lag = np.broadcast_arrays(job.blocked_s, job.lag_s)
    if not job.rate:
        return np.full(blocked.shape, math.inf)
    a = job.rate * blocked
    x = 1.0 - np.exp(-1.0 - a)
    for _ in range(STEPS):
        x = np.maximum(x + (np.log1p(-x) + x + a) * (1.0 - x) / np.maximum(x, 1e-300), 0.0)
    return np.asarray(np.maximum(x, np.minimum(job.rate * lag, 1.0)) / (job.rate * stretch(job)))


def _slow_share(job: Job) -> float:
    """Share of the time in which at least one straggler runs: 1 - exp(-νd), each for its d seconds until found."""
    return -math.expm1(-job.straggler_rate * job.straggler_detect_s)


def _straggling(job: Job) -> float:
    """By how much stragglers stretch training: a share p of the time gives 1/f of the training it could."""
    return 1.0 / (1.0 - _slow_share(job) * (1.0 - 1.0 / job.straggler_factor))


def _away(job: Job, most: int) -> FloatArray:
    """Probability of 0 … `most` nodes in repair: Poisson, cut there (Erlang's loss formula).

    It depends on the mean repair time alone, not on its distribution. Failures arrive while the job runs or waits for
    its restart, λ/(1 + λD) a second; with stragglers, which are exchanged as well.
    """
    pauses = 1.0 + job.rate * (job.detect_s + job.reschedule_s)
    load = (job.node_rate / pauses + job.straggler_rate) * job.repair_s
    k = np.arange(most + 1)
    logs = k * math.log(max(load, 1e-300)) - np.asarray([math.lgamma(i + 1.0) for i in k])
    weights = np.exp(logs - logs.max())
    return np.asarray(weights / weights.sum())


def stretch(job: Job) -> float:
    """Seconds that training takes over those without stragglers and with all replicas."""
    if not job.dp or job.spares is None:
        return _straggling(job)
    chance = _away(job, job.nodes + job.spares)
    running = np.asarray([job.replicas(job.nodes_outside_repair(k)) for k in range(len(chance))], np.float64)
    reached = float((chance * running).sum() / (chance * (running > 0)).sum()) / job.dp
    return _straggling(job) / reached


def repair_wait_s(job: Job) -> float:
    """Mean seconds that a failure waits for a node.

    A run without elasticity stands still with more nodes in repair than there are spares, a share B of the time
    (`_away`); B / (1 - B) of the time that it does not is spent waiting, over the failures in that time.
    """
    if not job.rate or job.spares is None:
        return 0.0
    most = job.spares + 1 if not job.dp else job.spares + job.nodes
    chance = _away(job, most)
    blocked = float(chance[-1]) if not job.dp else float(
        sum(p for k, p in enumerate(chance) if not job.replicas(job.nodes_outside_repair(k)))
    )  # fmt: skip
    if blocked >= 1.0:
        return math.inf
    between = 1.0 / job.rate + job.detect_s + job.reschedule_s
    return blocked / (1.0 - blocked) * between


def spares_for(job: Job, share: float) -> int:
    """Spare nodes with which a run without elasticity waits for repairs at most a `share` of the time."""
    load = (job.node_rate + job.straggler_rate) * job.repair_s
    blocking, spares = load / (1.0 + load), 0  # Erlang's recursion B(n) = ρ B(n-1) / (n + ρ B(n-1)), from n = 1
    while blocking > share:
        spares += 1
        blocking = load * blocking / (spares + 1.0 + load * blocking)
    return spares


def shares(job: Job, interval_s: ArrayLike) -> dict[str, FloatArray]:
    """Shares of the time: ``goodput`` and `LOSSES`, which sum to 1.

    Exact for exponential failures without stragglers and repairs that anybody waits for; those enter by their means.

    Parameters
    ----------
    interval_s : array
        Seconds of training between checkpoints, as they would be undisturbed; broadcast against the job's arrays.
    """
    tau, blocked, lag, restart = np.broadcast_arrays(
        np.asarray(interval_s, np.float64), job.blocked_s, job.lag_s, job.restart_s
    )
    rate, wait, slow, whole = job.rate, repair_wait_s(job), _straggling(job), stretch(job)
    down = job.detect_s + job.reschedule_s
    stall = np.maximum(lag - tau * whole, 0.0)
    length = tau * whole + stall + blocked
    with np.errstate(over="ignore", invalid="ignore"):
        if rate:
            work = np.exp(rate * (lag - stall)) * np.expm1(rate * length) / rate
            failures = rate * work * np.exp(rate * restart)
            again = np.expm1(rate * restart) * work
        else:
            work, failures, again = length, np.zeros_like(length), np.zeros_like(length)
        exchanges = job.straggler_rate * (blocked + lag + job.reschedule_s + restart)
        saving = blocked + stall * np.exp(-rate * length)
        total = (work + again + failures * (down + wait)) * (1.0 + exchanges)
        seconds = {
            "goodput": tau,
            "checkpoint": saving,
            "rework": work - tau * whole - saving,
            "detection": failures * down,
            "repair": failures * wait,
            "restart": again,
            "straggler": tau * (slow - 1.0) + total * exchanges / (1.0 + exchanges),
            "shrunk": tau * (whole - slow),
        }
        found = {name: np.asarray(value / total) for name, value in seconds.items()}
    hopeless = ~np.isfinite(total)
    for name in found:
        found[name] = np.where(hopeless, 1.0 if name == "rework" else 0.0, found[name])
    return {"goodput": found["goodput"], **{name: found[name] for name in LOSSES}}
