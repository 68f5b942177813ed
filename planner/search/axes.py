"""The axes of a search, in the order in which they are laid out, each without what is the same run written twice.

An axis may leave values out where they would name the same run again: sequence parallelism or virtual stages without
a group of ranks for them, kinds of context parallelism without any, a shard degree that is all of dp. What it reads to
decide so is declared, so that candidates behind a prefix can be counted without laying them out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from hwmodels.cluster import Cluster
from hwmodels.records import dataclass
from planner.frameworks import of as preset_of
from planner.layout import (
    OPEN_CP_KINDS,
    ORDERS,
    RECOMPUTE,
    RESHARDS,
    SCHEDULES,
    LayoutBatch,
    divisors,
    is_even,
    split_id,
)
from planner.layout.order_rules import first_alike
from planner.layout.recompute import SEARCHED, WHOLE_LAYERS, modules_code, parse_modules
from planner.model.spec import ModelSpec, Moe
from planner.plan import Workload
from planner.schedule import get as get_schedule
from planner.search.ranges import ANY_ORDER, OFFLOADS, Space, default_ranges

IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]
Columns = Mapping[str, IntArray]
Lay = Callable[[Columns, IntArray], tuple[BoolArray | None, IntArray]]

WORK: tuple[str, ...] = (
    "tp", "cp", "pp", "dp", "order", "mbs", "vpp", "schedule", "ep", "etp", "sp", "cp_kind", "cp_ulysses", "recompute",
    "recompute_modules", "recompute_layers", "offload_activations",
)  # fmt: skip
"""Fields of what a micro-batch and its pipeline do, in the order of the axes."""
STATE: tuple[str, ...] = ("zero_stage", "fsdp", "reshard", "offload_optimizer", "offload_parameters")
"""Fields of where the model's state lies, which come last."""
CELL: tuple[str, ...] = ("tp", "cp", "pp", "dp", "order", "ep", "etp")
"""What the axes of `STATE` are laid out over: the grid of ranks."""


def _all(_: Columns, own: IntArray) -> tuple[BoolArray | None, IntArray]:
    return None, own


@dataclass(frozen=True, slots=True, eq=False)
class Axis:
    """One field and its values.

    Attributes
    ----------
    name : str
    values : ndarray (k,)
        As they stand in a `LayoutBatch`.
    reads : tuple of str
        Fields before it that `lay` reads.
    lay : callable
        ``(columns, own) -> (kept, own)``: which rows name a run of their own (None: all), and the field's values in
        them, where every row before was repeated for each value.
    """

    name: str
    values: IntArray
    reads: tuple[str, ...] = ()
    lay: Lay = _all


def axes_of(space: Space, model: ModelSpec, cluster: Cluster, workload: Workload) -> tuple[list[Axis], list[Axis]]:
    """The axes of `WORK` and of `STATE`, in their order.

    dp follows from the ranks, and the schedule from vpp unless it is given; open schedules are those that the
    framework preset has searched. A pp with an open vpp takes those that give every stage an equal share
    (`planner.layout.is_even`), and powers of two where none does.
    """
    ranges = {name: _numbers(values) for name, values in default_ranges(space, model, cluster, workload).items()}
    world = cluster.n_ranks
    schedules = tuple(space.schedule) or tuple(sorted(preset_of(workload).searched_schedules))
    named = space.recompute_modules or _module_sets(model, workload)
    sets = [parse_modules(text, "search.recompute_modules") for text in named]
    counts = [(n,) if n else () for n in space.recompute_layers] or [()]
    found = {name: Axis(name, values) for name, values in ranges.items()}
    found |= {
        "dp": Axis("dp", _numbers([0]), ("tp", "cp", "pp"), _ranks_left(world, space.dp)),
        "order": _orders(space, workload),
        "sp": Axis("sp", ranges["sp"], ("tp",), lambda c, own: ((own == 0) | (c["tp"] > 1), own)),
        "vpp": Axis("vpp", ranges["vpp"], ("pp",), _chunks(space, model.n_layers, ranges["pp"], ranges["vpp"])),
        "schedule": _schedules(schedules, int(ranges["vpp"].max())),
        "recompute": Axis("recompute", _numbers([RECOMPUTE.index(r) for r in (space.recompute or SEARCHED)])),
        "recompute_modules": _of_policy(
            "recompute_modules", [modules_code(modules) for modules in sets], [RECOMPUTE.index("selective")]
        ),
        "recompute_layers": _of_policy("recompute_layers", [split_id(n) for n in counts], WHOLE_LAYERS),
        "reshard": _reshards([RESHARDS.index(word) for word in (space.reshard or RESHARDS[:1])]),
        "fsdp": Axis("fsdp", ranges["fsdp"], ("dp", "order", "zero_stage"), _shards(space, ranges["fsdp"])),
        **_kinds(space, ranges["cp"]),
        **{name: Axis(name, ranges[name]) for name in OFFLOADS},
    }
    return [found[name] for name in WORK], [found[name] for name in STATE]


def _module_sets(model: ModelSpec, workload: Workload) -> tuple[str, ...]:
    """Sets of modules of selective policies: attention's core, and the feed-forward, or of experts the activation.

    The second where the framework names modules (Megatron-Core, whose own kind ``block`` tells it).
    """
    if "block" not in preset_of(workload).recomputes:
        return ("",)
    experts = any(isinstance(layer.ffn, Moe) for layer in model.layers)
    return "", "moe_act" if experts else "mlp"


def _numbers(values: Sequence[int]) -> IntArray:
    return np.asarray(values, dtype=np.int64)


def _ranks_left(world: int, given: Sequence[int]) -> Lay:
    """dp: what tp, cp and pp leave of the ranks (at least 1: the rule world-product drops the rest)."""

    def lay(c: Columns, own: IntArray) -> tuple[BoolArray | None, IntArray]:
        dp = np.maximum(world // (c["tp"] * c["cp"] * c["pp"]), 1)
        return (np.isin(dp, given) if given else None), dp

    return lay


def _orders(space: Space, workload: Workload) -> Axis:
    """Orders of the axes, the default one unless told; of those that lay ranks out alike the first."""
    words = preset_of(workload).orders if ANY_ORDER in space.order else space.order
    codes = _numbers(sorted({ORDERS.index(word) for word in words or ORDERS[:1]}))

    def lay(c: Columns, own: IntArray) -> tuple[BoolArray | None, IntArray]:
        if len(codes) == 1:
            return None, own
        return first_alike(LayoutBatch.filled({**c, "order": own}), codes), own

    return Axis("order", codes, ("tp", "cp", "pp", "dp"), lay)


def _chunks(space: Space, n_layers: int, pps: IntArray, vpps: IntArray) -> Lay:
    """Virtual stages with a pipeline alone; left open, those that make stages even, powers of two where none does."""
    even = np.ones((int(pps.max()) + 1, int(vpps.max()) + 1), dtype=np.bool_)
    if not space.vpp:
        even[:] = False
        for pp in map(int, pps):
            fits = [v for v in map(int, vpps) if is_even(n_layers, pp * v)]
            even[pp, fits or [v for v in map(int, vpps) if v & (v - 1) == 0]] = True

    def lay(c: Columns, own: IntArray) -> tuple[BoolArray | None, IntArray]:
        return ((own == 1) | (c["pp"] > 1)) & even[c["pp"], own], own

    return lay


def _schedules(names: Sequence[str], most_vpp: int) -> Axis:
    """Schedules that take the vpp; one of them, 1f1b where it is there, without a pipeline."""
    takes = np.asarray([[get_schedule(s).takes_vpp(v) for v in range(most_vpp + 1)] for s in SCHEDULES])
    values = _numbers([SCHEDULES.index(name) for name in names])
    plain = SCHEDULES.index("1f1b")
    single = plain if plain in values else int(values[0])

    def lay(c: Columns, own: IntArray) -> tuple[BoolArray | None, IntArray]:
        return np.where(c["pp"] == 1, own == single, takes[own, c["vpp"]]), own

    return Axis("schedule", values, ("pp", "vpp"), lay)


def _of_policy(name: str, codes: Sequence[int], kinds: Sequence[int]) -> Axis:
    """Values of policies of some kinds; others have none, once."""
    values = _numbers(codes)

    def lay(c: Columns, own: IntArray) -> tuple[BoolArray | None, IntArray]:
        has = np.isin(c["recompute"], kinds)
        return has | (own == values[0]), np.where(has, own, 0)

    return Axis(name, values, ("recompute",), lay)


def _reshards(codes: Sequence[int]) -> Axis:
    """When stage 3 frees parameters; the neutral word without it."""
    values = _numbers(codes)

    def lay(c: Columns, own: IntArray) -> tuple[BoolArray | None, IntArray]:
        third = c["zero_stage"] == 3
        return third | (own == values.min()), np.where(third, own, 0)

    return Axis("reshard", values, ("zero_stage",), lay)


def _shards(space: Space, values: IntArray) -> Lay:
    """Shard degrees; those of the default range where something is sharded, and below all of dp, in the default order.

    All of dp is 0, and dp itself where that is given beside it.
    """
    given, whole = bool(space.fsdp), 0 in values

    def lay(c: Columns, own: IntArray) -> tuple[BoolArray | None, IntArray]:
        kept = (own != c["dp"]) | (not whole)
        if not given:
            some = (c["zero_stage"] > 0) & (c["order"] == 0) & (own < c["dp"]) & (c["dp"] % np.maximum(own, 1) == 0)
            kept &= (own == 0) | some
        return kept, own

    return lay


def _kinds(space: Space, cps: IntArray) -> dict[str, Axis]:
    """Kinds of context parallelism with some of it, the framework's where none is given, and inner degrees.

    Without given degrees the hierarchical kind tries every way to cut a cp in two.
    """
    kinds = _numbers([OPEN_CP_KINDS.index(kind) for kind in (space.cp_kind or ("",))])
    hierarchical = OPEN_CP_KINDS.index("hierarchical")
    inner = set(space.cp_ulysses)
    if not inner and hierarchical in kinds:
        inner = {d for cp in map(int, cps) for d in divisors(cp) if 1 < d < cp}

    def one_without(c: Columns, own: IntArray) -> tuple[BoolArray | None, IntArray]:
        return (c["cp"] > 1) | (own == kinds[0]), own

    def two_levels(c: Columns, own: IntArray) -> tuple[BoolArray | None, IntArray]:
        return (own > 0) == ((c["cp_kind"] == hierarchical) & (c["cp"] > 1)), own

    return {
        "cp_kind": Axis("cp_kind", kinds, ("cp",), one_without),
        "cp_ulysses": Axis("cp_ulysses", _numbers(sorted({0, *inner})), ("cp", "cp_kind"), two_levels),
    }
