"""What the fit of the collective laws may move: coefficients with start and bounds, and what it takes as given."""

from __future__ import annotations

from hwmodels.fit.solve import Free

TUNER = {
    "nvlink3": {"tuner.bandwidth": 0.8, "tuner.ll": 0.2923, "tuner.ll128": 0.736},
    "nvlink4": {"tuner.bandwidth": 0.824, "tuner.ll": 0.3133, "tuner.ll128": 0.758, "tuner.nvls": 0.687},
    "nvlink5": {"tuner.bandwidth": 0.802, "tuner.ll": 0.3133, "tuner.ll128": 0.0, "tuner.nvls": 0.668},
    "pcie4": {"tuner.bandwidth": 0.774, "tuner.ll": 0.387, "tuner.ll128": 0.0},
}
"""NCCL's constants over the datasheet bandwidth: 20, 20.6 and 40.1 GB/s a link of NVLink 3, 4 and 5 (``topo.h``) times
12, 18 and 18 links; llMaxBws 87.7, 141 and 282 GB/s; LL128 0.92 of the ring; NVLS 5/6 of it; PCIe 24 GB/s, LL half."""
TUNER["nvlink5-nvl72"] = TUNER["nvlink5"]
TUNER_SOURCE = "NCCL src/graph/tuning.cc and topo.h over the datasheet; LL128 off where no measured curve shows it"

RINGS = ("all_reduce", "all_gather", "reduce_scatter")
SHARED = (
    Free("ll.latency", 5e-6, 1e-7, 6e-5), Free("ll.hop", 5e-7, 1e-9, 2e-5), Free("ll.jump", 1e-6, 1e-9, 2e-5),
    Free("ll.sharpness", 1.3, 1.0, 6.0),
    Free("simple.latency", 1.5e-5, 1e-7, 2e-4), Free("simple.hop", 3e-6, 1e-9, 5e-5),
    Free("simple.tail", 2e-6, 1e-9, 1e-3),
)  # fmt: skip
LL128 = (Free("ll128.latency", 1e-5, 1e-7, 1e-4), Free("ll128.hop", 1e-6, 1e-9, 2e-5))
BY_OP = (
    Free("ll.efficiency", 0.35, 0.02, 1.0), Free("ll.jump_hop", 1e-7, 1e-9, 2e-6),
    Free("simple.efficiency", 0.76, 0.02, 1.0), Free("group_half", 0.4, 1e-3, 20.0),
)  # fmt: skip
NOT_BY_PAIRS = tuple(f for f in BY_OP if f.name != "simple.efficiency")
"""Where only pairs were measured, the efficiency of the ring is that of the related op."""
NVLS = (
    Free("nvls.latency", 1.4e-5, 1e-6, 3e-4),
    Free("nvls.efficiency", 0.64, 0.3, 1.0),
    Free("nvls.tail", 8e-5, 1e-9, 1e-3),
)
SLOPE = Free("group_slope", 1.0, 1e-2, 3.0)
PAIRS = (
    Free("pair.latency", 6e-6, 5e-7, 6e-5), Free("pair.hop", 3e-7, 1e-9, 1e-5), Free("pair.rate", 0.014, 1e-4, 1.0),
    Free("pair.bulk_latency", 1.2e-5, 5e-7, 1e-4), Free("pair.bulk_hop", 3e-7, 1e-9, 1e-5),
    Free("pair.sharpness", 1.5, 1.0, 8.0),
    Free("pair.tail", 1e-6, 1e-9, 1e-3), Free("pair.efficiency", 0.75, 0.01, 1.0), Free("group_half", 0.3, 1e-3, 20.0),
)  # fmt: skip
ONE_PAIR = tuple(f for f in PAIRS if f.name not in ("pair.hop", "pair.bulk_hop", "group_half"))
CUSTOM = (
    Free("one_shot.latency", 3.5e-6, 2e-7, 5e-5), Free("one_shot.hop", 1.5e-7, 1e-9, 1e-5),
    Free("one_shot.efficiency", 0.6, 1e-3, 1.0), Free("two_shot.latency", 6e-6, 2e-7, 1e-4),
    Free("two_shot.hop", 3e-7, 1e-9, 2e-5), Free("two_shot.efficiency", 0.65, 1e-3, 1.0),
    Free("two_shot.peer", 0.8, 0.05, 1.0),
)  # fmt: skip
CUSTOM_STARTS: tuple[tuple[dict[str, float], float], ...] = (
    ({}, 2.0**40), ({"two_shot.peer": 0.25}, 2.0**26), ({"one_shot.hop": 3e-6, "two_shot.hop": 3e-6}, 2.0**40),
)  # fmt: skip
"""Starts of the fit of custom kernels, and the largest message to begin with: the error has several minima."""
LIMITS = tuple(2.0**k for k in range(18, 31))
LIMIT_SLOPES = (-1.5, 0.0, 1.0, 2.0)
NETWORK = (
    Free("ll.hop", 4e-6, 1e-8, 2e-4), Free("ll.efficiency", 0.2, 1e-3, 1.0), Free("ll128.hop", 1.2e-5, 1e-8, 3e-4),
    Free("ll128.efficiency", 0.5, 5e-3, 1.0), Free("simple.hop", 2.5e-5, 1e-8, 1e-3),
    Free("simple.efficiency", 0.9, 0.02, 1.0), Free("overlap_loss", 0.1, 1e-3, 1.0),
)  # fmt: skip
NETWORK_RING = (Free("ring.efficiency", 0.95, 0.02, 1.0),)
NETWORK_PAIRS = (
    Free("pair.hop", 6e-6, 1e-8, 2e-4), Free("pair.rate", 0.02, 1e-4, 1.0), Free("pair.bulk_hop", 1e-5, 1e-8, 1e-3),
    Free("pair.efficiency", 0.6, 0.02, 1.0),
)  # fmt: skip
NETWORK_KINDS = ("infiniband", "roce", "efa", "ethernet")
INFERRED = ("infiniband-hdr-host", "ethernet-100g-host")
"""Networks whose kind the rows do not state: they say nothing of others."""
TOLERANCE = 1e-5
FEW_ROWS = 6
FEW_SPREAD = 0.15
"""A class of fewer rows than this does not show its own spread: that of systems left out of the fit stands for it."""
PRIOR = 0.02
"""Weight of the start of a coefficient that the rows do not tell, in rows."""
