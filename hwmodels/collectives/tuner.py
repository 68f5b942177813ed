"""Which protocol NCCL takes inside a node: its own tuning model, not the least of the true costs.

NCCL estimates for each algorithm and protocol ``latency + bytes / bandwidth`` and takes the least
(``src/graph/tuning.cc``, ``ncclTopoTuneModel`` and ``ncclTopoGetAlgoTime``)::

    latency   = base + steps x hop          base and hop by protocol below; NVLS: one latency
    steps     = n - 1, twice that for all-reduce
    bandwidth = share x link x n / steps    of the whole message; shares are the coefficients ``tuner.*``:
                                            LL min(llMaxBw, half the ring), LL128 0.92 of the ring, Simple the ring

Its estimates are not what is measured, so that a measured curve jumps where the protocol changes (8 A100, all-reduce of
2 GPUs: 19 us at 512 KiB, 41 us at 1 MiB). The lower envelope of straight lines is found as intervals
of the size, because the true cost of a regime must also hold the regimes after it up: NCCL's time never falls as
the message grows, beyond noise.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hwmodels.collectives.base import Collective, Group, in_switch
from hwmodels.collectives.coefficients import inside
from hwmodels.estimate import FloatArray
from hwmodels.network import Link
from hwmodels.records import dataclass

BASE_S = {"ll": 6.6e-6, "ll128": 14.0e-6, "simple": 8.4e-6}
"""``baseLatencies`` of the ring."""
HOP_S = {"ll": 0.6e-6, "ll128": 1.9e-6, "simple": 3.4e-6}
"""``hwLatencies`` of the ring on NVLink."""
PCIE_HOP_S = {"ll": 1.0e-6, "ll128": 2.5e-6, "simple": 5.7e-6}
"""``hwLatencies`` of the ring on PCIe."""
NVLS_S = 25.0e-6
"""``hwLatencies`` of NVLS on NVLink."""
NEVER_S = 1.0
"""Estimate of what cannot run: so long that nothing real is longer, and finite."""
SHARES = {"ll": "tuner.ll", "ll128": "tuner.ll128", "simple": "tuner.bandwidth", "nvls": "tuner.nvls"}


@dataclass(frozen=True, slots=True, eq=False)
class Range:
    """Sizes for which NCCL takes a candidate.

    Attributes
    ----------
    start, end : ndarray
        Bytes; the candidate is taken from `start` up to `end`, never where ``end <= start``.
    """

    start: FloatArray
    end: FloatArray

    @property
    def used(self) -> NDArray[np.bool_]:
        """Groups that use the candidate at some size."""
        return np.asarray(self.end > self.start)


def line(member: Collective, link: Link, group: Group, candidate: str) -> tuple[FloatArray, FloatArray]:
    """NCCL's estimate of a candidate (``ll``, ``ll128``, ``simple``, ``nvls``): seconds, and seconds per byte."""
    share = inside(link, member.name, SHARES[candidate])
    steps = member.passes * np.maximum(group.ranks - 1.0, 1.0)
    if candidate == "nvls":
        can = in_switch(member, link, group) & (share > 0.0)
        slope = np.full(np.shape(steps), 1.0 / (max(share, 1e-6) * link.bandwidth))
        return np.where(can, NVLS_S, NEVER_S), slope
    hop = (PCIE_HOP_S if link.kind == "pcie" else HOP_S)[candidate]
    latency = BASE_S[candidate] + steps * hop
    slope = steps / np.maximum(group.ranks, 2.0) / (max(share, 1e-6) * link.reach(group.ranks))
    return (latency if share > 0.0 else np.full(np.shape(latency), NEVER_S)), np.asarray(slope)


def ranges(member: Collective, link: Link, group: Group, candidates: Sequence[str]) -> dict[str, Range]:
    """Sizes at which each of `candidates` has the least of NCCL's estimates, group by group."""
    lines = {c: line(member, link, group, c) for c in candidates}
    found = {}
    for c, (latency, slope) in lines.items():
        start, end = np.zeros(np.shape(slope)), np.full(np.shape(slope), np.inf)
        for other, (its_latency, its_slope) in lines.items():
            if other == c:
                continue
            gap = its_slope - slope
            with np.errstate(divide="ignore", invalid="ignore"):
                crossing = np.where(gap == 0.0, np.inf, (latency - its_latency) / gap)
            start = np.where(gap > 0.0, np.maximum(start, crossing), start)
            end = np.where(gap < 0.0, np.minimum(end, crossing), end)
            lost = (gap == 0.0) & ((its_latency < latency) | ((its_latency == latency) & (other < c)))
            end = np.where(lost, 0.0, end)
        found[c] = Range(start, end)
    return found
