"""What one micro-batch runs on one rank, in plain floats: kernels and collectives of every block, priced one by one.

Derived from the sources, not from the product: Megatron-LM (arXiv 1909.08053) for the tensor-parallel split,
Korthikanti et al. (arXiv 2205.05198) for sequence parallelism, saved activations and recomputation, FlashAttention-2
(arXiv 2307.08691) for the fused core, Megatron-Core's documents for experts and context parallelism. Sizes of the
matrices come from the model's own parameter lists; seconds from the laws of `hwmodels`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from hwmodels import collectives, kernels
from hwmodels.cluster import Cluster
from hwmodels.topology import GroupShape
from planner.layout import Layout
from planner.model.spec import ModelSpec, Weight
from planner.plan import Workload
from planner.presets import FrameworkPreset

BYTES = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0}


@dataclass
class Item:
    """One kernel or collective: `way` is F, I or W (forward, input gradient, weight gradient)."""

    name: str
    way: str
    seconds: float
    launches: float
    comm: str = ""
    behind: str = ""
    rerun: str = "full"
    later: bool = False
    """Runs in every micro-batch but the first."""
    slow: tuple[float, float] = (1.0, 1.0)
    """By how much compute and the collective are slower side by side."""


@dataclass
class Parts:
    """Seconds of one direction of one block."""

    compute: float
    exposed: float
    hidden: float

    @property
    def total(self) -> float:
        return self.compute + self.exposed


@dataclass
class Rank:
    """Sizes that one rank sees, and the pricing of a single kernel or collective on it."""

    model: ModelSpec
    workload: Workload
    layout: Layout
    cluster: Cluster
    preset: FrameworkPreset
    items: list[Item] = field(default_factory=list)
    splits: bool = False
    """Whether the schedule runs I and W apart: nothing of one hides behind the other then."""
    copies: int = 1
    """Copies of the pipeline on a rank, each with its part of the micro-batches."""
    gradients: list[float] = field(default_factory=list)
    """Bytes of the output gradients that weight gradients of the block read."""

    def __post_init__(self) -> None:
        lay = self.layout
        self.width = BYTES[self.workload.precision]
        self.seq = self.workload.seq_len / lay.cp
        self.tokens = lay.mbs * self.seq
        self.tokens_sp = self.tokens / lay.tp if lay.sp else self.tokens
        self.tokens_kept = self.tokens if self.preset.sp_saves_gathered else self.tokens_sp
        self.hidden = float(self.model.hidden)
        self.overlap_tp = self.preset.tp_backward_overlap

    # -- sizes --------------------------------------------------------------------------------

    def columns(self, weight: Weight) -> float:
        """Output features on this rank; key-value heads fewer than tp are held whole."""
        if weight.shard != "column":
            return float(weight.n_out)
        degree = self.layout.etp if weight.expert else self.layout.tp
        return max(weight.n_out / degree, float(min(weight.min_out, weight.n_out)))

    def rows_in(self, weight: Weight) -> float:
        """Input features on this rank."""
        degree = self.layout.etp if weight.expert else self.layout.tp
        return weight.n_in / degree if weight.shard == "row" else float(weight.n_in)

    # -- pricing ------------------------------------------------------------------------------

    def kernel(self, name: str, way: str, seconds: float, launches: float = 1.0, rerun: str = "full") -> None:
        self.items.append(Item(name, way, seconds, launches, rerun=rerun))

    def gemm(self, name: str, way: str, m: float, n: float, k: float, *, batch: float = 1.0, impl: str = "",
             rerun: str = "full") -> None:  # fmt: skip
        one = kernels.gemm_seconds(
            self.cluster.device, m, n, k, batch=batch, dtype=self.workload.precision, impl=impl
        )
        self.kernel(name, way, float(one.mid), rerun=rerun)

    def linear(self, name: str, rows: float, n_in: float, n_out: float) -> None:
        """``y = x W``: forward, dX = dY W^T, dW = X^T dY."""
        impl = self.preset.gemm_impl
        self.gemm(name, "F", rows, n_out, n_in, impl=impl)
        self.gemm(f"{name}.dgrad", "I", rows, n_in, n_out, impl=impl)
        self.gemm(f"{name}.wgrad", "W", n_in, n_out, rows, impl=impl)
        self.gradients.append(rows * n_out * self.width)
        self.accumulate(name, n_in * n_out)

    def accumulate(self, name: str, elements: float) -> None:
        """Unless the GEMM adds by itself: read the new gradient, read and write the accumulated one."""
        if not self.preset.fused_grad_accumulation:
            kept = BYTES[self.preset.gradient_dtype(self.workload.precision)]
            self.moved(f"{name}.accumulate", "W", elements * (self.width + kept + kept))
            self.items[-1].later = not self.preset.main_grad_buffer

    def grouped(self, name: str, rows: float, n_in: float, n_out: float, groups: float) -> None:
        """The same for `groups` experts with `rows` rows each."""
        self.gradients.append(groups * rows * n_out * self.width)
        for suffix, way, m, n, k in (
            ("", "F", rows, n_out, n_in),
            (".dgrad", "I", rows, n_in, n_out),
            (".wgrad", "W", n_in, n_out, rows),
        ):
            one = kernels.grouped_gemm_seconds(self.cluster.device, m, n, k, groups, dtype=self.workload.precision)
            self.kernel(name + suffix, way, float(one.mid))

    def moved(self, name: str, way: str, nbytes: float, launches: float = 1.0, rerun: str = "full") -> None:
        """A memory-bound chain: `launches` kernels that share `nbytes` evenly."""
        one = float(kernels.memory_seconds(self.cluster.device, nbytes / launches).mid)
        self.kernel(name, way, one * launches, launches, rerun)

    def seconds_of(self, op: str, nbytes: float, size: int, stride: int) -> float:
        """A collective over `size` ranks that lie `stride` apart, ranks filled node by node."""
        return collective(self.cluster, op, nbytes, size, stride)

    def collective(self, name: str, way: str, op: str, axis: str, nbytes: float, *, runs: float = 1.0,
                   behind: str = "", rerun: str = "full") -> None:  # fmt: skip
        size, stride = axis_of(self.layout, axis)
        if size == 1:
            return
        one = self.seconds_of(op, nbytes, size, stride)
        self.items.append(Item(name, way, one * runs, runs, "ep" if axis == "etp" else axis, behind, rerun,
                               slow=slow_beside(self.cluster, op, size, stride)))  # fmt: skip

    # -- tensor parallelism -------------------------------------------------------------------

    def enter(self, name: str, gemm: str = "", features: float = 0.0) -> None:
        """Before a column split: ``f`` (backward all-reduce), or ``g`` with sequence parallelism."""
        full = self.tokens * (features or self.hidden) * self.width
        gemm = gemm or name
        dgrad, wgrad = (f"{gemm}.dgrad", f"{gemm}.wgrad") if self.overlap_tp else ("", "")
        if self.layout.sp:
            self.collective(name, "F", "all_gather", "tp", full)
            # Only the shard of the input was saved: gathered again beside the input gradient.
            if not self.preset.sp_saves_gathered:
                self.collective(name, "W", "all_gather", "tp", full, behind=dgrad)
            self.collective(name, "I", "reduce_scatter", "tp", full, behind=wgrad)
        else:
            self.collective(name, "I", "all_reduce", "tp", full, behind=wgrad)

    def leave(self, name: str) -> None:
        """After a row split: forward all-reduce, or reduce-scatter and its mirror all-gather."""
        full = self.tokens * self.hidden * self.width
        if self.layout.sp:
            self.collective(name, "F", "reduce_scatter", "tp", full)
            self.collective(name, "I", "all_gather", "tp", full)
        else:
            self.collective(name, "F", "all_reduce", "tp", full)

    # -- sums ---------------------------------------------------------------------------------

    def parts(self, way: str, rerun: tuple[str, ...] = ()) -> Parts:
        """Sum of the items of one direction; with `rerun`, of what recomputation runs again."""
        chosen = [i for i in self.items if i.way == way and (not rerun or i.rerun in rerun)]
        near = (way,) if self.splits else ("I", "W", "F")
        seconds = {i.name: i.seconds for i in self.items if not i.comm and i.way in near}
        compute = sum(i.seconds for i in chosen if not i.comm)
        launches = sum(i.launches for i in chosen)
        exposed = hidden = 0.0
        for item in chosen:
            if not item.comm:
                continue
            covered = 0.0
            if item.behind:
                # Side by side the GEMM runs at 1/a and the collective at 1/b of its rate, until one ends.
                a, b, k, c = *item.slow, seconds.get(item.behind, 0.0), item.seconds
                both = k + b * c * (1.0 - 1.0 / a) if b * c <= a * k else a * k + c - a * k / b
                covered = c - min(both - k, c)
            exposed += item.seconds - covered
            hidden += covered
        microbatches = self.workload.gbs // (self.layout.mbs * self.layout.dp) / self.copies
        idle = sum(i.seconds for i in chosen if i.later) / microbatches  # what the first one leaves out
        return Parts(self.host(compute, launches) - idle, exposed, hidden)

    def host(self, compute: float, launches: float) -> float:
        """The host launches ahead of a GPU, and is the device on a CPU."""
        per = float(self.preset.kernel_s.value)
        if self.cluster.device.kind == "cpu":
            return compute + launches * per
        if self.preset.cuda_graphs:
            return compute
        return max(compute, launches * (self.cluster.device.launch_s + per))


def axis_of(lay: Layout, axis: str) -> tuple[int, int]:
    """Ranks of a group and their distance; ranks are ordered tp, cp, dp, pp from the fastest."""
    fsdp = lay.fsdp or lay.dp
    edp = max(lay.tp * lay.cp * lay.dp // (lay.ep * lay.etp), 1)
    return {
        "tp": (lay.tp, 1),
        "cp": (lay.cp, lay.tp),
        "dp_cp": (lay.dp * lay.cp, lay.tp),
        "fsdp": (fsdp * lay.cp, lay.tp),
        "replica": (lay.dp // fsdp, lay.tp * lay.cp * fsdp),
        "etp": (lay.etp, 1),
        "ep": (lay.ep, lay.etp),
        "edp": (edp, lay.ep * lay.etp),
        "world": (lay.world, 1),
    }[axis]


def slow_beside(cluster: Cluster, op: str, size: int, stride: int) -> tuple[float, float]:
    """Compute's and the collective's slow-down: measured overlap `o` means 2 - o for both, else the SMs taken."""
    if cluster.overlap is not None:
        return 2.0 - cluster.overlap.value, 2.0 - cluster.overlap.value
    crosses = int(shape_of(size, stride, cluster.gpus_per_node).nodes) > 1
    link = cluster.fabric.inter if crosses and cluster.fabric.inter is not None else cluster.fabric.intra
    taken = collectives.overlap(link, cluster.device.n_sm, op)
    return taken.compute_slowdown, taken.collective_slowdown


def shape_of(size: int, stride: int, gpus_per_node: int) -> GroupShape:
    """How a group lies on nodes: those that its block of size·stride ranks covers, at most one a member."""
    nodes = min(-(-size * stride // gpus_per_node), size)
    return GroupShape(np.asarray(-(-size // nodes)), np.asarray(nodes), np.asarray(stride))


def pair(cluster: Cluster, op: str, nbytes: float, apart: bool, stage: int) -> float:
    """Seconds between two ranks of two pipeline stages of `stage` ranks each, all of which are busy."""
    shape = GroupShape(np.asarray(1 if apart else 2), np.asarray(2 if apart else 1), np.asarray(stage))
    return float(collectives.seconds(cluster, op, nbytes, shape).mid) if nbytes else 0.0


def collective(cluster: Cluster, op: str, nbytes: float, size: int, stride: int) -> float:
    """Seconds by the law of `hwmodels`; nothing to do for one rank."""
    if size == 1 or nbytes == 0:
        return 0.0
    return float(collectives.seconds(cluster, op, nbytes, shape_of(size, stride, cluster.gpus_per_node)).mid)
