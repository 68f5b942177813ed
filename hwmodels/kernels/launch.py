"""What it costs to start kernels: one by one from the host (eager), or as a CUDA graph.

    eager : t = max(host, device) with host = kernels x per_kernel + micro-batch work that the caller adds,
            device = the sum of the kernels' own times
    graph : t = graph + nodes x node + the sum of the kernels' own times

Eager launches are asynchronous: the host runs ahead while kernels are longer than a launch, and the device waits for it
where they are shorter, so a step is bound by the slower of the two (Paszke et al. 2019, PyTorch, section 5.2).
A graph is launched as a whole; between two of its nodes the device needs far less than a launch.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
from numpy.typing import ArrayLike

from hwmodels.device import Coefficient, Device
from hwmodels.errors import Fault, InputError
from hwmodels.estimate import Estimate
from hwmodels.kernels.gemm import _positive

MODES = ("eager", "graph")

LAUNCH_DEFAULTS: Mapping[str, Coefficient] = MappingProxyType(
    {
        "graph": Coefficient(
            8e-6, "assumed: frameworks copy inputs and launch in 5-10 us; cudaGraphLaunch alone took 2.5 us and about "
            "1 ns a node (NVIDIA developer blog, Constant time launch for straight-line CUDA graphs, 2024)", 0, 0.5,
        ),
        "node": Coefficient(
            1.0e-6, "assumed: kernels that wait for the one before start 0.5-1.5 us after its end; 3.4 us a kernel "
            "in a graph of 2.9 us kernels (NVIDIA developer blog, Getting started with CUDA graphs, 2019)", 0, 0.5,
        ),
        "gap": Coefficient(
            1.0e-6, "assumed: from the end of one kernel to the start of the next in a stream that is full", 0, 0.5,
        ),
    }
)  # fmt: skip
"""Seconds; the host's cost of one eager launch is the device's ``launch`` of the catalog, with its own source."""


def launch_coefficient(device: Device, name: str) -> Coefficient:
    """``launch.<name>`` of the device, else the assumed value; ``eager`` is the catalog's launch.

    Raises
    ------
    InputError
        For an unknown name.
    """
    if name == "eager":
        source = device.sources.get("launch", device.sources.get("datasheet", "catalog"))
        return device.find("launch.eager", default=Coefficient(device.launch_s, source, 0, 0.3))
    if name not in LAUNCH_DEFAULTS:
        known = ", ".join(("eager", *LAUNCH_DEFAULTS))
        raise InputError(Fault(f"launch cost {name!r} is unknown", "launch", fix=f"one of {known}"))
    return device.find(f"launch.{name}", default=LAUNCH_DEFAULTS[name])


def launch_seconds(device: Device, kernels: ArrayLike, *, mode: str = "eager", graphs: ArrayLike = 1.0) -> Estimate:
    """Host time to start `kernels` kernels.

    Parameters
    ----------
    device : Device
    kernels : array_like
        Kernels, or nodes of the graphs; none take no time.
    mode : {'eager', 'graph'}
        ``graph``: the host launches `graphs` graphs; the gaps between their nodes are the device's (`run_seconds`).
    graphs : array_like
        Graphs that hold the kernels together.

    Raises
    ------
    InputError
        For an unknown mode, or a negative or non-finite count.
    """
    count, held = _positive(kernels=kernels, graphs=graphs)
    if mode not in MODES:
        raise InputError(Fault(f"launch mode is {mode!r}", "launch", fix="eager or graph"))
    one = launch_coefficient(device, mode)
    units = np.where(count > 0, held, 0.0) if mode == "graph" else count
    return Estimate.of(units * one.value, one.residual)


def run_seconds(
    device: Device, kernels: ArrayLike, busy_s: ArrayLike, *, mode: str = "eager", graphs: ArrayLike = 1.0
) -> Estimate:
    """Time from the first launch to the end of the last of `kernels` kernels that compute for `busy_s` together.

    Eager: the host's launches, or the kernels with the gaps between them, whichever takes longer, plus the other
    side of one kernel. Graph: the launch, the kernels, and a gap before each node.

    Parameters
    ----------
    busy_s : array_like
        Sum of the kernels' times without launch costs, seconds.

    Raises
    ------
    InputError
        For an unknown mode, or a negative or non-finite count or time.
    """
    count, busy = _positive(kernels=kernels, busy_s=busy_s)
    host = launch_seconds(device, count, mode=mode, graphs=graphs)
    if mode == "graph":
        gap = launch_coefficient(device, "node")
        return host + Estimate.of(count * gap.value, gap.residual) + Estimate.of(np.where(count > 0, busy, 0.0))
    gap = launch_coefficient(device, "gap")
    each = 1.0 / np.maximum(count, 1.0)
    on_device = busy + count * gap.value
    longer = np.maximum(host.mid, on_device)
    # The first kernel waits for its launch; the last runs after the host has finished.
    mid = np.where(count > 0, longer + np.minimum(host.mid, on_device) * each, 0.0)
    share = np.divide(count * gap.value, on_device, out=np.zeros_like(on_device), where=on_device > 0)
    return Estimate.of(mid, np.where(host.mid > on_device, host.spread, gap.residual * share))
