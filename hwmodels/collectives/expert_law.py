"""The law of expert dispatch and combine: one formula for every library, phase and link.

For each rank, with `T` tokens, messages of `m` bytes (a token's activations in the payload's format, its
scales and metadata), `C` copies at the busiest rank, `C_wire` of them over the scale-up link and `C_port`
over the network (`hwmodels.collectives.expert_traffic`), on `S` streaming multiprocessors::

    latency = start + ranks log2(R) + fill m + experts (g - 1) + shared [g > 1] + net [N > 1] + peer (N - 1)
    inside  = pace (token T + read T H + (copy + byte m) C (1 + uneven / sqrt(q))) / S x (relay where N > 1)
              + memory C m / (memory bandwidth) + wire C_wire m / (link bandwidth)
    between = port C_port m / (network bandwidth of a GPU) x (1 + crowd log2(N / 4), of 4 to 8 nodes)
    move    = max(inside, between) + serial min(inside, between)
    t       = (latency^p + move^p)^(1/p),  p = 1 + knee

DeepEP's normal kernels are bound by the SMs they are given (20 unless told), so `token`, `copy` and `byte` are
work of one SM and hardly change with the link. Low-latency kernels give each group of warps one
expert: `g = ceil(E / SMs)` experts share an SM, which holds them up (`experts`, `shared`), and few experts
leave SMs idle (`S = ceil(E / g)`). Normal kernels serve each destination by channels of two SMs, so that
`q = 2 C / (R S)` copies queue for each pair of them; routing is random, and the fullest of `n` queues exceeds the
mean by up to ``sqrt(2 ln n / q)`` of it (`uneven`; 3 for 80 queues). A combine waits for its first message
(`fill`). `start` holds the launches, the notification and, for serving frameworks timed eagerly, their host work;
`knee` says how far the transfer hides behind it. Sources: the kernels of deepseek-ai/DeepEP
(``csrc/kernels/intranode.cu``, ``internode.cu``, ``internode_ll.cu``) for what is proportional to what; the numbers
are fitted.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hwmodels.collectives.expert_traffic import Algorithm, traffic
from hwmodels.device import DTYPE_BYTES, Device
from hwmodels.errors import Fault, InputError
from hwmodels.estimate import FloatArray
from hwmodels.network import Fabric
from hwmodels.records import dataclass
from hwmodels.topology import GroupShape

INSIDE = (
    "start", "ranks", "fill", "experts", "shared", "pace", "token", "read", "copy", "byte", "uneven", "memory", "wire",
    "knee",
)  # fmt: skip
"""Terms that belong to the scale-up link."""
BETWEEN = ("net", "peer", "relay", "port", "crowd", "serial")
"""Terms that belong to the network port."""
NEUTRAL: Mapping[str, float] = {"pace": 1.0, "relay": 1.0, "port": 1.0}
"""Terms that are factors; all others are 0 where nothing was fitted."""
CEILING = 0.72
"""Largest share of its link that a measured dispatch or combine reached (NVLink 5); H800 reached 0.69 of its own."""
SCALE_BYTES = {"fp8": 4.0 / 128.0}
"""One fp32 scale for 128 channels (DeepEP); that of fp4 is in `DTYPE_BYTES`."""
FALLBACK_SMS = 132.0
"""SMs of a device whose datasheet names none."""


@dataclass(frozen=True, slots=True, eq=False)
class Exchange:
    """What the law needs to know of a batch of exchanges; float64 arrays of one shape.

    Attributes
    ----------
    tokens, width : ndarray
        Tokens of a rank; elements of one.
    size, nodes : ndarray
        Ranks and nodes of the group.
    copies, message : ndarray
        Copies at the busiest rank; bytes of one.
    sms, shared : ndarray
        SMs at work; experts that share one.
    crossed : ndarray
        Bytes that cross the network for the busiest rank.
    wire, port, memory : ndarray
        Seconds at full speed over the scale-up link, over the network, and into memory.
    """

    tokens: FloatArray
    width: FloatArray
    size: FloatArray
    nodes: FloatArray
    copies: FloatArray
    message: FloatArray
    sms: FloatArray
    shared: FloatArray
    crossed: FloatArray
    wire: FloatArray
    port: FloatArray
    memory: FloatArray

    @property
    def idle(self) -> NDArray[np.bool_]:
        """Where there is nothing to exchange: one rank, or no tokens."""
        return np.asarray((self.size <= 1.0) | (self.tokens <= 0.0))


def message_bytes(algorithm: Algorithm, phase: str, hidden: ArrayLike, topk: ArrayLike, dtype: str) -> FloatArray:
    """Bytes of one copy of a token: activations, scales and metadata; 0 for ``prepare``.

    A normal dispatch carries the token's expert numbers (8 bytes) and weights (4), its combine the weights;
    a low-latency dispatch a header of 16 bytes.

    Raises
    ------
    InputError
        For a `dtype` without known size.
    """
    if dtype not in DTYPE_BYTES:
        raise InputError(Fault(f"dtype {dtype!r} is unknown", "expert exchange", fix=", ".join(DTYPE_BYTES)))
    width, k = np.broadcast_arrays(np.asarray(hidden, np.float64), np.asarray(topk, np.float64))
    if phase == "prepare":
        return np.zeros(width.shape)
    payload = width * (DTYPE_BYTES[dtype] + SCALE_BYTES.get(dtype, 0.0))
    if algorithm.copies == "rank":
        return np.asarray(payload + k * (12.0 if phase == "dispatch" else 4.0))
    return np.asarray(payload + (16.0 if phase == "dispatch" else 0.0))


def sms_at_work(
    algorithm: Algorithm, device: Device, experts: FloatArray, comm_sms: ArrayLike
) -> tuple[FloatArray, FloatArray]:
    """SMs that the kernels hold, and the experts that share one of them."""
    n_sm = float(device.n_sm or FALLBACK_SMS)
    given = np.broadcast_to(np.asarray(comm_sms, np.float64), experts.shape)
    per_sm = np.ones(experts.shape)
    default = np.full(experts.shape, min(algorithm.sms or n_sm, n_sm))
    if algorithm.copies == "expert":
        per_sm = np.ceil(experts / n_sm)
        default = np.ceil(experts / per_sm)
    return np.where(given > 0, np.minimum(given, n_sm), default), per_sm


def exchange(
    fabric: Fabric,
    device: Device,
    algorithm: Algorithm,
    *,
    phase: str,
    tokens_per_rank: ArrayLike,
    hidden: ArrayLike,
    topk: ArrayLike,
    experts: ArrayLike,
    shape: GroupShape,
    dtype: str,
    skew: ArrayLike = 1.0,
    comm_sms: ArrayLike = 0.0,
    routing: str = "uniform",
    groups: ArrayLike = 1,
    group_limit: ArrayLike = 1,
) -> Exchange:
    """The exchange of each element; parameters as `hwmodels.collectives.expert.expert_seconds`.

    Raises
    ------
    InputError
        As `hwmodels.collectives.expert.expert_seconds`, all faults of the numbers at once.
    """
    fabric.check(shape)
    columns = (
        ("tokens_per_rank", tokens_per_rank, 0.0), ("hidden", hidden, 1.0), ("topk", topk, 1.0),
        ("experts", experts, 1.0), ("skew", skew, 1.0), ("comm_sms", comm_sms, 0.0),
    )  # fmt: skip
    arrays = [np.asarray(value, np.float64) for _, value, _ in columns]
    faults = []
    for (name, _, low), array in zip(columns, arrays, strict=True):
        bad = ~(np.isfinite(array) & (array >= low))
        if bad.any():
            why = f"it is finite and at least {low:g}"
            faults.append(Fault(f"{name} is {array[bad].flat[0]:g}", "expert exchange", why, f"{low:g} or more"))
    if faults:
        raise InputError(faults)
    nodes_and_ranks = (np.asarray(a, np.float64) for a in (shape.ranks_per_node, shape.nodes))
    ranks, nodes, tokens, width, k, e, s, given = np.broadcast_arrays(*nodes_and_ranks, *arrays)
    moved = traffic(algorithm, tokens, k, e, ranks, nodes, s, routing=routing, groups=groups, group_limit=group_limit)
    message = message_bytes(algorithm, phase, width, k, dtype)
    sms, shared = sms_at_work(algorithm, device, e, given)
    crossed = moved.port * message
    out_of_node = np.broadcast_to(fabric.group_bandwidth(shape, "all_to_all"), crossed.shape)
    port = np.divide(crossed * ranks, out_of_node, out=np.zeros(crossed.shape), where=crossed > 0)
    wire = np.asarray(moved.wire * message / fabric.intra.reach(ranks))
    memory = moved.copies * message / device.memory_bandwidth
    return Exchange(
        tokens, width, np.asarray(ranks * nodes), nodes, moved.copies, message, sms, shared, crossed, wire, port, memory
    )


def law_seconds(x: Exchange, terms: Mapping[str, float]) -> FloatArray:
    """Seconds of each exchange by the numbers of its terms; formula in the module's docstring."""

    def number(term: str) -> float:
        return terms.get(term, NEUTRAL.get(term, 0.0))

    several = x.nodes > 1.0
    latency = (
        number("start") + number("ranks") * np.log2(x.size) + number("fill") * x.message
        + number("experts") * (x.shared - 1.0) + number("shared") * (x.shared > 1.0)
        + np.where(several, number("net"), 0.0) + number("peer") * (x.nodes - 1.0)
    )  # fmt: skip
    work = number("token") * x.tokens + number("read") * x.tokens * x.width
    queue = np.maximum(2.0 * x.copies / (x.size * x.sms), 1.0)
    busiest = x.copies * (1.0 + number("uneven") / np.sqrt(queue))
    work = work + (number("copy") + number("byte") * x.message) * busiest
    inside = number("pace") * work / x.sms * np.where(several, number("relay"), 1.0)
    inside = inside + number("memory") * x.memory + number("wire") * x.wire
    inside = np.maximum(inside, x.wire / CEILING)
    crowd = np.clip(np.log2(x.nodes / 4.0), 0.0, 1.0)
    between = x.port * max(number("port"), 1.0) * (1.0 + number("crowd") * crowd)
    move = np.maximum(inside, between) + number("serial") * np.minimum(inside, between)
    power = 1.0 + number("knee")
    return np.where(x.idle, 0.0, (latency**power + move**power) ** (1.0 / power))
