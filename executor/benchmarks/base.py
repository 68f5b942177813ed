"""How a microbenchmark is timed: cases in turn, all ranks busy at once, means without outliers."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from executor.device import Backend

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_SHORTEST_S = 3e-4
_MOST_CALLS = 50
_MOST_ROUNDS = 60
_STRETCH_S = 0.1


@dataclass(frozen=True, slots=True)
class Case:
    """Something to time: the facts that its row carries, and a call of it."""

    facts: dict[str, Any]
    call: Callable[[], object]


def _mean(seconds: Sequence[float]) -> float:
    most = 3.0 * statistics.median(seconds)
    return statistics.fmean(min(s, most) for s in seconds)


@dataclass(frozen=True, slots=True)
class Bench:
    """Where and for how long cases are timed.

    Attributes
    ----------
    backend : Backend
    budget_s : float
        Wall seconds for all cases of one `run`, beyond the least number of rounds.
    least_rounds : int
    together : bool
        Whether every case starts behind a barrier (collectives).
    """

    backend: Backend
    budget_s: float
    least_rounds: int = 5
    together: bool = False
    imbalance: list[tuple[float, float]] = field(default_factory=list)
    """(slowest rank, mean of the ranks) in seconds, of stretches of work that all ranks did at once."""

    def run(self, cases: Sequence[Case]) -> list[dict[str, Any]]:
        """Mean seconds of each case, mean over ranks, as ``{**facts, "seconds": s}``.

        A step is the sum of its operators, and it is means that add up; what takes more than
        three medians counts as three.

        Cases are run in turn, round after round, so that a disturbance of the machine hits all
        sizes alike. Collectives start together, behind a barrier each; compute runs through a
        round without a pause, since a rank that waits leaves caches, memory and clock to the
        others, which a training step does not. Calls shorter than 0.3 ms are repeated inside one
        timing.
        """
        calls = [self._calls(case) for case in cases]
        once = self._agree(sum(self._time(case, n) for case, n in zip(cases, calls, strict=True)))
        rounds = max(self.least_rounds, min(_MOST_ROUNDS, int(self.budget_s / max(once, 1e-9))))
        times: list[list[float]] = [[] for _ in cases]
        for _ in range(rounds):
            dist.barrier()
            for case, n, found in zip(cases, calls, times, strict=True):
                found.append(self._time(case, n) / n)
        self._compare(times)
        means = torch.tensor([_mean(t) for t in times], dtype=torch.float64, device=self.backend.device)
        dist.all_reduce(means)
        means /= dist.get_world_size()
        return [{**case.facts, "seconds": float(s)} for case, s in zip(cases, means, strict=True)]

    def _compare(self, times: list[list[float]]) -> None:
        """Note how far apart the ranks were over stretches of about `_STRETCH_S`.

        Single calls are too short: their noise averages out between two collectives of a step.
        """
        table = torch.tensor(times, dtype=torch.float64, device=self.backend.device).t()  # (rounds, cases)
        mean = table.clone()
        dist.all_reduce(mean)
        mean /= dist.get_world_size()
        stretch = (mean.mean(0).cumsum(0) / _STRETCH_S).long()
        for k in range(int(stretch[-1]) + 1):
            own = table[:, stretch == k].sum(1)
            slowest = own.clone()
            dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
            self.imbalance.append((float(slowest.sum()), float(mean[:, stretch == k].sum())))

    def _time(self, case: Case, calls: int) -> float:
        self.backend.synchronize()
        if self.together:
            dist.barrier()
        start = self.backend.mark()
        for _ in range(calls):
            case.call()
        end = self.backend.mark()
        self.backend.synchronize()
        return self.backend.seconds(start, end)

    def _calls(self, case: Case) -> int:
        case.call()
        return min(_MOST_CALLS, max(1, math.ceil(_SHORTEST_S / max(self._agree(self._time(case, 1)), 1e-7))))

    def _agree(self, seconds: float) -> float:
        cell = torch.tensor([seconds], dtype=torch.float64, device=self.backend.device)
        dist.all_reduce(cell, op=dist.ReduceOp.MAX)
        return float(cell)

    def tensor(self, *shape: int, dtype: str = "fp32", grad: bool = False) -> torch.Tensor:
        """Random numbers on the device."""
        values = torch.randn(*shape, dtype=DTYPES[dtype], device=self.backend.device)
        return values.requires_grad_(grad)
