"""All-reduce by the custom kernels of serving engines: one-shot, two-shot, and NCCL beyond their largest message.

Inside a node GPUs read each other's buffers (or write into them) without rings::

    one-shot  latency + hop (r-1) + b (r-1) / (reach x efficiency)            every GPU reads all of its peers' data
    two-shot  latency + hop (r-1) + 2 b (r-1) / r / (reach x efficiency)      reduce-scatter, then all-gather; at
                                                                              most ``peer`` of the link from each peer
    beyond    ``limit x (2 / r)^limit_slope`` bytes the engine calls NCCL

Engines choose between the two by tables of their own; the lesser is taken here. Reach is that of the law of NCCL,
`hwmodels.network.Link.reach`, with the group slope of PCIe trees. Sources: vLLM ``csrc/custom_all_reduce.cuh``,
TensorRT-LLM ``allReduceKernels`` and SGLang ``sgl-kernel`` (one-shot and two-shot).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from hwmodels.collectives.base import Group
from hwmodels.device import Coefficient
from hwmodels.estimate import FloatArray
from hwmodels.network import Link

FRAMEWORKS = ("trtllm", "sglang", "vllm")
"""Engines whose kernels were measured."""
SHOTS = ("one_shot", "two_shot")


def _assumed(value: float, why: str) -> Coefficient:
    return Coefficient(value, f"assumed: {why}", 0, 0.3)


DEFAULTS: Mapping[str, Coefficient] = {
    "one_shot.latency": _assumed(3.5e-6, "shortest custom all-reduce: 2.4-7 us"),
    "one_shot.hop": _assumed(0.15e-6, "2 to 8 GPUs: 0.5-2 us more"),
    "one_shot.efficiency": _assumed(0.6, "peer reads"),
    "two_shot.latency": _assumed(6e-6, "a second barrier"),
    "two_shot.hop": _assumed(0.3e-6, "2 to 8 GPUs"),
    "two_shot.efficiency": _assumed(0.65, "peer reads"),
    "two_shot.peer": _assumed(1.0, "one peer can fill the link"),
    "group_slope": _assumed(0.0, "a switch serves any group alike"),
    "limit": _assumed(16.0 * 2**20, "SGLang and vLLM buffers of 8-64 MiB"),
    "limit_slope": _assumed(0.0, "one buffer for any group"),
}


def custom_coefficient(link: Link, framework: str, name: str) -> Coefficient:
    """``custom.<framework>.<name>``, else the assumed value."""
    return link.find(f"custom.{framework}.{name}", default=DEFAULTS[name])


def limit_bytes(link: Link, framework: str, group: Group) -> FloatArray:
    """Largest message that the kernels of a framework take."""
    most = custom_coefficient(link, framework, "limit").value
    slope = custom_coefficient(link, framework, "limit_slope").value
    return np.asarray(most * (2.0 / np.maximum(group.ranks, 2.0)) ** slope)


def shot_seconds(link: Link, framework: str, nbytes: FloatArray, group: Group, shot: str) -> FloatArray:
    """Seconds of one kernel inside a node."""

    def value(name: str) -> float:
        return custom_coefficient(link, framework, name).value

    peers = np.maximum(group.ranks - 1.0, 0.0)
    wire = peers if shot == "one_shot" else 2.0 * peers / np.maximum(group.ranks, 1.0)
    thin = np.minimum((2.0 / np.maximum(group.ranks, 2.0)) ** value("group_slope"), 1.0)
    share = np.full(np.shape(peers), value(f"{shot}.efficiency"))
    if shot == "two_shot":
        share = np.minimum(share, np.maximum(peers, 1.0) * value("two_shot.peer"))
    rate = link.reach(group.ranks) * np.clip(share, 1e-9, 1.0) * thin
    return np.asarray(value(f"{shot}.latency") + value(f"{shot}.hop") * peers + nbytes * wire / rate)


def replace(
    link: Link, framework: str, nbytes: FloatArray, group: Group, nccl: FloatArray, shots: tuple[str, ...] = SHOTS
) -> tuple[FloatArray, NDArray[np.int64]]:
    """`nccl` seconds with those of the custom kernels where they run, and which: index of `shots`, -1 for NCCL."""
    limit = limit_bytes(link, framework, group) if shots == SHOTS else np.asarray(np.inf)
    prices = np.stack([shot_seconds(link, framework, np.minimum(nbytes, limit), group, shot) for shot in shots])
    best, which = prices.min(axis=0), prices.argmin(axis=0)
    small = nbytes <= limit
    inside = group.nodes < 1.5
    seconds = np.where(small, best, np.maximum(nccl, best))
    return np.where(inside, seconds, nccl), np.asarray(np.where(inside & small, which, -1), np.int64)
