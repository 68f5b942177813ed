"""Coefficients of the collective laws: where they are looked up, and what stands for those never measured.

A coefficient is named ``<op>.<protocol>.<what>``, or ``<protocol>.<what>`` where all ops share it. Latencies are
seconds, efficiencies shares of the datasheet bandwidth, so that they move to a link that was not measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from hwmodels import laws
from hwmodels.device import Coefficient
from hwmodels.network import Link

RELATED = {
    "all_reduce": ("all_gather",), "reduce_scatter": ("all_gather",), "all_gather": ("reduce_scatter",),
    "broadcast": ("all_gather",),
}  # fmt: skip
"""Ops that run the same rings: where one was not measured, another speaks for it."""


def _assumed(value: float, why: str, spread: float = 0.3) -> Coefficient:
    return Coefficient(value, f"assumed: {why}", 0, spread)


_NCCL = "NCCL src/graph/tuning.cc"

INSIDE: Mapping[str, Coefficient] = {
    "ll.latency": _assumed(5e-6, "launch and synchronisation of the shortest NCCL collectives: 4-8 us"),
    "ll.hop": _assumed(0.5e-6, "one hop beyond the link's latency: 0.8-1.3 us on NVLink"),
    "ll.efficiency": _assumed(0.35, "LL sends a flag with each 4 bytes: at most half"),
    "ll.sharpness": _assumed(1.3, "channels are added as the message grows, so that time is flat and then linear"),
    "ll.jump": _assumed(1e-6, "more threads and channels beyond 4 KiB a rank"),
    "ll.jump_hop": _assumed(0.0, "seen on NVLink 3 only"),
    "ll128.latency": _assumed(10e-6, "LL128 starts later than LL"),
    "ll128.hop": _assumed(0.9e-6, "one hop beyond the link's latency"),
    "ll128.efficiency": _assumed(0.55, "LL128 sends 120 of 128 bytes, in step"),
    "simple.latency": _assumed(15e-6, "Simple synchronises once a chunk"),
    "simple.hop": _assumed(3e-6, "one hop beyond the link's latency: a chunk is filled"),
    "simple.efficiency": _assumed(0.76, "8-GPU ring busbw over link: 0.75-0.79 on NVLink 3 to 5"),
    "simple.tail": _assumed(2e-6, "chunks smaller than the largest: sqrt(tail x transfer)"),
    "nvls.latency": _assumed(14e-6, "one hop through the switch whatever the group"),
    "nvls.efficiency": _assumed(0.64, "NVLS busbw 475 GB/s over 450 GB/s with 8 GPUs is 271 GB/s of data"),
    "nvls.tail": _assumed(8e-5, "chunks smaller than the largest: sqrt(tail x transfer)"),
    "group_half": _assumed(0.4, "2-GPU groups reach 37-78% of the link (trap 4)"),
    "group_slope": _assumed(0.0, "a switch serves any group alike"),
    "tree.cost": _assumed(1.1, "two trees share the channels that a ring has alone"),
    "pair.latency": _assumed(6e-6, "shortest NCCL send-recv and all-to-all: 6-10 us"),
    "pair.hop": _assumed(0.3e-6, "a peer more in an all-to-all"),
    "pair.rate": _assumed(0.014, "LL of one pair over one channel: 6 GB/s of 450"),
    "pair.bulk_latency": _assumed(12e-6, "Simple of pairs"),
    "pair.bulk_hop": _assumed(0.3e-6, "a peer more in an all-to-all"),
    "pair.sharpness": _assumed(2.0, "channels are added as the message grows, so that time is flat and then linear"),
    "pair.tail": _assumed(1e-7, "chunks smaller than the largest: sqrt(tail x transfer)"),
    "pair.efficiency": _assumed(0.75, "peer copies: 376-396 of 450 GB/s on NVLink 4, 746 of 900 on 5"),
    "tuner.bandwidth": _assumed(0.81, f"{_NCCL} and topo.h: 20, 20.6, 40.1 GB/s a link on NVLink 3 to 5"),
    "tuner.ll": _assumed(0.31, f"{_NCCL} llMaxBws over the link"),
    "tuner.ll128": _assumed(0.75, f"{_NCCL}: 0.92 of the ring"),
    "tuner.nvls": _assumed(0.67, f"{_NCCL}: 5/6 of the ring"),
}
"""Inside a node. Hops are taken beyond `Link.latency_s`, which each adds."""

BETWEEN: Mapping[str, Coefficient] = {
    "ll.hop": _assumed(4e-6, "one network hop with its proxy thread, beyond the port's latency"),
    "ll.efficiency": _assumed(0.2, "LL over the network"),
    "ll128.hop": _assumed(12e-6, "one network hop with its proxy thread"),
    "ll128.efficiency": _assumed(0.5, "LL128 over the network"),
    "simple.hop": _assumed(25e-6, "one network hop with its proxy thread, chunk by chunk"),
    "simple.efficiency": _assumed(0.9, "NCCL reaches 85-95% of the line rate"),
    "ring.efficiency": _assumed(0.8, "two nodes of B200 on NDR: 308 of 400 GB/s"),
    "all_to_all.pair.efficiency": _assumed(0.55, "45-75% of the ports (B200 with NDR)"),
    "send_recv.pair.efficiency": _assumed(0.72, "36 of 50 GB/s on NDR"),
    "all_to_all.pair.default_efficiency": _assumed(0.35, "B200 with NDR as NCCL comes: 42 GB/s busbw against 69 tuned"),
    "send_recv.pair.default_efficiency": _assumed(0.4, "B200 with NDR as NCCL comes: 20 GB/s against 36 tuned"),
    "pair.hop": _assumed(6e-6, "one network hop with its proxy thread, beyond the port's latency"),
    "pair.rate": _assumed(0.02, "small messages of one pair over one channel"),
    "pair.bulk_hop": _assumed(10e-6, "one network hop of Simple"),
    "overlap_loss": _assumed(0.1, "pipelining inside and between nodes is not perfect"),
    "least_ranks": _assumed(8.0, "fewest ranks a node of the rings measured: full nodes, but for two systems"),
}
"""Between nodes. Hops are taken beyond `Link.latency_s`, which each adds."""


ANY_NETWORK = "any-network"
"""Section of the laws that all measured networks were fitted in together: it speaks for those never measured."""


@cache
def pooled() -> Mapping[str, Coefficient]:
    """Coefficients of `ANY_NETWORK`; none before the first fit."""
    section = laws.sections("collectives").get(ANY_NETWORK)
    return laws.named("collectives", section, "") if section is not None else {}


def coefficient(link: Link, op: str, name: str, defaults: Mapping[str, Coefficient]) -> Coefficient:
    """``<op>.<name>``, else that of a related op, else ``<name>``; of the link, else of any network; else assumed."""
    names = (f"{op}.{name}", *(f"{other}.{name}" for other in RELATED.get(op, ())), name, f"collective.{name}")
    for known in (link.coefficients, pooled() if defaults is BETWEEN else {}):
        for each in names:
            if each in known:
                return known[each]
    return defaults.get(names[0], defaults[name] if name in defaults else defaults[f"all_to_all.{name}"])


def inside(link: Link, op: str, name: str) -> float:
    """Value of a coefficient of a link inside nodes."""
    return coefficient(link, op, name, INSIDE).value


def between(link: Link, op: str, name: str) -> float:
    """Value of a coefficient of a network."""
    return coefficient(link, op, name, BETWEEN).value
