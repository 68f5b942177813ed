"""Times plans: warm-up, interleaved repeats until the median is stable, then one step for memory."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from executor.device import Backend
from executor.job import Job
from executor.memory_count import StorageCount
from executor.model import batch
from executor.timing import Recorder, StepTimes
from executor.torch_adapter import CommunicationWatch

STABLE_ERROR = 0.02
"""Repeats go on until the standard error of the median is below this share of it."""
MAX_DRIFT = 0.10
"""Between the medians of the first and the second half; above it nothing is compared."""


@dataclass(slots=True)
class Series:
    """The timed steps of one plan on this rank.

    Attributes
    ----------
    steps : list of StepTimes
        This rank's own.
    step_s : list of float
        Seconds of each step: the slowest rank's.
    losses : list of Tensor or None
    """

    steps: list[StepTimes] = field(default_factory=list)
    step_s: list[float] = field(default_factory=list)
    losses: list[Any] = field(default_factory=list)


def drift(step_s: list[float]) -> float:
    """Relative change of the median from the first to the second half."""
    half = len(step_s) // 2
    if half == 0:
        return 0.0
    first, second = statistics.median(step_s[:half]), statistics.median(step_s[-half:])
    return (second - first) / first


def median_error(step_s: list[float]) -> float:
    """Standard error of the median over the median: 1.253 sd / sqrt(n) for normal noise.

    The deviation is taken from the interquartile range (sd = IQR / 1.349), so that one stall
    does not hide a stable median.
    """
    if len(step_s) < 4:
        return float("inf")
    low, mid, high = statistics.quantiles(step_s, n=4)
    return float(1.253 * (high - low) / 1.349 / len(step_s) ** 0.5 / mid)


def time_plans(
    jobs: list[Job],
    recorder: Recorder,
    watch: CommunicationWatch,
    *,
    repeats: int,
    warmup: int,
    budget_s: float,
    on_progress: Callable[[str], None],
) -> list[Series]:
    """Time all plans in turn, A B A B, so that a drift of the machine hits all alike.

    At least `repeats` steps each; up to twice as many within `budget_s` while a median is not
    yet known to 2 %.
    """
    series = [Series() for _ in jobs]
    started = time.perf_counter()
    done = 0
    while True:
        timed = done >= warmup
        for job, found in zip(jobs, series, strict=True):
            _one(job, found, recorder, watch, done, timed)
        done += 1
        count = done - warmup
        if count in (0, 1) or count % 5 == 0:
            label = "warm-up" if not timed else f"step {count}"
            medians = ", ".join(
                f"{j.plan.name} {statistics.median(s.step_s) * 1e3:.0f} ms"
                for j, s in zip(jobs, series, strict=True)
                if s.step_s
            )
            on_progress(f"{label} {medians}".strip())
        if count >= repeats and _agree_to_stop(
            series, count >= 2 * repeats or time.perf_counter() - started > budget_s, jobs[0].backend
        ):
            return series


def _agree_to_stop(series: list[Series], enough: bool, backend: Backend) -> bool:
    settled = all(median_error(s.step_s) < STABLE_ERROR for s in series)
    vote = torch.tensor([1.0 if enough or settled else 0.0], device=backend.device)
    dist.all_reduce(vote, op=dist.ReduceOp.MAX)
    return bool(vote > 0)


def _one(job: Job, found: Series, recorder: Recorder, watch: CommunicationWatch, step: int, timed: bool) -> None:
    plan = job.plan
    tokens, targets = batch(job.spec, plan.workload.gbs, plan.workload.seq_len, job.seed, step)
    own = job.own(tokens), job.own(targets)
    job.backend.synchronize()
    dist.barrier()
    watch.begin(job.groups.axes)
    recorder.begin()
    loss = job.step(*own)
    times = recorder.finish()
    if not timed:
        return
    slowest = torch.tensor([times.total_s], dtype=torch.float64, device=job.backend.device)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    found.steps.append(times)
    found.step_s.append(float(slowest))
    found.losses.append(loss)


def global_losses(job: Job, losses: list[Any]) -> list[float]:
    """Mean loss over the global batch of every timed step (a collective)."""
    device = job.backend.device
    rows = torch.zeros(2, len(losses), dtype=torch.float64, device=device)
    if losses and losses[0] is not None:
        rows[0] = torch.stack([x.double() for x in losses])
        rows[1] = 1.0
    dist.all_reduce(rows)
    return [float(x) for x in rows[0] / rows[1]]


def peak_bytes(job: Job) -> int:
    """Peak bytes of this rank in one untimed step of `job` alone."""
    plan = job.plan
    tokens, targets = batch(job.spec, plan.workload.gbs, plan.workload.seq_len, job.seed, 0)
    own = job.own(tokens), job.own(targets)
    if job.backend.is_cuda:
        job.backend.synchronize()
        mine = sum(t.numel() * t.element_size() for part in job.tracked_tensors().values() for t in part)
        others = torch.cuda.memory_allocated(job.backend.device) - mine
        job.backend.reset_peak()
        job.step(*own)
        job.backend.synchronize()
        return int(torch.cuda.max_memory_allocated(job.backend.device) - max(others, 0))
    # DDP keeps its gradient buckets from step to step; others free gradients in between. Buckets
    # are made in C++, out of sight, so gradients are looked up once and counted from the start.
    job.forward_backward(*own)
    tracked = job.tracked_tensors()
    held = [*tracked["parameters"], *tracked["optimizer"], *own]
    if any(part.reduction is not None for part in job.parts):
        held += tracked["gradients"]
    del tracked
    job.optimizer.zero_grad(set_to_none=True)
    count = StorageCount(held)
    del held
    with count:
        job.step(*own)
    return count.peak_bytes
