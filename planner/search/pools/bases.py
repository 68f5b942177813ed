"""Layouts of one replica, and what they take on each pool: what arrangements are put together from.

A base has dp = 1. Its blocks are priced once for each pool, whatever is arranged from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import lcm

import numpy as np
from numpy.typing import NDArray

from hwmodels.cluster import Cluster
from planner.frameworks import of as preset_of
from planner.layout import LayoutBatch, RuleContext, check, divisors, split_layers
from planner.layout.degrees import CODES
from planner.layout.recompute import SEARCHED
from planner.mixed import Pieces
from planner.mixed.step import UNIFORM_RULES
from planner.model.spec import ModelSpec, Moe
from planner.plan import Workload
from planner.price import BlockPrice
from planner.priced import PricedModel
from planner.schedule import get as get_schedule
from planner.search.ranges import MAX_MBS, Space
from planner.step.assemble import group_memory

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
STAGES = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32)
"""Pipeline ranks that an open pp is searched over."""
MOST_CHUNKS = 4
"""Virtual stages a rank up to which an open vpp is searched."""
OF_DP = UNIFORM_RULES | {"zero-needs-dp", "fsdp-divides-dp", "ep-grid"}
"""Rules that a base cannot break yet: they speak of dp, or of shares of the batch."""


def bases_of(
    space: Space, model: ModelSpec, cluster: Cluster, workload: Workload
) -> tuple[LayoutBatch, int, dict[str, int]]:
    """Legal layouts of one replica with the values that `space` leaves open, how many were tried, and what dropped.

    Without given values: tp over divisors of the heads up to the largest node, with sequence parallelism; pp over
    `STAGES`; vpp up to `MOST_CHUNKS` where stages are even; the schedules that the framework has searched and that run
    one copy of the pipeline; ZeRO 0, 1 and, of one stage, 2 (of several as well where a framework has no 1); mbs in
    powers of two.
    """
    axes = _axes(space, model, cluster, workload)
    names = tuple(axes)
    grid = np.meshgrid(*(np.asarray(axes[name], dtype=np.int64) for name in names), indexing="ij")
    columns = {name: values.reshape(-1) for name, values in zip(names, grid, strict=True)}
    columns["dp"] = np.ones_like(columns["tp"])
    layouts = LayoutBatch.filled(columns)
    layouts = layouts.take(_once(layouts, space, model, 1 in preset_of(workload).zero_stages))
    most = sum(pool.n_ranks for pool in cluster.pools)
    layouts = layouts.take(layouts.world <= most)
    tried = len(layouts)
    alive, dropped = np.ones(tried, dtype=np.bool_), dict[str, int]()
    for rule, holds in check(layouts, RuleContext.of(model, workload, 1)).items():
        if rule not in OF_DP and (alive & ~holds).any():
            dropped[rule] = int((alive & ~holds).sum())
            alive &= holds
    return layouts.take(alive), tried, dropped


def _axes(space: Space, model: ModelSpec, cluster: Cluster, workload: Workload) -> dict[str, Sequence[int]]:
    preset = preset_of(workload)
    node = max(pool.gpus_per_node for pool in cluster.pools)
    whole = sum(pool.n_ranks for pool in cluster.pools)
    experts = [layer.ffn.n_experts for layer in model.layers if isinstance(layer.ffn, Moe)]
    schedules = space.schedule or tuple(name for name in sorted(preset.searched_schedules) if name != "gpipe")
    stages = [n for n in preset.zero_stages if n <= 2] or [0]
    usual: dict[str, Sequence[int]] = {
        "tp": divisors(min(model.tensor_counts()), node),
        "sp": (0, 1),
        "cp": (1,),
        "pp": [n for n in STAGES if n <= min(model.n_layers, whole)],
        "vpp": range(1, MOST_CHUNKS + 1),
        "ep": divisors(min(experts), node) if experts else (1,),
        "etp": (1,),
        "zero_stage": stages,
        "mbs": [2**i for i in range(MAX_MBS.bit_length()) if 2**i <= workload.gbs],
    }
    axes = {name: tuple(getattr(space, name)) or values for name, values in usual.items()}
    numbers = ("fsdp", "offload_optimizer", "offload_parameters", "offload_activations", "cp_ulysses")
    axes |= {name: tuple(getattr(space, name)) for name in numbers if getattr(space, name)}
    words = {"recompute": space.recompute or SEARCHED, "schedule": schedules}
    words |= {name: getattr(space, name) for name in ("cp_kind", "reshard") if getattr(space, name)}
    axes |= {name: [CODES[name].encode(word) for word in given] for name, given in words.items()}
    if space.recompute_modules:
        axes["recompute_modules"] = [
            CODES["recompute_modules"].encode(tuple(sorted(text.split("+")))) for text in space.recompute_modules
        ]
    if space.recompute_layers:
        axes["recompute_layers"] = [
            CODES["recompute_layers"].encode((n,) if n else ()) for n in space.recompute_layers
        ]
    return axes


def _once(layouts: LayoutBatch, space: Space, model: ModelSpec, first_stage: bool) -> NDArray[np.bool_]:
    """Without what is the same layout twice, and what a search does not try unless it is asked to.

    `first_stage` says whether the framework has ZeRO-1, which pipelines take for the next: what a rank of one stage
    shards of its gradients in every micro-batch, a pipeline keeps for those in flight.
    """
    keep = (layouts.vpp == 1) | (layouts.pp > 1)
    if not space.zero_stage and first_stage:
        keep &= (layouts.zero_stage < 2) | (layouts.pp == 1)
    if not space.sp:
        keep &= layouts.sp == (layouts.tp > 1)
    else:
        keep &= (layouts.sp == 0) | (layouts.tp > 1)
    takes = np.zeros(len(layouts), dtype=np.bool_)
    for code in np.unique(layouts.schedule):
        plan = get_schedule(CODES["schedule"].decode(int(code)))
        runs = np.asarray([plan.takes_vpp(v) for v in range(int(layouts.vpp.max()) + 1)]) & (plan.directions == 1)
        takes |= (layouts.schedule == code) & runs[layouts.vpp]
    plain = int(layouts.schedule.min()) if space.schedule else CODES["schedule"].encode("1f1b")
    keep &= np.where(layouts.pp == 1, layouts.schedule == plain, takes)
    return np.asarray(keep & ((layouts.vpp == 1) | (model.n_layers % (layouts.pp * layouts.vpp) == 0)))


@dataclass(frozen=True, slots=True, eq=False)
class Speed:
    """What bases take on one pool for one micro-batch, all stages in it.

    Attributes
    ----------
    layer : ndarray (n, layers)
        Seconds of every layer, forward, backward and recomputation.
    first, last : ndarray (n,)
        Of the embedding, and of the head.
    slope : ndarray (n,)
        Of the busiest rank with even stages.
    ramp : ndarray (n,)
        What a step has beside ``slope * micro-batches``: the pipeline fills and drains.
    """

    layer: FloatArray
    first: FloatArray
    last: FloatArray
    slope: FloatArray
    ramp: FloatArray

    @property
    def whole(self) -> FloatArray:
        """Seconds of the whole model: ndarray (n,)."""
        return np.asarray(self.layer.sum(axis=1) + self.first + self.last)


def speed_of(priced: PricedModel) -> Speed:
    """Of all layouts of `priced`."""
    rows, policy = priced.inverse, priced.policy

    def once(block: BlockPrice) -> FloatArray:
        passes = (block.forward, block.backward_input, block.backward_weight)
        return np.asarray(sum(p.total_s for p in passes))[rows]

    def total(block: BlockPrice) -> FloatArray:
        again = np.stack([rerun.total_s for rerun in block.rerun])[policy, rows]
        return np.asarray(once(block) + again)

    kinds = {layer: i for i, layer in enumerate(priced.model.layer_kinds())}
    each = np.stack([total(block) for block in priced.layers], axis=1)
    layer = each[:, [kinds[one] for one in priced.model.layers]]
    first, last = once(priced.embedding), once(priced.head)
    slope, ramp = _even(priced, layer, first, last)
    return Speed(layer, first, last, slope, ramp)


def _even(priced: PricedModel, layer: FloatArray, first: FloatArray, last: FloatArray) -> tuple[FloatArray, FloatArray]:
    layouts, n_layers = priced.layouts, priced.model.n_layers
    until = np.concatenate([np.zeros((len(layer), 1)), np.cumsum(layer, axis=1)], axis=1)
    slope, ramp = np.full(len(layer), np.inf), np.zeros(len(layer))
    where, same = layouts.distinct(("pp", "vpp", "schedule"))
    for i, at in enumerate(where):
        pp, vpp = int(layouts.pp[at]), int(layouts.vpp[at])
        plan = get_schedule(CODES["schedule"].decode(int(layouts.schedule[at])))
        shares = split_layers(n_layers, pp * vpp)
        if shares is None:
            continue
        rows = np.flatnonzero(same == i)
        ends = np.cumsum([0, *shares])
        stages = until[rows][:, ends[1:]] - until[rows][:, ends[:-1]]
        stages[:, 0] += first[rows]
        stages[:, -1] += last[rows]
        busy = np.zeros((len(rows), pp))
        for stage in range(pp * vpp):
            busy[:, plan.rank_of(stage, pp)] += stages[:, stage]
        slope[rows] = busy.max(axis=1)
        # a backward cut in two fills most of the drain with weight gradients (Qi et al., arXiv 2401.10241)
        ramp[rows] = (stages.sum(axis=1) - slope[rows]) / vpp / (3.0 if plan.split_backward else 1.0)
    return slope, ramp


def memory_of(pieces: Pieces, pool: int, degrees: Sequence[int]) -> FloatArray:
    """Bytes of the fullest rank with even stages and that many replicas on a fabric: ndarray (n, degrees).

    A long step is sized for all, so that few tables of moments serve: what has fewer than twice as many micro-batches
    as stages may hold less, and is infinite here, as is what has no work for every replica.
    """
    base = pieces.base(pool)
    # micro-batches of every base are a multiple of twice its stages: a schedule's steady state, which one table holds
    rounds = lcm(*(2 * int(pp) for pp in np.unique(base.layouts.pp)), 8)
    longest = 8 * rounds * lcm(*map(int, np.unique(base.layouts.mbs))) * lcm(*degrees)
    priced = replace(base, workload=replace(base.workload, gbs=longest))
    n = len(priced.layouts)
    found = np.full((n, len(degrees)), np.inf)
    for column, dp in enumerate(degrees):
        rows = np.flatnonzero(priced.layouts.mbs * dp * 2 * priced.layouts.pp <= base.workload.gbs)
        if not len(rows):
            continue
        layouts = replace(priced.layouts.take(rows), dp=np.full(len(rows), dp))
        some = replace(priced, layouts=layouts, inverse=priced.inverse[rows], policy=priced.policy[rows])
        where, same = layouts.distinct(("pp", "vpp", "schedule"))
        for i, at in enumerate(where):
            index = np.flatnonzero(same == i)
            pp, vpp = int(layouts.pp[at]), int(layouts.vpp[at])
            schedule = str(CODES["schedule"].decode(int(layouts.schedule[at])))
            if split_layers(priced.model.n_layers, pp * vpp) is not None:
                found[rows[index], column] = group_memory(some, index, pp, vpp, schedule).peak_bytes.max(axis=1)
    return found
