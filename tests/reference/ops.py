"""What one micro-batch runs on one rank, in plain floats: kernels and collectives of every block, priced one by one.

Derived from the sources, not from the product: Megatron-LM (arXiv 1909.08053) for the tensor-parallel split,
Korthikanti et al. (arXiv 2205.05198) for sequence parallelism, saved activations and recomputation, FlashAttention-2
(arXiv 2307.08691) for the fused core, Megatron-Core's documents for experts and context parallelism. Sizes of the
matrices come from the model's own parameter lists; seconds from the laws of `hwmodels`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from hwmodels import collectives, kernels
from hwmodels.cluster import Cluster
from hwmodels.topology import GroupShape
from planner.frameworks import FrameworkPreset
from planner.layout import Layout
from planner.model.spec import ModelSpec, Weight
from planner.plan import Workload
from planner.price import PIECES_HIDDEN, USER_BUFFERS_HIDDEN
from tests.reference.formats import NF4, WIDTH, Scaled, compute_of, hot_flop_s, scaled_of, summed


@dataclass
class Item:
    """One kernel or collective: `way` is F, I or W (forward, input gradient, weight gradient)."""

    name: str
    way: str
    seconds: float
    launches: float
    comm: str = ""
    kind: str = ""
    """Which collective."""
    behind: str | tuple[str, str] = ""
    """A kernel beside which the collective runs; or a part of the layer and passes of another micro-batch."""
    rerun: str = "full"
    modules: frozenset[str] = frozenset()
    """Recompute modules that hold it."""
    whole: float = 1.0
    """Share that a recomputed layer runs again, and `by_op` under torchtitan's per-op policy."""
    by_op: float = 1.0
    later: bool = False
    """Runs in every micro-batch but the first."""
    first: bool = False
    """Runs in the first micro-batch alone."""
    section: str = ""
    pieces: float = 0.0
    """Of a collective that is cut to run beside pieces of its GEMM."""
    slow: tuple[float, float] = (1.0, 1.0)
    """By how much compute and the collective are slower side by side."""


@dataclass
class Parts:
    """Seconds of one direction of one block."""

    compute: float
    exposed: float
    hidden: float
    paired: float = 0.0
    """Of `hidden`: beside another micro-batch."""

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
    updates: list[float] = field(default_factory=list)
    """Elements of each matrix whose gradient is made."""
    splits: bool = False
    """Whether the schedule runs I and W apart: nothing of one hides behind the other then."""
    copies: int = 1
    """Copies of the pipeline on a rank, each with its part of the micro-batches."""
    gradients: list[float] = field(default_factory=list)
    """Bytes of the output gradients that weight gradients of the block read."""
    plain: bool = False
    """A layer whose linear layers a recipe leaves in the compute dtype."""
    section: str = ""
    """Part of the layer that is being listed."""

    def __post_init__(self) -> None:
        lay = self.layout
        self.dtype = compute_of(self.workload)
        self.width = WIDTH[self.dtype]
        self.narrow: Scaled | None = None if self.plain else scaled_of(self.workload, self.preset)
        self.lora = self.workload.lora
        self.kept_gradient = WIDTH[self.workload.grad_dtype or self.preset.gradient_dtype(self.dtype)]
        packed = self.workload.documents
        self.length = packed.mean_tokens if packed and packed.batching == "thd" else float(self.workload.seq_len)
        self.seq = self.length / lay.cp
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
        self.items.append(Item(name, way, seconds, launches, rerun=rerun, section=self.section))

    def gemm(self, name: str, way: str, m: float, n: float, k: float, *, batch: float = 1.0, impl: str = "",
             rerun: str = "full", law: str = "") -> None:  # fmt: skip
        deep = summed(k, law or self.dtype) if way == "W" else k
        one = kernels.gemm_seconds(
            self.cluster.device, m, n, deep, batch=batch, dtype=law or self.dtype, impl=impl, quantise=False
        )
        self.kernel(name, way, self.sustained(float(one.mid), 2.0 * m * n * k * batch, law or self.dtype), rerun=rerun)

    def sustained(self, seconds: float, flop: float, law: str) -> float:
        """A step runs hot: never more FLOP/s than the board power feeds, the peak over its weight in it."""
        return max(seconds, flop / hot_flop_s(self.cluster.device, law))

    @property
    def cut(self) -> float:
        """Pieces of a GEMM whose tp collective runs beside it: one for each rank's rows; 0 where it does not."""
        if self.narrow is not None and self.narrow.scaling == "nv":
            return 0.0
        return float(self.layout.tp) if self.preset.tp_gemm_overlap and self.layout.sp else 0.0

    def linear(self, name: str, rows: float, n_in: float, n_out: float, *, module: str = "", high: bool = False,
               normed: bool = False, there: bool = False, back: bool = False) -> None:  # fmt: skip
        """``y = x W``: forward, dX = dY W^T, dW = X^T dY unless W is frozen; `high`: in no narrow format."""
        impl, narrow = self.preset.gemm_impl, None if high else self.narrow
        law = narrow.law if narrow else ""
        self.casts(name, rows, n_in, n_out, n_in * n_out, normed=normed, high=high)
        for suffix, way, wide, deep, parts in (("", "F", n_out, n_in, there), (".dgrad", "I", n_in, n_out, back)):
            n = (self.cut or 1.0) if parts else 1.0
            self.gemm(name + suffix, way, rows / n, wide, deep, impl=impl, law=law)
            self.items[-1].seconds *= n
            self.items[-1].launches *= n
        if self.lora is None:
            self.gemm(f"{name}.wgrad", "W", n_in, n_out, rows, impl=impl, law=law)
            self.gradients.append(rows * n_out * self.width)
            self.updates.append(n_in * n_out)
            self.accumulate(name, n_in * n_out)
        elif module in self.lora.modules:
            self.adapter(name, rows, n_in, n_out)

    def adapter(self, name: str, rows: float, n_in: float, n_out: float) -> None:
        """``y += scale (drop(x) A) B``: three products for each of A and B, sums with the frozen path, dropout."""
        assert self.lora is not None
        r, impl, w = float(self.lora.rank), self.preset.gemm_impl, self.width
        for suffix, a, b in (("A", n_in, r), ("B", r, n_out)):
            self.gemm(f"{name}.{suffix}", "F", rows, b, a, impl=impl)
            self.gemm(f"{name}.{suffix}.dx", "I", rows, a, b, impl=impl)
            self.gemm(f"{name}.{suffix}.dw", "W", a, b, rows, impl=impl)
            self.gradients.append(rows * b * self.width)
        self.moved(f"{name}.add", "F", 3 * w * rows * n_out)
        self.moved(f"{name}.add.grad", "I", 3 * w * rows * n_in)
        self.accumulate(f"{name}.lora", r * (n_in + n_out))
        if self.lora.dropout:
            self.moved(f"{name}.drop", "F", (2 * w + 1) * rows * n_in)
            self.moved(f"{name}.drop.grad", "I", (2 * w + 1) * rows * n_in)

    def casts(self, name: str, rows: float, n_in: float, n_out: float, weights: float, *, normed: bool = False,
              high: bool = False, each: float = 1.0) -> None:  # fmt: skip
        """Unpack a 4-bit base, or quantise input, output gradient and weight, in `each` launches for one."""
        if self.lora is not None and self.lora.base == "nf4" and not high:
            self.moved(f"{name}.unpack", "F", weights * (NF4 + self.width), each)
            self.moved(f"{name}.unpack.again", "I", weights * (NF4 + self.width), each)
        s = self.narrow
        if s is None or high:
            return
        # rows for forward and input gradient, columns for the weight gradient, which a frozen weight has not
        written = s.size * (2 if self.lora is None else 1)
        if not (normed and self.preset.fused_norm_quantise and s.scaling in ("delayed", "block", "mx")):
            self.moved(f"{name}.cast", "F", rows * n_in * (s.passes[0] * self.width + written), s.launches[0] * each)
        self.moved(f"{name}.cast.grad", "I", rows * n_out * (s.passes[0] * self.width + written), s.launches[0] * each)
        stays = s.scaling in self.preset.quantised_params
        if self.preset.compute_copy and stays and self.lora is not None:
            if s.scaling in ("delayed", "current"):  # rows are kept, columns are turned out of them before each use
                self.moved(f"{name}.turn", "I", weights * 2 * s.size, each)
        elif self.preset.compute_copy and stays:  # arrives in rows: the columns are made of them
            self.moved(f"{name}.cast.weight", "F", weights * 2 * s.size, each, "never")
            self.items[-1].first = True
        elif self.preset.compute_copy:
            self.moved(f"{name}.cast.weight", "F", weights * (s.passes[1] * self.width + 2 * s.size),
                       s.launches[1] * each, "never")  # fmt: skip
            self.items[-1].first = True
        elif not stays:
            for way in ("F", "I"):
                nbytes = weights * (s.passes[1] * self.width + s.size)
                self.moved(f"{name}.cast.weight{way}", way, nbytes, s.launches[1] * each)

    def input_kept(self, rows: float, features: float, module: str, *, high: bool = False, free: bool = False) -> float:
        """Bytes that a linear layer keeps of its input; `free`: the tensor stays for another reason."""
        n = rows * features
        if self.lora is not None:
            if module not in self.lora.modules:
                return 0.0
            own = n * (self.width + 1) if self.lora.dropout else n * (0.0 if free else self.width)
            return own + rows * self.lora.rank * self.width
        if self.narrow is not None and not high:
            return n * self.narrow.size
        return 0.0 if free else n * self.width

    def accumulate(self, name: str, elements: float) -> None:
        """Read the new gradient, read and write the accumulated one; a GEMM that adds by itself writes none."""
        if self.preset.fused_grad_accumulation:
            nbytes = elements * (self.kept_gradient + self.kept_gradient - self.width)
            one = kernels.epilogue_seconds(self.cluster.device, nbytes)
            self.kernel(f"{name}.accumulate", "W", float(one.mid), 0.0)
        else:
            self.moved(f"{name}.accumulate", "W", elements * (self.width + self.kept_gradient + self.kept_gradient))
            self.items[-1].later = not self.preset.main_grad_buffer

    def grouped(self, name: str, rows: float, n_in: float, n_out: float, groups: float) -> None:
        """The same for `groups` experts with `rows` rows each; adapters sit on none of them."""
        how = self.preset.moe_expert_gemm
        launches = 1.0 if how == "grouped" else groups
        self.casts(name, rows * groups, n_in, n_out, groups * n_in * n_out, each=launches)
        law = self.narrow.law if self.narrow else self.dtype
        if self.lora is None:
            self.gradients.append(groups * rows * n_out * self.width)
            # modules of their own one after another; a grouped linear layer allocates the gradients of all
            self.updates.append(n_in * n_out * (1.0 if how == "loop" else groups))
        for suffix, way, m, n, k in (
            ("", "F", rows, n_out, n_in),
            (".dgrad", "I", rows, n_in, n_out),
            (".wgrad", "W", n_in, n_out, rows),
        ):
            if way == "W" and self.lora is not None:
                continue
            deep = summed(k, law) if way == "W" else k
            if how == "loop":
                one = kernels.gemm_seconds(
                    self.cluster.device, m, n, deep, dtype=law, impl=self.preset.gemm_impl, quantise=False
                )
                each = self.sustained(float(one.mid), 2.0 * m * n * k, law)
                self.kernel(name + suffix, way, each * groups, groups)
                continue
            one = kernels.grouped_gemm_seconds(self.cluster.device, m, n, deep, groups, dtype=law, quantise=False)
            whole = self.sustained(float(one.mid), 2.0 * m * n * k * groups, law)
            self.kernel(name + suffix, way, whole, launches)

    def moved(self, name: str, way: str, nbytes: float, launches: float = 1.0, rerun: str = "full") -> None:
        """A memory-bound chain: `launches` kernels that share `nbytes` evenly."""
        one = float(kernels.memory_seconds(self.cluster.device, nbytes / launches).mid)
        self.kernel(name, way, one * launches, launches, rerun)

    def seconds_of(self, op: str, nbytes: float, size: int, stride: Apart) -> float:
        """A collective over `size` ranks that lie `stride` apart, ranks filled node by node."""
        return collective(self.cluster, op, nbytes, size, stride)

    def collective(self, name: str, way: str, op: str, axis: str, nbytes: float, *, runs: float = 1.0,
                   behind: str | tuple[str, str] = "", rerun: str = "full", uneven: float = 1.0,
                   pieces: float = 0.0) -> None:  # fmt: skip
        kind = self.layout.cp_kind or self.preset.cp_kind
        inner = {"ulysses": self.layout.cp, "hierarchical": max(self.layout.cp_ulysses, 1)}.get(kind, 1)
        size, stride = axis_of(self.layout, axis, inner)
        if size == 1:
            return
        one = self.seconds_of(op, nbytes * uneven, size, stride)  # the busiest pair sets the time of all
        group = {"etp": "ep", "ep_etp": "ep", "cp_inner": "cp", "cp_outer": "cp"}.get(axis, axis)
        self.items.append(Item(name, way, one * runs, runs, group, op, behind, rerun, section=self.section,
                               slow=slow_beside(self.cluster, op, size, stride), pieces=pieces))  # fmt: skip

    def expert_kernel(self, name: str, way: str, phase: str, tokens: float, topk: float, experts: float, dtype: str,
                      uneven: float, behind: str | tuple[str, str], groups: tuple[int, int]) -> None:  # fmt: skip
        """A dispatch or combine by DeepEP's kernels over the whole expert grid."""
        impl = {"deepep": "deepep-normal", "hybridep": "deepep-v2-normal"}[self.preset.moe_dispatcher]
        size, stride = axis_of(self.layout, "ep_etp")
        one = collectives.expert_seconds(
            self.cluster, self.cluster.device, phase=phase, tokens_per_rank=tokens, hidden=self.hidden, topk=topk,
            experts=experts, shape=shape_of(size, stride, self.cluster.gpus_per_node), dtype=dtype, impl=impl,
            skew=uneven, groups=groups[0], group_limit=groups[1],
        )  # fmt: skip
        sms = float(collectives.expert_sms(self.cluster.device, experts=experts, impl=impl))
        near = collectives.expert_beside(self.cluster, sms)
        slow = float(near.compute), float(near.collective)
        self.items.append(Item(name, way, float(one.mid), 1.0, "ep", phase, behind, slow=slow))

    # -- tensor parallelism -------------------------------------------------------------------

    def enter(self, name: str, gemm: str = "", features: float = 0.0, *, module: str = "", high: bool = False,
              cut: bool = False) -> None:  # fmt: skip
        """Before a column split: ``f`` (backward all-reduce), or ``g`` with sequence parallelism."""
        wide = self.tokens * (features or self.hidden)
        full, cast = wide * self.width, wide * self.gathered_width(high)
        gemm = gemm or name
        dgrad, wgrad = (f"{gemm}.dgrad", f"{gemm}.wgrad") if self.overlap_tp else ("", "")
        if self.layout.sp:
            self.collective(name, "F", "all_gather", "tp", cast, behind=gemm if cut and self.cut else "",
                            pieces=self.cut if cut else 0.0)  # fmt: skip
            # Only the shard of the input was saved: gathered again beside the input gradient, for a weight gradient.
            if not self.preset.sp_saves_gathered and (self.lora is None or module in self.lora.modules):
                self.collective(name, "W", "all_gather", "tp", cast, behind=dgrad)
            self.collective(name, "I", "reduce_scatter", "tp", full, behind=wgrad)
        else:
            self.collective(name, "I", "all_reduce", "tp", full, behind=wgrad)

    def gathered_width(self, high: bool) -> float:
        """Bytes of an element of an operand that sequence parallelism gathers."""
        narrow = self.narrow if self.preset.quantised_tp_gather and not high else None
        return narrow.size if narrow else self.width

    def leave(self, name: str, *, high: bool = False, cut: bool = False) -> None:
        """After a row split: forward all-reduce, or reduce-scatter and its mirror all-gather."""
        wide = self.tokens * self.hidden
        if self.layout.sp:
            n = self.cut if cut else 0.0
            self.collective(name, "F", "reduce_scatter", "tp", wide * self.width, behind=name if n else "", pieces=n)
            self.collective(name, "I", "all_gather", "tp", wide * self.gathered_width(high),
                            behind=f"{name}.dgrad" if n else "", pieces=n)  # fmt: skip
        else:
            self.collective(name, "F", "all_reduce", "tp", wide * self.width)

    # -- sums ---------------------------------------------------------------------------------

    def mark(self, start: int, *modules: str) -> None:
        """Everything since `start` items belongs to these recompute modules too."""
        for item in self.items[start:]:
            item.modules |= set(modules)

    def parts(self, way: str, share: Callable[[Item], float] | None = None) -> Parts:
        """Sum of the items of one direction; with `share`, of what recomputation runs again."""
        of = share or (lambda _: 1.0)
        chosen = [
            replace(i, seconds=i.seconds * of(i), launches=i.launches * of(i))
            for i in self.items
            if i.way == way and of(i)
        ]
        near = (way,) if self.splits else ("I", "W", "F")
        seconds = {i.name: i.seconds for i in self.items if not i.comm and i.way in near}
        compute = sum(i.seconds for i in chosen if not i.comm)
        launches = sum(i.launches for i in chosen if not (i.first or self.graphed(i)))
        exposed = hidden = paired = 0.0
        for item in chosen:
            if not item.comm:
                continue
            covered = 0.0
            another = isinstance(item.behind, tuple)
            if item.behind and not (another and share):  # what recomputation runs again has no partner
                beside = self.other(*item.behind) if another else seconds.get(item.behind, 0.0)
                # Side by side the GEMM runs at 1/a and the collective at 1/b of its rate, until one ends.
                n = item.pieces
                # n pieces: a gather's first is the rank's own; the last one reduced has nothing beside it
                times, parts = (n - 1, n - 1 if item.kind == "all_gather" else n) if n else (1, 1)
                a, b, k, c = *item.slow, beside / (n or 1), item.seconds / parts
                both = k + b * c * (1.0 - 1.0 / a) if b * c <= a * k else a * k + c - a * k / b
                found = (USER_BUFFERS_HIDDEN if self.preset.user_buffers else PIECES_HIDDEN).value if n else 1.0
                covered = times * (c - min(both - k, c)) * found
            exposed += item.seconds - covered
            hidden += covered
            paired += covered if another else 0.0
        microbatches = self.workload.gbs // (self.layout.mbs * self.layout.dp) / self.copies
        idle = sum(i.seconds for i in chosen if i.later) / microbatches  # what the first one leaves out
        idle += sum(i.seconds for i in chosen if i.first) * (1 - 1 / microbatches)  # and what it alone does
        return Parts(self.host(compute, launches) - idle, exposed, hidden, paired)

    def graphed(self, item: Item) -> bool:
        """Whether a graph of attention, router or permutation holds it."""
        words = self.preset.graphed.split("+")
        router = item.name.startswith(("route", "shared"))
        part = "moe_router" if router else "moe_preprocess" if item.name.startswith("permute") else ""
        if item.section == "attention" and not router:
            part = "attn"
        return bool(part) and part in words

    def other(self, section: str, ways: str) -> float:
        """Seconds of a part of the layer in some passes, as another micro-batch runs it."""
        return sum(i.seconds for i in self.items if not i.comm and i.section == section and i.way in ways)

    def host(self, compute: float, launches: float) -> float:
        """The host launches ahead of a GPU's kernels, and is the device on a CPU; a maximum of soft corner."""
        per = float(self.preset.kernel_s.value)
        if self.cluster.device.kind == "cpu":
            return compute + launches * per
        if self.preset.cuda_graphs:
            return compute
        launching = launches * (self.cluster.device.launch_s + per)
        if self.preset.blocking_launches:  # one after the other
            return compute + launching
        shorter, longer = sorted((compute, launching))
        if shorter <= 0.25 * longer:
            return longer
        return longer + (shorter - 0.25 * longer) ** 2 / (3.0 * longer)


Apart = int | tuple[int, ...]
"""Distance of the ranks of a group, or the ranks of the first one where they are not equally spaced."""


def places(lay: Layout) -> list[dict[str, int]]:
    """Coordinates of every world rank on the dense and on the expert grid, counted out rank by rank."""
    found, count = [], [0] * lay.pp
    for rank in range(lay.world):
        rest, at = rank, {}
        for axis in lay.order.split("-"):
            rest, at[axis] = divmod(rest, getattr(lay, axis))
        own = count[at["pp"]]  # the how manieth of its stage
        count[at["pp"]] += 1
        rest, at["etp"] = divmod(own, lay.etp)
        at["edp"], at["ep"] = divmod(rest, lay.ep)
        found.append(at)
    return found


def first_group(lay: Layout, axis: str, inner: int) -> list[int]:
    """Ranks of the group of rank 0 on an axis: those that stand at 0 on every other one."""
    fsdp, grid = lay.fsdp or lay.dp, places(lay)
    shard = max(max(lay.tp * lay.cp * lay.dp // (lay.ep * lay.etp), 1) // (lay.dp // fsdp), 1)
    for at in grid:
        at["replica"], at["fsdp"] = divmod(at["dp"], fsdp)
        at["cp_outer"], at["cp_inner"] = divmod(at["cp"], inner)
        at["expert_replica"], at["expert_shard"] = divmod(at["edp"], shard)
    dense, experts = {"tp", "cp_inner", "cp_outer", "replica", "fsdp", "pp"}, {
        "etp", "ep", "expert_shard", "expert_replica", "pp"
    }
    own = {
        "cp": {"cp_inner", "cp_outer"}, "dp_cp": {"replica", "fsdp", "cp_inner", "cp_outer"}, "world": dense,
        "fsdp": {"fsdp", "cp_inner", "cp_outer"}, "ep_etp": {"ep", "etp"}, "edp": {"expert_shard", "expert_replica"},
    }.get(axis, {axis})  # fmt: skip
    others = (dense if own <= dense else experts) - own
    return [rank for rank, at in enumerate(grid) if not any(at[name] for name in others)]


def axis_of(lay: Layout, axis: str, inner: int = 1) -> tuple[int, Apart]:
    """Ranks of a group and their distance; by default ranks are ordered tp, cp, dp, pp from the fastest.

    `inner` of the cp ranks are neighbours that swap sequence for heads.
    """
    if lay.order != "tp-cp-dp-pp":
        ranks = first_group(lay, axis, inner)
        gaps = {b - a for a, b in pairwise(ranks)}
        return len(ranks), tuple(ranks) if len(gaps) > 1 else min(gaps, default=1)
    fsdp = lay.fsdp or lay.dp
    edp = max(lay.tp * lay.cp * lay.dp // (lay.ep * lay.etp), 1)
    return {
        "tp": (lay.tp, 1),
        "cp": (lay.cp, lay.tp),
        "cp_inner": (inner, lay.tp),
        "cp_outer": (lay.cp // inner, lay.tp * inner),
        "dp_cp": (lay.dp * lay.cp, lay.tp),
        "fsdp": (fsdp * lay.cp, lay.tp),
        "replica": (lay.dp // fsdp, lay.tp * lay.cp * fsdp),
        "etp": (lay.etp, 1),
        "ep": (lay.ep, lay.etp),
        "ep_etp": (lay.ep * lay.etp, 1),
        "edp": (edp, lay.ep * lay.etp),
        "pp": (lay.pp, lay.tp * lay.cp * lay.dp),
        "world": (lay.world, 1),
    }[axis]


def slow_beside(cluster: Cluster, op: str, size: int, stride: Apart) -> tuple[float, float]:
    """Compute's and the collective's slow-down: measured overlap `o` means 2 - o for both, else the SMs taken."""
    if cluster.overlap is not None:
        return 2.0 - cluster.overlap.value, 2.0 - cluster.overlap.value
    shape = shape_of(size, stride, cluster.gpus_per_node)
    crosses = int(shape.nodes) > 1
    link = cluster.fabric.inter if crosses and cluster.fabric.inter is not None else cluster.fabric.intra
    taken = collectives.overlap(link, cluster.device.n_sm, op)
    slower = taken.compute_slowdown
    if crosses and cluster.fabric.inter is not None and cluster.device.n_sm and op != "send_recv":
        # two SMs for each port, a port a rank
        held = min(2.0 * int(shape.ranks_per_node), taken.sm_share * cluster.device.n_sm)
        slower *= (1.0 - taken.sm_share) / (1.0 - held / cluster.device.n_sm)
    return slower, taken.collective_slowdown


def shape_of(size: int, stride: Apart, gpus_per_node: int) -> GroupShape:
    """How a group lies on nodes: those that its block of size·stride ranks covers, at most one a member.

    Of a group that is not equally spaced the nodes are counted; what it leaves of them is shared by its siblings.
    """
    if isinstance(stride, tuple):
        nodes = len({rank // gpus_per_node for rank in stride})
        each = -(-size // nodes)
        alone = nodes == 1 or each == 1
        beside = min(b - a for a, b in pairwise(stride)) if alone else gpus_per_node // each
        return GroupShape(np.asarray(each), np.asarray(nodes), np.asarray(beside))
    nodes = min(-(-size * stride // gpus_per_node), size)
    return GroupShape(np.asarray(-(-size // nodes)), np.asarray(nodes), np.asarray(stride))


def pair(cluster: Cluster, op: str, nbytes: float, apart: bool, stage: Apart) -> float:
    """Seconds between two ranks of two pipeline stages of `stage` ranks each, all of which are busy."""
    shape = GroupShape(np.asarray(1 if apart else 2), np.asarray(2 if apart else 1), np.asarray(stage))
    return float(collectives.seconds(cluster, op, nbytes, shape).mid) if nbytes else 0.0


def collective(cluster: Cluster, op: str, nbytes: float, size: int, stride: Apart) -> float:
    """Seconds by the law of `hwmodels`; nothing to do for one rank."""
    if size == 1 or nbytes == 0:
        return 0.0
    return float(collectives.seconds(cluster, op, nbytes, shape_of(size, stride, cluster.gpus_per_node)).mid)
