"""What a collective takes from the compute beside it: SMs and speed.

NCCL runs one thread block for each channel and each block holds one SM, so that a collective with `c` channels leaves
``n_sm - c`` to kernels beside it. Compute slows down by that share and by the memory traffic of
the collective; the collective slows down because its blocks wait for SMs and memory.
"""

from __future__ import annotations

from hwmodels.device import Coefficient
from hwmodels.errors import Fault, InputError
from hwmodels.network import Link
from hwmodels.records import dataclass

_TOPO = "NCCL src/include/device.h and src/graph/connect.cc (channels of a search: two for each ring of the link)"


def _given(value: float, source: str, spread: float) -> Coefficient:
    return Coefficient(value, source, 0, spread)


CHANNELS = {
    "nvlink": _given(24.0, f"{_TOPO}: 24 on NVSwitch systems of 8, 16 for NVLS", 0.3),
    "xgmi": _given(28.0, "RCCL: four channels for each of 7 links of a mesh", 0.5),
    "pcie": _given(4.0, f"{_TOPO}: two rings, doubled", 0.5),
    "infiniband": _given(16.0, f"{_TOPO}: two for each port of a node of 8", 0.3),
    "roce": _given(16.0, f"{_TOPO}: two for each port of a node of 8", 0.3),
    "efa": _given(8.0, "aws-ofi-nccl: one for each rail group of four", 0.5),
    "ethernet": _given(4.0, f"{_TOPO}: two rings, doubled", 0.5),
    "loopback": _given(0.0, "gloo runs on the host", 0.0),
}
"""Channels, and so SMs, of one collective by kind of link."""
CHANNELS_A_PORT = 2.0
"""Channels of a group between nodes for each port that it uses, as those of a whole node in `CHANNELS`."""
COMPUTE_SLOWDOWN = _given(
    1.05, "assumed: memory and cache traffic of the collective, beyond the SMs it holds; calibrate measures it", 0.1
)
COLLECTIVE_SLOWDOWN = _given(1.10, "assumed: blocks wait for SMs and memory; calibrate measures it", 0.2)
PAIR_SHARE = 0.5
"""Send-recv and broadcast run on about half the channels (``NCCL_MAX_NCHANNELS`` of P2P against collectives)."""


@dataclass(frozen=True, slots=True)
class Taken:
    """What a collective costs the compute that runs beside it.

    Attributes
    ----------
    sm_share : float
        Share of the SMs that the collective holds, 0 to 1.
    compute_slowdown : float
        Time of compute beside the collective over its time alone, >= 1.
    collective_slowdown : float
        Time of the collective beside compute over its time alone, >= 1.
    sources : tuple of Coefficient
        Channels, compute slowdown and collective slowdown, with where they come from.
    """

    sm_share: float
    compute_slowdown: float
    collective_slowdown: float
    sources: tuple[Coefficient, Coefficient, Coefficient]


def overlap(link: Link, n_sm: int, op: str = "all_reduce") -> Taken:
    """SMs that a collective over `link` holds, and how much slower both sides run side by side.

    Coefficients ``channels``, ``overlap.compute_slowdown`` and ``overlap.collective_slowdown`` of the link take the
    place of the defaults.

    Parameters
    ----------
    link : Link
        Inside a node, or a network port.
    n_sm : int
        SMs of the device; 0 for devices without (CPUs): nothing is taken.
    op : str
        Name of the collective; send-recv runs on fewer channels.

    Raises
    ------
    InputError
        For a negative `n_sm`.
    """
    if n_sm < 0:
        raise InputError(Fault(f"n_sm is {n_sm}", "overlap", fix="the SMs of the device, 0 where it has none"))
    channels = link.find("channels", default=CHANNELS.get(link.kind, CHANNELS["pcie"]))
    compute = link.find("overlap.compute_slowdown", default=COMPUTE_SLOWDOWN)
    collective = link.find("overlap.collective_slowdown", default=COLLECTIVE_SLOWDOWN)
    sources = (channels, compute, collective)
    if n_sm == 0 or channels.value <= 0.0:
        return Taken(0.0, 1.0, 1.0, sources)
    held = channels.value * (PAIR_SHARE if op == "send_recv" else 1.0)
    share = min(held / n_sm, 0.9)
    return Taken(share, max(compute.value, 1.0) / (1.0 - share), max(collective.value, 1.0), sources)
