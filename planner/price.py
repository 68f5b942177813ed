"""price: op x cluster -> seconds. No model and no layout arithmetic of its own.

Prices come from `hwmodels` and nothing else. A block's price keeps compute, each kind of
communication, recomputation and host work apart, so that the parts can be shown and put on
streams later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hwmodels import collectives, kernels
from hwmodels.cluster import Cluster
from hwmodels.device import Coefficient
from hwmodels.estimate import Estimate
from hwmodels.kernels.formats import format_of
from hwmodels.records import dataclass
from hwmodels.topology import GroupShape
from planner.frameworks import FrameworkPreset
from planner.frameworks.base import GRAPHED
from planner.layout import LayoutBatch
from planner.layout.recompute import Policy
from planner.workload.op import OTHER, PARTS, Block, Op
from planner.workload.recompute import rerun_share

FloatArray = NDArray[np.float64]
CORNER = 0.75
"""Share of the longer of kernels and launches by which the shorter may fall behind and still tell (`host_bound`).

The best of six variants tried on 240 rows of vtrain_a100_single, in the sample they were tried on, not held out;
``planner fit --corner --rows 8`` tries 0, 0.25 ... 1 over 13 groups: mean error 8.6% without, 8.4% at 0.75 and 8.2% at
1, the last value tried; it is 1 whichever group is left out. 0.75 stays by hand, since only three groups tell."""
COMM_GROUPS: tuple[str, ...] = ("tp", "cp", "ep")
"""Groups whose collectives belong to a micro-batch."""
GROUP_OF: dict[str, str] = {"etp": "ep", "ep_etp": "ep", "cp_inner": "cp", "cp_outer": "cp"}
"""Axis of a collective -> the group that it counts as."""
PIECES_HIDDEN = Coefficient(
    0.43,
    "torchtitan with and without async TP (TT-011 and TT-012: 829 and 876 tokens/s/GPU, TT-045 and TT-046: 177 and "
    "185): 47% and 39% of the seconds that pieces side by side with nothing in between would save",
    4,
    0.1,
)
"""Share of the seconds that a collective in pieces could run beside pieces of its GEMM in which it does: between
pieces streams wait for one another, and smaller GEMMs leave their last wave of tiles unfilled."""
USER_BUFFERS_HIDDEN = Coefficient(
    0.95,
    "mlperf_lora on H100 with tp_comm_overlap against the same layout without (MLL-001, 002, 013 of v4.0 and MLL-018, "
    "019 of v4.1): 4-6% faster, no less than what pieces side by side with nothing in between save (4%)",
    9,
    0.2,
)
"""As `PIECES_HIDDEN` with Transformer Engine's user buffers."""
USER_BUFFERS = "userbuffers"
"""Implementation of a collective in pieces that `USER_BUFFERS_HIDDEN` is for."""
EXPERT = "expert_"
"""Begins the name of a collective that `hwmodels.collectives.expert_seconds` prices."""


@dataclass(slots=True, eq=False)
class PassPrice:
    """Seconds of one direction (forward or backward) of a block for one micro-batch.

    Attributes
    ----------
    compute_s : ndarray (n,)
        Kernels, or the host where launching them takes longer.
    comm_s : dict of str to ndarray (n,)
        Exposed seconds by group.
    hidden_s : dict of str to ndarray (n,)
        Seconds of collectives that run beside compute, by group.
    spread_s, comm_spread_s : ndarray (n,)
        Sum of seconds times relative spread: of the kernels, and of exposed collectives.
    flops : ndarray (n,)
    skipped_s, once_s : ndarray (n,)
        Parts of `compute_s` that the first micro-batch of a step does not run, and that it alone runs.
    apart_s : dict of str to ndarray (n,)
        Part of `hidden_s` that runs beside an op of another pass: hidden only where both passes run
        as one, as in a backward that is not split.
    paired_s : dict of str to ndarray (n,)
        Part of `hidden_s` that runs beside another micro-batch: exposed where none runs at the same time.
    kernels_s, launches : ndarray (n,)
        What `compute_s` was bounded from (`host_bound`): seconds of the kernels, and how many the host launches.
    """

    compute_s: FloatArray
    comm_s: dict[str, FloatArray]
    hidden_s: dict[str, FloatArray]
    spread_s: FloatArray
    comm_spread_s: FloatArray
    flops: FloatArray
    skipped_s: FloatArray
    apart_s: dict[str, FloatArray]
    once_s: FloatArray
    paired_s: dict[str, FloatArray]
    kernels_s: FloatArray
    launches: FloatArray

    @property
    def total_s(self) -> FloatArray:
        """Compute and exposed communication."""
        return np.asarray(self.compute_s + sum(self.comm_s.values()))

    def hosted(self, cluster: Cluster, preset: FrameworkPreset, corner: float = CORNER) -> PassPrice:
        """The same with the host of another preset."""
        return replace(self, compute_s=host_bound(self.kernels_s, self.launches, cluster, preset, corner))


@dataclass(slots=True, eq=False)
class OpPrice:
    """One op with its price, for `explain` and traces."""

    op: Op
    seconds: Estimate
    """All runs of a micro-batch together."""


@dataclass(slots=True, eq=False)
class BlockPrice:
    """A block's passes: forward, both halves of the backward, and what each recompute policy reruns.

    Attributes
    ----------
    rerun : tuple of PassPrice
        In the order of the policies that the block was priced for.
    """

    name: str
    forward: PassPrice
    backward_input: PassPrice
    backward_weight: PassPrice
    rerun: tuple[PassPrice, ...]
    ops: list[OpPrice] = field(default_factory=list)

    def hosted(self, cluster: Cluster, preset: FrameworkPreset, corner: float = CORNER) -> BlockPrice:
        """The same with the host of another preset: nothing else of a price depends on its constants."""

        def bound(price: PassPrice) -> PassPrice:
            return price.hosted(cluster, preset, corner)

        passes = (bound(self.forward), bound(self.backward_input), bound(self.backward_weight))
        return BlockPrice(self.name, *passes, tuple(bound(price) for price in self.rerun), self.ops)


ROW_BYTES = 16.0
"""Rows of operands that start at multiples of this are read at full width (`hwmodels.kernels.tiles`)."""


def contraction(op: Op) -> FloatArray:
    """Length of the sums of a GEMM, as `hwmodels.kernels.gemm_seconds` takes it.

    The law reads A and B along their rows, k and n elements long. A weight gradient ``dW = dY^T X`` sums over tokens,
    and both of its operands lie token by token, so that its rows are n_in and n_out long whatever the number of
    tokens (column-major "NT" of cuBLAS; Megatron-LM ``weight_grad = grad_output.t().matmul(input)``): an odd number
    of tokens unaligns nothing. It is counted up to whole 16 bytes, which a tile of k does in any case.
    """
    k = np.asarray(op.dims["k"], dtype=np.float64)
    if op.phase != "backward_weight":
        return k
    step = ROW_BYTES / format_of(op.dtype).element_bytes
    return np.asarray(np.ceil(k / step) * step)


def price_op(op: Op, cluster: Cluster, layouts: LayoutBatch) -> Estimate:
    """Seconds of all runs of an op in one micro-batch (zero where `count` is 0).

    Operands of a quantised GEMM arrive quantised: the casts are ops of their own. Tensor cores run at the clock that a
    step of seconds sustains (`hwmodels.kernels.sustained`).
    """
    device, d = cluster.device, op.dims
    count = np.asarray(op.count, dtype=np.float64)
    if not count.any():  # most candidates lack most collectives: what nobody runs has no law to ask
        return Estimate.of(np.zeros(np.broadcast_shapes(count.shape, np.shape(layouts.tp))))
    if op.kind == "gemm":
        k, batch = contraction(op), d.get("batch", 1.0)
        one = kernels.gemm_seconds(
            device, d["m"], d["n"], k, batch=batch, dtype=op.dtype, impl=op.impl, quantise=False
        )
        one = kernels.sustained_seconds(device, one, op.flops(), op.dtype)
    elif op.kind == "grouped_gemm":
        one = kernels.grouped_gemm_seconds(
            device, d["m"], d["n"], contraction(op), d["groups"], dtype=op.dtype, impl=op.impl, quantise=False
        )
        one = kernels.sustained_seconds(device, one, op.flops(), op.dtype)
    elif op.kind == "attention":
        impl = "sdpa-cpu" if device.kind == "cpu" else op.impl
        one = kernels.attention_seconds(device, **d, dtype=op.dtype, impl=impl)
        one = kernels.sustained_seconds(device, one, op.flops(), op.dtype)
    elif op.kind == "memory" and op.within:
        one = kernels.epilogue_seconds(device, d["nbytes"], op.dtype)
    elif op.kind == "memory":
        one = kernels.memory_seconds(device, d["nbytes"] / op.kernels, impl=op.impl) * op.kernels
    elif op.collective.startswith(EXPERT):
        shape = layouts.group(op.group, cluster)
        one = collectives.expert_seconds(
            cluster, device, phase=op.collective.removeprefix(EXPERT), tokens_per_rank=d["tokens"],
            hidden=d["hidden"], topk=d["topk"], experts=d["experts"], skew=d["skew"], shape=shape, dtype=op.dtype,
            impl=op.impl, groups=d["groups"], group_limit=d["group_limit"],
        )  # fmt: skip
    else:
        shape = group_of(op, layouts, cluster)
        one = collectives.seconds(cluster, op.collective, d["nbytes"], shape, skew=d.get("skew", 1.0))
    return one * count


def price_block(
    block: Block, cluster: Cluster, layouts: LayoutBatch, preset: FrameworkPreset, policies: Sequence[Policy]
) -> BlockPrice:
    """Price every op of a block and sum by pass.

    Parameters
    ----------
    layouts : LayoutBatch, shape (n,)
        Gives the group shapes of the collectives.
    policies : sequence of Policy
        Recompute policies whose reruns are summed (`planner.workload.recompute.rerun_share`).
    """
    priced = [OpPrice(op, price_op(op, cluster, layouts)) for op in block.ops]
    named, others = partners(priced)
    forward = [p for p in priced if p.op.phase == "forward"]

    def build(chosen: list[OpPrice], policy: Policy | None = None) -> PassPrice:
        shares = [1.0 if policy is None else rerun_share(p.op, policy) for p in chosen]
        run, beside = list(zip(chosen, shares, strict=True)), others if policy is None else {}
        return _sum_pass(run, named, beside, cluster, preset, layouts)

    return BlockPrice(
        name=block.name,
        forward=build(forward),
        backward_input=build([p for p in priced if p.op.phase == "backward_input"]),
        backward_weight=build([p for p in priced if p.op.phase == "backward_weight"]),
        rerun=tuple(build(forward, policy) for policy in policies),
        ops=priced,
    )


def other_seconds(name: str, priced: list[OpPrice]) -> FloatArray:
    """Seconds of a part of the layer in the passes that `name` states (`planner.workload.op.OTHER`)."""
    part, _, phases = name.removeprefix(OTHER).partition(":")
    chosen = [
        p.seconds.mid
        for p in priced
        if p.op.kind != "collective" and p.op.phase in phases.split("+") and p.op.name.startswith(PARTS[part])
    ]
    return np.asarray(sum(chosen, start=np.zeros(())))


def _sum_pass(
    priced: list[tuple[OpPrice, float]],
    named: dict[str, OpPrice],
    others: dict[str, FloatArray],
    cluster: Cluster,
    preset: FrameworkPreset,
    layouts: LayoutBatch,
) -> PassPrice:
    """Sum ops, each by the share of it that runs in this pass."""
    shape = np.shape(layouts.tp)
    compute, spread, comm_spread, flops = (np.zeros(shape) for _ in range(4))
    launches, skipped, once = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    comm = {g: np.zeros(shape) for g in COMM_GROUPS}
    hidden = {g: np.zeros(shape) for g in COMM_GROUPS}
    apart = {g: np.zeros(shape) for g in COMM_GROUPS}
    paired = {g: np.zeros(shape) for g in COMM_GROUPS}
    graphed = tuple(name for part in filter(None, preset.graphed.split("+")) for name in GRAPHED[part])
    for p, share in priced:
        if share == 0.0:
            continue
        mid = p.seconds.mid * share
        count = np.asarray(p.op.count, dtype=np.float64) * share
        if not (p.op.first_only or (graphed and p.op.name.startswith(graphed))):
            launches = launches + p.op.kernels * count
        if p.op.kind != "collective":
            compute = compute + mid
            spread = spread + mid * p.seconds.spread
            if p.op.skips_first:
                skipped = skipped + mid
            if p.op.first_only:
                once = once + mid
            flops = flops + p.op.flops() * count
            continue
        group = GROUP_OF.get(p.op.group, p.op.group)
        partner, other = named.get(p.op.behind), others.get(p.op.behind)
        exposed, behind = overlapped(p.op, mid, named, others, cluster, layouts)
        if partner is not None and partner.op.phase != p.op.phase:
            apart[group] = apart[group] + behind
        if other is not None:
            paired[group] = paired[group] + behind
        comm[group] = comm[group] + exposed
        comm_spread = comm_spread + exposed * p.seconds.spread
        hidden[group] = hidden[group] + behind
    seconds = host_bound(compute, launches, cluster, preset)
    return PassPrice(
        seconds, comm, hidden, spread, comm_spread, flops, skipped, apart, once, paired, compute, launches
    )  # fmt: skip


def partners(priced: list[OpPrice]) -> tuple[dict[str, OpPrice], dict[str, FloatArray]]:
    """What the collectives of a block run beside: its compute ops by name, and seconds of parts of it (`OTHER`)."""
    named = {p.op.name: p for p in priced if p.op.kind != "collective"}
    beside = {p.op.behind for p in priced if p.op.behind.startswith(OTHER)}
    return named, {name: other_seconds(name, priced) for name in beside}


def overlapped(
    op: Op,
    comm_s: ArrayLike,
    named: dict[str, OpPrice],
    others: dict[str, FloatArray],
    cluster: Cluster,
    layouts: LayoutBatch,
) -> tuple[FloatArray, FloatArray]:
    """Exposed and hidden seconds of a collective of `comm_s` seconds beside what `partners` found for it.

    Each run lies beside one run of its partner. One that is cut into n pieces feeds or drains its partner piece by
    piece (Transformer Engine ``CommOverlapP2P``, PyTorch ``_fused_all_gather_matmul``): a gather sends n-1 pieces
    while the GEMM works on the one before, beginning with the rank's own; of a reduce-scatter each piece but the last
    travels while the GEMM makes the next. Of what such pieces could hide, `PIECES_HIDDEN` or, of user buffers,
    `USER_BUFFERS_HIDDEN` is hidden.
    """
    partner, runs = named.get(op.behind), np.maximum(op.count, 1.0)
    beside_s = others.get(op.behind) if partner is None else partner.seconds.mid / np.maximum(partner.op.count, 1.0)
    both, comm = _beside(op, cluster, layouts), np.asarray(comm_s, dtype=np.float64)
    if not np.any(op.pieces):
        exposed, hidden = exposed_and_hidden(comm / runs, beside_s, both)
        return exposed * runs, hidden * runs
    more = np.maximum(np.asarray(op.pieces) - 1.0, 0.0)
    each = comm / np.maximum(more if op.collective == "all_gather" else more + 1.0, 1.0)
    share = USER_BUFFERS_HIDDEN if op.impl == USER_BUFFERS else PIECES_HIDDEN
    covered = share.value * more * exposed_and_hidden(each, beside_s, both)[1]
    return np.asarray(comm - covered), np.asarray(covered)


def _beside(op: Op, cluster: Cluster, layouts: LayoutBatch) -> collectives.Beside:
    """Slow-downs of a collective and the compute beside it, by the links that its group crosses or the SMs it takes."""
    if op.collective.startswith(EXPERT):
        sms = collectives.expert_sms(cluster.device, experts=op.dims["experts"], impl=op.impl)
        return collectives.expert_beside(cluster, sms)
    shape = group_of(op, layouts, cluster)
    # A ring's hops hold half of a node's channels, whichever pair a hop joins.
    ports = np.inf if op.collective == "send_recv" else shape.ranks_per_node
    return collectives.beside(cluster, op.collective, shape.nodes, ports)


def group_of(op: Op, layouts: LayoutBatch, cluster: Cluster) -> GroupShape:
    """Shape of the group of a collective; of one hop of a ring that sends from neighbour to neighbour.

    Every rank of a ring sends at once; a ring that spans nodes waits for its slowest hop, between two of them.
    """
    shape = layouts.group(op.group, cluster)
    if op.collective != "send_recv":
        return shape
    nodes = np.minimum(shape.nodes, 2)
    ranks = np.minimum(shape.size, 2) // nodes
    return GroupShape(ranks, nodes, np.where(nodes > 1, shape.stride, 1), shape.leaf, shape.pod)


def exposed_and_hidden(
    comm_s: ArrayLike, partner_s: ArrayLike | None, both: collectives.Beside
) -> tuple[FloatArray, FloatArray]:
    """Split a collective that runs beside compute of `partner_s` seconds (None: beside nothing).

    Exposed is what the two take together beyond the compute alone: the part of the collective that
    is longer, and what it takes from compute (SMs, memory bandwidth, or cores on a CPU).
    """
    comm = np.asarray(comm_s, dtype=np.float64)
    if partner_s is None:
        return comm, np.zeros_like(comm)
    exposed = both.exposed(comm, partner_s)
    return exposed, np.asarray(comm - exposed)


def host_bound(
    compute_s: FloatArray, launches: FloatArray, cluster: Cluster, preset: FrameworkPreset, corner: float = CORNER
) -> FloatArray:
    """Compute seconds with the host's launch rate.

    A GPU runs behind the host: a pass takes the longer of its kernels and their launches (nothing to launch with CUDA
    graphs). Where the shorter is more than a quarter of the longer, both tell: stretches of short kernels wait for
    the host in a pass whose long ones let it run ahead. `CORNER` of the longer, m, is the width of that corner, d the
    difference of the two::

        m + (CORNER m - d)^2 / (4 CORNER m)        for d < CORNER m

    (of vtrain_a100_single, 240 rows in families, Kendall's τ is 0.88 with a corner like this and 0.85 with a sharp
    one). Exposed collectives come on top: ranks whose hosts differ meet there. Where the host waits for every kernel,
    the two add up. On a CPU the host is the device: its time adds up.
    """
    per_kernel = float(preset.kernel_s.value)
    if cluster.device.kind == "cpu":
        return np.asarray(compute_s + launches * per_kernel)
    if preset.cuda_graphs:
        return compute_s
    host = launches * (cluster.device.launch_s + per_kernel)
    if preset.blocking_launches:
        return np.asarray(compute_s + host)
    longer = np.maximum(compute_s, host)
    near = np.maximum(corner * longer - np.abs(compute_s - host), 0.0)
    return np.asarray(longer + near**2 / (4.0 * max(corner, 1e-30) * np.maximum(longer, 1e-30)))
